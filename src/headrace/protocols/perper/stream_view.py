"""A stream that another protocol writes, seen as a packed stream of byte arrays: its keys are the indexes."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.protocols.perper.cache import FollowedCache
from headrace.protocols.perper.ignite.binary import LONG, encode_byte_array, encode_long
from headrace.protocols.perper.ignite.reader import I64

if TYPE_CHECKING:
    from headrace.hub import Hub


class IndexKeys:
    """The keys of a stream that another protocol writes: its indexes. The same questions as `KeyIndex`."""

    def __init__(self, hub: Hub, name: str, partition: int = 0) -> None:
        self._hub = hub
        self._name = name
        self._partition = partition

    def first(self) -> int | None:
        """The smallest key."""
        bounds = self._hub.bounds(self._name, self._partition)
        return bounds.first if bounds.first < bounds.next else None

    def last(self) -> int | None:
        """The largest key."""
        bounds = self._hub.bounds(self._name, self._partition)
        return bounds.next - 1 if bounds.first < bounds.next else None

    def above(self, key: int | None, limit: int, index_min: int = 0) -> list[int]:
        """Up to `limit` keys above `key`."""
        bounds = self._hub.bounds(self._name, self._partition)
        start = max(bounds.first, index_min, 0 if key is None else key + 1)
        return list(range(start, min(start + limit, bounds.next)))

    def run(self, key: int, stride: int, limit: int) -> list[int]:
        """The keys `key`, `key + stride`, … that are there. What was trimmed is passed over: it will never come."""
        bounds = self._hub.bounds(self._name, self._partition)
        if stride > 0 and key < bounds.first:
            key += -((key - bounds.first) // stride) * stride
        stop = bounds.next if stride > 0 else bounds.first - 1
        return list(range(key, stop, stride)[:limit]) if bounds.first <= key < bounds.next else []


class ViewCache(FollowedCache):
    """A partition of a stream that another protocol writes, seen as a packed stream of byte arrays: only to be read."""

    kind: Final = "view"
    ready: Final = True

    def __init__(self, hub: Hub, name: str, stream: str, partition: int) -> None:
        super().__init__(hub, name, stream, partition)
        self.keys = IndexKeys(hub, stream, partition)

    @property
    def arrivals(self) -> int:
        """Where the next new item will stand in the order of arrival."""
        return self._hub.bounds(self.stream, self.partition).next

    def size(self) -> int:
        """How many items there are."""
        bounds = self._hub.bounds(self.stream, self.partition)
        return bounds.next - bounds.first

    def get(self, key: bytes) -> Future[Any] | None:
        """The payload at an index, as a byte array."""
        return asyncio.ensure_future(self._read(I64.unpack_from(key, 1)[0])) if self.has(key) else None

    async def _read(self, index: int) -> bytes | None:
        record = await self._record(index)
        return None if record is None else encode_byte_array(record[0])

    def index_from(self, key: int) -> int:
        """Where the first record lies that somebody at `key` still needs."""
        bounds = self._hub.bounds(self.stream, self.partition)
        return min(max(key, bounds.first), bounds.next)

    def all_keys(self) -> Iterator[bytes]:
        """The keys of all items."""
        bounds = self._hub.bounds(self.stream, self.partition)
        return map(encode_long, range(bounds.first, bounds.next))

    def has(self, key: bytes) -> bool:
        """Whether there is an item of that key."""
        bounds = self._hub.bounds(self.stream, self.partition)
        return key[0] == LONG and bounds.first <= I64.unpack_from(key, 1)[0] < bounds.next

    async def _next_records(self) -> None:
        following = self.arrivals
        self._wake()  # for what is there; whatever comes after this look ends the wait
        await self._hub.wait(self.stream, following, self.partition)
