"""The hook of the documentation that takes pictures of the console, without taking any."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

ROOT = Path(__file__).parents[2]
PAGE = "Before ![The overview](../images/console/overview.png){ width=800 } after ![x](other.png)"


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.delenv("CI", raising=False)
    found = importlib.util.spec_from_file_location("docs_screenshots", ROOT / "tools" / "docs_screenshots.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


class Files:
    def __init__(self, *paths: str) -> None:
        self._paths = paths

    def get_file_from_path(self, path: str) -> Any:
        return path if path in self._paths else None


def test_a_picture_that_is_there_is_shown(hook: ModuleType) -> None:
    assert hook.on_page_markdown(PAGE, None, None, Files("images/console/overview.png")) == PAGE


def test_words_stand_for_one_that_could_not_be_taken(hook: ModuleType) -> None:
    shown = hook.on_page_markdown(PAGE, None, None, Files())
    assert "overview.png" not in shown
    assert "where Chromium is installed" in shown
    assert "![x](other.png)" in shown


def test_without_a_browser_the_docs_are_built_without_pictures_but_not_for_others(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hook._tool(), "chromium", lambda: None)
    assert hook._pictures() == []
    assert "Chromium is not installed" in capsys.readouterr().err
    monkeypatch.setenv("CI", "true")
    with pytest.raises(PluginError, match="Chromium is not installed"):
        hook._pictures()


def test_every_picture_of_the_docs_is_one_that_is_taken(hook: ModuleType) -> None:
    names = hook._tool().NAMES
    dark = [f"{name}-dark" for name in names if not name.endswith("-phone")]
    used = [name for page in (ROOT / "docs").rglob("*.md") for name in hook.IMAGE.findall(page.read_text())]
    assert set(used) == {*names, *dark}
