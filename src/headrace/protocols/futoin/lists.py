"""Event lists as they stand in messages, and a cache of them: many consumers read the same events.

A full list never changes: records are immutable and indexes are never used twice. So a list that ended because a limit
was met, and not because the stream did, may be given to everyone who asks from the same place in the same way.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from headrace.protocols.futoin import codec
from headrace.protocols.futoin.codec import Coding, Event
from headrace.protocols.futoin.session import Endpoint

CACHE_BYTES_MAX = 32 * 1024 * 1024
"""Memory for all cached lists of one hub."""


class EventList(msgspec.Struct, frozen=True):
    """Some events, ready to be put into a message."""

    events: Any
    """`Raw` in JSON and MessagePack; plain events in CBOR, which has no such thing here."""
    count: int
    first: int
    """Index of the first event; `next` when there is none."""
    next: int
    """The first index not looked at."""


def encoded(events: list[Event], coding: Coding) -> Any:
    """The list as part of a message."""
    if coding is Coding.CBOR:
        return events
    return Raw(codec.encode_object(events, coding).removeprefix(codec.PREFIXES[coding]))


class Selection(NamedTuple):
    """Which events are asked for, and how they are to be written."""

    endpoint: Endpoint
    start: int
    want: frozenset[str] | None
    coding: Coding
    bytes_max: int


class ListCache:
    """The lists used last, within a limit of bytes."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._lists: OrderedDict[Selection, EventList] = OrderedDict()
        self.bytes = 0

    def get(self, selection: Selection) -> EventList | None:
        events = self._lists.get(selection)
        if events is not None:
            self._lists.move_to_end(selection)
        return events

    def put(self, selection: Selection, events: EventList) -> None:
        """Keep a list that will never change."""
        if not isinstance(events.events, Raw) or selection in self._lists:
            return
        self._lists[selection] = events
        self.bytes += _size(events)
        while self.bytes > self._bytes_max:
            _, oldest = self._lists.popitem(last=False)
            self.bytes -= _size(oldest)

    def __len__(self) -> int:
        return len(self._lists)


def _size(events: EventList) -> int:
    return len(memoryview(events.events))
