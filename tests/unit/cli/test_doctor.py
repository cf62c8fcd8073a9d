import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

Command = Callable[..., SimpleNamespace]


def test_a_fresh_directory_is_fine(headrace: Command, tmp_path: Path) -> None:
    result = headrace("doctor", "--data", tmp_path / "data", "--no-ports")
    assert result.code == 0
    assert result.out.startswith("✓ place: ")


def test_something_bad_ends_with_code_1(headrace: Command, tmp_path: Path) -> None:
    options = ["--data", tmp_path, "--no-ports", "--set", "tls.certificate=/absent.pem", "--json"]
    result = headrace("doctor", *options)
    assert result.code == 1
    assert [finding["check"] for finding in json.loads(result.out) if finding["level"] == "fail"] == ["security"]
