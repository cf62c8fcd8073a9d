"""The store in a compacted topic: nothing to run besides Kafka.

A blob is cut into parts of at most `PART_BYTES`. All of a cell's are in its partition.

    key   := cell "/" name "/" part number
    value := magic part:u32 is_last:u32 crc:u32 data         little endian, CRC-32C of the data; no value: removed
    magic := "HRB1" | "HRB2": the data is packed (`packing.py`)

Compaction keeps offsets, so the stamp of a name says where to read: from the offset of its first part to that of its
last. What others wrote in between is passed over. A bare name is looked for in the whole partition: that is for people
and for tests.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Set
from typing import NamedTuple, TypeVar

import pyarrow as pa
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.log.kafka.client import (
    UNKNOWN_OFFSET,
    Consumer,
    KafkaError,
    KafkaPort,
    OffsetOutOfRange,
    Producer,
    Received,
    UnknownTopic,
)
from headrace.log.kafka.packing import BadPacking, pack, unpack
from headrace.log.spool import SpooledBlob
from headrace.log.stamp import Stamp, split, stamped
from headrace.log.store import QUARANTINE, BlobDamaged, Store

What = TypeVar("What")
MAGIC = b"HRB1"
PACKED = b"HRB2"
HEADER = struct.Struct("<4sIII")
PART_BYTES = 900_000
AHEAD_MAX = 16
"""Parts on their way at once."""
RECEIVE_S = 0.5
BOUNDS_S = 5.0
"""So often it is looked whether anybody still wants to know where the topic ends."""
AGAIN_S = 0.1


class _Part(NamedTuple):
    name: str
    number: int
    is_last: bool
    data: bytes | None
    """None: removed."""
    offset: int


class _Sent:
    """Parts on their way."""

    def __init__(self) -> None:
        self.waiting = 0
        self.offsets: list[int] = []
        self.error: KafkaError | None = None

    def delivered(self, offset: int, error: KafkaError | None) -> None:
        self.waiting -= 1
        self.offsets.append(offset)
        self.error = self.error or error


class TopicStore(Store):
    """The blobs of one cell. Any thread may use it. It does not own the connection."""

    def __init__(
        self, kafka: KafkaPort, topic: str, cell: int, timeout_s: float = 120, compression: str = "none"
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._cell = cell
        self._timeout_s = timeout_s
        self._compression = compression
        self._producer: Producer | None = None
        self._sending = threading.Lock()
        self._given_up = threading.Event()
        self._resting: Consumer | None = None
        """A consumer that nobody reads from now."""
        self._lock = threading.Lock()
        self._put: dict[str, int] = {}
        """What was put since the start and may be named by no event yet: none of it is at a lower offset."""

    def give_up(self) -> None:
        self._given_up.set()

    def _check_patience(self, deadline: float, what: str) -> None:
        """Raises when nobody waits for the brokers any more."""
        if self._given_up.is_set():
            raise KafkaError(f"{what}, and the log has been given up")
        if time.monotonic() > deadline:
            raise KafkaError(f"{what} in {self._timeout_s:g} s (log.kafka.timeout_s)")

    def _bounds(self) -> tuple[int, int]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._kafka.bounds(self._topic, self._cell, BOUNDS_S)
            except UnknownTopic:
                raise
            except KafkaError as error:
                self._given_up.wait(AGAIN_S)
                self._check_patience(deadline, f"{self._topic} does not answer ({error})")

    # -- putting -------------------------------------------------------------------------------------------------------

    def create(self, name: str) -> SpooledBlob:
        return SpooledBlob(self, name)

    def copy_in(self, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        """Returns the name with its stamp."""
        _, before = self._bounds()
        with self._lock:
            self._put[name] = before
        sent = _Sent()
        crc = size = parts = 0
        with self._sending:
            for data, is_last in _parts(chunks):
                packed = pack(data, self._compression)
                magic, body = (MAGIC, data) if packed is None else (PACKED, packed)
                value = HEADER.pack(magic, parts, is_last, crc32c(body)) + body
                self._send(sent, _key(self._cell, name, parts), value, AHEAD_MAX)
                crc = crc32c_extend(crc, data)
                size += len(data)
                parts += 1
            self._wait(sent, 0)
        first, last = min(sent.offsets), max(sent.offsets)
        if UNKNOWN_OFFSET in sent.offsets:
            first, last = before, self._bounds()[1] - 1
        return stamped(name, Stamp(size, crc, first, last, parts))

    def _send(self, sent: _Sent, key: bytes, value: bytes | None, ahead_max: int) -> None:
        if self._producer is None:
            self._producer = self._kafka.producer(self._topic)
        self._wait(sent, ahead_max - 1)
        sent.waiting += 1
        self._producer.send(self._cell, value, sent.delivered, key)

    def _wait(self, sent: _Sent, left: int) -> None:
        """Until so few are on their way."""
        deadline = time.monotonic() + self._timeout_s
        while sent.waiting > left and sent.error is None and self._producer is not None:
            self._producer.poll(RECEIVE_S)
            if sent.waiting > left:
                try:
                    self._check_patience(deadline, f"{self._topic} did not answer")
                except KafkaError as error:
                    sent.error = error
        if sent.error is not None:
            self._close_producer()  # after a message that was not stored it stores no other
            raise sent.error

    def _close_producer(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None

    # -- getting -------------------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes:
        return b"".join(self.chunks(name))

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        return self.get(name)[offset : offset + size]

    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self.get(name))

    def chunks(self, name: str) -> Iterator[bytes]:
        bare, stamp = split(name)
        if stamp is None:
            stamp = self._find(bare)
        wanted = 0
        for part in self._read(stamp.first, stamp.last + 1):
            if part.name == bare and part.number == wanted and part.data is not None:
                yield part.data
                wanted += 1
                if wanted == stamp.parts:
                    return
        raise FileNotFoundError(name)

    def size(self, name: str) -> int:
        bare, stamp = split(name)
        return (stamp or self._find(bare)).size

    def _read(self, start: int, end: int) -> Iterator[_Part]:
        """What stands in a range of offsets, as far as it is there."""
        return (part for part in self._received(start, end, self._decode) if part is not None)

    def _received(self, start: int, end: int, read: Callable[[Received], What]) -> Iterator[What]:
        """What is read of each message. A consumer whose messages cannot be read is not used again."""
        low, high = self._bounds()
        start, end = max(start, low), min(end, high)
        if start >= end:
            return
        deadline = time.monotonic() + self._timeout_s
        with self._reading(start) as consumer:
            while start < end:
                for received in consumer.receive(RECEIVE_S):
                    deadline = time.monotonic() + self._timeout_s
                    start = received.offset + 1
                    if received.offset >= end:
                        return
                    yield read(received)
                self._check_patience(deadline, f"{self._topic}/{self._cell} could not be read from offset {start}")

    @contextlib.contextmanager
    def _reading(self, start: int) -> Iterator[Consumer]:
        """A consumer that begins at an offset: the one that somebody used before, if it rests. To open one takes longer
        than to read a small blob."""
        with self._lock:
            resting, self._resting = self._resting, None
        if resting is None:
            consumer = self._kafka.consumer(self._topic, self._cell, start, waits=False)
        else:
            consumer = resting
            consumer.seek(start)
        is_well = True
        try:
            yield consumer
        except OffsetOutOfRange:
            pass  # the topic was made again: there is nothing to read
        except Exception:
            is_well = False
            raise
        finally:
            self._let_rest(consumer) if is_well else consumer.close()

    def _let_rest(self, consumer: Consumer) -> None:
        consumer.rest()
        with self._lock:
            if self._resting is None and not self._given_up.is_set():
                self._resting = consumer
                return
        consumer.close()

    def _decode(self, received: Received) -> _Part | None:
        """None for what no hub wrote."""
        found = self._name_of(received)
        if found is None:
            return None
        name, number = found
        if received.value is None:
            return _Part(name, number, False, None, received.offset)
        magic = received.value[: len(MAGIC)]
        if magic not in (MAGIC, PACKED) or len(received.value) < HEADER.size:
            return None
        _, _, is_last, crc = HEADER.unpack_from(received.value)
        data = received.value[HEADER.size :]
        what = f"part {number} of {name} at offset {received.offset} of {self._topic}"
        if crc32c(data) != crc:
            raise BlobDamaged(f"{what} is damaged")
        if magic == PACKED:
            try:
                data = unpack(data)
            except BadPacking as error:
                raise BlobDamaged(f"{what} cannot be unpacked: {error}") from error
        return _Part(name, number, bool(is_last), data, received.offset)

    def _name_of(self, received: Received) -> tuple[str, int] | None:
        """The name of a blob, and the number of a part of it; None for what no hub wrote."""
        cell, _, rest = (received.key or b"").decode(errors="replace").partition("/")
        name, _, number = rest.rpartition("/")
        if cell != str(self._cell) or not name or not number.isdigit():
            return None
        return name, int(number)

    # -- what nobody has named yet -------------------------------------------------------------------------------------

    def mark(self, named: Set[str]) -> int:
        _, high = self._bounds()
        with self._lock:
            self._put = {name: offset for name, offset in self._put.items() if name not in named}
            return min([high, *self._put.values()])

    def since(self, mark: int) -> Iterator[str | None]:
        parts: dict[str, dict[int, int]] = {}
        """By name: the offsets of its parts, by their numbers."""
        for found, received in self._received(mark, self._bounds()[1], lambda each: (self._name_of(each), each)):
            if found is not None:
                name, number = found
                if received.value is not None:
                    parts.setdefault(name, {})[number] = received.offset
                elif name in parts:
                    parts[name].pop(number, None)
            yield None
        for name, offsets in parts.items():
            if offsets:
                yield stamped(name, Stamp(0, 0, min(offsets.values()), max(offsets.values()), max(offsets) + 1))

    # -- the whole partition -------------------------------------------------------------------------------------------

    def _find(self, name: str) -> Stamp:
        try:
            return self._all()[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def _all(self) -> dict[str, Stamp]:
        """Every blob that is whole: reads everything."""
        found: dict[str, Stamp] = {}
        begun: dict[str, Stamp] = {}
        low, high = self._bounds()
        for part in self._read(low, high):
            if part.data is None:
                found.pop(part.name, None)
                continue
            if part.number == 0:
                begun[part.name] = Stamp(0, 0, part.offset, part.offset, 0)
            before = begun.get(part.name)
            if before is None or before.parts != part.number:
                continue  # what is left of one that was removed, or given up
            size, crc = before.size + len(part.data), crc32c_extend(before.crc, part.data)
            begun[part.name] = Stamp(size, crc, before.first, part.offset, part.number + 1)
            if part.is_last:
                found[part.name] = begun.pop(part.name)
        return found

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        start = f"{folder}/"
        return sorted({name[len(start) :].partition("/")[0] for name in self._all() if name.startswith(start)})

    def names(self, folder: str = "") -> Iterator[str]:
        return (name for name in self._all() if name.startswith(f"{folder}/" if folder else ""))

    # -- removing ------------------------------------------------------------------------------------------------------

    def delete(self, name: str) -> None:
        bare, stamp = split(name)
        if stamp is None:
            stamp = self._all().get(bare)
        with self._lock:
            self._put.pop(bare, None)
        sent = _Sent()
        with self._sending:
            for part in range(stamp.parts if stamp is not None else 0):
                self._send(sent, _key(self._cell, bare, part), None, AHEAD_MAX)
            self._wait(sent, 0)

    def delete_all(self, folder: str) -> None:
        for name, stamp in self._all().items():
            if name.startswith(f"{folder}/"):
                self.delete(stamped(name, stamp))

    def set_aside(self, name: str) -> None:
        self.copy_in(f"{QUARANTINE}/{split(name)[0].rpartition('/')[2]}", self.chunks(name))
        self.delete(name)

    def local_path(self, name: str) -> str | None:
        return None

    def handover(self) -> tuple[str, int] | None:
        return None

    def close(self) -> None:
        self._given_up.set()
        with self._sending:
            self._close_producer()
        with self._lock:
            consumer, self._resting = self._resting, None
        if consumer is not None:
            consumer.close()


def _key(cell: int, name: str, part: int) -> bytes:
    return f"{cell}/{name}/{part}".encode()


def _parts(chunks: Iterable[bytes | memoryview]) -> Iterator[tuple[bytes, bool]]:
    """The same bytes in parts, and whether each is the last; an empty one when there are none."""
    pieces: list[bytes | memoryview] = []
    size = 0
    for chunk in chunks:
        view, at = memoryview(chunk), 0
        while size + len(view) - at > PART_BYTES:
            end = at + PART_BYTES - size
            yield b"".join((*pieces, view[at:end])), False
            pieces, size, at = [], 0, end
        if at < len(view):
            pieces.append(bytes(view[at:]))  # the chunk may be gone when the next one is asked for
            size += len(view) - at
    yield b"".join(pieces), True
