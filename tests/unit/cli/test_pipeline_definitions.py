"""Definitions at a hub become pipelines to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.cli.pipeline_run import created

FILE = """
from headrace.spark import pipeline

@pipeline("a", "b")
def first(frame):
    return frame

@pipeline("a", "c")
def second(frame):
    return frame
"""


class Port:
    """A hub with these definitions."""

    def __init__(self, *definitions: dict[str, Any]) -> None:
        self._found = {one["name"]: {"definition": one} for one in definitions}

    def call(self, verb: str, request: dict[str, Any]) -> Any:
        return list(self._found.values()) if verb == "pipeline.list" else self._found[request["name"]]


def test_a_definition_means_the_pipeline_of_its_name(tmp_path: Path) -> None:
    """Two of one file must not run each other's."""
    file = tmp_path / "some.py"
    file.write_text(FILE)
    port = Port(*({"name": name, "file": str(file)} for name in ("first", "second", "all")))
    assert [one.name for one in created(port, "first")] == ["first"]
    assert [one.name for one in created(port, "second")] == ["second"]
    assert [one.name for one in created(port, "all")] == ["first", "second"]


def test_all_of_them_run_once(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(FILE)
    port = Port(*({"name": name, "file": str(file)} for name in ("first", "second")))
    assert [one.name for one in created(port, None)] == ["first", "second"]
