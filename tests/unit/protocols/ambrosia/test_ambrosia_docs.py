"""The protocol's page says what the code does: tests, limits."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import Ambrosia

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "protocols" / "ambrosia.md").read_text()


def test_every_test_of_the_conformance_table_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_ambrosia*.py"))
    assert len(named) > 25
    assert not {name for name in named if f"def {name}(" not in sources}


def test_every_limit_is_named() -> None:
    limits = {name for name in Ambrosia.__struct_fields__ if name.endswith("_max")}
    assert limits == set(re.findall(r"^\| `(\w+_max)` \|", PAGE, re.MULTILINE))
