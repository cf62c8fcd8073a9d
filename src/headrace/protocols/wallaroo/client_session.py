"""The connector's side, without I/O. It outlives its connections: what is not acknowledged is kept and sent again.

    connected() / receive(bytes) / disconnected()   what happens to the connection
    add_stream(), offer(), finish()                 what the application wants
    take_output() ──► bytes, as far as the credits go
    receive() ──► events: Welcomed, Opened, Refused, Acked, Ended, Restarted, Failed

A stream is one of two kinds. A *rewindable* one has a source that can go to any point: at every (re)opening and NACK
the queue is dropped and `Opened(point)` tells the application where to begin. Any other stream is replayed from the
queue of unacknowledged messages; when the hub asks for a point that is no longer in it, the session fails for good
(in the draft with an ERROR frame, as [D5] asks).
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from headrace.errors import HeadraceError
from headrace.protocols.wallaroo import frames, states
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect, error_bytes
from headrace.protocols.wallaroo.frames import NO_POINT, Flag, Frame, LocalFault, PeerFault
from headrace.protocols.wallaroo.scan import FRAME_BYTES_MAX, FrameBuffer, Rows
from headrace.protocols.wallaroo.states import SessionEvent, SessionState

UNSTABLE = int(Flag.EPHEMERAL | Flag.UNSTABLE_REFERENCE)
SEND_BYTES = 256 * 1024
"""About how much one `take_output` hands out, so that other work gets a turn."""


class CannotResume(HeadraceError):
    """The hub asks for a point of a stream that neither the queue nor a source can go back to."""

    code = "wallaroo-cannot-resume"


class Welcomed(msgspec.Struct, frozen=True):
    """The handshake is done."""

    credits: int


class Opened(msgspec.Struct, frozen=True):
    """The hub has the stream, durable up to and including `point`; `None`: nothing yet. Go on behind it."""

    stream_id: int
    point: int | None


class Refused(msgspec.Struct, frozen=True):
    """Another session has the stream. It is asked for again with the next ACK, or by `retry_refused`."""

    stream_id: int


class Acked(msgspec.Struct, frozen=True):
    """Durable up to and including `point`."""

    stream_id: int
    point: int


class Ended(msgspec.Struct, frozen=True):
    """The end of the stream was sent and everything before it is durable."""

    stream_id: int


class Restarted(msgspec.Struct, frozen=True):
    """The hub closes and wants to be connected to again, at `address` if it names one."""

    address: bytes | None


class Failed(msgspec.Struct, frozen=True):
    """The connection is of no more use. `final` when connecting again cannot help."""

    reason: str
    final: bool


Event = Welcomed | Opened | Refused | Acked | Ended | Restarted | Failed

FINAL_REASONS = (
    "Bad cookie",
    "Bad stream_id",
    "Unknown protocol version",
    "Invalid message",
    "Bad protocol FSM state",
    "Unable to decode",
    "Frame of",
)


class Item(msgspec.Struct, frozen=True, gc=False):
    """One message to send. Ids grow by what the source likes: counters, offsets, times."""

    id: int
    payload: bytes | None
    event_time: int | None = None
    key: bytes | None = None
    flags: int = 0


Queued = tuple[int, bytes, bool]
"""Id, frame, and whether the id is a point of reference."""


@dataclass(eq=False, slots=True)
class OutStream:
    """A stream this connector sends."""

    id: int
    name: bytes
    rewindable: bool
    opened: bool = False
    openings: int = 0
    """How often it was opened: a source compares it to learn that it must rewind."""
    notify_due: int = 1
    """How many NOTIFYs are owed: one at the start, and one for each NACK."""
    refused: bool = False
    point: int | None = None
    """The last acknowledged id that the hub could give as a point of reference."""
    acked: int | None = None
    last_offered: int | None = None
    flying: deque[Queued] = field(default_factory=deque)
    """Sent over this connection and not acknowledged."""
    waiting: deque[Queued] = field(default_factory=deque)
    """Not sent over this connection yet; behind what flies."""
    ending: bool = False
    eos_sent: bool = False
    ended: bool = False

    @property
    def unacked(self) -> int:
        return len(self.flying) + len(self.waiting)

    def land(self) -> None:
        """The connection is gone, or the hub goes back: all that flew has to be sent again."""
        self.waiting.extendleft(reversed(self.flying))
        self.flying.clear()
        self.eos_sent = False

    def forget(self) -> None:
        """Drop the queue: the source begins again somewhere."""
        self.flying.clear()
        self.waiting.clear()
        self.ending = self.eos_sent = self.ended = False
        self.last_offered = None

    def free(self, queue: deque[Queued], count: int) -> None:
        """The first `count` messages of a queue are durable."""
        for _ in range(count):
            message_id, _, stable = queue.popleft()
            self.acked = message_id
            if stable:
                self.point = message_id


class ClientSession:
    """One connector: an identity, its streams, and whatever connection it has now."""

    def __init__(
        self,
        *,
        dialect: Dialect = V3,
        cookie: bytes = b"",
        program: bytes = b"headrace",
        instance: bytes = b"",
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.dialect = dialect
        self.state = SessionState.DISCONNECTED
        self.credits = 0
        self.streams: dict[int, OutStream] = {}
        self._hello = frames.Hello(frames.VERSION, cookie, program, instance)
        self._frame_bytes_max = frame_bytes_max
        self._buffer = FrameBuffer(dialect=dialect)
        self._points: dict[int, int] = {}
        self._output: list[bytes] = []

    # The connection.

    def connected(self) -> None:
        """A fresh connection: greet."""
        self.state = SessionState.CONNECTED
        self.credits = 0
        self._buffer = FrameBuffer(dialect=self.dialect)
        self._output = [self.dialect.encode(self._hello)]
        self._advance(SessionEvent.HELLO)
        for stream in self.streams.values():
            stream.opened = stream.refused = False
            stream.notify_due = 0 if stream.ended else 1
            stream.land()

    def disconnected(self) -> None:
        """The connection is gone; the queues stay."""
        if self.state is not SessionState.DISCONNECTED:
            self._advance(SessionEvent.CLOSE)
        self._output.clear()

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the hub."""
        events: list[Event] = []
        if self.state in (SessionState.ERROR, SessionState.DISCONNECTED):
            return events
        self._buffer.feed(data)
        try:
            while self.state in (SessionState.HANDSHAKE, SessionState.STREAMING):
                item = self._buffer.next()
                if item is None:
                    break
                if isinstance(item, Rows):
                    raise PeerFault("Invalid message: message")
                self._on_frame(item, events)
        except PeerFault as fault:
            events.append(self._fail(str(fault), final=False))
        except CannotResume as error:
            events.append(self._fail(str(error), final=True))
        return events

    def _advance(self, event: SessionEvent) -> None:
        self.state = states.SESSION.step(self.state, event)

    def _fail(self, reason: str, *, final: bool) -> Failed:
        self._output = [error_bytes(self.dialect, reason)]
        self._advance(SessionEvent.ERROR)
        return Failed(reason, final)

    def _on_frame(self, frame: Frame, events: list[Event]) -> None:
        if type(frame) not in states.FROM_WORKER:
            raise PeerFault(f"Invalid message: {type(frame).__name__.lower()}")
        match frame:
            case frames.Error(reason):
                text = frames.readable(reason)
                self._advance(SessionEvent.ERROR)
                events.append(Failed(text, text.startswith(FINAL_REASONS)))
            case frames.Ok(credits):
                self._on_ok(credits, dict(frame.points))
                events.append(Welcomed(credits))
            case _ if self.state is not SessionState.STREAMING:
                raise PeerFault(f"Bad protocol FSM state: {type(frame).__name__.lower()} before ok")
            case frames.NotifyAck(True, stream_id, point):
                self._resume(self._known(stream_id), None if point == NO_POINT else point, events)
            case frames.NotifyAck(False, stream_id):
                self._known(stream_id).refused = True
                events.append(Refused(stream_id))
            case frames.Ack(credits, acks):
                self._on_ack(credits, acks, events)
            case frames.Nack(credits, stream_id, point):
                self.credits += credits
                self._on_nack(self._known(stream_id), point or None, events)
            case frames.Restart(address):
                self._advance(SessionEvent.RESTART)
                events.append(Restarted(address))

    def _known(self, stream_id: int) -> OutStream:
        stream = self.streams.get(stream_id)
        if stream is None:
            raise PeerFault(f"Unknown stream_id {stream_id}")
        return stream

    def _on_ok(self, credits: int, points: dict[int, int]) -> None:
        if self.state is not SessionState.HANDSHAKE:
            raise PeerFault("Bad protocol FSM state: a second ok")
        self._advance(SessionEvent.OK)
        self.credits = credits
        self._points = points

    # Streams.

    def add_stream(self, name: bytes, stream_id: int | None = None, *, rewindable: bool) -> OutStream:
        """A stream to send. Without an id it gets the one the published clients would give it."""
        if stream_id is None:
            stream_id = stream_id_of(name)
        if stream_id in self.streams:
            raise LocalFault(f"stream id {stream_id} is in use by {self.streams[stream_id].name!r}")
        stream = self.streams[stream_id] = OutStream(stream_id, name, rewindable)
        return stream

    def offer(self, stream: OutStream, items: Iterable[Item]) -> None:
        """Queue messages. In v3 their ids must grow; what the hub already has is dropped here."""
        if stream.ending:
            raise LocalFault(f"stream {stream.name!r} has been ended")
        encode = self.dialect.encode_message
        queued: list[Queued] = []
        append = queued.append
        increasing, maximum = self.dialect is V3, self._frame_bytes_max
        last, point = stream.last_offered, stream.point
        for item in items:
            if increasing:
                if last is not None and item.id <= last:
                    raise LocalFault(f"message id {item.id} of stream {stream.name!r} is not above {last}")
                last = item.id
                if point is not None and item.id <= point:
                    continue
            data = encode(stream.id, item.id, item.payload, item.event_time, item.key, item.flags)
            if len(data) - 4 > maximum:
                raise LocalFault(
                    f"message {item.id} is a frame of {len(data) - 4} bytes; at most {maximum} may be sent"
                )
            append((item.id, data, not item.flags & UNSTABLE))
            last = item.id
        stream.waiting.extend(queued)
        stream.last_offered = last

    def finish(self, stream: OutStream) -> None:
        """No more messages will come: send the end once all before it is sent."""
        if stream.ending:
            return
        if self.dialect is DRAFT:
            # A lone end needs an id; marked unstable it moves no point of reference.
            flags = Flag.BOUNDARY | Flag.EOS | Flag.UNSTABLE_REFERENCE
            last = stream.last_offered if stream.last_offered is not None else stream.acked
            self.offer(stream, [Item(min((last or 0) + 1, NO_POINT), None, flags=flags)])
        stream.ending = True

    def _resume(self, stream: OutStream, point: int | None, events: list[Event]) -> None:
        """The hub is at `point`: send what is behind it."""
        if stream.rewindable:
            stream.forget()
            stream.point = stream.acked = point
        else:
            self._replay_from(stream, point)
        stream.opened = True
        stream.openings += 1
        events.append(Opened(stream.id, point))

    def _replay_from(self, stream: OutStream, point: int | None) -> None:
        stream.land()
        queue = stream.waiting
        if self.dialect is V3:
            if stream.point is not None and (point is None or point < stream.point):
                raise CannotResume(_cannot(stream, point))
            if point is not None:
                stream.free(queue, _count_upto(queue, point))
                stream.point = stream.acked = point
            return
        if point == (stream.point or None):  # the draft's 0 says "none"
            return
        count = _count_through(queue, point)
        if not count and stream.point is not None:
            raise CannotResume(_cannot(stream, point))
        stream.free(queue, count)
        stream.point = point

    def _on_ack(self, credits: int, acks: tuple[tuple[int, int], ...], events: list[Event]) -> None:
        self.credits += credits
        for stream_id, point in acks:
            stream = self._known(stream_id)
            if point != NO_POINT:
                self._free_acked(stream, point)
                events.append(Acked(stream_id, point))
            self._end_if_done(stream, events)
        for stream in self.streams.values():
            if stream.acked is None:  # the end of an empty stream is answered without a pair
                self._end_if_done(stream, events)
        self.retry_refused()

    def _end_if_done(self, stream: OutStream, events: list[Event]) -> None:
        if stream.eos_sent and not stream.unacked and not stream.ended:
            stream.ended = True
            events.append(Ended(stream.id))

    def _free_acked(self, stream: OutStream, point: int) -> None:
        if self.dialect is DRAFT:
            stream.free(stream.flying, _count_through(stream.flying, point))
            return
        if stream.waiting and stream.waiting[0][0] <= point:
            raise PeerFault(f"ACK of {point} for stream_id {stream.id}, which was not sent yet")
        stream.free(stream.flying, _count_upto(stream.flying, point))

    def _on_nack(self, stream: OutStream, point: int | None, events: list[Event]) -> None:
        stream.opened = False
        stream.eos_sent = stream.ended = False
        stream.notify_due += 1
        self._points.pop(stream.id, None)
        if point is not None:
            self._points[stream.id] = point
        if stream.rewindable:
            stream.forget()  # and `Opened` with the NOTIFY tells the source where to begin
        else:
            self._replay_from(stream, point)

    def retry_refused(self) -> None:
        """Ask again for the streams that another session had."""
        for stream in self.streams.values():
            if stream.refused:
                stream.refused = False
                stream.notify_due = 1

    # Output.

    def take_output(self) -> tuple[bytes, list[Event]]:
        """Frames to write now, and what follows from sending them."""
        events: list[Event] = []
        if self.state is SessionState.STREAMING:
            try:
                self._notify(events)
            except CannotResume as error:
                events.append(self._fail(str(error), final=True))
        if self.state is SessionState.STREAMING:
            room = SEND_BYTES
            ready = [stream for stream in self.streams.values() if stream.opened]
            ready.sort(key=lambda stream: len(stream.waiting))
            for left, stream in zip(range(len(ready), 0, -1), ready, strict=True):
                if room > 0:  # who has little to say says it; the rest share what is left
                    room -= self._send_queue(stream, room, -(-self.credits // left))
        output = b"".join(self._output)
        self._output.clear()
        return output, events

    def _notify(self, events: list[Event]) -> None:
        for stream in self.streams.values():
            while stream.notify_due and self.credits > 0:
                point = stream.point if self.dialect is V3 else self._points.get(stream.id)
                none = NO_POINT if self.dialect is V3 else 0
                self._output.append(
                    self.dialect.encode(frames.Notify(stream.id, stream.name, none if point is None else point))
                )
                self.credits -= 1
                stream.notify_due -= 1
                # The draft has no answer to NOTIFY: the point came with OK or NACK, and messages may follow at once.
                if self.dialect is DRAFT and not stream.notify_due:
                    self._resume(stream, point, events)

    def _send_queue(self, stream: OutStream, room: int, credits: int) -> int:
        waiting, fly, write = stream.waiting, stream.flying.append, self._output.append
        size = 0
        for _ in range(min(len(waiting), credits)):
            queued = waiting.popleft()
            fly(queued)
            write(queued[1])
            self.credits -= 1
            size += len(queued[1])
            if size >= room:
                break
        if stream.ending and not stream.eos_sent and not waiting:
            stream.eos_sent = True
            if self.dialect is V3:  # costs no credit; in the draft the end was part of the queue
                write(self.dialect.encode(frames.Eos(stream.id)))
        return size


def _count_upto(queue: deque[Queued], point: int) -> int:
    """How many messages from the left have an id not above `point`."""
    return next((count for count, (message_id, _, _) in enumerate(queue) if message_id > point), len(queue))


def _count_through(queue: deque[Queued], point: int | None) -> int:
    """How many messages from the left to the last one with this very id; 0 when there is none."""
    return max((count for count, (message_id, _, _) in enumerate(queue, 1) if message_id == point), default=0)


def stream_id_of(name: bytes) -> int:
    """The first eight bytes of the name's SHA-256, big endian: what the published Python client takes."""
    return int.from_bytes(hashlib.sha256(name).digest()[:8], "big")


def _cannot(stream: OutStream, point: int | None) -> str:
    where = "the beginning" if point is None else f"point {point}"
    return f"stream {stream.name!r} cannot go back to {where}: it was acknowledged up to {stream.point} and is not kept"
