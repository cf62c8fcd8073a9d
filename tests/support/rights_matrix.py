"""The matrix of rights: every listener, everyone who may come to it, and everything they may try, measured on a running
hub and printed in docs/security.md.

    python -m support.rights_matrix            measures, and prints the tables
    python -m support.rights_matrix --write    puts them into the page

Everything that a changed user tries is tried on a connection that was open, and used, before the change.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from support.rights_drivers import DRIVERS as OF_LISTENERS
from support.rights_drivers import Line, NotThere, Refused
from support.rights_lines import LinesLine
from support.rights_world import CHANGED, HIDDEN, PERSONAS, BehindAFollower, World, alone
from support.until import DEADLINE_S

from headrace.protocols.descriptor import protocols

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- rights matrix: make matrix -->", "<!-- end of the rights matrix -->"
BESIDES = ("lines", "http", "console")
"""What has rights and is no protocol, or another way into one."""

DRIVERS: dict[str, type[Line]] = {**OF_LISTENERS, "lines": LinesLine}

Matrix = dict[str, dict[str, dict[str, str]]]
"""Listener → person → column → what happened."""


async def _feed(line: Line) -> None:
    if line.who.name in CHANGED:
        await line.feed_ends()
    else:
        await line.feed()


async def _look_around(line: Line) -> None:
    tries: list[Callable[[], Awaitable[None]]] = [line.list, line.admin, line.look_around]
    tries += [lambda name=name: line.read(name) for name in (line.own, line.other, line.reserved)]
    tries += [lambda name=name: line.write(name) for name in (line.own, line.other, line.reserved)]
    for one in tries:
        try:
            await one()
        except (NotThere, Refused):
            continue


COLUMNS: dict[str, Callable[[Line], Awaitable[None]]] = {
    "sign in": lambda line: line.open(),
    "list": lambda line: line.list(),
    "read `orders`": lambda line: line.read(line.own),
    "read `payroll`": lambda line: line.read(line.other),
    "write `orders`": lambda line: line.write(line.own),
    "write `payroll`": lambda line: line.write(line.other),
    "read the hub's own": lambda line: line.read(line.reserved),
    "write the hub's own": lambda line: line.write(line.reserved),
    "admin verb": lambda line: line.admin(),
    "open feed": _feed,
    "learns": _look_around,
}


SHORT = ("sign in", "read `orders`", "write `payroll`", "open feed")
"""The columns that show that the owner knows who has come through another hub, by whatever they show: a password, a
token or a certificate."""


def listeners() -> list[str]:
    """Everything that has a place in the matrix."""
    return [*(label for protocol in protocols() for label in protocol.labels), *BESIDES]


async def _attempt(work: Awaitable[None]) -> str:
    try:
        async with asyncio.timeout(DEADLINE_S):
            await work
        return "yes"
    except NotThere:
        return "–"
    except Refused as refused:
        return f"no: {refused}"
    except TimeoutError:
        return "goes on"


async def _opened(world: World, listener: str, who: str, column: str) -> tuple[Line, str]:
    """A line for one cell, and how signing in went. One whose user is about to change is used before."""
    line = DRIVERS[listener](world, world.people[who], column)
    signed_in = await _attempt(line.open())
    if who in CHANGED:
        assert signed_in == "yes", (listener, who, signed_in)
        before = line.feed if column == "open feed" else line.first_use
        used = await _attempt(before())
        assert used in ("yes", "–"), (listener, who, column, used)
    return line, signed_in


async def _cell(line: Line, signed_in: str, column: str) -> str:
    if column == "sign in" and line.who.name in CHANGED:
        again = type(line)(line.world, line.who, column)  # who has gone may come again
        found = await _attempt(again.open())
        await _closed(again, found)
        return found
    if column == "sign in" or (signed_in != "yes" and column != "learns"):
        return signed_in
    heard_before = len(line.heard)
    if signed_in != "yes":
        found = "yes"
    else:
        found = await _attempt(COLUMNS[column](line))
    if column == "list" and found == "yes":
        return "all names" if HIDDEN in "".join(line.heard[heard_before:]) else "own names"
    if column != "learns":
        return found
    told = "".join(line.heard if line.who.name not in CHANGED else line.heard[heard_before:])
    learned = [name for name, secret in line.world.secrets().items() if secret in told]
    return ", ".join(learned) or "nothing"


async def _closed(line: Line, signed_in: str) -> None:
    if signed_in == "yes":
        async with asyncio.timeout(DEADLINE_S):
            await line.close()


async def measure(folder: Path, wanted: list[str] | None = None, *, through_a_follower: bool = False) -> Matrix:
    """All cells; through a follower those that show it. Missing drivers are an error."""
    names = wanted or listeners()
    columns = SHORT if through_a_follower else tuple(COLUMNS)
    world = World(folder, BehindAFollower if through_a_follower else alone)
    matrix: Matrix = {name: {who: {} for who in PERSONAS} for name in names}
    with world.hub:
        await world.fill()
        for name in names:
            await DRIVERS[name].prepare(world)
        places = [(name, who, column) for name in names for who in PERSONAS for column in columns]
        waiting = {place: await _opened(world, *place) for place in places if place[1] in CHANGED}
        began = time.monotonic()
        await world.change()
        print(f"the hub knew of the change after {time.monotonic() - began:.2f} s", file=sys.stderr)
        for place in places:
            line, signed_in = waiting.pop(place, None) or await _opened(world, *place)
            matrix[place[0]][place[1]][place[2]] = await _cell(line, signed_in, place[2])
            await _closed(line, signed_in)
    for rows in matrix.values():  # what a protocol does not have, those outside are not refused either
        for cells in rows.values():
            cells |= {column: "–" for column, found in rows["admin"].items() if found == "–"}
    return matrix


def table(matrix: Matrix) -> str:
    """As it stands in the page."""
    parts = []
    for name, rows in matrix.items():
        lines = [f"**{name}**", "", f"| who | {' | '.join(COLUMNS)} |", "|---|" + "---|" * len(COLUMNS)]
        lines += [f"| {who} | {' | '.join(cells.values())} |" for who, cells in rows.items()]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def printed() -> str:
    """What the page says now."""
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0].strip()


def write(text: str) -> None:
    """Put the tables into the page."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--write", action="store_true", help="put the tables into docs/security.md")
    parser.add_argument("--follower", action="store_true", help="through a hub that does not own the log")
    parser.add_argument("--json", type=Path, help="put what was measured into a file")
    parser.add_argument("listener", nargs="*", help="only these; nothing is written then")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        matrix = asyncio.run(measure(Path(folder), arguments.listener, through_a_follower=arguments.follower))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(matrix))
    elif arguments.write and not arguments.listener:
        write(table(matrix))
    else:
        print(table(matrix))


if __name__ == "__main__":
    main()
