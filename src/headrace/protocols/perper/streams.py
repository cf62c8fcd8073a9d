"""A cache that is a stream of the hub: its items are records that Spark and the other protocols read.

A record's `id` is the item's key (a long), its payload is the value exactly as it was sent (an Ignite data object),
its type is `ignite`. A key that is not a long stands whole in the record's `key`. An item put again is a new record
with the same id; an item removed is a record of type `ignite-removed` with an empty payload. Reading the stream in
order therefore gives the cache back: that is how the map from keys to indexes is rebuilt after a start.

All puts of one turn of the event loop go to the log as one batch. Only what is on disk can be read or is announced.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from asyncio import Future
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import Damaged, HeadraceError, LimitExceeded, Trimmed
from headrace.log.batch import Batch
from headrace.log.ops import ABSENT, ANY, Op, Trim
from headrace.protocols.perper.cache import FollowedCache
from headrace.protocols.perper.ignite.binary import LONG, encode_byte_array, encode_long
from headrace.protocols.perper.ignite.reader import I64
from headrace.protocols.perper.keys import KeyIndex
from headrace.protocols.perper.records import LISTENER_HOLDS_ALL
from headrace.protocols.perper.tables import Expiry, Outcome, meets

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.perper")

ITEM: Final = "ignite"
REMOVED: Final = "ignite-removed"
# What a value costs in memory beside its own bytes: its place in the dict, the key's tuple and number.
RECENT_ENTRY_BYTES: Final = 200


class RecentValues:
    """The last values put, of all streams together: live listeners fetch an item right after it was announced."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._values: dict[tuple[str, int], bytes] = {}

    def put(self, stream: str, index: int, value: bytes) -> None:
        """Remember a value, and forget the oldest ones when they are too many."""
        if len(value) > self._bytes_max // 16:
            return
        self._values[stream, index] = value
        self._bytes += len(value) + RECENT_ENTRY_BYTES
        while self._bytes > self._bytes_max:
            oldest = next(iter(self._values))
            self._bytes -= len(self._values.pop(oldest)) + RECENT_ENTRY_BYTES

    def get(self, stream: str, index: int) -> bytes | None:
        """The value, if it is still here."""
        return self._values.get((stream, index))


class _Waiting(NamedTuple):
    """A put or removal on its way to the disk."""

    key: bytes
    payload: bytes
    removed: bool
    future: Future[Any]
    outcome: Outcome


class StreamCache(FollowedCache):
    """One stream cache."""

    kind: Final = "stream"

    def __init__(self, hub: Hub, name: str, recent: RecentValues) -> None:
        super().__init__(hub, name, name)
        self.ready = False
        self._keys = KeyIndex()
        self._recent = recent
        self._others: dict[bytes, int] = {}
        self._first = 0  # records before this have been trimmed, and their keys forgotten
        self._next = 0
        self._damage: Damaged | None = None  # the last of it; an item that nobody knows may have been there
        self._waiting: list[_Waiting] = []
        self._pending: dict[bytes, _Waiting] = {}
        self._turn = asyncio.Lock()
        self._changes = 0
        self._catching_up: asyncio.Task[None] | None = None
        self._flush_due = False

    # what is there

    @property
    def keys(self) -> KeyIndex:
        """The long keys of the items that are there, in order."""
        self._forget_trimmed()
        return self._keys

    def _forget_trimmed(self) -> None:
        """Retention and other protocols trim the stream too: items without a record are gone."""
        first = self._hub.bounds(self.name).first
        if first > self._first:
            self._first = first
            self._keys.drop_indexes_below(first)
            self._others = {key: index for key, index in self._others.items() if index >= first}

    async def load(self) -> None:
        """Rebuild the keys from the stream."""
        if not self.ready:
            async with self._turn:
                await self._catch_up()
                self.ready = True

    async def _catch_up(self) -> None:
        """Apply the records that did not pass through this cache: all of them after a start, others' appends later."""
        while True:
            bounds = self._hub.bounds(self.name)
            start = max(self._next, bounds.first)
            if start >= bounds.next:
                break
            batches, reached = await asyncio.to_thread(self._scan, start, bounds.next)
            for batch in batches:
                self._apply_batch(batch)
            self._next = max(self._next, reached)
        self._wake()

    def _scan(self, start: int, end: int) -> tuple[list[pa.RecordBatch], int]:
        """The columns that tell the keys, and where to go on. Items whose records are damaged or trimmed are gone; of
        damaged ones, asking for them says so."""
        batches: list[pa.RecordBatch] = []
        try:
            batches.extend(self._hub.scan(self.name, start, end, columns=["index", "id", "key", "type"]))
        except Damaged as damage:
            logger.error("stream %r: items at indexes %d to %d are damaged", self.name, damage.first, damage.last)
            self._damage = damage
            return batches, damage.last + 1
        except Trimmed as trimmed:
            return batches, trimmed.first
        return batches, end

    def _apply_batch(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0:
            return
        indexes, ids = batch.column("index"), batch.column("id")
        last = self._keys.last()
        plain = ids.null_count == 0 and all(kind != REMOVED for kind in batch.column("type").unique().to_pylist())
        if plain and indexes[0].as_py() >= self._next:
            numbers = ids.to_numpy(zero_copy_only=False)
            if (last is None or numbers[0] > last) and bool(np.all(np.diff(numbers) > 0)):
                self._keys.extend(array("q", numbers.tobytes()), array("q", indexes.to_numpy().tobytes()))
                self._next = indexes[-1].as_py() + 1
                return
        rows = zip(
            indexes.to_pylist(),
            ids.to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("type").to_pylist(),
            strict=True,
        )
        for index, number, key, kind in rows:
            if index >= self._next:
                self._apply(index, whole_key(index, number, key, kind), kind == REMOVED)

    def _apply(self, index: int, key: bytes, removed: bool) -> None:
        if key[0] == LONG:
            number = I64.unpack_from(key, 1)[0]
            if removed:
                self._keys.remove(number)
            else:
                self._keys.put(number, index)
        elif removed:
            self._others.pop(key, None)
        else:
            self._others[key] = index
        self._next = index + 1

    def index_of(self, key: bytes) -> int | None:
        """Where the item of `key` lies in the stream."""
        return self._keys.get(I64.unpack_from(key, 1)[0]) if key[0] == LONG else self._others.get(key)

    @property
    def arrivals(self) -> int:
        """Where the next new item will stand in the order of arrival."""
        return self._next

    def size(self) -> int:
        """How many items there are."""
        return len(self.keys) + len(self._others)

    def has(self, key: bytes) -> bool:
        """Whether there is an item of that key."""
        self._forget_trimmed()
        is_there = self.index_of(key) is not None
        if not is_there:
            self._check_damage()
        return is_there

    def _check_damage(self) -> None:
        """Raise when an item that is not there may be one that is damaged: it is not known to be absent."""
        damage = self._damage
        if damage is not None and damage.last >= self._hub.bounds(self.name).first:
            raise damage

    # reading

    def get(self, key: bytes) -> bytes | Future[Any] | None:
        """The value of `key`, or a future of it when it must be read from the log. Raises `Damaged` when damage may
        hide it."""
        index = self.index_of(key)
        if index is None:
            if self._hub.bounds(self.name).next > self._next:
                return asyncio.ensure_future(self._get_after_catching_up(key))
            self._check_damage()
            return None
        return self._recent.get(self.name, index) or asyncio.ensure_future(self._read(index))

    async def _get_after_catching_up(self, key: bytes) -> bytes | None:
        await self._caught_up()
        index = self.index_of(key)
        if index is None:
            self._check_damage()
            return None
        return await self._read(index)

    async def _read(self, index: int) -> bytes | None:
        record = await self._record(index)
        if record is None:
            return None
        payload, kind = record
        return payload if kind == ITEM else encode_byte_array(payload)  # what another protocol wrote is a byte array

    def index_from(self, key: int) -> int:
        """Where the first record lies that somebody at `key` still needs."""
        bounds = self._hub.bounds(self.name)
        oldest = bounds.first if key == LISTENER_HOLDS_ALL else self.keys.oldest_index_from(key)
        return bounds.next if oldest is None else oldest

    def all_keys(self) -> list[bytes]:
        """The keys of all items, longs in order first."""
        return [encode_long(key) for key, _ in self.keys] + list(self._others)

    def all_indexes(self) -> Iterator[int]:
        """Where all items lie in the stream."""
        return chain((index for _, index in self.keys), self._others.values())

    @property
    def has_long_keys(self) -> bool:
        """Whether all keys are longs."""
        return not self._others

    # writing

    def put(self, key: bytes, value: bytes, expect: Any = ANY, expiry: Expiry | None = None) -> Future[Any]:
        """Add an item. Time to live is not for items of streams: retention and listeners decide about those."""
        is_new = not self._changes and key not in self._pending and self.index_of(key) is None
        if is_new and (expect is ANY or expect is ABSENT):
            return self._enqueue(key, value, removed=False, outcome=Outcome(True))
        return self._begin_change(key, value, expect)

    def put_many(self, pairs: Sequence[tuple[bytes, bytes]], expiry: Expiry | None = None) -> Future[Any]:
        """Add many items; as with `put`, none of them has a time to live."""
        return self.add_new(pairs) or asyncio.gather(*[self.put(key, value) for key, value in pairs])

    def add_new(self, pairs: Sequence[tuple[bytes, bytes]]) -> Future[Any] | None:
        """Add many items at the cost of one, if all their keys are new; None, and nothing added, if they are not."""
        if self._changes:
            return None
        pending, index_of = self._pending, self.index_of
        if any(key in pending or index_of(key) is not None for key, _ in pairs):
            return None
        if len({key for key, _ in pairs}) != len(pairs):
            return None
        future: Future[Any] = asyncio.get_running_loop().create_future()
        outcome = Outcome(True)
        for key, value in pairs:
            waiting = pending[key] = _Waiting(key, value, False, future, outcome)
            self._waiting.append(waiting)
        self._flush_soon()
        return future

    def delete(self, key: bytes, expect: Any = ANY) -> Future[Any]:
        """Remove an item."""
        return self._begin_change(key, None, expect)

    def _begin_change(self, key: bytes, value: bytes | None, expect: Any) -> Future[Any]:
        self._changes += 1
        return asyncio.ensure_future(self._change(key, value, expect))

    async def _change(self, key: bytes, value: bytes | None, expect: Any) -> Outcome:
        """A put or removal that depends on what is there: one at a time, and after what is on its way."""
        try:
            async with self._turn:
                waiting = self._pending.get(key)
                if waiting is not None:
                    await asyncio.wait([waiting.future])
                is_lost = value is not None and expect in (ANY, ABSENT) and self.index_of(key) is None
                present = None if is_lost else self.get(key)  # who puts it again repairs what damage has taken
                previous = await present if isinstance(present, Future) else present
                if not meets(expect, previous) or (value is None and previous is None):
                    return Outcome(False, previous)
                future = self._enqueue(key, value or b"", removed=value is None, outcome=Outcome(True, previous))
        finally:
            self._changes -= 1
        outcome: Outcome = await future
        return outcome

    def _enqueue(self, key: bytes, payload: bytes, *, removed: bool, outcome: Outcome) -> Future[Any]:
        waiting = _Waiting(key, payload, removed, asyncio.get_running_loop().create_future(), outcome)
        self._waiting.append(waiting)
        self._pending[key] = waiting
        self._flush_soon()
        return waiting.future

    def _flush_soon(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        group, self._waiting = self._waiting, []
        self._append(group)

    def _append(self, group: list[_Waiting]) -> None:
        ids = [I64.unpack_from(entry.key, 1)[0] if entry.key[0] == LONG else None for entry in group]
        batch = Batch.of(
            [entry.payload for entry in group],
            ids=ids,
            types=[REMOVED if entry.removed else ITEM for entry in group] if any(e.removed for e in group) else ITEM,
            keys=[None if entry.key[0] == LONG else entry.key for entry in group] if None in ids else None,
        )
        try:
            appended = self._hub.append(self.name, batch)
        except Exception as error:
            self._failed(group, error)
            return
        appended.add_done_callback(lambda finished: self._appended(group, finished))

    def _failed(self, group: list[_Waiting], error: BaseException) -> None:
        for entry in group:
            self._settle(entry)
            if not entry.future.done():
                entry.future.set_exception(error)

    def _settle(self, entry: _Waiting) -> None:
        if self._pending.get(entry.key) is entry:
            del self._pending[entry.key]

    def _appended(self, group: list[_Waiting], finished: Future[Any]) -> None:
        error = asyncio.CancelledError() if finished.cancelled() else finished.exception()
        if isinstance(error, LimitExceeded) and (parts := _halves(group)):
            # One of them is too large, or all together are: the others need not fail with it.
            for part in parts:
                self._append(part)
            return
        if error is not None:
            self._failed(group, error)
            return
        first: int = finished.result().first
        if first != self._next:  # others appended in between: their records come first
            asyncio.ensure_future(self._caught_up()).add_done_callback(lambda done: self._finish(group, first, done))
            return
        for index, entry in enumerate(group, first):
            self._apply(index, entry.key, entry.removed)
        self._finish(group, first)

    def _finish(self, group: list[_Waiting], first: int, caught_up: Future[None] | None = None) -> None:
        try:
            if caught_up is not None:
                caught_up.result()
            ack = self._hub.stream(self.name).options.ack
            self._forget_trimmed()
        except (HeadraceError, asyncio.CancelledError) as error:  # the stream was deleted meanwhile
            self._failed(group, error)
            return
        for index, entry in enumerate(group, first):
            if not entry.removed:
                self._recent.put(self.name, index, entry.payload)
            self._settle(entry)
        self._wake()
        if ack == "durable":
            self._acknowledge(group)
        else:
            processed = asyncio.ensure_future(self._hub.acknowledged(self.name, first + len(group)))
            processed.add_done_callback(lambda done: self._processed(group, done))

    def _processed(self, group: list[_Waiting], finished: Future[None]) -> None:
        error = asyncio.CancelledError() if finished.cancelled() else finished.exception()
        if error is not None:
            self._failed(group, error)
        else:
            self._acknowledge(group)

    @staticmethod
    def _acknowledge(group: list[_Waiting]) -> None:
        for entry in group:
            if not entry.future.done():
                entry.future.set_result(entry.outcome)

    async def _caught_up(self) -> None:
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.ensure_future(self._catch_up())
        await asyncio.shield(self._catching_up)

    # removing from the front

    def clear(self) -> Future[Any]:
        """Remove everything."""
        return asyncio.ensure_future(self.trim_all())

    async def trim_all(self, *also: Op) -> int:
        """Empty the stream, and do something else in the same step; how many items there were. The stream's indexes
        go on where they were."""
        end, size = self._next, self.size()
        self._keys.clear()
        self._others.clear()
        await self._hub.transact([Trim(self.name, end), *also])
        self._first = max(self._first, end)
        return size

    async def trim_below(self, key: int) -> int:
        """Remove the items with keys below `key`; how many they were.

        Records go from the front up to the first one that is still needed, so an item that arrived late may keep its
        record for a while after it has left the cache.
        """
        oldest = self._keys.oldest_index_from(key)
        dropped = self._keys.drop_below(key)
        if dropped:
            before = self._next if oldest is None else oldest
            if self._others:
                before = min(before, *self._others.values())
            await self._hub.trim(self.name, before)
            self._first = max(self._first, before)
        return dropped

    # listening

    async def _next_records(self) -> None:
        """Notice what others append to this stream while somebody listens."""
        await self._hub.wait(self.name, self._next)
        if not self._pending:
            await self._caught_up()
        else:
            await asyncio.wait({entry.future for entry in self._pending.values()})


def _halves(group: list[_Waiting]) -> list[list[_Waiting]]:
    """A group in two; nothing when it is one put, or puts that are answered together."""
    units = [list(unit) for _, unit in groupby(group, key=lambda entry: id(entry.future))]
    middle = len(units) // 2
    return [list(chain(*units[:middle])), list(chain(*units[middle:]))] if middle else []


def whole_key(index: int, number: int | None, key: bytes | None, kind: str | None) -> bytes:
    """The Ignite key of a record. One that another protocol wrote without an id has its index as its key."""
    if number is not None:
        return encode_long(number)
    return key if key and kind in (ITEM, REMOVED) else encode_long(index)
