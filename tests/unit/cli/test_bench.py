import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

Command = Callable[..., SimpleNamespace]


@pytest.mark.slow
def test_every_figure_is_above_zero_and_nothing_stays(headrace: Command, tmp_path: Path) -> None:
    figures = json.loads(headrace("bench", "--dir", tmp_path, "--seconds", "0.05", "--json").out)
    assert len(figures) == 7
    assert all(figure["value"] > 0 for figure in figures)
    assert [figure["name"] for figure in figures if figure["of_ceiling"] is not None] == [
        "append 100 B, batches of 1000",
        "append 1024 B, batches of 1000",
    ]
    assert list(tmp_path.iterdir()) == []


def test_the_directory_must_exist(headrace: Command, tmp_path: Path) -> None:
    result = headrace("bench", "--dir", tmp_path / "absent")
    assert (result.code, "--dir" in result.err) == (1, True)
