"""`headrace config`: the settings and where each came from."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from headrace.cli.options import Answer, sharing
from headrace.cli.up import ConfigOption, DataOption, SetOption, flags_of
from headrace.config.load import Setting, load

app = typer.Typer(no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show the settings and where each came from."""


@app.command()
@sharing(answer=Answer)
def show(
    answer: Answer,
    data: DataOption = None,
    file: ConfigOption = None,
    settings: SetOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Show where each value came from.")] = False,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the defaults.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Ask a running hub instead of reading files.")] = False,
) -> None:
    """Every setting as `headrace up` with the same options would see it."""
    if running:
        shown = answer.request("config.show", {}, list[Setting])
    else:
        shown = list(load(file, flags=flags_of(data, settings)).settings())
    if changed:
        shown = [setting for setting in shown if setting.origin != "default"]
    columns = ["setting", "value", *(["origin"] if origin else []), "meaning"]
    rows = [
        [setting.key, _shown(setting), *([setting.origin] if origin else []), setting.description] for setting in shown
    ]
    answer.table(shown, columns, rows, empty="every setting has its default")


def _shown(setting: Setting) -> Any:
    value = setting.value
    if setting.unit == "bytes":
        for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % size == 0:
                return f"{value // size}{unit}"
    if setting.unit == "seconds":
        return f"{value:g}s"
    return msgspec.json.encode(value).decode() if not isinstance(value, str) else value
