"""The hook of the documentation that draws state diagrams: what it understands, and that it needs nobody's server."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FOUND = [(page, source) for page in PAGES for source in BLOCK.findall(page.read_text(encoding="utf-8"))]
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_diagrams", ROOT / "tools" / "docs_diagrams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["docs_diagrams"] = module
    spec.loader.exec_module(module)
    return module


def test_every_diagram_of_the_docs_is_drawn_with_every_state_and_arrow(hook: ModuleType) -> None:
    assert len(FOUND) > 5
    for page, source in FOUND:
        drawn = hook.parse(source)
        picture = ElementTree.fromstring(hook.fence(source)).find(f"{SVG}svg")
        assert picture is not None, page
        words = [text.text for text in picture.iter(f"{SVG}text")]
        assert set(drawn.states.values()) <= set(words), page
        assert {label for _, _, label in drawn.arrows} <= set(words), page
        boxes = {float(box.get("x", 0)) for box in picture.iter(f"{SVG}rect")}
        assert len(boxes) == len(drawn.states), page


def test_labels_fit_into_the_picture(hook: ModuleType) -> None:
    picture = hook.fence("stateDiagram-v2\n [*] --> a\n a --> b: " + "long " * 80)
    width = int(re.search(r'width="(\d+)" height', picture)[1])  # type: ignore[index]
    assert width > 80 * 5 * hook.LETTER


def test_text_is_never_markup(hook: ModuleType) -> None:
    assert "<b>" not in hook.fence("stateDiagram-v2\n [*] --> a\n a --> a: <b> & more")


@pytest.mark.parametrize("source", ["flowchart LR\n a --> b", "stateDiagram-v2\n a ==> b"])
def test_what_cannot_be_drawn_fails_the_build(hook: ModuleType, source: str) -> None:
    with pytest.raises(ValueError, match=r"only state diagrams|cannot be drawn"):
        hook.fence(source)
