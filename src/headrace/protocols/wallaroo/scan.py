"""A received stream of bytes, split into frames; runs of MESSAGE frames become columns, never one object each.

The length word comes first in every frame, so finding the boundaries is a walk from word to word. Connectors mostly
send records of one size: after a few equal lengths the walk compares the length words of the whole rest of the
buffer at once, through a strided view. What is left per record in the other case is one `unpack_from`.

`Rows` then reads the fixed fields of all messages as arrays, and hands keys and payloads over as Arrow columns that
are gathered by one `take` over the received bytes.

    v3     length u32 | tag | stream u64 | id u64 | event time i64 | key length u16 | key | payload
    draft  length u32 | tag | stream u64 | flags u16 | id u64 | [event time u64] | payload
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.protocols.wallaroo.codec import DRAFT, DRAFT_FLAGS, V3, Dialect, check_draft_flags, detect
from headrace.protocols.wallaroo.frames import Flag, Frame, LocalFault, Message, PeerFault
from headrace.protocols.wallaroo.wire import SHORT_BYTES_MAX

FRAME_BYTES_MAX = 4 * 1024 * 1024
"""`wallaroo.frame_bytes_max`: the draft asks for "a few megabytes [...] with a configuration option" ([B1])."""

HELLO_BYTES_MAX = 1 + 4 * (2 + SHORT_BYTES_MAX)
"""No HELLO can be longer, so an unknown peer cannot make us hold more than this."""

CHUNK_BYTES_MIN = 24 * 1024
CHUNK_BYTES_MAX = CHUNK_BYTES_MIN << 6
"""Bytes are received in chunks that grow with the traffic up to this: large, for large pieces win. Only a still larger
frame has a chunk of its size. No more is received at once: others wait for so long."""

LENGTH_BYTES = 4
UNIFORM_AFTER = 8
"""So many equal lengths in a row before the strided comparison is worth its fixed cost."""

U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
"""Received bytes."""


class MessageLayout:
    """Where the fixed fields of a MESSAGE are, in one dialect."""

    def __init__(self, dialect: Dialect, fields: list[tuple[str, str]]) -> None:
        self.dialect = dialect
        self.tag = dialect.tags[Message]
        order = dialect.order
        self.head = np.dtype([("length", f"{order}u4"), ("tag", "u1")])
        self.fixed = np.dtype([("length", f"{order}u4"), ("tag", "u1"), *fields])
        self.unpack_head = struct.Struct(f"{order}IB").unpack_from
        self.length_min = self.fixed.itemsize - LENGTH_BYTES


V3_LAYOUT = MessageLayout(V3, [("stream", ">u8"), ("id", ">u8"), ("time", ">i8"), ("key_length", ">u2")])
DRAFT_LAYOUT = MessageLayout(DRAFT, [("stream", "<u8"), ("flags", "<u2"), ("id", "<u8")])
LAYOUTS: dict[Dialect, MessageLayout] = {V3: V3_LAYOUT, DRAFT: DRAFT_LAYOUT}


def scan_messages(data: Bytes, position: int, length_max: int, layout: MessageLayout) -> tuple[I64, I64, int]:
    """The starts and ends of the whole MESSAGE frames from `position` on, and the position after them.

    Stops at the first frame that is another kind, incomplete, too short or too long: the caller looks at that one.
    """
    unpack_head, heads = layout.unpack_head, data.data
    tag_wanted, length_min = layout.tag, layout.length_min
    end = len(data)
    starts: list[int] = []
    parts: list[I64] = []
    length_before = 0
    equal = 0
    first = position
    while end - position >= LENGTH_BYTES + 1:
        length, tag = unpack_head(heads, position)
        after = position + LENGTH_BYTES + length
        if tag != tag_wanted or after > end or length < length_min or length > length_max:
            break
        if length == length_before:
            equal += 1
            if equal >= UNIFORM_AFTER:
                count = _uniform(data, position, length, layout)
                stride = length + LENGTH_BYTES
                parts += [np.array(starts, np.int64), np.arange(position, position + count * stride, stride)]
                starts = []
                position += count * stride
                equal = 0
                continue
        else:
            length_before = length
            equal = 0
        starts.append(position)
        position = after
    parts.append(np.array(starts, np.int64))
    begins = parts[0] if len(parts) == 1 else np.concatenate(parts)
    ends = np.empty_like(begins)
    ends[:-1] = begins[1:]
    if position > first:
        ends[-1] = position
    return begins, ends, position


def _uniform(data: Bytes, position: int, length: int, layout: MessageLayout) -> int:
    """How many whole frames of this very length and tag follow one another from here; at least one."""
    stride = length + LENGTH_BYTES
    count_max = (len(data) - position) // stride
    count, looked = min(count_max, 64), 0
    while True:  # look ever further ahead: a short run must not cost a look at all that follows
        alike = looked + _same(data, position + looked * stride, length, layout, count - looked)
        if alike < count or count == count_max:
            return alike
        looked, count = count, min(count_max, 4 * count)


def _same(data: Bytes, position: int, length: int, layout: MessageLayout, count: int) -> int:
    stride = length + LENGTH_BYTES
    heads: npt.NDArray[Any] = np.ndarray((count,), layout.head, data, position, (stride,))
    same = (heads["length"] == length) & (heads["tag"] == layout.tag)
    return count if same.all() else int(same.argmin())


@dataclass(eq=False, slots=True)
class Rows:
    """Consecutive messages as columns over the bytes they came in."""

    _data: Bytes
    stream_ids: U64
    message_ids: U64
    event_times: I64 | None
    flags: npt.NDArray[np.uint16] | None
    _key_starts: I64 | None
    _payload_starts: I64
    _ends: I64

    @property
    def count(self) -> int:
        return len(self.message_ids)

    @property
    def mean_bytes(self) -> int:
        """About the size of a message: nothing is looked at one by one."""
        return int(self._ends[-1] - self._payload_starts[0]) // self.count

    def select(self, which: npt.NDArray[Any] | slice) -> Rows:
        """Some of the rows, in the order they came: a mask, a slice, or ascending positions."""
        return Rows(
            self._data,
            self.stream_ids[which],
            self.message_ids[which],
            None if self.event_times is None else self.event_times[which],
            None if self.flags is None else self.flags[which],
            None if self._key_starts is None else self._key_starts[which],
            self._payload_starts[which],
            self._ends[which],
        )

    def even_payloads(self) -> npt.NDArray[np.uint8] | None:
        """The payloads as rows of a matrix over the received bytes, when all have one length and one distance."""
        return _even(self._data, self._payload_starts, self._ends) if self.count > 1 else None

    def payloads(self) -> pa.Array:
        return gather(self._data, self._payload_starts, self._ends)

    def keys(self) -> pa.Array | None:
        """The keys, null where a message has none; `None` when no message has one."""
        if self._key_starts is None:
            return None
        column = gather(self._data, self._key_starts, self._payload_starts)
        empty = self._key_starts == self._payload_starts
        if not empty.any():
            return column
        _, offsets, values = column.buffers()
        validity = pa.py_buffer(np.packbits(~empty, bitorder="little"))
        return pa.Array.from_buffers(pa.binary(), len(column), [validity, offsets, values])

    def times(self, multiply: int, divide: int) -> pa.Array | None:
        """Event times as microseconds, null where there is none; `None` when there are none at all."""
        if self.event_times is None:
            return None
        absent = self.event_times == 0 if self.flags is None else (self.flags & Flag.EVENT_TIME) == 0
        if absent.all():
            return None
        micros = self.event_times
        if multiply > 1:
            limit = np.iinfo(np.int64).max // multiply
            known = micros[~absent]
            if ((known > limit) | (known < -limit)).any():
                raise PeerFault("Unable to decode message: an event time is outside of 64 bits of microseconds")
            micros = micros * multiply
        elif divide > 1:
            micros = micros // divide
        return pa.array(micros, pa.timestamp("us", tz="UTC"), mask=absent)


def gather(data: Bytes, starts: I64, ends: I64) -> pa.Array:
    """A binary column of `data[start:end]`, for slices that ascend and do not overlap.

    The bytes are looked at as a binary array of slice, gap, slice, gap …: taking every other element copies
    all slices in compiled code.
    """
    count = len(starts)
    if count == 0:
        return pa.array([], pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = ends
    view = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return view.take(pa.array(np.arange(0, 2 * count - 1, 2, dtype=np.int32)))


def _even(data: Bytes, starts: I64, ends: I64) -> npt.NDArray[np.uint8] | None:
    """A view of slices of one length at equal distances; None when they are not."""
    count, size, stride = len(starts), int(ends[0] - starts[0]), int(starts[1] - starts[0])
    if (ends - starts != size).any() or (np.diff(starts) != stride).any():
        return None
    return np.ndarray((count, size), np.uint8, data, int(starts[0]), (stride, 1))


def fresh_ids(ids: npt.NDArray[np.uint64], last_seen: int | None) -> npt.NDArray[np.bool_] | None:
    """Which ids are above all ids before them and above `last_seen`; `None` when all are."""
    first_is_fresh = last_seen is None or int(ids[0]) > last_seen
    if first_is_fresh and (len(ids) == 1 or bool((ids[1:] > ids[:-1]).all())):
        return None
    fresh = np.ones(len(ids), np.bool_)
    fresh[1:] = ids[1:] > np.maximum.accumulate(ids)[:-1]
    if last_seen is not None:
        fresh &= ids > np.uint64(last_seen)
    return fresh


def read_rows(data: Bytes, starts: I64, ends: I64, layout: MessageLayout) -> tuple[Rows, PeerFault | None]:
    """The rows of the frames up to the first one whose fields contradict its length or the rules, and that fault."""
    fixed = _fixed_fields(data, starts, ends, layout)
    if layout is V3_LAYOUT:
        return _v3_rows(data, starts, ends, fixed)
    return _draft_rows(data, starts, ends, fixed)


def _fixed_fields(data: Bytes, starts: I64, ends: I64, layout: MessageLayout) -> npt.NDArray[Any]:
    size = layout.fixed.itemsize
    count = len(starts)
    stride = int(ends[0] - starts[0])
    if (ends - starts == stride).all():
        return np.ndarray((count,), layout.fixed, data, int(starts[0]), (stride,))
    column = gather(data, starts, starts + size)
    return np.frombuffer(column.buffers()[2], layout.fixed, count)


def _v3_rows(data: Bytes, starts: I64, ends: I64, fixed: npt.NDArray[Any]) -> tuple[Rows, PeerFault | None]:
    fault = None
    key_lengths = fixed["key_length"].astype(np.int64)
    key_starts = starts + V3_LAYOUT.fixed.itemsize
    payload_starts = key_starts + key_lengths
    too_long = payload_starts > ends
    count = len(starts)
    if too_long.any():
        count = int(too_long.argmax())
        fault = PeerFault(f"Unable to decode MESSAGE: a key of {key_lengths[count]} bytes is longer than its frame")
    upto = slice(0, count)
    times = fixed["time"][upto]
    rows = Rows(
        data,
        fixed["stream"][upto].astype(np.uint64),
        fixed["id"][upto].astype(np.uint64),
        times.astype(np.int64) if times.any() else None,
        None,
        key_starts[upto] if key_lengths[upto].any() else None,
        payload_starts[upto],
        ends[upto],
    )
    return rows, fault


def _draft_rows(data: Bytes, starts: I64, ends: I64, fixed: npt.NDArray[Any]) -> tuple[Rows, PeerFault | None]:
    flags = fixed["flags"].astype(np.uint16)
    timed = (flags & Flag.EVENT_TIME) != 0
    payload_starts = starts + DRAFT_LAYOUT.fixed.itemsize + timed * 8
    times = None
    count, fault = len(starts), None
    if flags.any():
        count, fault = _check_draft(flags, payload_starts, ends)
        if timed[:count].any():
            times, count, fault = _draft_times(data, payload_starts, timed, count, fault)
    upto = slice(0, count)
    rows = Rows(
        data,
        fixed["stream"][upto].astype(np.uint64),
        fixed["id"][upto].astype(np.uint64),
        None if times is None else times[upto],
        flags[upto],
        None,
        payload_starts[upto],
        ends[upto],
    )
    return rows, fault


def _check_draft(flags: npt.NDArray[np.uint16], payload_starts: I64, ends: I64) -> tuple[int, PeerFault | None]:
    """How many frames obey the rules on flags, and what is wrong with the next one."""
    boundary = (flags & Flag.BOUNDARY) != 0
    bad = (flags & np.uint16(0xFFFF ^ DRAFT_FLAGS)) != 0
    bad |= boundary & ((flags & Flag.EVENT_TIME) != 0)
    bad |= payload_starts > ends
    bad |= boundary & (payload_starts != ends)
    if not bad.any():
        return len(flags), None
    first = int(bad.argmax())
    try:
        check_draft_flags(int(flags[first]))
    except PeerFault as fault:
        return first, fault
    if payload_starts[first] > ends[first]:
        return first, PeerFault("Unable to decode MESSAGE: EVENT_TIME is set and the frame has no room for it")
    return first, PeerFault("Unable to decode MESSAGE: a BOUNDARY carries no payload")


def _draft_times(
    data: Bytes, payload_starts: I64, timed: npt.NDArray[np.bool_], count: int, fault: PeerFault | None
) -> tuple[I64, int, PeerFault | None]:
    """The event times, 0 where there is none. The draft's are unsigned; ours end at 2**63 - 1."""
    where = np.flatnonzero(timed[:count])
    column = gather(data, payload_starts[where] - 8, payload_starts[where])
    unsigned = np.frombuffer(column.buffers()[2], "<u8", len(where))
    too_late = unsigned > np.uint64(np.iinfo(np.int64).max)
    if too_late.any():
        count = int(where[too_late.argmax()])
        fault = PeerFault("Unable to decode MESSAGE: an event time is above 2^63 - 1")
    times = np.zeros(len(timed), np.int64)
    times[where] = unsigned.astype(np.int64)
    return times, count, fault


class FrameBuffer:
    """Bytes go in as they come; frames, and runs of messages as `Rows`, come out.

    Bytes are received where they stay: `Rows` are views of the chunk they arrived in. A chunk that rows were made of is
    not written to again; the beginning of a frame that is left in it moves to the next one.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX, dialect: Dialect | None = None) -> None:
        if not HELLO_BYTES_MAX <= frame_bytes_max < 2**31:
            raise LocalFault(f"frame_bytes_max must be between {HELLO_BYTES_MAX} and {2**31 - 1}")
        self.dialect = dialect
        self._first = dialect is None
        self._frame_bytes_max = frame_bytes_max
        self._chunk = np.empty(CHUNK_BYTES_MIN, np.uint8)
        self._lent = False
        """Whether rows were made of the chunk."""
        self._position = 0
        self._end = 0
        self._wanted = 0
        """Bytes of the frame of which the beginning is held, as far as they are known."""
        self._fault: PeerFault | None = None

    @property
    def held(self) -> int:
        """How many bytes wait for the rest of their frame, or to be taken."""
        return self._end - self._position

    @property
    def is_full(self) -> bool:
        """Whether there is no room for more until some of it has been taken; though `room` always finds some."""
        return self._end == len(self._chunk) >= CHUNK_BYTES_MAX

    def room(self) -> memoryview:
        """Where to put the next bytes; then say with `add` how many there are."""
        if self._lent or self._end == len(self._chunk):
            self._change_chunk()
        return self._chunk[self._end : self._end + CHUNK_BYTES_MAX].data

    def add(self, count: int) -> None:
        self._end += count

    def feed(self, data: bytes) -> None:
        """Take bytes that are elsewhere already."""
        left = memoryview(data)
        while left:
            room = self.room()
            count = min(len(room), len(left))
            room[:count] = left[:count]
            self.add(count)
            left = left[count:]

    def _change_chunk(self) -> None:
        """One twice as large after one that was filled, and half as large after one that was mostly empty."""
        size = min(len(self._chunk), CHUNK_BYTES_MAX)
        if self._end == size < CHUNK_BYTES_MAX:
            size *= 2
        elif self._end < size // 4 and size > CHUNK_BYTES_MIN:
            size //= 2
        chunk = np.empty(max(size, self._wanted, 2 * self.held), np.uint8)
        chunk[: self.held] = self._chunk[self._position : self._end]
        self._chunk, self._position, self._end, self._lent = chunk, 0, self.held, False

    def clear(self) -> None:
        """Forget what is held: "any data received after the error frame should be discarded"."""
        self._position = self._end

    def release(self) -> None:
        """Give the memory back: what may still come is read away."""
        self._chunk, self._position, self._end, self._lent = np.empty(CHUNK_BYTES_MIN, np.uint8), 0, 0, False

    def next(self) -> Frame | Rows | None:
        """The next frame, or run of messages; `None` when more bytes are needed. Raises `PeerFault`."""
        if self._fault is not None:
            raise self._fault
        if self.dialect is None:
            if self.held < LENGTH_BYTES + 1:
                return None
            self.dialect = detect(self._bytes(0, LENGTH_BYTES + 1))
            if self.dialect is None:
                raise PeerFault("This port speaks the Wallaroo connector protocol, which begins with a HELLO frame")
        if self.held < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._bytes(0, LENGTH_BYTES), "little" if self.dialect.order == "<" else "big")
        self._check_length(length)
        if self.held < LENGTH_BYTES + length:
            self._wanted = LENGTH_BYTES + length
            return None
        self._first, self._wanted = False, 0
        layout = LAYOUTS.get(self.dialect)
        if layout is not None and self._chunk[self._position + LENGTH_BYTES] == layout.tag:
            return self._messages(layout)
        frame = self.dialect.decode(self._bytes(LENGTH_BYTES, LENGTH_BYTES + length))
        self._position += LENGTH_BYTES + length
        return frame

    def _bytes(self, start: int, end: int) -> bytes:
        """Some of the bytes that are held."""
        return self._chunk[self._position + start : self._position + end].tobytes()

    def _check_length(self, length: int) -> None:
        if length == 0:
            raise PeerFault("Unable to decode message: a frame of length 0 has no tag")
        maximum = HELLO_BYTES_MAX if self._first else self._frame_bytes_max
        if length > maximum:
            key = "a HELLO" if self._first else "wallaroo.frame_bytes_max"
            raise PeerFault(f"Frame of {length} bytes is above the limit of {maximum} bytes ({key})")

    def _messages(self, layout: MessageLayout) -> Rows:
        data = self._chunk[: self._end]
        starts, ends, position = scan_messages(data, self._position, self._frame_bytes_max, layout)
        if not len(starts):
            raise PeerFault(f"Unable to decode MESSAGE: it needs at least {layout.length_min} bytes")
        rows, self._fault = read_rows(data, starts, ends, layout)
        self._position = position
        self._lent = True
        if self._fault is not None and not rows.count:
            raise self._fault
        return rows
