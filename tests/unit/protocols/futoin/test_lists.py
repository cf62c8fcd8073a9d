"""The cache of event lists: bounded, and the ones used last stay."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from headrace.protocols.futoin.codec import Coding, Event
from headrace.protocols.futoin.lists import EventList, ListCache, Selection, encoded
from headrace.protocols.futoin.session import Endpoint


def key(start: int) -> Selection:
    return Selection(Endpoint("s"), start, None, Coding.JSON, 1000)


def some(size: int) -> EventList:
    return EventList(Raw(b"x" * size), 1, 0, 1)


def test_bounded_and_least_recently_used_goes() -> None:
    cache = ListCache(100)
    for start in (1, 2, 3):
        cache.put(key(start), some(30))
    assert cache.get(key(1)) is not None
    cache.put(key(4), some(30))
    assert cache.get(key(2)) is None
    assert cache.get(key(1)) is not None
    assert (len(cache), cache.bytes) == (3, 90)
    cache.put(key(4), some(30))
    assert cache.bytes == 90
    cache.put(key(5), some(1000))
    assert (len(cache), cache.bytes) == (0, 0)


def test_plain_lists_are_not_kept() -> None:
    cache = ListCache()
    cache.put(key(1), EventList([], 0, 0, 0))
    assert len(cache) == 0


@pytest.mark.parametrize("coding", list(Coding))
def test_encoded(coding: Coding) -> None:
    events = [Event("1", "A", Raw(b"5") if coding is Coding.JSON else 5, "2026-01-01T00:00:00Z")]
    found = encoded(events, coding)
    if coding is Coding.CBOR:
        assert found is events
    else:
        assert isinstance(found, Raw)
    if coding is Coding.JSON:
        assert json.loads(bytes(found))[0]["data"] == 5
