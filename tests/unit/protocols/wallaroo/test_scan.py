"""Splitting bytes into frames and columns: whatever the sizes and the cuts, the same as one frame at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.protocols.wallaroo import frames, scan
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.frames import Flag, Frame, LocalFault, Message, PeerFault
from headrace.protocols.wallaroo.scan import (
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    HELLO_BYTES_MAX,
    UNIFORM_AFTER,
    V3_LAYOUT,
    FrameBuffer,
    MessageLayout,
    Rows,
    gather,
    scan_messages,
)

u64 = st.integers(0, 2**64 - 1)
v3_messages = st.builds(
    Message,
    stream_id=st.integers(0, 3),
    message_id=u64,
    payload=st.binary(max_size=40),
    event_time=st.one_of(st.none(), st.integers(1, 2**63 - 1), st.integers(-(2**63), -1)),
    key=st.one_of(st.none(), st.binary(min_size=1, max_size=5)),
)
draft_messages = st.builds(
    Message,
    stream_id=st.integers(0, 3),
    message_id=u64,
    payload=st.binary(max_size=40),
    event_time=st.none(),
    flags=st.sampled_from([0, 1, 4, 5, 8, 12]),
)
draft_timed = st.builds(
    Message,
    stream_id=st.integers(0, 3),
    message_id=u64,
    payload=st.binary(max_size=40),
    event_time=st.integers(0, 2**63 - 1),
    flags=st.sampled_from([16, 17, 20, 24]),
)
draft_boundaries = st.builds(
    Message, stream_id=st.integers(0, 3), message_id=u64, payload=st.none(), flags=st.sampled_from([2, 6, 10])
)
others = st.sampled_from([frames.Notify(1, b"a", 2), frames.Error(b"no")])


def uniform(message: Message, count: int) -> list[Frame]:
    return [message] * count


v3_streams = st.lists(
    st.one_of(
        v3_messages.map(lambda m: [m]),
        others.map(lambda f: [f]),
        st.builds(uniform, v3_messages, st.integers(1, 4 * UNIFORM_AFTER)),
    ),
    max_size=12,
).map(lambda lists: [frame for each in lists for frame in each])
draft_streams = st.lists(
    st.one_of(
        st.one_of(draft_messages, draft_timed, draft_boundaries).map(lambda m: [m]),
        others.map(lambda f: [f]),
        st.builds(uniform, draft_messages, st.integers(1, 4 * UNIFORM_AFTER)),
    ),
    max_size=12,
).map(lambda lists: [frame for each in lists for frame in each])


def messages_of(rows: Rows) -> list[Message]:
    count = rows.count
    keys = rows.keys()
    times = rows.times(1, 1)
    boundary = [False] * count if rows.flags is None else [bool(f & Flag.BOUNDARY) for f in rows.flags.tolist()]
    return [
        Message(stream_id, message_id, None if marker else payload, event_time, key, flags)
        for stream_id, message_id, payload, event_time, key, flags, marker in zip(
            rows.stream_ids.tolist(),
            rows.message_ids.tolist(),
            rows.payloads().to_pylist(),
            [None] * count if times is None else times.cast("int64").to_pylist(),
            [None] * count if keys is None else keys.to_pylist(),
            [0] * count if rows.flags is None else rows.flags.tolist(),
            boundary,
            strict=True,
        )
    ]


def drain(buffer: FrameBuffer) -> list[Frame]:
    found: list[Frame] = []
    while (item := buffer.next()) is not None:
        found += messages_of(item) if isinstance(item, Rows) else [item]
    return found


def check(dialect: Dialect, stream: list[Frame], cuts: list[int]) -> None:
    data = b"".join(dialect.encode(frame) for frame in stream)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    buffer = FrameBuffer(dialect=dialect)
    found: list[Frame] = []
    for start, end in itertools.pairwise(edges):
        buffer.feed(data[start:end])
        found += drain(buffer)
    assert found == stream
    assert buffer.held == 0


@settings(deadline=None)
@given(v3_streams, st.lists(st.integers(0, 10_000), max_size=8))
def test_v3_streams_cut_anywhere(stream: list[Frame], cuts: list[int]) -> None:
    check(V3, stream, cuts)


@settings(deadline=None)
@given(draft_streams, st.lists(st.integers(0, 10_000), max_size=8))
def test_draft_streams_cut_anywhere(stream: list[Frame], cuts: list[int]) -> None:
    check(DRAFT, stream, cuts)


@pytest.mark.parametrize("dialect", [DRAFT, V3], ids=lambda d: d.name)
def test_byte_by_byte(dialect: Dialect) -> None:
    stream: list[Frame] = [
        frames.Hello(b"0.0.1", b"", b"p", b"i"),
        frames.Notify(1, b"s", 0),
        *uniform(Message(1, 2, b"x"), 20),
    ]
    data = b"".join(dialect.encode(frame) for frame in stream)
    buffer = FrameBuffer()
    found: list[Frame] = []
    for position in range(len(data)):
        buffer.feed(data[position : position + 1])
        found += drain(buffer)
    assert found == stream
    assert buffer.dialect is dialect


def test_a_large_frame_in_many_pieces_is_put_together_once() -> None:
    buffer = FrameBuffer(dialect=V3)
    data = V3.encode(Message(1, 2, bytes(1_000_000)))
    for start in range(0, len(data), 1000):
        buffer.feed(data[start : start + 1000])
        item = buffer.next()
        assert (item is None) == (start + 1000 < len(data))
    assert isinstance(item, Rows)
    assert len(item.payloads()[0].as_py()) == 1_000_000


@pytest.mark.parametrize("dialect", [DRAFT, V3], ids=lambda d: d.name)
@pytest.mark.parametrize(
    ("length", "reason"), [(0, "length 0"), (300_001, "above the limit"), (2**32 - 1, "above the limit")]
)
def test_lengths_are_refused_from_the_header_alone(dialect: Dialect, length: int, reason: str) -> None:
    buffer = FrameBuffer(dialect=dialect, frame_bytes_max=300_000)
    buffer.feed(length.to_bytes(4, "little" if dialect is DRAFT else "big"))
    with pytest.raises(PeerFault, match=reason):
        buffer.next()
    assert buffer.held == 4


@pytest.mark.parametrize("dialect", [DRAFT, V3], ids=lambda d: d.name)
def test_the_limit_itself_is_accepted(dialect: Dialect) -> None:
    head = len(dialect.encode(Message(1, 1, b""))) - 4
    data = dialect.encode(Message(1, 1, bytes(300_000 - head)))
    buffer = FrameBuffer(dialect=dialect, frame_bytes_max=300_000)
    buffer.feed(data + data)
    rows = buffer.next()
    assert isinstance(rows, Rows)
    assert rows.count == 2
    buffer.feed((300_001).to_bytes(4, "little" if dialect is DRAFT else "big") + bytes([data[4]]))
    with pytest.raises(
        PeerFault, match=r"300001 bytes is above the limit of 300000 bytes \(wallaroo\.frame_bytes_max\)"
    ):
        buffer.next()


def test_a_frame_over_the_limit_behind_good_ones_is_found_after_them() -> None:
    buffer = FrameBuffer(dialect=V3, frame_bytes_max=300_000)
    buffer.feed(V3.encode(Message(1, 1, b"x")) * 3 + b"\x7f\xff\xff\xff\x05")
    rows = buffer.next()
    assert isinstance(rows, Rows)
    assert rows.count == 3
    with pytest.raises(PeerFault, match="above the limit"):
        buffer.next()


def test_the_first_frame_may_only_be_as_long_as_a_hello() -> None:
    buffer = FrameBuffer()
    buffer.feed((HELLO_BYTES_MAX + 1).to_bytes(4, "big") + b"\0")
    with pytest.raises(PeerFault, match="a HELLO"):
        buffer.next()
    largest = FrameBuffer()
    hello = frames.Hello(*(bytes(65535) for _ in range(4)))
    largest.feed(V3.encode(hello))
    assert largest.next() == hello


def test_garbage_has_no_dialect() -> None:
    buffer = FrameBuffer()
    buffer.feed(b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(PeerFault, match="Wallaroo connector protocol"):
        buffer.next()


def test_a_message_too_short_for_its_fields() -> None:
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(b"\0\0\0\x1a\x05" + bytes(25))
    with pytest.raises(PeerFault, match="at least 27 bytes"):
        buffer.next()


BAD_MESSAGES = [
    (V3, b"\0\0\0\x1b\x05" + bytes(24) + b"\0\x01", "a key of 1 bytes"),
    (DRAFT, b"\x13\0\0\0M" + bytes(8) + b"\x10\0" + bytes(8), "no room for it"),
    (DRAFT, b"\x14\0\0\0M" + bytes(8) + b"\x02\0" + bytes(9), "carries no payload"),
    (DRAFT, b"\x1b\0\0\0M" + bytes(8) + b"\x12\0" + bytes(16), "EVENT_TIME"),
    (DRAFT, b"\x13\0\0\0M" + bytes(8) + b"\x20\0" + bytes(8), "reserved bits"),
    (DRAFT, b"\x1b\0\0\0M" + bytes(8) + b"\x10\0" + bytes(8) + b"\xff" * 8, "event time is above"),
]


@pytest.mark.parametrize(("dialect", "bad", "reason"), BAD_MESSAGES, ids=[reason for _, _, reason in BAD_MESSAGES])
@pytest.mark.parametrize("before", [0, 1, 20])
def test_a_bad_message_ends_the_run_before_it(dialect: Dialect, bad: bytes, reason: str, before: int) -> None:
    good = dialect.encode(Message(1, 1, b"x" * 5))
    buffer = FrameBuffer(dialect=dialect)
    buffer.feed(good * before + bad + good)
    if before:
        rows = buffer.next()
        assert isinstance(rows, Rows)
        assert rows.count == before
    for _ in range(2):
        with pytest.raises(PeerFault, match=reason):
            buffer.next()


def test_times_convert_to_microseconds() -> None:
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(V3.encode(Message(1, 1, b"", event_time=1_500)) + V3.encode(Message(1, 2, b"")))
    rows = buffer.next()
    assert isinstance(rows, Rows)

    def micros(multiply: int, divide: int) -> list[int | None]:
        column = rows.times(multiply, divide)
        assert column is not None
        return list(column.cast("int64").to_pylist())

    assert micros(1, 1) == [1_500, None]
    assert micros(1_000, 1) == [1_500_000, None]
    assert micros(1, 1_000) == [1, None]
    assert rows.select(slice(1, 2)).times(1, 1) is None


@pytest.mark.parametrize("event_time", [2**62, 2**63 - 1, -(2**62), -(2**63)])
def test_a_time_that_no_longer_fits_is_the_peers_fault(event_time: int) -> None:
    """Of the lowest one there is no absolute value in 64 bits."""
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(V3.encode(Message(1, 1, b"", event_time=event_time)))
    rows = buffer.next()
    assert isinstance(rows, Rows)
    with pytest.raises(PeerFault, match="64 bits of microseconds"):
        rows.times(1_000, 1)


@pytest.mark.parametrize("event_time", [(2**63 - 1) // 1_000, -((2**63 - 1) // 1_000)])
def test_the_outermost_times_that_fit(event_time: int) -> None:
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(V3.encode(Message(1, 1, b"", event_time=event_time)))
    rows = buffer.next()
    assert isinstance(rows, Rows)
    column = rows.times(1_000, 1)
    assert column is not None
    assert column.cast("int64").to_pylist() == [1_000 * event_time]


def test_clear_forgets_everything() -> None:
    buffer = FrameBuffer(dialect=V3)
    buffer.feed(V3.encode(frames.Eos(1))[:-1])
    assert buffer.next() is None
    buffer.clear()
    assert buffer.held == 0
    buffer.feed(V3.encode(frames.Eos(2)))
    assert buffer.next() == frames.Eos(2)


def test_a_limit_that_cannot_be() -> None:
    for wrong in (1, 2**31):
        with pytest.raises(LocalFault):
            FrameBuffer(frame_bytes_max=wrong)


def test_gather_of_nothing() -> None:
    assert gather(b"", np.array([], np.int64), np.array([], np.int64)).to_pylist() == []


# -- chunks -----------------------------------------------------------------------------------------------------------


def test_rows_stay_as_they_are_while_more_is_received() -> None:
    buffer = FrameBuffer(dialect=V3)
    kept = []
    for number in range(1, 200):
        message = V3.encode(Message(1, number, bytes([number]) * 40))
        buffer.feed(message + message[:7])  # the beginning of a frame moves to the next chunk
        rows = buffer.next()
        assert isinstance(rows, Rows)
        kept.append(rows)
        assert buffer.next() is None
        buffer.feed(message[7:])
        again = buffer.next()
        assert isinstance(again, Rows)
        assert messages_of(again) == messages_of(rows)
    assert [messages_of(rows)[0].payload for rows in kept] == [bytes([number]) * 40 for number in range(1, 200)]


def test_a_chunk_grows_with_the_traffic_and_shrinks_again() -> None:
    buffer = FrameBuffer(dialect=V3)
    lot = V3.encode(Message(1, 1, bytes(1_000))) * 4_000
    sizes = []
    for _ in range(12):
        buffer.feed(lot[: len(buffer.room())])
        while buffer.next() is not None:
            pass
        buffer.clear()
        sizes.append(len(buffer._chunk))
    assert sizes[0] == CHUNK_BYTES_MIN
    assert sizes[-1] == CHUNK_BYTES_MAX
    assert sizes == sorted(sizes)
    for _ in range(12):
        buffer.feed(V3.encode(Message(1, 1, b"x")))
        assert isinstance(buffer.next(), Rows)
    assert len(buffer.room()) == CHUNK_BYTES_MIN


def test_a_full_chunk_says_so_and_still_finds_room_for_a_larger_frame() -> None:
    buffer = FrameBuffer(dialect=V3, frame_bytes_max=4 * CHUNK_BYTES_MAX)
    data = V3.encode(Message(1, 7, bytes(3 * CHUNK_BYTES_MAX)))
    said = []
    while data:
        room = buffer.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        buffer.add(count)
        said.append((buffer.held, buffer.is_full))
        data = data[count:]
    assert [held for held, is_full in said if is_full] == [CHUNK_BYTES_MAX, 2 * CHUNK_BYTES_MAX]
    rows = buffer.next()
    assert isinstance(rows, Rows)
    assert rows.message_ids.tolist() == [7]
    assert len(rows.payloads()[0].as_py()) == 3 * CHUNK_BYTES_MAX


def test_a_large_frame_has_one_chunk_and_those_behind_it_a_small_one() -> None:
    buffer = FrameBuffer(dialect=V3, frame_bytes_max=4 * CHUNK_BYTES_MAX)
    left = memoryview(V3.encode(Message(1, 7, bytes(3 * CHUNK_BYTES_MAX))) + V3.encode(Message(1, 8, b"x")))
    found: list[int] = []
    rooms: list[int] = []
    chunks: list[object] = []  # kept: the next one must not get the place of one that is gone
    while left:
        room = buffer.room()
        if not chunks or chunks[-1] is not buffer._chunk:
            chunks.append(buffer._chunk)
        rooms.append(len(room))
        count = min(len(room), len(left))
        room[:count] = left[:count]
        buffer.add(count)
        left = left[count:]
        while (rows := buffer.next()) is not None:
            assert isinstance(rows, Rows)
            found += rows.message_ids.tolist()
    assert found == [7, 8]
    assert max(rooms) == CHUNK_BYTES_MAX  # nobody waits for more to be copied at once
    assert len(chunks) == 3
    assert len(buffer._chunk) == CHUNK_BYTES_MAX


# -- runs of equal lengths --------------------------------------------------------------------------------------------


def count_looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many frame heads were compared, call by call."""
    looks: list[int] = []
    original = scan._same

    def counted(data: scan.Bytes, position: int, length: int, layout: MessageLayout, count: int) -> int:
        looks.append(count)
        return original(data, position, length, layout, count)

    monkeypatch.setattr(scan, "_same", counted)
    return looks


def scanned(data: bytes) -> int:
    """How many frames a scan finds: all of them."""
    starts, _, position = scan_messages(np.frombuffer(data, np.uint8), 0, 1 << 20, V3_LAYOUT)
    assert position == len(data)
    return len(starts)


def test_a_short_run_costs_no_look_at_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that are just long enough to look ahead, one after the other: the work must not grow with their square."""
    looks = count_looks(monkeypatch)
    run = V3.encode(Message(1, 1, b"")) * (UNIFORM_AFTER + 2) + V3.encode(Message(1, 1, b"x"))
    runs = 2_000
    assert scanned(run * runs) == runs * (UNIFORM_AFTER + 3)
    assert len(looks) == runs
    assert sum(looks) <= 64 * runs


@pytest.mark.parametrize("count", [UNIFORM_AFTER + 1, 64, 72, 73, 1_000, 100_000])
def test_a_long_run_is_looked_at_once(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = count_looks(monkeypatch)
    assert scanned(V3.encode(Message(1, 1, b"x" * 9)) * count) == count
    assert sum(looks) == count - UNIFORM_AFTER
    assert len(looks) < 10
