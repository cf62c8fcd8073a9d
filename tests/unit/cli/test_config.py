import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

Command = Callable[..., SimpleNamespace]


def test_show_says_where_each_value_came_from(
    headrace: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "headrace.toml"
    file.write_text('[log]\nsegment_bytes = "1MiB"\n')
    monkeypatch.setenv("HEADRACE_LIMITS__STOP_S", "1m")
    options = ["--config", file, "--data", tmp_path, "--set", "listen.http=off", "--changed", "--json"]
    found = {entry["key"]: entry for entry in json.loads(headrace("config", "show", *options).out)}
    assert {key: (entry["value"], entry["origin"]) for key, entry in found.items()} == {
        "log.data": (str(tmp_path), "flag --set log.data"),
        "log.segment_bytes": (1 << 20, str(file)),
        "limits.stop_s": (60, "environment HEADRACE_LIMITS__STOP_S"),
        "listen.http": ("off", "flag --set listen.http"),
    }


def test_the_table_for_people_has_units_and_an_origin_column(headrace: Command) -> None:
    out = headrace("config", "show", "--origin", "--set", "log.segment_bytes=3KiB").out
    (line,) = [line for line in out.splitlines() if line.startswith("log.segment_bytes")]
    assert line.split()[1:5] == ["3KiB", "flag", "--set", "log.segment_bytes"]
    assert "600s" in out
    assert "origin" not in headrace("config", "show").out.splitlines()[0]


def test_nothing_changed(headrace: Command) -> None:
    assert "every setting has its default" in headrace("config", "show", "--changed").err


@pytest.mark.parametrize("as_json", [False, True])
def test_a_mistake_is_one_line_with_exit_code_2(headrace: Command, as_json: bool) -> None:
    result = headrace("config", "show", "--set", "log.dta=x", *(["--json"] if as_json else []))
    assert result.code == 2
    assert result.out == ""
    assert "did you mean 'log.data'?" in result.err
    assert len(result.err.splitlines()) == 1
