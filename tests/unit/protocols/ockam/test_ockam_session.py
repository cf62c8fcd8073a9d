"""The session alone: its two tables, every kind of message, every way of cutting the bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.protocols.ockam import codec
from headrace.protocols.ockam.bare import encode_uint
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import (
    HOPS_MAX,
    RECORD_BYTES_MAX,
    ROUTE_BYTES_MAX,
    SENT_FRAME_BYTES_MAX,
    Address,
    Framing,
    LegacyFraming,
    Message,
    local,
)
from headrace.protocols.ockam.session import (
    ANSWERED,
    Create,
    Dropped,
    Endpoint,
    Get,
    Pull,
    PushRun,
    Save,
    Session,
    State,
    Turn,
    Worker,
)

ORDERS = Worker(b"ST_S_0000000000000001", "orders", 0)
OTHER = Worker(b"ST_S_0000000000000002", "other", 3)
WORKERS = {worker.address: worker for worker in (ORDERS, OTHER)}
BACK = (local("client"),)
FRAMINGS: list[Framing] = [LegacyFraming(), CborFraming()]
both_framings = pytest.mark.parametrize("framing", FRAMINGS, ids=lambda framing: framing.name)


def open_session(framing: Framing | None = None) -> Session:
    session = Session(framing or LegacyFraming(), WORKERS.get)
    if session.framing.greeting:
        session.receive(session.framing.greeting)
    return session


def frame(to: bytes | str, payload: bytes, back: tuple[Address, ...] = BACK, framing: Framing | None = None) -> bytes:
    return (framing or LegacyFraming()).encode(Message((local(to),), back, payload))


def push(worker: Worker, request_id: int, data: bytes, back: tuple[Address, ...] = BACK) -> bytes:
    return frame(worker.address, codec.encode_request(codec.PushRequest(request_id, data)), back)


def replies(session: Session, raw: bytes) -> list[Message]:
    framing, messages = session.framing, []
    while raw:
        stop = framing.header_bytes + framing.frame_size(raw, 0)
        messages.append(framing.decode(raw[framing.header_bytes : stop]))
        raw = raw[stop:]
    return messages


def responses(session: Session, raw: bytes) -> list[codec.Response]:
    return [codec.decode_response(message.payload) for message in replies(session, raw)]


# --- where requests go ---


@both_framings
@pytest.mark.parametrize("name", ["stream_service", "stream"])
def test_create_reaches_the_hub(framing: Framing, name: str) -> None:
    request = codec.CreateRequest(codec.CREATE, "orders")
    session = open_session(framing)
    turn = session.receive(frame(name, codec.encode_request(request), framing=framing))
    assert turn.requests == [Create(name.encode(), BACK, request)]
    (message,) = replies(session, session.created(turn.requests[0], "orders", [ORDERS]))
    assert (message.onward, message.returning) == (BACK, (local(ORDERS.address),))
    assert codec.decode_response(message.payload) == codec.Init(codec.CREATE, "orders")


@pytest.mark.parametrize("protocol", [codec.CREATE_PARTITIONED, codec.CREATE_PARTITIONS])
def test_one_init_per_partition_under_the_name_asked(protocol: str) -> None:
    session = open_session()
    request = codec.CreateRequest(protocol, "p", 2)
    (create,) = session.receive(frame("stream", codec.encode_request(request))).requests
    workers = [Worker(b"ST_S_a", "p", 0), Worker(b"ST_S_b", "p", 1)]
    assert isinstance(create, Create)
    messages = replies(session, session.created(create, "p", workers))
    assert [message.returning for message in messages] == [(local("ST_S_a"),), (local("ST_S_b"),)]
    assert [codec.decode_response(message.payload) for message in messages] == [
        codec.Init(protocol, "p", 0),
        codec.Init(protocol, "p", 1),
    ]


@pytest.mark.parametrize("name", ["stream_index_service", "stream_index"])
@pytest.mark.parametrize(
    ("protocol", "partition"), [(codec.INDEX, None), (codec.INDEX, 5), (codec.INDEX_PARTITIONED, 5)]
)
def test_index_requests_are_answered_in_the_shape_asked(name: str, protocol: str, partition: int | None) -> None:
    session = open_session()
    get = codec.GetIndex(protocol, "cl", "orders", partition)
    save = codec.SaveIndex(protocol, "cl", "orders", 10, partition)
    turn = session.receive(frame(name, codec.encode_request(save)) + frame(name, codec.encode_request(get)))
    assert turn.requests == [Save(save), Get(name.encode(), BACK, get)]
    (message,) = replies(session, session.index(Get(name.encode(), BACK, get), 10))
    assert (message.onward, message.returning) == (BACK, (local(name),))
    expected = codec.Index(protocol, "cl", "orders", 10, partition)
    assert codec.decode_response(message.payload, partitioned=partition is not None) == expected


@both_framings
def test_pull_and_its_reply(framing: Framing) -> None:
    session = open_session(framing)
    request = codec.PullRequest(7, 2, 10)
    (pull,) = session.receive(frame(ORDERS.address, codec.encode_request(request), framing=framing)).requests
    assert pull == Pull(ORDERS, BACK, request)
    raw, count = session.pulled(pull, [2, 5], [b"two", b"five"])
    assert count == 2
    expected = [codec.StreamMessage(2, b"two"), codec.StreamMessage(5, b"five")]
    assert responses(session, raw) == [codec.PullResponse(7, expected)]


def test_the_largest_pull_reply_fits_along_the_longest_route() -> None:
    for framing in FRAMINGS:
        session = open_session(framing)
        room = ROUTE_BYTES_MAX - (4 if framing.name == "legacy" else 6)
        pull = Pull(ORDERS, (local(b"x" * room),), codec.PullRequest((1 << 64) - 1, 0, 10))
        raw, count = session.pulled(pull, [(1 << 63) - 1], [bytes(framing.record_bytes_max)])
        assert count == 1
        assert len(raw) <= framing.sent_bytes_max + framing.header_bytes
        small = bytes(1)
        raw, count = session.pulled(pull, range(1 << 62, (1 << 62) + 60_000), [small] * 60_000)
        assert len(raw) <= framing.sent_bytes_max + framing.header_bytes
    assert SENT_FRAME_BYTES_MAX - RECORD_BYTES_MAX == 1_100


def test_every_request_goes_to_its_own_return_route_byte_exact() -> None:
    session = open_session()
    route = (Address(1, b"10.0.0.1:4000"), Address(200, b"\x00\xff"), local("deep"), local(""))
    turn = session.receive(push(ORDERS, 1, b"a", route) + push(ORDERS, 2, b"b", ()))
    raw = session.confirmed(turn.pushes[ORDERS], 0)
    assert [message.onward for message in replies(session, raw)] == [route, ()]


# --- pushes are gathered ---


def test_two_hundred_pushes_are_one_batch() -> None:
    session = open_session()
    chunk = b"".join(push(ORDERS, number, b"%d" % number) for number in range(200))
    turn = session.receive(chunk)
    batch = turn.pushes[ORDERS]
    assert batch.records == [b"%d" % number for number in range(200)]
    assert (batch.count(), len(batch.runs), session.requests) == (200, 1, 200)
    confirms = responses(session, session.confirmed(batch, 1000))
    assert confirms == [codec.PushConfirm(number, True, 1000 + number) for number in range(200)]


def test_interleaved_streams_and_routes_are_one_batch_per_stream() -> None:
    session = open_session()
    elsewhere = (local("elsewhere"),)
    turn = session.receive(
        push(ORDERS, 1, b"a")
        + push(OTHER, 1, b"x")
        + push(ORDERS, 2, b"b", elsewhere)
        + push(ORDERS, 3, b"c", elsewhere)
        + push(OTHER, 2, b"y")
        + push(ORDERS, 4, b"d")
    )
    assert turn.pushes[ORDERS].records == [b"a", b"b", b"c", b"d"]
    assert turn.pushes[OTHER].records == [b"x", b"y"]
    messages = replies(session, session.confirmed(turn.pushes[ORDERS], 10))
    assert [message.onward for message in messages] == [BACK, elsewhere, elsewhere, BACK]
    assert [codec.decode_response(message.payload) for message in messages] == [
        codec.PushConfirm(number, True, 9 + number) for number in range(1, 5)
    ]


def test_a_record_too_large_is_refused_in_its_place_and_takes_no_index() -> None:
    session = open_session()
    turn = session.receive(
        push(ORDERS, 1, b"a") + push(ORDERS, 2, bytes(RECORD_BYTES_MAX + 1)) + push(ORDERS, 3, bytes(RECORD_BYTES_MAX))
    )
    batch = turn.pushes[ORDERS]
    assert [len(record) for record in batch.records] == [1, RECORD_BYTES_MAX]
    assert responses(session, session.confirmed(batch, 5)) == [
        codec.PushConfirm(1, True, 5),
        codec.PushConfirm(2, False, 0),
        codec.PushConfirm(3, True, 6),
    ]
    assert "63901" in str(session.last_error)


def test_a_batch_that_could_not_be_stored_is_confirmed_with_errors() -> None:
    session = open_session()
    batch = session.receive(push(ORDERS, 1, b"a") + push(ORDERS, 300, b"b")).pushes[ORDERS]
    expected = [codec.PushConfirm(1, False, 0), codec.PushConfirm(300, False, 0)]
    assert responses(session, session.confirmed(batch, None)) == expected


def test_the_same_request_id_is_stored_every_time() -> None:
    batch = open_session().receive(push(ORDERS, 1, b"same") * 3).pushes[ORDERS]
    assert batch.records == [b"same"] * 3
    assert batch.runs == [PushRun(BACK, 0, [encode_uint(1)] * 3)]


# --- what is not answered, or answered with an error ---

HOSTILE_TO_SERVICES = [
    b"",
    b"\xff" * 40,
    codec.encode_payload("stream_destroy", b""),
    codec.encode_payload(codec.CREATE, b"\x01\x02\xff\xfe"),
    codec.encode_payload(codec.CREATE, b"\x01\x00"),
    codec.encode_payload(codec.CREATE, b"\x01\x01a\x00"),
    codec.encode_request(codec.PushRequest(1, b"x")),
    codec.encode_request(codec.PullRequest(1, 0, 1)),
    codec.encode_request(codec.GetIndex(codec.INDEX, "a", "b")),
]


@pytest.mark.parametrize("payload", HOSTILE_TO_SERVICES)
def test_the_service_answers_nonsense_with_error(payload: bytes) -> None:
    session = open_session()
    turn = session.receive(frame("stream", payload))
    assert not turn.requests
    (message,) = replies(session, b"".join(turn.replies))
    assert (message.onward, message.returning) == (BACK, (local("stream"),))
    assert codec.decode_response(message.payload) == codec.Error("Invalid request")
    assert session.state is State.OPEN


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        codec.encode_payload(codec.PUSH, b"\x01\x05abc"),
        codec.encode_request(codec.CreateRequest(codec.CREATE, "orders")),
        codec.encode_request(codec.CreateRequest(codec.CREATE_PARTITIONED, "orders", 4)),
    ],
)
def test_a_stream_answers_nonsense_with_error(payload: bytes) -> None:
    session = open_session()
    turn = session.receive(frame(ORDERS.address, payload))
    assert not turn.requests
    assert not turn.pushes
    (message,) = replies(session, b"".join(turn.replies))
    assert message.returning == (local(ORDERS.address),)
    assert codec.decode_response(message.payload) == codec.Error(codec.INVALID_REQUEST)


@pytest.mark.parametrize("payload", [b"", b"\xff", codec.encode_request(codec.PushRequest(1, b"x"))])
def test_the_index_service_is_silent_about_nonsense(payload: bytes) -> None:
    turn = open_session().receive(frame("stream_index", payload))
    assert (turn.requests, turn.replies, turn.dropped) == ([], [], [Dropped.INDEX_REQUEST])


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (codec.CreateRequest(codec.CREATE_PARTITIONED, "p", 0), "at least one partition"),
        (codec.CreateRequest(codec.CREATE_PARTITIONED, "p", 1025), "ockam.partitions_max"),
        (codec.CreateRequest(codec.CREATE_PARTITIONED, None, (1 << 64) - 1), "ockam.partitions_max"),
        (codec.CreateRequest(codec.CREATE, "n" * 501), "ockam.name_bytes_max"),
        (codec.CreateRequest(codec.CREATE, "ß" * 251), "ockam.name_bytes_max"),
    ],
)
def test_our_own_limits_are_answered_with_their_names(request_: codec.CreateRequest, reason: str) -> None:
    session = open_session()
    turn = session.receive(frame("stream", codec.encode_request(request_)))
    (answer,) = responses(session, b"".join(turn.replies))
    assert isinstance(answer, codec.Error)
    assert reason in answer.reason


def test_limits_from_their_inner_side() -> None:
    session = open_session()
    fine = [codec.CreateRequest(codec.CREATE_PARTITIONED, "p", 1024), codec.CreateRequest(codec.CREATE, "n" * 500)]
    for request in fine:
        assert session.receive(frame("stream", codec.encode_request(request))).requests
    long_client = codec.GetIndex(codec.INDEX, "c" * 501, "s")
    turn = session.receive(frame("stream_index", codec.encode_request(long_client)))
    assert turn.dropped == [Dropped.INDEX_REQUEST]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (b"\x00\x00", Dropped.EMPTY_FRAME),
        (bytes.fromhex("000401000000"), Dropped.HEARTBEAT),
        (LegacyFraming().encode(Message((Address(1, b"127.0.0.1:9"), local("stream")), BACK, b"")), Dropped.NOT_LOCAL),
        (LegacyFraming().encode(Message((Address(99, b"?"),), BACK, b"")), Dropped.NOT_LOCAL),
        (frame("nobody", b""), Dropped.UNKNOWN_ADDRESS),
        (frame(b"\xff\xfe", b""), Dropped.UNKNOWN_ADDRESS),
        (frame("stream", b"", (local(b"x" * 64_500),)), Dropped.LONG_ROUTE),
        (frame("stream", b"", (local(b""),) * (HOPS_MAX + 1)), Dropped.LONG_ROUTE),
        (LegacyFraming().encode(Message((local(b""),) * (HOPS_MAX + 1), BACK, b"")), Dropped.LONG_ROUTE),
    ],
)
def test_drops_are_silent_and_counted(raw: bytes, why: Dropped) -> None:
    session = open_session()
    turn = session.receive(raw)
    assert turn == Turn(dropped=[why])
    assert session.state is State.OPEN


@both_framings
def test_a_push_along_a_route_that_is_too_long_is_refused_with_a_confirm(framing: Framing) -> None:
    long = (local(b"x" * ROUTE_BYTES_MAX),)
    session = open_session(framing)
    raw = b"".join(
        frame(ORDERS.address, codec.encode_request(codec.PushRequest(number, b"x")), route, framing)
        for number, route in enumerate((BACK, long, BACK))
    )
    turn = session.receive(raw)
    batch = turn.pushes[ORDERS]
    assert batch.records == [b"x", b"x"]
    assert batch.refused() == 1
    confirms = session.confirmed(batch, 5)
    assert responses(session, confirms) == [
        codec.PushConfirm(0, True, 5),
        codec.PushConfirm(1, False, 0),
        codec.PushConfirm(2, True, 6),
    ]
    assert [message.onward for message in replies(session, confirms)] == [BACK, long, BACK]


def test_other_requests_along_a_route_that_is_too_long_are_refused_with_the_reason() -> None:
    long = (local(b"x" * ROUTE_BYTES_MAX),)
    for address, request in (
        ("stream", codec.CreateRequest(codec.CREATE, "orders")),
        (ORDERS.address, codec.PullRequest(1, 0, 1)),
    ):
        session = open_session()
        turn = session.receive(frame(address, codec.encode_request(request), long))
        assert turn.requests == []
        (reply,) = replies(session, turn.replies[0])
        assert reply.onward == long
        error = codec.decode_response(reply.payload)
        assert isinstance(error, codec.Error)
        assert "the return route takes 1004 bytes, above 1000" in error.reason


def test_hops_after_the_stream_are_ignored() -> None:
    payload = codec.encode_request(codec.PushRequest(1, b"x"))
    onward = (local(ORDERS.address), Address(1, b"far:1"))
    turn = open_session().receive(LegacyFraming().encode(Message(onward, BACK, payload)))
    assert turn.pushes[ORDERS].records == [b"x"]


@pytest.mark.parametrize("raw", [b"\x00\x01\x00", b"\x00\x04\x03\x00\x00\x00", b"\x00\x05\x01\x00\x00\x00\x00"])
def test_malformed_messages_end_the_connection(raw: bytes) -> None:
    session = open_session()
    turn = session.receive(push(ORDERS, 1, b"before") + raw + push(ORDERS, 2, b"after"))
    assert turn.ended is not None
    assert turn.pushes[ORDERS].records == [b"before"]
    assert session.state is State.CLOSED
    assert session.receive(push(ORDERS, 3, b"later")) == Turn()


# --- the greeting of the newer framing ---


def test_greeting_then_frames_in_one_chunk() -> None:
    session = Session(CborFraming(), WORKERS.get)
    assert session.state is State.GREETING
    request = codec.encode_request(codec.CreateRequest(codec.CREATE, "s"))
    assert session.receive(b"\x01" + frame("stream", request, framing=CborFraming())).requests
    assert session.greeting_late() == Turn()


def test_wrong_greeting() -> None:
    session = Session(CborFraming(), WORKERS.get)
    assert session.receive(b"\x02").ended == "the version byte is 2"
    assert session.state is State.CLOSED


def test_late_greeting() -> None:
    session = Session(CborFraming(), WORKERS.get)
    assert session.greeting_late().ended == "no version byte in time"
    session.lost()
    assert session.state is State.CLOSED


def test_a_huge_announced_frame_ends_the_connection_at_once() -> None:
    session = open_session(CborFraming())
    assert session.receive(b"\xff\xff\xff\xff").ended is not None


# --- however the bytes are cut ---


@both_framings
def test_byte_by_byte(framing: Framing) -> None:
    session = Session(framing, WORKERS.get)
    payload = codec.encode_request(codec.PushRequest(1, b"x" * 300))
    chunk = framing.greeting + frame(ORDERS.address, payload, framing=framing) * 3
    records = []
    for at in range(len(chunk)):
        turn = session.receive(chunk[at : at + 1])
        records += [record for batch in turn.pushes.values() for record in batch.records]
    assert records == [b"x" * 300] * 3


@given(st.lists(st.integers(1, 400), max_size=30), st.lists(st.integers(0, 200), min_size=1, max_size=12))
def test_any_cut_gives_the_same_pushes(cuts: list[int], sizes: list[int]) -> None:
    chunk = b"".join(push(ORDERS, number, bytes(size)) for number, size in enumerate(sizes))
    session, records, ids = open_session(), [], []
    position = 0
    for size in [*cuts, len(chunk)]:
        turn = session.receive(chunk[position : position + size])
        position += size
        for batch in turn.pushes.values():
            records += batch.records
            ids += [one for run in batch.runs for one in run.ids]
    assert records == [bytes(size) for size in sizes]
    assert ids == [encode_uint(number) for number in range(len(sizes))]


# --- the tables ---


def test_every_place_is_answered_for() -> None:
    assert set(ANSWERED) == set(Endpoint)
    taken = [kind for kinds in ANSWERED.values() for kind in kinds]
    assert len(taken) == len(set(taken)) == 5


class SessionMachine(RuleBasedStateMachine):
    """Any mixture of good and bad messages, cut anywhere, against what the rules of the session say must come of it."""

    @initialize(framing=st.sampled_from(FRAMINGS))
    def start(self, framing: Framing) -> None:
        self.framing = framing
        self.session = Session(framing, WORKERS.get)
        self.wire = framing.greeting
        self.expected: list[object] = []
        self.seen: list[object] = []
        self.ended = False

    def send(self, to: bytes | str, payload: bytes) -> None:
        self.wire += frame(to, payload, framing=self.framing)

    @rule(
        worker=st.sampled_from([ORDERS, OTHER]), data=st.binary(max_size=60), request_id=st.integers(0, (1 << 64) - 1)
    )
    def push(self, worker: Worker, data: bytes, request_id: int) -> None:
        self.send(worker.address, codec.encode_request(codec.PushRequest(request_id, data)))
        self.expected.append((worker, encode_uint(request_id), data))

    @rule(index=st.integers(0, (1 << 64) - 1), limit=st.integers(0, 1 << 64 - 1))
    def pull(self, index: int, limit: int) -> None:
        request = codec.PullRequest(1, index, limit)
        self.send(ORDERS.address, codec.encode_request(request))
        self.expected.append(Pull(ORDERS, BACK, request))

    @rule(index=st.integers(0, (1 << 64) - 1))
    def save(self, index: int) -> None:
        request = codec.SaveIndex(codec.INDEX, "c", "orders", index)
        self.send("stream_index", codec.encode_request(request))
        self.expected.append(Save(request))

    @rule(payload=st.sampled_from(HOSTILE_TO_SERVICES))
    def nonsense(self, payload: bytes) -> None:
        self.send("stream", payload)
        self.expected.append("error")

    @rule()
    def silence(self) -> None:
        self.send("nobody", b"")
        self.expected.append(Dropped.UNKNOWN_ADDRESS)

    @rule(size=st.integers(1, 500))
    def deliver(self, size: int) -> None:
        chunk, self.wire = self.wire[:size], self.wire[size:]
        if not chunk:
            return
        turn = self.session.receive(chunk)
        self.seen += [
            (batch.worker, one, data)
            for batch in turn.pushes.values()
            for one, data in zip([one for run in batch.runs for one in run.ids], batch.records, strict=True)
        ]
        self.seen += [*turn.requests, *turn.dropped, *["error"] * len(turn.replies)]

    @precondition(lambda self: not self.wire)
    @rule()
    def all_delivered(self) -> None:
        """Per kind in order; across kinds a turn may put pushes first."""
        for worker in (ORDERS, OTHER):
            wanted = [item for item in self.expected if isinstance(item, tuple) and item[0] == worker]
            assert [item for item in self.seen if isinstance(item, tuple) and item[0] == worker] == wanted
        rest = [item for item in self.expected if isinstance(item, Pull | Save)]
        assert [item for item in self.seen if isinstance(item, Pull | Save)] == rest
        for word in ("error", Dropped.UNKNOWN_ADDRESS):
            assert self.seen.count(word) == self.expected.count(word)

    @invariant()
    def lives_on(self) -> None:
        if hasattr(self, "session"):
            assert self.session.state in (State.GREETING, State.OPEN)


TestSessionMachine = SessionMachine.TestCase
TestSessionMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
