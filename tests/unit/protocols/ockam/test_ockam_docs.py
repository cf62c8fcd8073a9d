"""The protocol page says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.config import Ockam
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import RECORD_BYTES_MAX, ROUTE_BYTES_MAX

ROOT = Path(__file__).parents[4]
PAGE = (ROOT / "docs" / "protocols" / "ockam.md").read_text(encoding="utf-8")


def test_every_test_of_the_conformance_table_exists() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"`(test_\w+|Test\w+)`", PAGE))
    assert len(named) > 20
    missing = {name for name in named if not re.search(rf"(def|class) {name}\b", sources)}
    assert missing == set()


def test_every_setting_is_documented_and_exists() -> None:
    named = set(re.findall(r"`ockam\.(\w+)", PAGE)) - {"addresses", "indexes"}
    assert named == set(Ockam.__struct_fields__)


def test_the_limits_stand_as_they_are() -> None:
    for value in (RECORD_BYTES_MAX, CborFraming.record_bytes_max, ROUTE_BYTES_MAX):
        assert f"{value:,}" in PAGE
