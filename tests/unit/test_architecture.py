"""What ARCHITECTURE.md says of the code is so: the rooms, the walk of a record, the files that a change touches."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headrace"
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")

FILES_MAX = {
    "a metric": 2,
    "a setting": 2,
    "a CLI verb": 2,
    "a console page": 3,
    "segment compression": 2,
    "a record column": 5,
    "a way to sign in": 3,
    "a protocol": 1,
    "a log backend": 1,
    "a noun": 5,
}
"""A change that needs more files than this is a sign that a rule lives in several places again."""


def section(title: str) -> str:
    return PAGE.split(f"## {title}\n")[1].split("\n## ")[0]


def block(title: str) -> list[str]:
    return section(title).split("```")[1].splitlines()[1:]


def test_every_room_is_on_the_map_and_every_room_on_the_map_is_there() -> None:
    rooms = {
        name for line in block("The rooms")[1:] for name in re.findall(r"\b(\w+(?:/|\.py))(?=\s)", line[:22] + " ")
    }
    there = {f"{path.name}/" for path in SOURCE.iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in SOURCE.glob("*.py") if not path.name.startswith("__")}
    assert rooms == there


def test_the_rooms_stand_in_the_order_that_imports_keep() -> None:
    tidy = (ROOT / "tests" / "unit" / "test_tidy.py").read_text(encoding="utf-8")
    layers = re.findall(r'"([a-z ]+)",', tidy.split("LAYERS = (")[1].split(")")[0])
    drawn = [re.findall(r"\w+(?=/|\.py)", line[:22]) for line in block("The rooms")[1:]]
    assert [" ".join(names) for names in drawn] == layers


def test_the_walk_of_a_record_goes_through_functions_that_exist() -> None:
    steps = [re.search(r"(\S+\.py) +(\w+)((?:\.\w+)(?: → \w+)*)", line) for line in block("The walk of a record")]
    found = [step for step in steps if step is not None]
    assert len(found) > 10
    for path, owner, functions in (step.groups() for step in found):
        code = (SOURCE / path).read_text(encoding="utf-8")
        assert f"class {owner}" in code, (path, owner)
        for function in re.findall(r"\w+", functions):
            assert re.search(rf"def {function}\(", code), (path, function)
    assert sum(line.startswith("──") for line in block("The walk of a record")) == 2


def test_no_change_touches_more_files_than_it_may() -> None:
    rows = re.findall(
        r"^\| ([a-zA-Z ]+) \| (\d+) \| (.+) \|$", section("Ten changes, and where they are made"), re.MULTILINE
    )
    assert {name: int(count) for name, count, _ in rows}.keys() == FILES_MAX.keys()
    for name, count, which in rows:
        assert int(count) <= FILES_MAX[name], name
        for path in re.findall(r"`([\w/]+\.(?:py|js))`", which):
            assert list(SOURCE.rglob(path)), (name, path)
