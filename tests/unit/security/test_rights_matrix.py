"""Who may do what at which listener: measured, complete, as it must be, and as docs/security.md prints it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support import rights_matrix
from support.rights_drivers import Line
from support.rights_matrix import COLUMNS, DRIVERS, SHORT, Matrix
from support.rights_world import CHANGED, PERSONAS

NOTHING = "–"
ACTIONS = [column for column in COLUMNS if column not in ("sign in", "learns")]
OWN = ["read `orders`", "write `orders`"]
OTHERS = ["read `payroll`", "write `payroll`", "read the hub's own", "write the hub's own", "admin verb"]


def test_every_listener_of_every_protocol_has_a_driver() -> None:
    """A new protocol gets one in tests/support/rights_drivers.py, and its place in the page by `make matrix`."""
    assert sorted(rights_matrix.listeners()) == sorted(DRIVERS)


def test_a_driver_does_something() -> None:
    for name, driver in DRIVERS.items():
        assert driver.open is not Line.open, name
        assert driver.read is not Line.read or driver.write is not Line.write, name


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return measured(tmp_path_factory.mktemp("rights"))


def measured(folder: Path, *options: str) -> Matrix:
    file = folder / "matrix.json"
    command = [sys.executable, "-m", "support.rights_matrix", "--json", str(file), *options]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    found: Matrix = json.loads(file.read_text())
    return found


def wrong(matrix: Matrix, who: tuple[str, ...], columns: list[str], *allowed: str) -> list[tuple[str, ...]]:
    """Cells that begin with none of the words that are allowed there."""
    return [
        (listener, person, column, rows[person][column])
        for listener, rows in matrix.items()
        for person in who
        for column in columns
        if not rows[person][column].startswith((NOTHING, *allowed))
    ]


@pytest.mark.slow
def test_no_cell_is_missing_and_nothing_took_for_ever(matrix: Matrix) -> None:
    assert {listener: (list(rows), {tuple(cells) for cells in rows.values()}) for listener, rows in matrix.items()} == {
        listener: (list(PERSONAS), {tuple(COLUMNS)}) for listener in rights_matrix.listeners()
    }
    assert not wrong(matrix, tuple(PERSONAS), ACTIONS, "yes", "no: ", "own names", "all names")
    assert not wrong(matrix, ("admin",), ["sign in", *OWN, "open feed", "admin verb"], "yes")


@pytest.mark.slow
def test_who_is_not_known_gets_nothing_and_learns_nothing(matrix: Matrix) -> None:
    unknown = ("stranger", "removed")
    assert not wrong(matrix, unknown, ["sign in", *ACTIONS], "no: ")
    assert not wrong(matrix, unknown, ["learns"], "nothing")


@pytest.mark.slow
def test_a_role_is_what_it_says_and_no_more(matrix: Matrix) -> None:
    assert not wrong(matrix, ("viewer", "writer", "narrowed"), OTHERS, "no: ")
    assert not wrong(matrix, ("viewer", "writer", "narrowed"), ["list"], "own names")
    assert not wrong(matrix, ("viewer",), ["read `orders`"], "yes")
    assert not wrong(matrix, ("viewer",), ["write `orders`"], "no: ")
    assert not wrong(matrix, ("writer",), [*OWN, "open feed"], "yes")
    assert not wrong(matrix, ("narrowed",), [*OWN, "open feed"], "no: ")
    assert not wrong(matrix, ("viewer", "writer", "narrowed"), ["learns"], "nothing", "version")


@pytest.mark.slow
def test_nobody_writes_what_is_the_hubs_own(matrix: Matrix) -> None:
    assert not wrong(matrix, tuple(PERSONAS), ["write the hub's own"], "no: ")


@pytest.mark.slow
def test_through_another_hub_everybody_may_do_the_same(matrix: Matrix, tmp_path: Path) -> None:
    """Passwords, tokens and certificates are checked by the owner of the log, whichever hub a peer came to."""
    found = measured(tmp_path, "--follower")
    assert found == {
        listener: {who: {column: cells[column] for column in SHORT} for who, cells in rows.items()}
        for listener, rows in matrix.items()
    }


@pytest.mark.slow
def test_the_page_says_what_was_measured(matrix: Matrix) -> None:
    assert set(CHANGED) < set(PERSONAS)
    assert rights_matrix.printed() == rights_matrix.table(matrix), "docs/security.md is out of date: `make matrix`"
    assert (Path(__file__).parents[3] / "Makefile").read_text().count("support.rights_matrix --write") == 1
