"""Which streams of other protocols the number of a cache means. A thin client sends no names, only their hashes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from headrace.log.ops import CreateStream, GrowStream, StreamInfo
from headrace.protocols.perper.ignite.binary import code_point_hash, java_hash

if TYPE_CHECKING:
    from headrace.hub import Hub


class ViewIds:
    """The names by their hashes. A stream is looked at when it is new, and again when some have got more partitions: a
    number that means nothing must not cost a walk over all streams."""

    def __init__(self, hub: Hub, view_names: Callable[[StreamInfo], list[str]]) -> None:
        """`view_names` are those under which a stream can be read."""
        self._hub = hub
        self._view_names = view_names
        self._names: dict[int, set[str]] = {}
        self._last_id = -1
        self._names_max = 0
        self._seen = (-1, -1)
        """How many streams had been created, and had grown, when all were noted."""

    def names(self, cache_id: int) -> set[str]:
        """All that have this number, also of streams that are gone by now."""
        created, grown = (self._hub.changes[kind] for kind in (CreateStream, GrowStream))
        if (created, grown) != self._seen:
            if grown != self._seen[1] or len(self._names) > self._names_max:
                self._names.clear()
                self._note(self._hub.streams())
                self._names_max = 2 * len(self._names) + 1_000  # room for new ones, and for those that went meanwhile
            else:
                self._note(self._hub.streams_after(self._last_id))
            self._seen = (created, grown)
        return self._names.get(cache_id, set())

    def _note(self, streams: Iterable[StreamInfo]) -> None:
        for info in streams:
            self._last_id = max(self._last_id, info.id)
            for name in self._view_names(info):
                self._names.setdefault(java_hash(name), set()).add(name)
                if not name.isascii():
                    self._names.setdefault(code_point_hash(name), set()).add(name)
