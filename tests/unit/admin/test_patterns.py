"""Shell patterns in lists: one that is long would hold up everybody while it is read."""

from __future__ import annotations

import pytest

from headrace.console.views import fits
from headrace.errors import BadRequest
from headrace.log.limits import PATTERN_CHARS_MAX
from headrace.testing import memory_hub

PATTERNS = ["[" * PATTERN_CHARS_MAX, "*a" * (PATTERN_CHARS_MAX // 2), "?" * PATTERN_CHARS_MAX]


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_a_pattern_is_no_longer_than_names(pattern: str) -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        for lists in (hub.streams, lambda each: list(hub.streams_after(0, each)), hub.cursors):
            assert lists(pattern) == []  # type: ignore[operator]
            with pytest.raises(BadRequest, match="at most 512 characters"):
                lists(pattern + "*")  # type: ignore[operator]
        assert not fits("s", pattern)
        with pytest.raises(BadRequest):
            fits("s", pattern + "*")
        assert hub.streams("n" * 1000) == []  # a name, which is looked up
