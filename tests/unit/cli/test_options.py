from types import SimpleNamespace
from typing import Annotated

import typer
from typer.testing import CliRunner

from headrace.cli.options import sharing


def make_place(
    host: Annotated[str, typer.Option("--host", help="Which machine.")] = "here",
    port: Annotated[int, typer.Option("--port", min=1)] = 1,
) -> SimpleNamespace:
    if host == "nowhere":
        raise typer.BadParameter("is no place", param_hint="--host")
    return SimpleNamespace(host=host, port=port)


app = typer.Typer()


@app.command()
@sharing(place=make_place)
def go(who: Annotated[str, typer.Argument()], place: SimpleNamespace, slow: bool = False) -> None:
    """Go there."""
    typer.echo(f"{who} {place.host} {place.port} {slow}")


def test_a_command_gets_what_its_options_stand_for() -> None:
    assert CliRunner().invoke(app, ["ann"]).output == "ann here 1 False\n"
    assert CliRunner().invoke(app, ["ann", "--host", "there", "--port", "5", "--slow"]).output == "ann there 5 True\n"


def test_shared_options_are_checked_and_explained() -> None:
    assert CliRunner().invoke(app, ["ann", "--port", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["ann", "--host", "nowhere"]).exit_code == 2
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Go there." in shown
    assert "Which machine." in shown
    assert "place" not in shown
