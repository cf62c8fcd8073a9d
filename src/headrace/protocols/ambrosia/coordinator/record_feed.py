"""The send side of a link: the stored checkpoint, the logged records in order, and control records between them.

A binding that keeps up is sent each record from memory the moment it is durable (`offer`). One that recovers, or has
fallen behind, is fed from the log by `run`, no faster than it reads, and goes back to the first way when it has caught
up. `position` is the index of the next log record to send; both ways check it, so nothing is sent twice or left out.
`sequence` is the sequence id that it must have; None, behind a checkpoint that does not say it, takes the first there
is.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterable, AsyncIterator, Callable
from typing import Final

import numpy as np
import pyarrow as pa

from headrace.errors import Trimmed
from headrace.hub import Hub
from headrace.log.ops import CheckpointInfo
from headrace.log.records import concat
from headrace.protocols.ambrosia.codec import (
    SEQUENCE_CONTROL,
    Type,
    encode_checkpoint_record,
    encode_record,
    encode_signal_record,
    frame_batch,
    record_header,
)
from headrace.protocols.ambrosia.coordinator.call_queue import LoggedRecord
from headrace.protocols.ambrosia.coordinator.store import IMPULSE_PREFIX, Registration

logger = logging.getLogger("headrace.ambrosia")
NOT_OURS: Final = -1
STARTS_MAX: Final = 1_000
READ_COUNT_MAX: Final = 65_536
READ_BYTES_MAX: Final = 4 << 20
JOIN_BYTES_MAX: Final = 64 << 10  # a larger record is not copied to stand behind its header
PIECE_BYTES: Final = 512 << 10  # a larger stored record is sent piece by piece


def delivered_form(registration: Registration, sequence: int, messages: bytes, count: int, replayable: int) -> bytes:
    """The messages of a record, bare or as one batch. A batch of one is never sent; type 13 only where allowed."""
    delivery = registration.delivery(sequence) if count > 1 else "bare"
    if delivery == "bare" or (delivery == "batch" and replayable < count):
        return messages
    return frame_batch(messages, count, None if replayable == count else replayable)


async def _pieces(data: memoryview) -> AsyncIterator[memoryview]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


class RecordFeed:
    """What one binding is sent."""

    def __init__(
        self,
        hub: Hub,
        stream: str,
        registration: Registration,
        transport: asyncio.WriteTransport,
        on_sent: Callable[[], None],
    ) -> None:
        self._hub = hub
        self._stream = stream
        self._registration = registration
        self._transport = transport
        self._on_sent = on_sent
        self._records_out = hub.metrics.protocol.of("ambrosia").records_out
        self.position = 0
        self.sequence: int | None = 0
        self.sent_records = 0
        self._starts: OrderedDict[int, int] = OrderedDict()  # where the last records begin, by sequence id
        self.sent_bytes = 0
        self._live = False
        self._held = False
        self._behind: list[bytes] | None = None
        """What is to be said once that which is being sent piece by piece is whole."""
        self._wake = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._moved = asyncio.Event()

    # --- flow ---------------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """The socket's buffer is full."""
        self._live = False
        self._writable.clear()

    def resume(self) -> None:
        """The socket takes bytes again."""
        self._writable.set()

    def end(self) -> None:
        """The link is gone; it knows this feed, and need not hear of it any more."""
        self._on_sent = lambda: None

    def hold(self) -> None:
        """Send no data records: a checkpoint has been asked for."""
        self._held = True
        self._live = False

    def release(self) -> None:
        """Go on after a checkpoint."""
        self._held = False
        self._wake.set()

    # --- what is sent -------------------------------------------------------------------------------------------

    def send_signal(self, kind: Type) -> None:
        """A control record."""
        self._say(encode_signal_record(self._registration.committer, kind))

    def send_control(self, message: bytes) -> None:
        """A message between the records, which no replay repeats."""
        self._say(encode_record(self._registration.committer, SEQUENCE_CONTROL, message))

    def _say(self, record: bytes) -> None:
        """Behind what is being sent: the binding takes as many bytes for a part of that as it was promised."""
        if self._behind is None:
            self._transport.write(record)
        else:
            self._behind.append(record)

    async def send_checkpoint(self, info: CheckpointInfo) -> None:
        """The stored checkpoint: its record, then the blob piece by piece."""
        head = encode_checkpoint_record(self._registration.committer, info.size)
        await self._send_slowly(head, self._hub.read_checkpoint(info.id))

    async def _send_slowly(self, head: bytes, pieces: AsyncIterable[bytes | memoryview]) -> None:
        """No faster than the binding reads."""
        self._behind = []
        self._transport.write(head)
        async for piece in pieces:
            self._transport.write(piece)
            await self._writable.wait()
        waiting, self._behind = self._behind, None
        self._transport.write(b"".join(waiting))

    def offer(self, records: list[LoggedRecord]) -> None:
        """Records that have just become durable."""
        for record in records:
            if not self._live or record.first != self.position:
                self._live = False
                self._wake.set()
                return
            self._send(record.sequence, record.first, record.payload, record.count, record.replayable)
            self.position = record.first + record.count
        self._moved.set()
        self._on_sent()

    def _send(self, sequence: int, first: int, messages: bytes, count: int, replayable: int) -> None:
        payload = delivered_form(self._registration, sequence, messages, count, replayable)
        header = record_header(self._registration.committer, sequence, payload)
        if len(payload) < JOIN_BYTES_MAX:
            self._transport.write(header + payload)
        else:
            self._transport.write(header)
            self._transport.write(memoryview(payload))  # what is left to send is not copied then
        self._sent(sequence, first, count, len(payload))

    def _sent(self, sequence: int, first: int, count: int, size: int) -> None:
        self._starts[sequence] = first
        if len(self._starts) > STARTS_MAX:
            self._starts.popitem(last=False)
        self.sequence = sequence + 1
        self._records_out.inc(count)
        self.sent_records += 1
        self.sent_bytes += size

    def index_of(self, sequence: int, place: int) -> int | None:
        """The index of a message in one of the last records that were sent."""
        first = self._starts.get(sequence)
        return None if first is None else first + place

    async def replay(self, end: int) -> None:
        """Send the log from `position` up to `end`."""
        while self.position < end:
            await self._writable.wait()
            await self._send_stored(end)

    async def run(self) -> None:
        """Keep the binding fed for as long as the link lives."""
        while True:
            await self._writable.wait()
            end = self._hub.bounds(self._stream).next
            if not self._held and self.position < end:
                await self._send_stored(end)
                continue
            self._wake.clear()
            if not self._held:
                self._live = True
            await self._wake.wait()

    async def _send_stored(self, end: int) -> None:
        """Send some whole records of the log. `end` is a place where a record ends."""
        batch, is_whole = await self._read(self.position, end)
        first_index = batch.column("index")[0].as_py()
        if first_index != self.position:
            raise Trimmed(self._stream, 0, self.position, first_index)
        ids = batch.column("id").fill_null(NOT_OURS).to_numpy(zero_copy_only=False)
        cuts = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        starts = [0, *cuts.tolist(), len(ids)]
        if not is_whole:
            starts.pop()  # the last record may go on behind what was read: it is read again
        payload = batch.column("payload")
        _, offsets_buffer, data = payload.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[payload.offset : payload.offset + len(ids) + 1]
        places = offsets[starts].tolist()
        view = memoryview(data) if data is not None else memoryview(b"")
        labels = batch.column("type")
        if self.sequence is None:
            self.sequence = next((id for id in ids.tolist() if id != NOT_OURS), None)
        begin = self.position
        for number in range(len(starts) - 1):
            first, after = starts[number], starts[number + 1]
            self.position = begin + first
            if self._held:
                break
            messages = view[places[number] : places[number + 1]]
            sequence = int(ids[first])
            if sequence != self.sequence:  # not ours: a binding must not see it, for its ids have no gap or repeat
                logger.warning(
                    "stream %s: indexes %d to %d are not messages of the immortal (id %d, not %s) and are left "
                    "out",
                    self._stream, self.position, begin + after - 1, sequence, self.sequence,
                )  # fmt: skip
                continue
            if after - first == 1 and len(messages) > PIECE_BYTES:
                await self._send_large(sequence, messages)  # meanwhile a checkpoint may be asked for
            else:
                replayable = self._replayable(labels, first, after, sequence)
                self._send(sequence, self.position, bytes(messages), after - first, replayable)
        else:
            self.position = begin + starts[-1]
        self._moved.set()
        self._on_sent()

    async def _send_large(self, sequence: int, message: memoryview) -> None:
        """A record of one large message, of which nothing is copied. It counts as sent from now on: whatever is said
        to the binding meanwhile comes behind it."""
        self._sent(sequence, self.position, 1, len(message))
        self.position += 1
        header = record_header(self._registration.committer, sequence, message)
        await self._send_slowly(header, _pieces(message))

    async def reached(self, end: int) -> None:
        """Until everything below `end` was sent."""
        while self.position < end:
            self._moved.clear()
            await self._moved.wait()

    async def _read(self, start: int, end: int) -> tuple[pa.RecordBatch, bool]:
        """Records from `start` on: all up to `end`, or as many as hold two records of the log, or one whole. And
        whether the last one is known to be whole."""
        batches: list[pa.RecordBatch] = []
        read = 0
        while not batches or (start + read < end and batches[0].column("id")[0] == batches[-1].column("id")[-1]):
            batches.append(
                await self._hub.read(self._stream, start + read, limit=READ_COUNT_MAX, max_bytes=READ_BYTES_MAX)
            )
            read += len(batches[-1])
        is_whole = start + read >= end
        if len(batches) > 1 and batches[-1].column("id")[0] != batches[0].column("id")[0]:
            batches.pop()  # the next record, which shows that this one is whole: to join them would copy megabytes
            is_whole = True
        return concat(batches).slice(0, end - start), is_whole

    def _replayable(self, labels: pa.Array, first: int, after: int, sequence: int) -> int:
        if after - first < 2 or self._registration.delivery(sequence) == "bare":
            return after - first
        return sum(not label.startswith(IMPULSE_PREFIX) for label in labels.slice(first, after - first).to_pylist())
