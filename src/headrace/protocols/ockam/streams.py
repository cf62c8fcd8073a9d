"""The services' work on the hub: open streams, read what fits a reply, keep saved indexes. No sockets.

| Ockam | hub |
|---|---|
| stream name | stream of the same name; plain create = partition 0 |
| record | payload; the index is the record's index |
| client id | cursor `ockam:<client id>` |
| saved index | the cursor's position; a key of the table `ockam.indexes` as long as there is no such stream |
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from itertools import compress, pairwise
from typing import Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import BadRequest, Damaged, HeadraceError, UnknownStream
from headrace.hub import Hub
from headrace.log.ops import Delete, SaveCursor, StreamOptions
from headrace.protocols.ockam.addresses import AddressBook
from headrace.protocols.ockam.session import Worker
from headrace.protocols.ockam.settings import Ockam

log = logging.getLogger(__name__)

CURSOR_PREFIX: Final = "ockam:"
INDEX_MAX: Final = (1 << 63) - 1
INDEXES: Final = "ockam.indexes"
"""Indexes saved for streams that do not exist: msgpack [client id, stream, partition] → msgpack index."""
_GENERATED_BYTES: Final = 4
# While skipping records that are too large for the framing, read more at a time than one reply would hold.
_SKIP_BYTES: Final = 4 << 20


class PullResult(NamedTuple):
    """What a pull gets, and how many records it cannot get."""

    indexes: Sequence[int]
    records: Sequence[bytes]
    oversized: int = 0
    """Stepped over before the first record."""
    oversized_between: Sequence[int] = ()
    """Indexes left out between the records and after them."""
    damaged: int = 0
    trimmed: bool = False
    """The pull asked for records that retention has removed."""


_encode: Final = msgspec.msgpack.Encoder().encode


def cursor_name(client_id: str) -> str:
    return CURSOR_PREFIX + client_id


class Streams:
    """Streams and saved indexes as the two Ockam services see them."""

    def __init__(self, hub: Hub, addresses: AddressBook, settings: Ockam) -> None:
        self._hub = hub
        self._addresses = addresses
        self._clamp = settings.clamp_saved_index
        self._unknown_is_zero = settings.unknown_index == "zero"
        self._indexes_max = settings.saved_indexes_max
        self._keeping: dict[bytes, int] = {}
        """What the table of indexes will hold when the disk has it."""
        self._oversized: dict[tuple[str, int, int], tuple[int, int]] = {}
        """(stream, partition, record limit) → a run of records above the limit: its first index, and where it ends."""

    def new_name(self) -> str:
        """A name for the stream of a client that gave none."""
        while self._hub.has_stream(name := "generated_" + secrets.token_hex(_GENERATED_BYTES)):
            pass
        return name

    async def open(self, name: str, partitions: int) -> Sequence[Worker]:
        """Create the stream or grow it, and hand out the addresses of its first partitions."""
        await self._addresses.make_room(name, partitions)
        try:
            info = self._hub.stream(name)
        except UnknownStream:
            info = await self._hub.create_stream(name, partitions, StreamOptions(), exist_ok=True)
        if info.kind != "stream":
            raise BadRequest(f"{name!r} is a {info.kind}, not a stream")
        if info.partitions < partitions:
            await self._hub.grow_stream(name, partitions)
        return await self._addresses.register(name, partitions)

    async def read(self, worker: Worker, start: int, limit: int, bytes_max: int, record_bytes_max: int) -> PullResult:
        """At most `limit` records from `start` on, leaving out those that cannot be sent or are damaged.

        At least one record is found if there is any that can be sent, however many stand before it that cannot: an
        empty reply would make the consumer ask for the same index for ever.
        """
        stream, partition = worker.stream, worker.partition
        oversized = damaged = 0
        trimmed = 0 < start < self._hub.bounds(stream, partition).first
        run = self._oversized.get((stream, partition, record_bytes_max))
        while limit and start < self._hub.bounds(stream, partition).next:
            if run is not None and run[0] <= start < run[1]:
                oversized += run[1] - start
                start = run[1]
                continue
            try:
                batch = await self._hub.read(stream, start, partition=partition, limit=limit, max_bytes=bytes_max)
            except Damaged as error:
                log.error("pull skips damaged records: %s", error)
                damaged += error.last + 1 - max(start, error.first)
                start = error.last + 1
                continue
            if not batch.num_rows:
                break
            indexes, records, left_out = sendable(batch, record_bytes_max)
            if records:
                return PullResult(indexes, records, oversized, left_out, damaged, trimmed)
            oversized += len(left_out)
            start = left_out[-1] + 1
            run = self._skip(worker, record_bytes_max, left_out[0], start)
            bytes_max = _SKIP_BYTES
            await asyncio.sleep(0)  # what is read from memory lets nobody else run, and there may be much to step over
        return PullResult((), (), oversized, (), damaged, trimmed)

    def _skip(self, worker: Worker, record_bytes_max: int, first: int, end: int) -> tuple[int, int]:
        """Remember a run of oversized records, so that the next pull steps over it at once."""
        key = (worker.stream, worker.partition, record_bytes_max)
        known = self._oversized.get(key)
        if known is not None and known[0] <= first <= known[1]:
            first, end = known[0], max(end, known[1])
        self._oversized[key] = (first, end)
        log.warning(
            "stream %r partition %d: indexes %d to %d hold records above %d bytes, which this framing cannot carry",
            worker.stream,
            worker.partition,
            first,
            end - 1,
            record_bytes_max,
        )
        return first, end

    async def open_indexes(self) -> None:
        """Make the table of indexes, and name rows that cannot be used."""
        await self._hub.create_table(INDEXES)
        self._hub.set_aside.read(INDEXES, self._hub.items(INDEXES), read_index)

    async def save_index(self, client_id: str, stream: str, partition: int, index: int) -> bool:
        """Move a client's saved index forward; False if there is no such stream and no room to keep it for one.

        Anyone can save for anyone in this protocol. Clamped to the end of the stream, a hostile save can at worst skip
        what is there now; without that, one save of 2^64 - 1 would make the client skip everything for ever.
        """
        key = _encode((client_id, stream, partition))
        try:
            self._check_stream(stream)
            kept = self._kept(key)
            position = self._within(stream, partition, max(index, kept or 0))
            cursor = cursor_name(client_id)
            if kept is None:
                await self._hub.save_cursor(cursor, stream, position, partition)
            else:
                await self._hub.transact([SaveCursor(cursor, stream, position, partition), Delete(INDEXES, key)])
        except UnknownStream:
            return await self._keep(key, min(index, INDEX_MAX))
        return True

    def _check_stream(self, name: str) -> None:
        if self._hub.stream(name).kind != "stream":
            raise UnknownStream(name)  # a table is none of ours

    def _within(self, stream: str, partition: int, index: int) -> int:
        end = self._hub.bounds(stream, partition).next
        return min(index, end) if self._clamp else min(index, INDEX_MAX)

    def _kept(self, key: bytes) -> int | None:
        """The index that was saved before there was such a stream."""
        stored = self._hub.get(INDEXES, key)
        try:
            return None if stored is None else read_index(key, stored)
        except msgspec.DecodeError:  # named when the hub started
            return None

    async def _keep(self, key: bytes, index: int) -> bool:
        before = self._keeping.get(key, self._kept(key))
        if before is None and self._hub.table_size(INDEXES) + len(self._keeping) >= self._indexes_max:
            return False
        self._keeping[key] = index = max(index, before or 0)
        try:
            await self._hub.put(INDEXES, key, _encode(index))
        finally:
            if self._keeping.get(key) == index:
                del self._keeping[key]
        return True

    async def get_index(self, client_id: str, stream: str, partition: int, *, may_record: bool) -> int | None:
        """A client's saved index. Without one, the specification wants a record with index 0 to be made.

        That record is a cursor, which holds records back from retention: who may only read gets the 0 without it.
        """
        nothing = 0 if self._unknown_is_zero else None
        kept = None
        try:
            kept = self._kept(_encode((client_id, stream, partition)))
            self._check_stream(stream)
            position = self._hub.cursor(cursor_name(client_id), stream, partition)
            if kept is not None:
                position = max(position or 0, self._within(stream, partition, kept))
            if may_record and (kept is not None or (position is None and self._unknown_is_zero)):
                await self.save_index(client_id, stream, partition, 0)
                position = self._hub.cursor(cursor_name(client_id), stream, partition)
        except UnknownStream:
            return nothing if kept is None else kept
        except HeadraceError as error:
            log.warning("index of client %r in stream %r cannot be recorded: %s", client_id, stream, error)
            return nothing
        return nothing if position is None else position


def read_index(key: bytes, value: bytes) -> int:
    """A row of the table of indexes."""
    msgspec.msgpack.decode(key, type=tuple[str, str, int])
    return msgspec.msgpack.decode(value, type=int)


def sendable(batch: pa.RecordBatch, record_bytes_max: int) -> tuple[list[int], list[bytes], list[int]]:
    """The indexes and payloads of the records that are not too large, and the indexes of those that are."""
    payloads = batch.column("payload")
    _, offsets_buffer, data_buffer = payloads.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int32, len(payloads) + 1, payloads.offset * 4)
    begin, end = int(offsets[0]), int(offsets[-1])
    data = data_buffer.slice(begin, end - begin).to_pybytes() if end > begin else b""
    records = [data[start:stop] for start, stop in pairwise((offsets - begin).tolist())]
    indexes = batch.column("index").to_numpy().tolist()
    if end - begin > record_bytes_max and int(np.diff(offsets).max()) > record_bytes_max:
        fits = [len(record) <= record_bytes_max for record in records]
        left_out = [index for index, fit in zip(indexes, fits, strict=True) if not fit]
        return list(compress(indexes, fits)), list(compress(records, fits)), left_out
    return indexes, records, []
