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
from collections.abc import Callable
from typing import Any

from headrace.protocols.wallaroo import wire
from headrace.protocols.wallaroo.frames import (
    VERSION,
    Ack,
    Eos,
    Error,
    Flag,
    Frame,
    Hello,
    LocalFault,
    Message,
    Nack,
    Notify,
    NotifyAck,
    Ok,
    PeerFault,
    Restart,
    WorkersLeft,
)
from headrace.protocols.wallaroo.wire import ByteOrder, FieldReader, packed, pairs, short

DRAFT_FLAGS = int(Flag.EPHEMERAL | Flag.BOUNDARY | Flag.EOS | Flag.UNSTABLE_REFERENCE | Flag.EVENT_TIME)

V3_HEAD = struct.Struct(">IBQQqH")

Decoder = Callable[[FieldReader], Frame]
Encoder = Callable[[Any], bytes]


class Dialect:
    """One generation of the protocol: a byte order and a table of tags."""

    name = ""
    order: ByteOrder = ">"
    strict = False

    def __init__(self) -> None:
        self.tags: dict[type, int] = {}
        self._decoders: dict[int, tuple[str, Decoder]] = {}
        self._encoders: dict[type, tuple[int, Encoder]] = {}
        self._table()

    def _table(self) -> None:
        raise NotImplementedError

    def _row(self, tag: int, kind: type, decoder: Decoder, encoder: Encoder) -> None:
        self.tags[kind] = tag
        self._decoders[tag] = (kind.__name__.upper(), decoder)
        self._encoders[kind] = (tag, encoder)

    def knows(self, tag: int) -> bool:
        return tag in self._decoders

    def decode(self, body: bytes) -> Frame:
        """One frame from the bytes after its length."""
        if not body:
            raise PeerFault("Unable to decode message: a frame of length 0 has no tag")
        row = self._decoders.get(body[0])
        if row is None:
            raise PeerFault(f"Unable to decode message: unknown tag {body[0]}")
        what, decoder = row
        reader = FieldReader(body, self.order, what, position=1)
        frame = decoder(reader)
        if self.strict:
            reader.end()
        return frame

    def encode(self, frame: Frame) -> bytes:
        """One frame with its length."""
        row = self._encoders.get(type(frame))
        if row is None:
            raise LocalFault(f"{type(frame).__name__} does not exist in {self.name}")
        tag, encoder = row
        body = encoder(frame)
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
        return self.encode(Message(stream_id, message_id, payload, event_time, key, flags))

    # Frames that are alike in every dialect, but for the byte order.

    def _read_hello(self, reader: FieldReader) -> Frame:
        version = reader.short("version")
        try:
            return Hello(version, reader.short("cookie"), reader.short("program"), reader.short("instance"))
        except PeerFault:
            # "check the version [...] before continuing the decoding": another version may well have other fields.
            if version != VERSION:
                raise PeerFault(unknown_version(version)) from None
            raise

    def _write_hello(self, frame: Hello) -> bytes:
        return b"".join(short(self.order, x) for x in (frame.version, frame.cookie, frame.program, frame.instance))

    def _read_error(self, reader: FieldReader) -> Frame:
        return Error(reader.short("reason"))

    def _write_error(self, frame: Error) -> bytes:
        return short(self.order, frame.reason)

    def _read_notify(self, reader: FieldReader) -> Frame:
        return Notify(reader.u64("stream id"), reader.short("stream name"), reader.u64("point of reference"))

    def _write_notify(self, frame: Notify) -> bytes:
        head = packed(self.order, "Q", frame.stream_id)
        return head + short(self.order, frame.name) + packed(self.order, "Q", frame.point)


class DraftDialect(Dialect):
    """The specification's own dialect, with its holes closed."""

    name = "draft-2018-10"
    order: ByteOrder = "<"
    strict = True

    def _table(self) -> None:
        self._row(ord("H"), Hello, self._read_hello, self._write_hello)
        self._row(ord("O"), Ok, self._read_ok, self._write_ok)
        self._row(ord("E"), Error, self._read_error, self._write_error)
        self._row(ord("N"), Notify, self._read_notify, self._write_notify)
        self._row(ord("M"), Message, self._read_message, self._write_message)
        self._row(ord("A"), Ack, self._read_ack, self._write_ack)
        self._row(ord("!"), Nack, self._read_nack, self._write_nack)

    def _read_ok(self, reader: FieldReader) -> Frame:
        return Ok(reader.u32("credits"), reader.pairs_to_end("points of reference"))

    def _write_ok(self, frame: Ok) -> bytes:
        return packed("<", "I", frame.credits) + pairs("<", frame.points)

    def _read_message(self, reader: FieldReader) -> Frame:
        return self._read_message_fields(reader, reader.u64("stream id"))

    def decode_literal_message(self, body: bytes) -> Message:
        """The MESSAGE that the draft's constructors spell out, without a stream id. Never emitted, never served."""
        reader = FieldReader(body, "<", "MESSAGE", position=1)
        return self._read_message_fields(reader, None)

    def encode_literal_message(self, frame: Message) -> bytes:
        body = self._write_message_fields(frame)
        return packed("<", "IB", 1 + len(body), ord("M")) + body

    def _read_message_fields(self, reader: FieldReader, stream_id: int | None) -> Message:
        flags = reader.u16("flags")
        check_draft_flags(flags)
        message_id = reader.u64("message id")
        event_time = reader.u64("event time") if flags & Flag.EVENT_TIME else None
        payload = None if flags & Flag.BOUNDARY else reader.rest()
        return Message(stream_id, message_id, payload, event_time=event_time, flags=flags)

    def _write_message(self, frame: Message) -> bytes:
        if frame.stream_id is None:
            raise LocalFault("a message needs a stream id")
        return packed("<", "Q", frame.stream_id) + self._write_message_fields(frame)

    def _write_message_fields(self, frame: Message) -> bytes:
        flags = frame.flags | (Flag.EVENT_TIME if frame.event_time is not None else 0)
        flags |= Flag.BOUNDARY if frame.payload is None else 0
        if frame.message_id is None or frame.key is not None or (flags & Flag.BOUNDARY and frame.payload):
            raise LocalFault("a draft message has an id, no key, and no payload on a boundary")
        try:
            check_draft_flags(flags)
        except PeerFault as fault:
            raise LocalFault(str(fault)) from fault
        time = b"" if frame.event_time is None else packed("<", "Q", frame.event_time)
        return packed("<", "HQ", flags, frame.message_id) + time + (frame.payload or b"")

    def _read_ack(self, reader: FieldReader) -> Frame:
        return Ack(reader.u32("credits"), reader.pairs_to_end("acknowledgements"))

    def _write_ack(self, frame: Ack) -> bytes:
        return packed("<", "I", frame.credits) + pairs("<", frame.acks)

    def _read_nack(self, reader: FieldReader) -> Frame:
        return Nack(reader.u32("credits"), reader.u64("stream id"), reader.u64("point of reference"))

    def _write_nack(self, frame: Nack) -> bytes:
        return packed("<", "IQQ", frame.credits, frame.stream_id, frame.point)


def check_draft_flags(flags: int) -> None:
    """Refuse reserved bits ("should be set to zero") and BOUNDARY with EVENT_TIME ([D1] leaves it out)."""
    if flags & ~DRAFT_FLAGS:
        raise PeerFault(f"Bad MessageMsg flags: {flags:#06x} has reserved bits set")
    if flags & Flag.BOUNDARY and flags & Flag.EVENT_TIME:
        raise PeerFault("Bad MessageMsg flags: a BOUNDARY carries no EVENT_TIME")


class BigEndianDialect(Dialect):
    """What all published generations share."""

    order: ByteOrder = ">"

    def _table(self) -> None:
        self._row(0, Hello, self._read_hello, self._write_hello)
        self._row(1, Ok, self._read_ok, self._write_ok)
        self._row(2, Error, self._read_error, self._write_error)
        self._row(3, Notify, self._read_notify, self._write_notify)
        self._row(4, NotifyAck, self._read_notify_ack, self._write_notify_ack)
        self._row(5, Message, self._read_message, self._write_message)
        self._row(6, Ack, self._read_ack, self._write_ack)
        self._row(7, Restart, self._read_restart, self._write_restart)

    def _read_ok(self, reader: FieldReader) -> Frame:
        raise NotImplementedError

    def _write_ok(self, frame: Ok) -> bytes:
        raise NotImplementedError

    def _read_message(self, reader: FieldReader) -> Frame:
        raise NotImplementedError

    def _write_message(self, frame: Message) -> bytes:
        raise NotImplementedError

    def _read_notify_ack(self, reader: FieldReader) -> Frame:
        return NotifyAck(reader.u8("success") != 0, reader.u64("stream id"), reader.u64("point of reference"))

    def _write_notify_ack(self, frame: NotifyAck) -> bytes:
        return packed(">", "BQQ", int(frame.success), frame.stream_id, frame.point)

    def _read_ack(self, reader: FieldReader) -> Frame:
        credits = reader.u32("credits")
        return Ack(credits, reader.pairs(reader.count(16, "acknowledgements"), "acknowledgements"))

    def _write_ack(self, frame: Ack) -> bytes:
        return packed(">", "II", frame.credits, len(frame.acks)) + pairs(">", frame.acks)

    def _read_restart(self, reader: FieldReader) -> Frame:
        # An empty body is the form of December 2018; the published decoder still takes it.
        return Restart((reader.long("address") if reader.left else b"") or None)

    def _write_restart(self, frame: Restart) -> bytes:
        address = frame.address or b""
        return packed(">", "I", len(address)) + address


class V3Dialect(BigEndianDialect):
    """The last published generation, the one that connectors in the field speak."""

    name = "v3-2020"

    def _table(self) -> None:
        super()._table()
        self._row(8, Eos, self._read_eos, self._write_eos)
        self._row(9, WorkersLeft, self._read_workers_left, self._write_workers_left)

    def _read_ok(self, reader: FieldReader) -> Frame:
        return Ok(reader.u32("credits"))  # the lists of the v2 forms may follow and are ignored

    def _write_ok(self, frame: Ok) -> bytes:
        return packed(">", "I", frame.credits)

    def encode_ok_for_any_generation(self, credits: int) -> bytes:
        """An OK that v2 and v3 clients both read: the v2 form with its two lists empty."""
        return packed(">", "IBIII", 13, 1, credits, 0, 0)

    def _read_message(self, reader: FieldReader) -> Frame:
        stream_id = reader.u64("stream id")
        message_id = reader.u64("message id")
        event_time = reader.i64("event time")
        key = reader.short("key") or None
        return Message(stream_id, message_id, reader.rest(), event_time=event_time or None, key=key)

    def _write_message(self, frame: Message) -> bytes:
        if frame.stream_id is None or frame.message_id is None or frame.payload is None or frame.flags:
            raise LocalFault("a v3 message has a stream id, a message id, a payload and no flags")
        head = packed(">", "QQq", frame.stream_id, frame.message_id, frame.event_time or 0)
        return head + short(">", frame.key or b"") + frame.payload

    def encode_message(
        self,
        stream_id: int,
        message_id: int,
        payload: bytes | None,
        event_time: int | None,
        key: bytes | None,
        flags: int,
    ) -> bytes:
        if payload is None or flags or key:
            return super().encode_message(stream_id, message_id, payload, event_time, key, flags)
        try:
            return V3_HEAD.pack(27 + len(payload), 5, stream_id, message_id, event_time or 0, 0) + payload
        except struct.error as error:
            raise LocalFault(f"message {message_id} of stream {stream_id}: {error}") from error

    def _read_eos(self, reader: FieldReader) -> Frame:
        return Eos(reader.u64("stream id"))

    def _write_eos(self, frame: Eos) -> bytes:
        return packed(">", "Q", frame.stream_id)

    def _read_workers_left(self, reader: FieldReader) -> Frame:
        request = reader.u64("request")
        count = reader.count(2, "workers")
        return WorkersLeft(request, tuple(reader.short("worker") for _ in range(count)))

    def _write_workers_left(self, frame: WorkersLeft) -> bytes:
        names = b"".join(short(">", name) for name in frame.workers)
        return packed(">", "QI", frame.request, len(frame.workers)) + names


DRAFT = DraftDialect()
V3 = V3Dialect()


def unknown_version(version: bytes) -> str:
    return f"Unknown protocol version: {version[:64].decode('utf-8', 'backslashreplace')}"


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
    return dialect.encode(Error(reason.encode("utf-8", "backslashreplace")[: wire.SHORT_BYTES_MAX]))
