"""The worker's side of one connection, without I/O: bytes and hub results in, bytes and hub requests out.

    receive(bytes) ──► requests: Greet, Open, Store, Release, Close
    greeted(), opened(), refused(), stored(), rewind(), fail()  ◄── what the hub said
    take_output() ──► bytes for the peer, whole frames, to be written at once

Order of things that matters:
- HELLO holds everything behind it until `greeted`; so does NOTIFY in the draft, where messages may follow it at once.
- An acknowledgement is only ever made from `stored`, so never for what is not on disk. It carries one pair per
  stream that moved, cumulative, and all credits that came free: duplicates and ignored frames give theirs back too.
- After a fault there is one ERROR frame, and nothing received later is looked at.

Credits are the peer's promise, not our safety: a peer that overdraws by more than a window is refused, and the
server bounds memory by not reading while much is under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from headrace.protocols.wallaroo import frames, states
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect, error_bytes, unknown_version
from headrace.protocols.wallaroo.credits import Credits
from headrace.protocols.wallaroo.frames import NO_POINT, Flag, Frame, LocalFault, PeerFault, readable
from headrace.protocols.wallaroo.requests import Close, Greet, Open, Release, Request, Store, Ticket
from headrace.protocols.wallaroo.scan import FrameBuffer, Rows, fresh_ids
from headrace.protocols.wallaroo.settings import Wallaroo
from headrace.protocols.wallaroo.states import SessionEvent, SessionState, StreamEvent, StreamState

TIMED = np.uint16(Flag.EVENT_TIME)
UNSTABLE = np.uint16(Flag.EPHEMERAL | Flag.UNSTABLE_REFERENCE)
"""Flags of a message whose id is no point to resume from."""


@dataclass(slots=True)
class Stream:
    """What a session knows of one of its streams."""

    id: int
    name: bytes
    state: StreamState = StreamState.INTRO
    last_seen: int | None = None
    """The highest id taken, durable or not: what is not above it is a duplicate (v3)."""
    acked: int | None = None
    resent: int | None = None
    """Draft: the point itself, which may come again right after a NOTIFY that claims it, and is then dropped."""
    notified: int = 0
    pending: int = 0
    nacks: int = 0
    generation: int = 0
    """Grows with each NACK: what was sent before one moves no position after it."""

    def ticket(self, last_id: int, count: int) -> Ticket:
        self.pending += 1
        return Ticket(self.id, last_id, count, self.generation)


def _accepts_none(cookie: bytes) -> bool:
    """Of a session that has ended."""
    return False


class ServerSession:
    """One connection, seen from the hub."""

    def __init__(
        self, settings: Wallaroo | None = None, accepts_cookie: Callable[[bytes], bool] = lambda cookie: not cookie
    ) -> None:
        self.settings = settings or Wallaroo()
        self.state = SessionState.CONNECTED
        self.program = b""
        self.instance = b""
        self.streams: dict[int, Stream] = {}
        self.error: str | None = None
        self.credits = Credits(self.settings.window_credits, self.settings.credit_bytes)
        self.duplicates = 0
        self._accepts_cookie = accepts_cookie
        self.buffer = FrameBuffer(frame_bytes_max=self.settings.frame_bytes_max)
        self._held: set[int | None] = set()
        self._holds = 0
        """How many rewinds have this session look at nothing new."""
        self._output: list[bytes] = []
        self._moved: dict[int, int] = {}
        self._answer_due = False

    # Bytes in, bytes out.

    @property
    def dialect(self) -> Dialect | None:
        return self.buffer.dialect

    @property
    def held(self) -> bool:
        """Whether the session waits for the hub and looks at nothing new: stop reading."""
        return bool(self._held) or self._holds > 0

    @property
    def ended(self) -> bool:
        return self.state in (SessionState.ERROR, SessionState.DISCONNECTED)

    def receive(self, data: bytes) -> list[Request]:
        """Take bytes from the peer, as they came."""
        if self.ended:
            return []
        self.buffer.feed(data)
        return self.process()

    def room(self) -> memoryview:
        """Where the next bytes from the peer may be put; `arrived` says how many were, and `process` looks at them."""
        return self.buffer.room()

    def arrived(self, count: int) -> bool:
        """Whether they should be looked at before more come."""
        self.buffer.add(count)
        if self.ended:
            self.buffer.clear()
        return self.buffer.is_full

    def process(self) -> list[Request]:
        """Look at what was received, as far as that is possible now."""
        requests: list[Request] = []
        try:
            while not self.held and not self.ended:
                item = self.buffer.next()
                if item is None:
                    break
                if isinstance(item, Rows):
                    self._on_rows(item, requests)
                else:
                    self._on_frame(item, requests)
        except PeerFault as fault:
            requests += self.fail(str(fault))
        return requests

    def take_output(self) -> bytes:
        """The frames to write now, acknowledgements included, in one piece."""
        self._flush()
        output = b"".join(self._output)
        self._output.clear()
        return output

    def closed(self) -> None:
        """The connection is gone."""
        if self.state is not SessionState.DISCONNECTED:
            self._advance(SessionEvent.CLOSE)
        self.buffer.release()
        self._accepts_cookie = _accepts_none  # whoever was asked can be freed without a search for cycles

    def fail(self, reason: str) -> list[Request]:
        """End with an ERROR frame: for the peer's faults, and when the hub cannot go on."""
        if self.ended:
            return []
        # What became durable before is still said: the peer may free it.
        self._flush()
        self._output.append(error_bytes(self.dialect or V3, reason))
        return self._end(reason)

    def _end(self, reason: str) -> list[Request]:
        self.error = reason
        self._advance(SessionEvent.ERROR)
        self.buffer.release()
        self._held.clear()
        return [Close(reason)]

    def _advance(self, event: SessionEvent) -> None:
        self.state = states.SESSION.step(self.state, event)

    def _send(self, frame: Frame) -> None:
        if self.dialect is None:
            raise LocalFault("nothing can be sent before the peer's dialect is known")
        self._output.append(self.dialect.encode(frame))

    # Frames.

    def _on_frame(self, frame: Frame, requests: list[Request]) -> None:
        if type(frame) not in states.FROM_CONNECTOR:
            raise PeerFault(f"Invalid message: {frames.wire_name(frame)}")
        if isinstance(frame, frames.Error):
            self._output.clear()
            requests += self._end(f"peer: {readable(frame.reason)}")
        elif isinstance(frame, frames.Hello):
            requests.append(self._on_hello(frame))
        elif self.state is not SessionState.STREAMING:
            raise PeerFault(f"Bad protocol FSM state: {frames.wire_name(frame)} before HELLO")
        elif isinstance(frame, frames.Notify):
            self._on_notify(frame, requests)
        elif isinstance(frame, frames.Eos):
            self._on_eos(self._stream_for_eos(frame.stream_id), requests)

    def _on_hello(self, hello: frames.Hello) -> Request:
        if self.state is not SessionState.CONNECTED:
            raise PeerFault("Bad protocol FSM state: a second HELLO")
        self._advance(SessionEvent.HELLO)
        if hello.version != frames.VERSION:
            raise PeerFault(unknown_version(hello.version))
        if not self._accepts_cookie(hello.cookie):
            raise PeerFault("Bad cookie")
        self.program, self.instance = hello.program, hello.instance
        self._held.add(None)
        return Greet(hello.program, hello.instance)

    def greeted(self, points: list[tuple[int, int]], elsewhere: bytes | None = None) -> list[Request]:
        """Answer the HELLO. `points` are the durable positions of the instance's streams; v3 has no place for them. A
        connector that should come to another address is told so before it has sent anything else."""
        if self.ended:
            return []
        self._held.discard(None)
        self._advance(SessionEvent.OK)
        self._send(frames.Ok(self.credits.take(), tuple(points) if self.dialect is DRAFT else ()))
        return self.process() if elsewhere is None else self._restart(elsewhere)

    def _restart(self, address: bytes | None) -> list[Request]:
        self._flush()
        self._send(frames.Restart(address))
        self._advance(SessionEvent.RESTART)
        self.buffer.clear()
        return [Close(None)]

    def _on_notify(self, notify: frames.Notify, requests: list[Request]) -> None:
        self.credits.use(1)
        stream = self.streams.get(notify.stream_id)
        if stream is None:
            maximum = self.settings.streams_max
            if len(self.streams) >= maximum:
                raise PeerFault(f"More than {maximum} streams in one session (wallaroo.streams_max)")
            stream = self.streams[notify.stream_id] = Stream(notify.stream_id, notify.name)
        event = StreamEvent.NOTIFY
        if stream.nacks:
            stream.nacks -= 1
            event = StreamEvent.NOTIFY_STACKED if stream.nacks else StreamEvent.NOTIFY
        after = self._machine().get(stream.state, event)
        if after is None:  # only v3 has such states: "id pending/active/closing in this very session"
            self._send(frames.NotifyAck(False, stream.id, notify.point))
            self.credits.due += 1
            return
        stream.state = after
        if after is StreamState.RESET:
            self.credits.due += 1
            return
        stream.generation += stream.name != notify.name  # acknowledgements under way are of the other stream
        stream.name, stream.notified = notify.name, notify.point
        none = NO_POINT
        if self.dialect is DRAFT:
            self._held.add(stream.id)
            none = 0
        requests.append(Open(stream.id, notify.name, None if notify.point == none else notify.point))

    def opened(self, stream_id: int, point: int | None) -> list[Request]:
        """The hub has the stream, durable up to `point`."""
        if self.ended:
            return []
        stream = self.streams[stream_id]
        self._stream_event(stream, StreamEvent.OPENED)
        stream.last_seen = stream.acked = point
        stream.resent = point if point == stream.notified else None
        self.credits.due += 1
        if self.dialect is V3:
            self._send(frames.NotifyAck(True, stream_id, NO_POINT if point is None else point))
        self._held.discard(stream_id)
        return self.process()

    def is_opening(self, stream_id: int) -> bool:
        return self.streams[stream_id].state is StreamState.OPENING

    def overtaken(self, stream_id: int) -> list[Request]:
        """Draft: a NACK was sent before this NOTIFY could be answered, and asks for another one."""
        self.credits.due += 1
        self._held.discard(stream_id)
        return self.process()

    def refused(self, stream_id: int) -> None:
        """Another session has the stream (v3). The credit goes back later, by `nudge`: the ACK makes clients retry."""
        if self.ended:
            return
        stream = self.streams[stream_id]
        self._stream_event(stream, StreamEvent.REFUSED)
        self._send(frames.NotifyAck(False, stream_id, stream.notified))

    def nudge(self) -> None:
        """Give back the credit of a refused NOTIFY."""
        self.credits.due += 1
        self._answer_due = True

    # Messages.

    def _on_rows(self, rows: Rows, requests: list[Request]) -> None:
        if self.state is not SessionState.STREAMING:
            raise PeerFault("Bad protocol FSM state: MESSAGE before HELLO")
        self.credits.use(rows.count)
        self.credits.saw(rows.mean_bytes)
        ids = rows.stream_ids
        if rows.count == 1 or (ids == ids[0]).all():
            self._on_stream_rows(int(ids[0]), rows, requests)
            return
        order = np.argsort(ids, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(ids[order])) + 1)
        for group in sorted(groups, key=lambda positions: int(positions[0])):
            self._on_stream_rows(int(ids[group[0]]), rows.select(group), requests)

    def _on_stream_rows(self, stream_id: int, rows: Rows, requests: list[Request]) -> None:
        stream = self.streams.get(stream_id)
        state = StreamState.INTRO if stream is None else stream.state
        after = self._machine().get(state, StreamEvent.MESSAGE)
        if stream is None or after is None:
            first = f"stream_id {stream_id} with message_id {rows.message_ids[0]}"
            raise PeerFault(f"Bad/unregistered {first}: the stream is {state.value}")
        if after is StreamState.RESET:
            self.credits.due += rows.count
        elif self.dialect is V3:
            self._store(stream, rows, True, requests)
        else:
            self._store_draft(stream, rows, requests)

    def _store_draft(self, stream: Stream, rows: Rows, requests: list[Request]) -> None:
        """Draft: ids say nothing about order; flags say what is data, and what is a point to resume from."""
        flags = rows.flags
        assert flags is not None
        if stream.resent is not None:
            again = int(rows.message_ids[0]) == stream.resent and not flags[0] & UNSTABLE
            stream.resent = None
            if again:
                self._drop_resent(stream, rows, requests)
                return
        plain = not (flags & ~TIMED).any()
        if plain or not (ended := flags & Flag.EOS).any():
            self._store(stream, rows, plain, requests)
            return
        upto = int(ended.argmax()) + 1
        self._store(stream, rows.select(slice(0, upto)), False, requests)
        self._on_eos(stream, requests)
        if upto < rows.count:
            self._on_stream_rows(stream.id, rows.select(slice(upto, None)), requests)

    def _drop_resent(self, stream: Stream, rows: Rows, requests: list[Request]) -> None:
        """The point itself came again: ranges of the draft begin inclusively, so a careful connector does this."""
        assert rows.flags is not None
        self.duplicates += 1
        self.credits.due += 1
        self._moved[stream.id] = int(rows.message_ids[0])  # "all message ids must be sent back as ack'ed"
        if rows.flags[0] & Flag.EOS:
            self._on_eos(stream, requests)
        if rows.count > 1:
            self._on_stream_rows(stream.id, rows.select(slice(1, None)), requests)

    def _store(self, stream: Stream, rows: Rows, plain: bool, requests: list[Request]) -> None:
        """What is new of the rows, and the point to resume from behind them. Plain rows are data and points, all."""
        increasing = self.dialect is V3 or self.settings.draft_message_ids == "increasing"
        if increasing:
            rows = self._without_duplicates(stream, rows, plain)
            if not rows.count:
                return
        last = int(rows.message_ids[-1])
        position: int | None = last
        data: Rows | None = rows
        if not plain:
            assert rows.flags is not None
            stable = np.flatnonzero((rows.flags & UNSTABLE) == 0)
            position = int(rows.message_ids[stable[-1]]) if len(stable) else None
            has_data = (rows.flags & Flag.BOUNDARY) == 0
            if not has_data.all():
                data = rows.select(has_data) if has_data.any() else None
        if position is not None:
            stream.last_seen = position
        requests.append(Store(stream.ticket(last, rows.count), data, position, increasing and plain))

    def _without_duplicates(self, stream: Stream, rows: Rows, plain: bool) -> Rows:
        """v3: an id that is not above the last one seen is a duplicate, dropped silently; its credit goes back."""
        stable = slice(None) if plain or rows.flags is None else np.flatnonzero((rows.flags & UNSTABLE) == 0)
        ids = rows.message_ids[stable]
        if plain and ids.max() == NO_POINT:
            raise PeerFault(f"message_id {NO_POINT} of stream_id {stream.id} is reserved for 'nothing stored yet'")
        fresh = fresh_ids(ids, stream.last_seen) if len(ids) else None
        if fresh is None:
            return rows
        keep = np.ones(rows.count, np.bool_)
        keep[stable] = fresh
        dropped = rows.count - int(np.count_nonzero(keep))
        self.duplicates += dropped
        self.credits.due += dropped
        return rows.select(keep)

    def stored(self, ticket: Ticket) -> list[Request]:
        """These rows are durable (and processed, where the stream asks for that): acknowledge them."""
        if self.ended:
            return []
        stream = self.streams[ticket.stream_id]
        stream.pending -= 1
        self.credits.due += ticket.frames
        if ticket.generation == stream.generation:
            stream.acked = ticket.last_id
            self._moved[stream.id] = ticket.last_id
        return self._finish(stream)

    def _stream_for_eos(self, stream_id: int) -> Stream:
        stream = self.streams.get(stream_id)
        state = stream.state if stream else StreamState.INTRO
        if stream is None or self._machine().get(state, StreamEvent.EOS) is None:
            raise PeerFault(f"End of stream for stream_id {stream_id}, which is {state.value}")
        return stream

    def _on_eos(self, stream: Stream, requests: list[Request]) -> None:
        self._stream_event(stream, StreamEvent.EOS)
        requests += self._finish(stream)

    def _finish(self, stream: Stream) -> list[Request]:
        """After EOS, and when all is stored: one last acknowledgement, and the stream is free."""
        if stream.pending:
            return []
        if stream.state is StreamState.CLOSING:
            self._stream_event(stream, StreamEvent.RELEASED)
            if stream.acked is not None:
                self._moved[stream.id] = stream.acked
            self._answer_due = True
            return [Release(stream.id)]
        return [Release(stream.id)] if stream.state is StreamState.CLOSED else []

    def _stream_event(self, stream: Stream, event: StreamEvent) -> None:
        stream.state = self._machine().step(stream.state, event)

    # Rewinding, by the hub.

    def hold(self) -> None:
        """Look at nothing new while the hub moves a stream's position, until as many `let_go`."""
        self._holds += 1

    def let_go(self) -> list[Request]:
        self._holds -= 1
        return self.process()

    def rewind(self, stream_id: int, point: int | None, address: bytes | None = None) -> list[Request]:
        """The position of a stream is now `point`, durably: have the connector go on from there.

        Draft: NACK; the stream's messages are ignored until it is introduced again. v3 has no such frame: RESTART
        ends the session, and the NOTIFY_ACK of the next one gives the point.
        """
        if self.ended or self.state is not SessionState.STREAMING:
            return []
        self._moved.pop(stream_id, None)
        if self.dialect is V3:
            return self._restart(address)
        self._nack(self.streams[stream_id], point)
        return self.process()

    def contradict(self, stream_id: int, point: int | None) -> list[Request]:
        """Draft: a NOTIFY claimed to resume from a point that is not ours. NACK it to ours."""
        if self.ended:
            return []
        self.credits.due += 1
        self._held.discard(stream_id)
        self._nack(self.streams[stream_id], point)
        return self.process()

    def _nack(self, stream: Stream, point: int | None) -> None:
        self._stream_event(stream, StreamEvent.NACK)
        stream.nacks += 1
        stream.generation += 1
        stream.last_seen = stream.acked = point
        self._send(frames.Nack(self.credits.take(), stream.id, point or 0))

    # Credits and acknowledgements.

    def _flush(self) -> None:
        if self.state is not SessionState.STREAMING:
            return
        credits = self.credits.take()
        if credits or self._moved or self._answer_due:
            self._send(frames.Ack(credits, tuple(self._moved.items())))
            self._moved.clear()
            self._answer_due = False

    def _machine(self) -> states.StreamMachine:
        if self.dialect is None:
            raise LocalFault("the peer's dialect is not known yet")
        return states.STREAM[self.dialect]

    def describe(self) -> dict[str, object]:
        """For the list of sessions."""
        return {
            "dialect": self.dialect.name if self.dialect else None,
            "state": self.state.value,
            "program": readable(self.program),
            "instance": readable(self.instance),
            "streams": {readable(stream.name): stream.state.value for stream in self.streams.values()},
            "credits": self.credits.window - self.credits.used,
            "credits_max": self.credits.window,
            "duplicates": self.duplicates,
            "error": self.error,
        }
