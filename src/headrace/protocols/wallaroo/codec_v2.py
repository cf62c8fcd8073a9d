"""The two v2 generations (December 2018 to July 2019), codec only: for traces, tests and tools.

The HELLO of v2 and v3 are byte for byte the same, so a server cannot tell them apart; Headrace serves v3 and offers
`ok_form = "any"` for v2 clients. What differs on the wire:

    OK       credits u32, count u32, (stream u64, short name, point u64)*        2018-12
             ... count u32, (short source, short address)*                       2019-03 adds this
    MESSAGE  stream u64, flags u8, [id u64 unless EPHEMERAL], [event time i64 if EVENT_TIME],
             [short key if KEY], [payload unless BOUNDARY]
    RESTART  empty body in 2018-12
"""

from __future__ import annotations

from headrace.protocols.wallaroo.codec import BigEndianDialect
from headrace.protocols.wallaroo.frames import Flag, Frame, LocalFault, Message, Ok, PeerFault, Restart
from headrace.protocols.wallaroo.wire import FieldReader, packed, short


def flags_are_legal(flags: int) -> bool:
    """28 of the 64 sets: EPHEMERAL excludes BOUNDARY and UNSTABLE; BOUNDARY excludes UNSTABLE and KEY."""
    if flags & ~0x3F:
        return False
    if flags & Flag.EPHEMERAL and flags & (Flag.BOUNDARY | Flag.UNSTABLE_REFERENCE):
        return False
    return not (flags & Flag.BOUNDARY and flags & (Flag.UNSTABLE_REFERENCE | Flag.KEY))


class V2Dialect(BigEndianDialect):
    """The form of March 2019; `sources_in_ok` and `address_in_restart` off give December 2018."""

    def __init__(self, name: str, *, sources_in_ok: bool, address_in_restart: bool) -> None:
        self.name = name
        self._sources_in_ok = sources_in_ok
        self._address_in_restart = address_in_restart
        super().__init__()

    def _read_ok(self, reader: FieldReader) -> Frame:
        credits = reader.u32("credits")
        points = []
        names = []
        for _ in range(reader.count(18, "streams")):
            stream_id = reader.u64("stream id")
            names.append(reader.short("stream name"))
            points.append((stream_id, reader.u64("point of reference")))
        sources = []
        if self._sources_in_ok:
            for _ in range(reader.count(4, "sources")):
                source = reader.short("source")
                sources.append((source, reader.short("address")))
        return Ok(credits, tuple(points), tuple(names), tuple(sources))

    def _write_ok(self, frame: Ok) -> bytes:
        if len(frame.names) != len(frame.points):
            raise LocalFault("a v2 OK names each of its streams")
        parts = [packed(">", "II", frame.credits, len(frame.points))]
        for (stream_id, point), name in zip(frame.points, frame.names, strict=True):
            parts += [packed(">", "Q", stream_id), short(">", name), packed(">", "Q", point)]
        if self._sources_in_ok:
            parts.append(packed(">", "I", len(frame.sources)))
            parts += [short(">", text) for source in frame.sources for text in source]
        return b"".join(parts)

    def _read_message(self, reader: FieldReader) -> Frame:
        stream_id = reader.u64("stream id")
        flags = reader.u8("flags")
        if not flags_are_legal(flags):
            raise PeerFault(f"Bad MessageMsg flags: {flags:#04x}")
        message_id = None if flags & Flag.EPHEMERAL else reader.u64("message id")
        event_time = reader.i64("event time") if flags & Flag.EVENT_TIME else None
        key = reader.short("key") if flags & Flag.KEY else None
        payload = None if flags & Flag.BOUNDARY else reader.rest()
        return Message(stream_id, message_id, payload, event_time=event_time, key=key, flags=flags)

    def _write_message(self, frame: Message) -> bytes:
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
        parts = [packed(">", "QB", frame.stream_id, frame.flags)]
        parts += [packed(">", "Q", frame.message_id)] if frame.message_id is not None else []
        parts += [packed(">", "q", frame.event_time)] if frame.event_time is not None else []
        parts += [short(">", frame.key)] if frame.key is not None else []
        return b"".join([*parts, frame.payload or b""])

    def _read_restart(self, reader: FieldReader) -> Frame:
        return super()._read_restart(reader) if self._address_in_restart else Restart()

    def _write_restart(self, frame: Restart) -> bytes:
        if self._address_in_restart:
            return super()._write_restart(frame)
        if frame.address:
            raise LocalFault("the RESTART of December 2018 has no address")
        return b""


V2_2018_12 = V2Dialect("v2-2018-12", sources_in_ok=False, address_in_restart=False)
V2_2019_03 = V2Dialect("v2-2019-03", sources_in_ok=True, address_in_restart=True)
