"""Everything that arrives for one immortal, on its way into the log.

Calls queue up while the previous commit is being synced, and what has queued up becomes the next commit: one
transaction that appends the records and moves the counters of their senders. One commit is under way at a time, so a
commit that fails leaves nothing behind it; everything queued is then dropped, the counters are read from the log again
and all links are closed, because only recovering bindings can say again what was lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.errors import UnknownStream
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import Append, Appended, Op, SetProducer
from headrace.protocols.ambrosia.binding.methods import CLOCK_METHOD
from headrace.protocols.ambrosia.call_reader import Calls, label_of_call
from headrace.protocols.ambrosia.codec import RECORD_BYTES_MAX, RECORD_HEADER_BYTES, Call, RpcType, encode
from headrace.protocols.ambrosia.coordinator.store import SEQUENCE_PRODUCER, StreamNames, producer_of
from headrace.protocols.ambrosia.lineage import Origin
from headrace.units import KIB

QUEUE_BYTES_MAX: Final = 1 << 20  # senders are held back while this much waits for the disk
PIECE_BYTES_MAX: Final = RECORD_BYTES_MAX - RECORD_HEADER_BYTES - 32  # room for the time
CLOCK_LABEL: Final = label_of_call(CLOCK_METHOD, RpcType.IMPULSE)
TIME: Final = struct.Struct("<q")
FEW: Final = 200
LARGE_BYTES: Final = 256 * KIB
"""To lay out so much takes some milliseconds: it is done beside the event loop."""
CALL_OVERHEAD_BYTES: Final = 32  # offsets, sequence id and bits of one stream record; its label and sender come on top


@dataclass(slots=True)
class LoggedRecord:
    """A record of the log: what a binding that has kept up is sent as soon as it is durable."""

    sequence: int
    count: int
    replayable: int
    payload: bytes
    origins: list[tuple[int, int, Origin]]
    """Of calls whose origin is known: the place of the first, how many, and the origin."""
    first: int = -1
    """The index of its first message, known once it is durable."""


class Arrival(NamedTuple):
    """Calls of one sender; `sender` None is the inbox, whose cursor moves with them, or the outside."""

    sender: str | None
    calls: Calls
    ops: tuple[Op, ...]
    """What else becomes durable with them."""
    number: int | None
    """The sender's count once these are stored; None if nobody counts them."""
    payload_bytes: int
    """What they add to a record."""
    stored_bytes: int
    """What they add to a transaction, at the most."""
    origin: Origin | None = None

    @classmethod
    def of(
        cls, sender: str | None, calls: Calls, ops: tuple[Op, ...], number: int | None, origin: Origin | None = None
    ) -> Arrival:
        """With their sizes."""
        payload_bytes = sum(map(len, calls.parts))
        stored_bytes = payload_bytes + calls.count * _overhead(sender, calls)
        return cls(sender, calls, ops, number, payload_bytes, stored_bytes, origin)

    @property
    def key(self) -> bytes | None:
        """The sender as the log has it."""
        return None if self.sender is None else self.sender.encode()


def _overhead(sender: str | None, calls: Calls) -> int:
    """Bytes that each call takes in the log besides its payload."""
    return CALL_OVERHEAD_BYTES + len(calls.label) + (0 if sender is None else len(sender.encode()))


Packed = tuple[Batch, bytes, int]


def pack(arrivals: list[Arrival], sequence: int | None) -> Packed:
    """Arrivals as one batch of stream records, their messages packed, and how many are replayable."""
    data = b"".join([part for arrival in arrivals for part in arrival.calls.parts])
    replayable = sum(arrival.calls.count for arrival in arrivals if arrival.calls.replayable)
    if len(arrivals) == 1 and arrivals[0].calls.count == 1:
        (arrival,) = arrivals
        return Batch.one(data, id=sequence, type=arrival.calls.label, key=arrival.key), data, replayable
    if len(data) <= LARGE_BYTES and sum(arrival.calls.count for arrival in arrivals) <= FEW:
        return _packed_few(arrivals, data, sequence), data, replayable
    lengths = np.array([length for arrival in arrivals for length in arrival.calls.lengths], np.int32)
    count = len(lengths)
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    columns = {
        "payload": pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)]),
        "type": _repeated([(arrival.calls.label, arrival.calls.count) for arrival in arrivals], pa.string()),
        "key": _repeated([(arrival.key, arrival.calls.count) for arrival in arrivals], pa.binary()),
    }
    if sequence is not None:
        columns["id"] = pa.array(np.full(count, sequence, np.int64))
    return Batch.from_arrow(pa.RecordBatch.from_pydict(columns)), data, replayable


def _packed_few(arrivals: list[Arrival], data: bytes, sequence: int | None) -> Batch:
    """The same without Arrow, whose calls take longer than this for a few records."""
    payloads: list[bytes] = []
    types: list[str | None] = []
    keys: list[bytes | None] = []
    at = 0
    for arrival in arrivals:
        for length in arrival.calls.lengths:
            payloads.append(data[at : at + length])
            at += length
        types += [arrival.calls.label] * arrival.calls.count
        keys += [arrival.key] * arrival.calls.count
    ids = None if sequence is None else [sequence] * len(payloads)
    return Batch.of(payloads, ids=ids, types=types, keys=None if all(key is None for key in keys) else keys)


def _repeated(runs: list[tuple[str | bytes | None, int]], kind: pa.DataType) -> pa.Array:
    """A column in which values come in runs."""
    values = list(dict.fromkeys(value for value, _ in runs))
    if len(values) == 1:
        return pa.repeat(pa.scalar(values[0], kind), sum(count for _, count in runs))
    places = {value: place for place, value in enumerate(values)}
    indexes = np.repeat([places[value] for value, _ in runs], [count for _, count in runs])
    return pa.array(values, kind).take(pa.array(indexes))


def _records(arrivals: Iterable[Arrival]) -> list[list[Arrival]]:
    """Arrivals cut into records of at most 8 MiB; only a single larger message makes a larger record."""
    records: list[list[Arrival]] = []
    room = 0
    for arrival in arrivals:
        size = arrival.payload_bytes
        if not records or size > room:
            records.append([])
            room = PIECE_BYTES_MAX
        records[-1].append(arrival)
        room -= size
    return records


def _origins(arrivals: list[Arrival]) -> list[tuple[int, int, Origin]]:
    """The origins in a record."""
    found, place = [], 0
    for arrival in arrivals:
        if arrival.origin is not None:
            found.append((place, arrival.calls.count, arrival.origin))
        place += arrival.calls.count
    return found


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # whoever waits sees it; nobody has to


def _counters(arrivals: Iterable[Arrival]) -> dict[str, int]:
    """The producers that move with these arrivals, and where to."""
    counters: dict[str, int] = {}
    for arrival in arrivals:
        if arrival.sender is not None and arrival.number is not None:
            counters[producer_of(arrival.sender, arrival.calls.replayable)] = arrival.number
    return counters


class CallQueue:
    """The queue in front of one immortal's log, or of its `pending` stream until it has started."""

    def __init__(
        self,
        hub: Hub,
        names: StreamNames,
        floor: Callable[[str], int],
        on_logged: Callable[[list[LoggedRecord]], None],
        on_failed: Callable[[BaseException], None],
    ) -> None:
        """`floor` gives the number up to which a sender's calls were for a peer that was forgotten."""
        self._hub = hub
        self._names = names
        self._floor = floor
        self._on_logged = on_logged
        self._on_failed = on_failed
        self._queue: list[Arrival] = []
        self._held = True
        self._dropped = False
        self._queue_done = self._new_future()
        self._commit_done: asyncio.Future[None] | None = None  # while one is under way
        self._transaction_bytes_max = hub.config.log.batch_bytes_max
        self.queued_bytes = 0
        self.to_log = False
        self.next_sequence = 0
        self.counts: dict[str, int] = {}
        self.pending_bytes = 0
        self.clock: Callable[[], int] | None = None
        """If records are to begin with the time, in microseconds since 1970."""

    @staticmethod
    def _new_future() -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def count_of(self, sender: str, replayable: bool = True) -> int:
        """How many replayable calls, or impulses, were accepted from a sender: the number of the last one."""
        producer = producer_of(sender, replayable)
        count = self.counts.get(producer)
        if count is None:
            floor = self._floor(sender) if replayable else 0
            count = self.counts[producer] = max(floor, self._stored(producer))
        return count

    def durable_count(self, sender: str) -> int:
        """The number of the last replayable call of a sender that is in the log."""
        return self._stored(producer_of(sender, True))

    def stored_counts(self) -> dict[str, int]:
        """All that is durable, by producer."""
        counts: dict[str, int] = {}
        for stream in (self._names.pending, self._names.log):
            for producer, number in self._hub.producers(stream).items() if self._hub.has_stream(stream) else ():
                counts[producer] = max(number, counts.get(producer, 0))
        return counts

    def _stored(self, producer: str) -> int:
        stored = 0
        for stream in (self._names.log, self._names.pending):
            with suppress(UnknownStream):
                stored = max(stored, self._hub.producer(stream, producer) or 0)
        return stored

    def add(
        self,
        sender: str | None,
        calls: Calls,
        number: int | None,
        ops: tuple[Op, ...] = (),
        origin: Origin | None = None,
    ) -> None:
        """Take calls in; `number` is the sender's count with them. They reach the log in this order, from the next
        `commit` on."""
        if sender is not None and number is not None:
            self.counts[producer_of(sender, calls.replayable)] = number
        arrival = Arrival.of(sender, calls, ops, number, origin)
        self.queued_bytes += arrival.payload_bytes
        if arrival.payload_bytes <= PIECE_BYTES_MAX and arrival.stored_bytes <= self._transaction_bytes_max:
            self._queue.append(arrival)
        else:
            self._queue += self._pieces(arrival)

    def _pieces(self, arrival: Arrival) -> list[Arrival]:
        """Calls that are too much for one record or one transaction, cut up; the last piece has the whole's number
        and operations."""
        count_max = self._transaction_bytes_max // 2 // _overhead(arrival.sender, arrival.calls)
        calls = arrival.calls.cut(min(PIECE_BYTES_MAX, self._transaction_bytes_max // 2), count_max)
        pieces: list[Arrival] = []
        left = arrival.calls.count
        for piece in calls:
            left -= piece.count
            number = None if arrival.number is None else arrival.number - left
            pieces.append(Arrival.of(arrival.sender, piece, () if left else arrival.ops, number))
        return pieces

    def commit(self) -> None:
        """Send what has been taken in to the log, now or as soon as the commit under way is done."""
        if self._queue and not self.under_way and not self._held and not self._dropped:
            self._commit()

    @property
    def full(self) -> bool:
        """Whether senders have to wait."""
        return self.queued_bytes > QUEUE_BYTES_MAX

    def flushed(self) -> asyncio.Future[None]:
        """Done when everything taken in so far is durable."""
        return asyncio.shield(self.flushing())

    def flushing(self) -> asyncio.Future[None]:
        """The same, shared by all who ask: nobody may cancel it."""
        future = self._queue_done if self._queue else self._commit_done
        if future is None:
            future = self._new_future()
            future.set_result(None)
        return future

    def hold(self) -> None:
        """Commit nothing new; what comes queues up."""
        self._held = True

    def release(self, *, to_log: bool) -> None:
        """Go on, into the log or into `pending`."""
        self._held = False
        self.to_log = to_log
        self.commit()

    @property
    def under_way(self) -> bool:
        """Whether a commit is on its way to the disk."""
        return self._commit_done is not None

    async def settled(self) -> None:
        """Wait until no commit is under way, whatever becomes of it."""
        while self._commit_done is not None:
            await asyncio.wait([self._commit_done])

    def drop(self, error: BaseException | None = None) -> None:
        """Forget what is not on its way to the disk, and commit nothing until `start_over`.

        Whoever waits for it is told: the error, or without one that there is nothing left to wait for.
        """
        self._dropped = True
        self._queue.clear()
        self.queued_bytes = 0
        waited_for, self._queue_done = self._queue_done, self._new_future()
        _settle(waited_for, error)

    def start_over(self) -> None:
        """Go on after `drop`, with the counters as the log has them: none of its commits may be under way."""
        if self._dropped:
            self._dropped = False
            self.counts.clear()
            self.next_sequence = self.stored_sequence()
            self.commit()

    def stored_sequence(self) -> int:
        """The next sequence id, as the log has it."""
        return self._stored(SEQUENCE_PRODUCER)

    def forget_sender(self, sender: str) -> None:
        """Count no more what came from a sender: another of that name begins anew."""
        for replayable in (True, False):
            self.counts.pop(producer_of(sender, replayable), None)
        self._queue = [
            arrival._replace(number=None) if arrival.sender == sender else arrival for arrival in self._queue
        ]

    def _next_arrivals(self) -> list[Arrival]:
        """From the queue, as much as one transaction may hold."""
        room = self._transaction_bytes_max
        taken = 0
        for arrival in self._queue:
            room -= arrival.stored_bytes
            if room < 0 and taken:
                break
            taken += 1
        arrivals, self._queue = self._queue[:taken], self._queue[taken:]
        self.queued_bytes -= sum(arrival.payload_bytes for arrival in arrivals)
        return arrivals

    def _commit(self) -> None:
        arrivals = self._next_arrivals()
        stream = self._names.log if self.to_log else self._names.pending
        records: list[tuple[list[Arrival], int | None]] = []
        for record in _records(arrivals):
            sequence = self.next_sequence if self.to_log else None
            if self.clock is not None and sequence is not None:
                record = [self._time_of_record(self.clock()), *record]
            records.append((record, sequence))
            if sequence is not None:
                self.next_sequence += 1
        counters: list[Op] = []
        if self.to_log and records:
            counters.append(SetProducer(stream, SEQUENCE_PRODUCER, self.next_sequence))
        counters += [SetProducer(stream, producer, number) for producer, number in _counters(arrivals).items()]
        counters += [op for arrival in arrivals for op in arrival.ops]
        self._commit_done = self._new_future()
        if not self._queue:  # else whoever waits for it waits for a later commit
            self._commit_done, self._queue_done = self._queue_done, self._commit_done
        if sum(arrival.payload_bytes for arrival in arrivals) <= LARGE_BYTES:
            self._submit(stream, records, [pack(*each) for each in records], counters)
            return
        apart = asyncio.ensure_future(self._hub.intake.apart(lambda: [pack(*each) for each in records]))

        def packed(done: asyncio.Future[list[Packed]]) -> None:
            if done.cancelled() or done.exception() is not None:
                self._committed(done, [])
            else:
                self._submit(stream, records, done.result(), counters)

        apart.add_done_callback(packed)

    def _submit(
        self, stream: str, records: list[tuple[list[Arrival], int | None]], packed: list[Packed], counters: list[Op]
    ) -> None:
        ops: list[Op] = []
        logged: list[LoggedRecord] = []
        for (record, sequence), (batch, data, replayable) in zip(records, packed, strict=True):
            ops.append(Append(stream, batch))
            if sequence is None:
                self.pending_bytes += len(data)
            else:
                logged.append(LoggedRecord(sequence, batch.count, replayable, data, _origins(record)))
        future = self._hub.transact([*ops, *counters])
        future.add_done_callback(lambda done: self._committed(done, logged))

    def time_now(self, sequence: int) -> list[Op]:
        """What begins a record if records are to begin with the time."""
        if self.clock is None:
            return []
        return [Append(self._names.log, pack([self._time_of_record(self.clock())], sequence)[0])]

    @staticmethod
    def _time_of_record(time_us: int) -> Arrival:
        message = encode(Call(CLOCK_METHOD, RpcType.IMPULSE, TIME.pack(time_us)))
        return Arrival.of(None, Calls(b"", CLOCK_LABEL, False, [len(message)], [message]), (), None)

    def _committed(self, done: asyncio.Future[Any], logged: list[LoggedRecord]) -> None:
        assert self._commit_done is not None
        waited_for, self._commit_done = self._commit_done, None
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        _settle(waited_for, error)
        if error is not None:
            self._on_failed(error)
            return
        if logged:
            appended = (result for result in done.result() if isinstance(result, Appended))
            for record, place in zip(logged, appended, strict=True):
                record.first = place.first
            self._on_logged(logged)
        self.commit()
