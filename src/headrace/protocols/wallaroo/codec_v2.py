"""The two v2 generations (December 2018 to July 2019), codec only: for traces, tests and tools.

The HELLO of v2 and v3 are byte for byte the same, so a server cannot tell them apart; Headrace serves v3, whose OK is
too short for v2 clients: they end there, before their messages could be taken for v3's. What differs on the wire:

    OK       credits u32, count u32, (stream u64, short name, point u64)*        2018-12
             ... count u32, (short source, short address)*                       2019-03 adds this
    MESSAGE  stream u64, flags u8, [id u64 unless EPHEMERAL], [event time i64 if EVENT_TIME],
             [short key if KEY], [payload unless BOUNDARY]
    RESTART  empty body in 2018-12
"""

from __future__ import annotations

from typing import Any

from headrace.protocols.wallaroo.codec import V3_LAYOUTS, Dialect
from headrace.protocols.wallaroo.frames import Flag, LocalFault, Message, Ok, PeerFault, Restart
from headrace.protocols.wallaroo.wire import (
    ByteOrder,
    FieldReader,
    Layout,
    counted,
    packed,
    packed_text,
    short,
    u32,
    u64,
)


def flags_are_legal(flags: int) -> bool:
    """28 of the 64 sets: EPHEMERAL excludes BOUNDARY and UNSTABLE; BOUNDARY excludes UNSTABLE and KEY."""
    if flags & ~0x3F:
        return False
    if flags & Flag.EPHEMERAL and flags & (Flag.BOUNDARY | Flag.UNSTABLE_REFERENCE):
        return False
    return not (flags & Flag.BOUNDARY and flags & (Flag.UNSTABLE_REFERENCE | Flag.KEY))


class V2Message(Layout):
    """The flags say which fields there are."""

    def read(self, reader: FieldReader) -> Message:
        stream_id = reader.integer("Q", "stream id")
        flags = reader.integer("B", "flags")
        if not flags_are_legal(flags):
            raise PeerFault(f"Bad MessageMsg flags: {flags:#04x}")
        message_id = None if flags & Flag.EPHEMERAL else reader.integer("Q", "message id")
        event_time = reader.integer("q", "event time") if flags & Flag.EVENT_TIME else None
        key = reader.text("H", "key") if flags & Flag.KEY else None
        payload = None if flags & Flag.BOUNDARY else reader.rest()
        return Message(stream_id, message_id, payload, event_time=event_time, key=key, flags=flags)

    def write(self, order: ByteOrder, frame: Message) -> bytes:
        present = (
            (Flag.EVENT_TIME, frame.event_time is not None),
            (Flag.KEY, frame.key is not None),
            (Flag.BOUNDARY, frame.payload is None),
            (Flag.EPHEMERAL, frame.message_id is None),
        )
        if frame.stream_id is None or not flags_are_legal(frame.flags):
            raise LocalFault("a v2 message has a stream id and a legal set of flags")
        if any(bool(frame.flags & flag) != there for flag, there in present):
            raise LocalFault("the flags of a v2 message say which fields are there")
        parts = [packed(order, "QB", frame.stream_id, frame.flags)]
        parts += [packed(order, "Q", frame.message_id)] if frame.message_id is not None else []
        parts += [packed(order, "q", frame.event_time)] if frame.event_time is not None else []
        parts += [packed_text("H", order, frame.key)] if frame.key is not None else []
        return b"".join([*parts, frame.payload or b""])


def make_ok(credits: int, streams: tuple[tuple[int, bytes, int], ...], sources: Any = ()) -> Ok:
    points = tuple((stream_id, point) for stream_id, _, point in streams)
    return Ok(credits, points, tuple(name for _, name, _ in streams), sources)


def ok_values(frame: Ok) -> tuple[Any, ...]:
    if len(frame.names) != len(frame.points):
        raise LocalFault("a v2 OK names each of its streams")
    named = zip(frame.points, frame.names, strict=True)
    return frame.credits, tuple((stream_id, name, point) for (stream_id, point), name in named), frame.sources


def no_address(frame: Restart) -> tuple[()]:
    if frame.address:
        raise LocalFault("the RESTART of December 2018 has no address")
    return ()


STREAMS = counted("streams", u64("stream id"), short("stream name"), u64("point of reference"))
SOURCES = counted("sources", short("source"), short("address"))
MESSAGE = V2Message(Message)

V2_2018_12 = Dialect(
    "v2-2018-12",
    ">",
    {tag: V3_LAYOUTS[tag] for tag in range(8)}
    | {
        1: Layout(Ok, u32("credits"), STREAMS, make=make_ok, values=ok_values),
        5: MESSAGE,
        7: Layout(Restart, values=no_address),
    },
)
V2_2019_03 = Dialect(
    "v2-2019-03",
    ">",
    {tag: V3_LAYOUTS[tag] for tag in range(8)}
    | {1: Layout(Ok, u32("credits"), STREAMS, SOURCES, make=make_ok, values=ok_values), 5: MESSAGE},
)
