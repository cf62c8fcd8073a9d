"""Bytes to frames and back, for the two dialects that are served: `draft-2018-10` and `v3-2020`.

    frame := length u32 (bytes that follow), tag u8, body          short := length u16, bytes

    draft-2018-10: little endian                      v3-2020: big endian
    'H' HELLO   short version, cookie, program,       0 HELLO        as the draft
                instance
    'O' OK      credits u32, (stream u64,             1 OK           credits u32
                point u64)* to the end
    'E' ERROR   short reason                          2 ERROR        short reason
    'N' NOTIFY  stream u64, short name, point u64     3 NOTIFY       as the draft
                                                      4 NOTIFY_ACK   success u8, stream u64, point u64
    'M' MESSAGE stream u64, flags u16, id u64,        5 MESSAGE      stream u64, id u64, event time i64,
                [event time u64], payload to the end                 short key, payload to the end
    'A' ACK     credits u32, (stream, id)* to the end 6 ACK          credits u32, count u32, (stream, point)*
    '!' NACK    credits u32, stream u64, point u64    7 RESTART      length u32, address
                                                      8 EOS          stream u64
                                                      9 WORKERS_LEFT request u64, count u32, short name*

The draft's own text leaves the version undefined and the stream id out of MESSAGE; both are closed the way the
project's later code does (docs/protocols/wallaroo.md lists every reading). In v3 an event time of 0 and an empty
key mean "none", and bytes after a fixed body are ignored, as both published decoders do; the draft is strict.

Nothing here knows a socket, a loop or the hub. Whole streams of bytes are split in `scan.py`.
"""

from __future__ import annotations

import struct
from copy import copy
from typing import Any

from headrace.protocols.wallaroo import frames, wire
from headrace.protocols.wallaroo.frames import Flag, Frame, LocalFault, Message, PeerFault
from headrace.protocols.wallaroo.wire import ByteOrder, FieldReader, Layout, packed, short, u32, u64

DRAFT_FLAGS = int(Flag.EPHEMERAL | Flag.BOUNDARY | Flag.EOS | Flag.UNSTABLE_REFERENCE | Flag.EVENT_TIME)

V3_HEAD = struct.Struct(">IBQQqH")


class Dialect:
    """One generation of the protocol: a byte order and a table of tags."""

    def __init__(self, name: str, order: ByteOrder, layouts: dict[int, Layout], *, strict: bool = False) -> None:
        self.name = name
        self.order = order
        self.tags = {layout.kind: tag for tag, layout in layouts.items()}
        self._layouts = layouts
        self._strict = strict

    def knows(self, tag: int) -> bool:
        return tag in self._layouts

    def decode(self, body: bytes) -> Frame:
        """One frame from the bytes after its length."""
        if not body:
            raise PeerFault("Unable to decode message: a frame of length 0 has no tag")
        layout = self._layouts.get(body[0])
        if layout is None:
            raise PeerFault(f"Unable to decode message: unknown tag {body[0]}")
        reader = FieldReader(body, self.order, layout.kind.__name__.upper(), position=1)
        frame: Frame = layout.read(reader)
        if self._strict:
            reader.end()
        return frame

    def encode(self, frame: Frame) -> bytes:
        """One frame with its length."""
        tag = self.tags.get(type(frame))
        if tag is None:
            raise LocalFault(f"{type(frame).__name__} does not exist in {self.name}")
        body = self._layouts[tag].write(self.order, frame)
        return packed(self.order, "IB", 1 + len(body), tag) + body

    def encode_message(
        self,
        stream_id: int,
        message_id: int,
        payload: bytes | None,
        event_time: int | None,
        key: bytes | None,
        flags: int,
    ) -> bytes:
        """A MESSAGE with its length, from its parts: the connector's hot path."""
        if self is not V3 or payload is None or flags or key:
            return self.encode(Message(stream_id, message_id, payload, event_time, key, flags))
        try:
            return V3_HEAD.pack(27 + len(payload), 5, stream_id, message_id, event_time or 0, 0) + payload
        except struct.error as error:
            raise LocalFault(f"message {message_id} of stream {stream_id}: {error}") from error


class HelloLayout(Layout):
    """The version comes first, and another version may well have other fields behind it."""

    def read(self, reader: FieldReader) -> Any:
        start = copy(reader)
        try:
            return super().read(reader)
        except PeerFault:
            # "check the version [...] before continuing the decoding"
            version = start.text("H", "version")
            if version != frames.VERSION:
                raise PeerFault(unknown_version(version)) from None
            raise


class DraftMessage(Layout):
    """The flags say which fields there are."""

    def read(self, reader: FieldReader) -> Message:
        stream_id = reader.integer("Q", "stream id")
        flags = reader.integer("H", "flags")
        check_draft_flags(flags)
        message_id = reader.integer("Q", "message id")
        event_time = reader.integer("Q", "event time") if flags & Flag.EVENT_TIME else None
        payload = None if flags & Flag.BOUNDARY else reader.rest()
        return Message(stream_id, message_id, payload, event_time=event_time, flags=flags)

    def write(self, order: ByteOrder, frame: Message) -> bytes:
        flags = frame.flags | (Flag.EVENT_TIME if frame.event_time is not None else 0)
        flags |= Flag.BOUNDARY if frame.payload is None else 0
        if frame.stream_id is None or frame.message_id is None:
            raise LocalFault("a message needs a stream id and an id")
        if frame.key is not None or (flags & Flag.BOUNDARY and frame.payload):
            raise LocalFault("a draft message has no key, and no payload on a boundary")
        try:
            check_draft_flags(flags)
        except PeerFault as fault:
            raise LocalFault(str(fault)) from fault
        time = b"" if frame.event_time is None else packed(order, "Q", frame.event_time)
        return packed(order, "QHQ", frame.stream_id, flags, frame.message_id) + time + (frame.payload or b"")


def check_draft_flags(flags: int) -> None:
    """Refuse reserved bits ("should be set to zero") and BOUNDARY with EVENT_TIME ([D1] leaves it out)."""
    if flags & ~DRAFT_FLAGS:
        raise PeerFault(f"Bad MessageMsg flags: {flags:#06x} has reserved bits set")
    if flags & Flag.BOUNDARY and flags & Flag.EVENT_TIME:
        raise PeerFault("Bad MessageMsg flags: a BOUNDARY carries no EVENT_TIME")


def make_v3_message(stream_id: int, message_id: int, event_time: int, key: bytes, payload: bytes) -> Message:
    return Message(stream_id, message_id, payload, event_time or None, key or None)


def v3_message_values(frame: Message) -> tuple[Any, ...]:
    if frame.stream_id is None or frame.message_id is None or frame.payload is None or frame.flags:
        raise LocalFault("a v3 message has a stream id, a message id, a payload and no flags")
    return frame.stream_id, frame.message_id, frame.event_time or 0, frame.key, frame.payload


HELLO = HelloLayout(frames.Hello, short("version"), short("cookie"), short("program"), short("instance"))
ERROR = Layout(frames.Error, short("reason"))
NOTIFY = Layout(frames.Notify, u64("stream id"), short("stream name"), u64("point of reference"))
WORKERS_LEFT = Layout(frames.WorkersLeft, u64("request"), wire.counted("workers", short("worker")))

DRAFT = Dialect(
    "draft-2018-10",
    "<",
    {
        ord("H"): HELLO,
        ord("O"): Layout(frames.Ok, u32("credits"), wire.pairs_to_end("points of reference")),
        ord("E"): ERROR,
        ord("N"): NOTIFY,
        ord("M"): DraftMessage(Message),
        ord("A"): Layout(frames.Ack, u32("credits"), wire.pairs_to_end("acknowledgements")),
        ord("!"): Layout(frames.Nack, u32("credits"), u64("stream id"), u64("point of reference")),
    },
    strict=True,
)
"""The specification's own dialect, with its holes closed."""

V3_LAYOUTS = {
    0: HELLO,
    1: Layout(frames.Ok, u32("credits")),  # the lists of the v2 forms may follow and are ignored
    2: ERROR,
    3: NOTIFY,
    4: Layout(frames.NotifyAck, wire.boolean("success"), u64("stream id"), u64("point of reference")),
    5: Layout(
        Message,
        u64("stream id"),
        u64("message id"),
        wire.i64("event time"),
        short("key"),
        wire.REST,
        make=make_v3_message,
        values=v3_message_values,
    ),
    6: Layout(frames.Ack, u32("credits"), wire.counted_pairs("acknowledgements")),
    # An empty body is the form of December 2018; the published decoder still takes it.
    7: Layout(frames.Restart, wire.long_or_nothing("address"), make=lambda address: frames.Restart(address or None)),
    8: Layout(frames.Eos, u64("stream id")),
    9: WORKERS_LEFT,
}
V3 = Dialect("v3-2020", ">", V3_LAYOUTS)
"""The last published generation, the one that connectors in the field speak."""


def unknown_version(version: bytes) -> str:
    return f"Unknown protocol version: {frames.readable(version[:64])}"


def detect(head: bytes) -> Dialect | None:
    """The dialect from the first five bytes of a connection: only the tag matters, and no tag is in both tables.

    `None` means that neither dialect has such a tag: a browser, a port scan, another protocol.
    """
    if len(head) < 5:
        raise LocalFault("five bytes are needed to tell the dialects apart")
    for dialect in (DRAFT, V3):
        if dialect.knows(head[4]):
            return dialect
    return None


def error_bytes(dialect: Dialect, reason: str) -> bytes:
    """An ERROR frame; a reason too long for its field is cut."""
    return dialect.encode(frames.Error(reason.encode("utf-8", "backslashreplace")[: wire.SHORT_BYTES_MAX]))
