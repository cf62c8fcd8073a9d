"""Client session against server session, over a wire that loses connections and with a hub that is killed.

The wire hands over one byte at a time or in lumps. The hub of the model has two parts: what is durable, and what waits
for the disk and is lost when it is killed. Message ids count up from 1, so the rule to hold is simple: each record
that becomes durable is the one after the stream's point. No gap, no duplicate, whatever happened before.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.protocols.wallaroo import client_session
from headrace.protocols.wallaroo.client_session import Acked, ClientSession, Ended, Failed, Item, Opened, OutStream
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.requests import Close, Greet, Open, Release, Request, Store
from headrace.protocols.wallaroo.session import ServerSession
from headrace.protocols.wallaroo.settings import Wallaroo

WINDOW = 7
NAMES = [b"push", b"rewindable"]


def payload_of(name: bytes, message_id: int) -> bytes:
    return name + b":" + str(message_id).encode() * (message_id % 5)


class FakeHub:
    """Durable points and records, and what is under way."""

    def __init__(self) -> None:
        self.records: dict[bytes, list[int]] = {name: [] for name in NAMES}
        self.points: dict[bytes, int | None] = dict.fromkeys(NAMES)
        self.highest = dict.fromkeys(NAMES, 0)
        """The highest point ever durable: rewinding takes back the point, not the acknowledgements before it."""
        self.pending: list[tuple[ServerSession, bytes, Store]] = []

    def commit(self, count: int) -> None:
        for _ in range(min(count, len(self.pending))):
            session, name, store = self.pending.pop(0)
            if store.rows is not None:
                ids = store.rows.message_ids.tolist()
                assert store.rows.payloads().to_pylist() == [payload_of(name, each) for each in ids]
                for message_id in ids:
                    assert message_id == (self.points[name] or 0) + 1, "a gap or a duplicate became durable"
                    self.points[name] = message_id
                    self.highest[name] = max(self.highest[name], message_id)
                self.records[name] += ids
            if store.position is not None:
                assert store.position == self.points[name]
            session.stored(store.ticket)


class BothEnds(RuleBasedStateMachine):
    dialect: Dialect = V3

    @initialize()
    def start(self) -> None:
        self.hub = FakeHub()
        self.client = ClientSession(dialect=self.dialect, cookie=b"c")
        self.streams = {name: self.client.add_stream(name, rewindable=name == b"rewindable") for name in NAMES}
        self.position = dict.fromkeys(NAMES, 0)
        self.offered = dict.fromkeys(NAMES, 0)
        self.acked: dict[bytes, int] = {}
        self.ended: set[bytes] = set()
        self.session: ServerSession | None = None
        self.to_server = b""
        self.to_client = b""

    # What the connection does.

    def flying(self) -> bool:
        """Something was sent and not acknowledged: the time at which accidents are interesting."""
        return any(stream.flying for stream in self.streams.values())

    @rule()
    def connect(self) -> None:
        if self.session is None:
            self.session = ServerSession(Wallaroo(window_credits=WINDOW), b"c".__eq__)
            self.client.connected()
            self.to_server = self.to_client = b""

    def lose_connection(self) -> None:
        if self.session is not None:
            self.session.closed()
            self.client.disconnected()
            self.session = None

    @precondition(flying)
    @rule(delivered=st.integers(0, 200))
    def disconnect(self, delivered: int) -> None:
        """The connector goes away; some of what it sent still arrives, and what was appended becomes durable."""
        if self.session is not None:
            self.feed_server(self.to_server[:delivered])
            self.lose_connection()

    @precondition(lambda self: bool(self.hub.pending))
    @rule(written=st.integers(0, 3))
    def kill_the_hub(self, written: int) -> None:
        """Some commits made it to the disk without anybody being told; the rest is lost."""
        self.hub.commit(written)
        self.hub.pending.clear()
        self.lose_connection()

    @rule(count=st.integers(1, 400), lump=st.sampled_from([1, 3, 1000]))
    def carry_to_server(self, count: int, lump: int) -> None:
        self.collect_client_output()
        data, self.to_server = self.to_server[:count], self.to_server[count:]
        for start in range(0, len(data), lump):
            self.feed_server(data[start : start + lump])

    @rule(lump=st.sampled_from([1, 50, 1000]))
    def talk(self, lump: int) -> None:
        """Both ways until nobody has anything to say; the disk is asked for nothing."""
        self.connect()
        for _ in range(4):
            self.carry_to_server(10_000, lump)
            self.carry_to_client(10_000, lump)

    @rule(count=st.integers(1, 400), lump=st.sampled_from([1, 3, 1000]))
    def carry_to_client(self, count: int, lump: int) -> None:
        if self.session is None:
            return
        self.to_client += self.session.take_output()
        data, self.to_client = self.to_client[:count], self.to_client[count:]
        for start in range(0, len(data), lump):
            self.on_events(self.client.receive(data[start : start + lump]))

    def collect_client_output(self) -> None:
        if self.session is not None:
            output, events = self.client.take_output()
            self.to_server += output
            self.on_events(events)

    def feed_server(self, data: bytes) -> None:
        if self.session is not None:
            self.answer(self.session.receive(data))

    def answer(self, requests: list[Request]) -> None:
        session = self.session
        assert session is not None
        for request in requests:
            match request:
                case Greet():
                    # OK and NOTIFY_ACK wait for what earlier sessions have under way.
                    self.hub.commit(len(self.hub.pending))
                    points = [(self.streams[name].id, point) for name, point in self.hub.points.items() if point]
                    self.answer(session.greeted(points))
                case Open(stream_id, name):
                    self.hub.commit(len(self.hub.pending))
                    self.answer(session.opened(stream_id, self.hub.points[name]))
                case Store(ticket):
                    self.hub.pending.append((session, session.streams[ticket.stream_id].name, request))
                case Release():
                    pass
                case Close(reason):
                    assert reason is None, f"the server ended the session: {reason}"
                    # v3's RESTART: the client sees the frame, then the end.
                    self.on_events(self.client.receive(self.to_client + session.take_output()))
                    self.lose_connection()
                    return

    # What the application does.

    @rule(name=st.sampled_from(NAMES), count=st.integers(1, 12))
    def offer(self, name: bytes, count: int) -> None:
        stream = self.streams[name]
        if stream.ending or (stream.rewindable and not stream.opened):
            return
        first = self.position[name] + 1
        self.client.offer(stream, [Item(n, payload_of(name, n)) for n in range(first, first + count)])
        self.position[name] += count
        self.offered[name] = max(self.offered[name], self.position[name])

    @rule(name=st.sampled_from(NAMES))
    def finish(self, name: bytes) -> None:
        stream = self.streams[name]
        if stream.opened and self.position[name] >= self.offered[name]:
            self.client.finish(stream)

    @rule(count=st.integers(1, 4))
    def sync(self, count: int) -> None:
        self.hub.commit(count)

    @rule(back=st.integers(0, 5))
    def rewind(self, back: int) -> None:
        """An operator sends a stream back."""
        name = b"rewindable"
        stream = self.streams[name]
        point = self.hub.points[name]
        if point is None or self.session is None or stream.id not in self.session.streams or stream.ending:
            return
        if self.session.streams[stream.id].state.value not in ("Open", "Reset"):
            return
        self.session.hold()
        self.hub.commit(len(self.hub.pending))
        target = max(0, (self.hub.points[name] or 0) - back) or None
        self.hub.points[name] = target
        self.answer([*self.session.rewind(stream.id, target), *self.session.let_go()])

    def on_events(self, events: list[client_session.Event]) -> None:
        for event in events:
            match event:
                case Failed(reason):
                    raise AssertionError(f"the client ended the session: {reason}")
                case Opened(stream_id, point):
                    name = self.name_of(stream_id)
                    self.acked.pop(name, None)
                    if self.streams[name].rewindable:
                        self.position[name] = point or 0
                case Acked(stream_id, point):
                    name = self.name_of(stream_id)
                    assert point >= self.acked.get(name, 0), "acknowledgements went back"
                    self.acked[name] = point
                case Ended(stream_id):
                    self.ended.add(self.name_of(stream_id))

    def name_of(self, stream_id: int) -> bytes:
        return self.client.streams[stream_id].name

    # What always holds.

    @invariant()
    def nothing_is_acknowledged_that_is_not_durable(self) -> None:
        for name, point in getattr(self, "acked", {}).items():
            # The draft's lone end has an id of its own, which is no point of reference.
            end = self.dialect is DRAFT and self.streams[name].ending
            assert point <= self.hub.highest[name] + end

    @invariant()
    def credits_are_kept(self) -> None:
        if getattr(self, "session", None) is not None:
            assert 0 <= self.client.credits <= WINDOW
            assert self.session.credits.used <= WINDOW

    def teardown(self) -> None:
        """Left in peace, everything that was offered becomes durable and acknowledged."""
        if not hasattr(self, "hub"):
            return
        for _ in range(400):
            if self.session is None:
                self.connect()
            for name, stream in self.streams.items():
                missing = self.offered[name] - self.position[name]
                if stream.opened and missing > 0 and not stream.ending:
                    self.offer(name, missing)
            self.carry_to_server(4000, 1000)
            self.hub.commit(100)
            self.carry_to_client(4000, 1000)
            if all(self.done(name, stream) for name, stream in self.streams.items()):
                break
        for name, stream in self.streams.items():
            assert self.hub.points[name] == (self.offered[name] or None)
            assert stream.unacked == 0
            assert not stream.ending or name in self.ended

    def done(self, name: bytes, stream: OutStream) -> bool:
        stored = self.hub.points[name] == (self.offered[name] or None)
        return stored and not stream.unacked and (not stream.ending or name in self.ended)


class V3Ends(BothEnds):
    dialect = V3


class DraftEnds(BothEnds):
    dialect = DRAFT


CI = settings(max_examples=100, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
V3Ends.TestCase.settings = CI
DraftEnds.TestCase.settings = CI
TestV3 = pytest.mark.slow(V3Ends.TestCase)
TestDraft = pytest.mark.slow(DraftEnds.TestCase)
