"""`headrace bench`: measure this machine, beside its disk's own limit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Output, sharing
from headrace.cli.output import fail, spinner

if TYPE_CHECKING:
    from headrace.doctor.benchmark import Figure

app = typer.Typer()


@app.command()
@sharing(output=Output)
def bench(
    output: Output,
    directory: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="A directory on the disk to measure; it is left empty.")
    ] = Path("."),
    seconds: Annotated[float, typer.Option("--seconds", min=0.05, max=600, help="Time for each measurement.")] = 2.0,
) -> None:
    """Durable appends, round trips and reads on this machine, next to what the bare disk does in the same run."""
    if not directory.is_dir():
        fail(f"{directory} is not a directory; name one on the disk to measure with --dir")
    figures = asyncio.run(_measured(directory, seconds))
    rows = [
        [row.name, f"{row.value:,.0f}", row.unit, None if row.of_ceiling is None else f"{row.of_ceiling:.0%}"]
        for row in figures
    ]
    output.table(figures, ["measured", "#value", "unit", "#of the disk"], rows)


async def _measured(directory: Path, seconds: float) -> list[Figure]:
    from headrace.doctor.benchmark import measure

    figures: list[Figure] = []
    with spinner("measuring") as update:
        async for figure in measure(directory, seconds):
            figures.append(figure)
            update(f"{figure.name}: {figure.value:,.0f} {figure.unit}")
    return figures
