"""Both ends of gRPC over HTTP/2, joined by hand."""

from __future__ import annotations

import pytest

from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import prefixed


class Pair:
    """A client and a server, and the wire between them."""

    def __init__(self, step: int = 1 << 20) -> None:
        self.client = http2.GrpcConnection(client=True)
        self.server = http2.GrpcConnection(client=False)
        self.step = step
        self.at_client: list[http2.Event] = []
        self.at_server: list[http2.Event] = []
        self.move()

    def move(self) -> None:
        while True:
            forth, back = self.client.data_to_send(), self.server.data_to_send()
            if not forth and not back:
                return
            for at in range(0, len(forth), self.step):
                self.at_server += self.server.receive(forth[at : at + self.step])
            for at in range(0, len(back), self.step):
                self.at_client += self.client.receive(back[at : at + self.step])

    def start(self, *messages: bytes, path: str = "/x/Y") -> int:
        stream = self.client.start_call("host", path, [("k", "v")])
        for message in messages:
            self.client.send(stream, prefixed(message))
        self.move()
        return stream


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_call_there_and_back(step: int) -> None:
    pair = Pair(step)
    stream = pair.start(b"one", b"", b"three")
    pair.client.end_requests(stream)
    pair.move()
    started = pair.at_server[0]
    assert isinstance(started, http2.CallStarted)
    assert (started.path, started.headers["k"]) == ("/x/Y", "v")
    assert pair.at_server[1:] == [
        http2.MessageReceived(stream, b"one"),
        http2.MessageReceived(stream, b""),
        http2.MessageReceived(stream, b"three"),
        http2.RequestsEnded(stream),
    ]
    pair.server.send_headers(stream)
    pair.server.send(stream, prefixed(b"answer"))
    pair.server.end(stream, http2.OK)
    pair.move()
    assert [type(event) for event in pair.at_client] == [http2.Headers, http2.MessageReceived, http2.CallEnded]
    assert pair.at_client[-1] == http2.CallEnded(stream, 0, "")
    assert (pair.client._streams, pair.server._streams) == ({}, {})


def test_errors_before_and_after_headers() -> None:
    pair = Pair()
    first, second = pair.start(), pair.start()
    pair.server.end(first, http2.NOT_FOUND, "nö: 100%", headers_sent=False)
    pair.server.send_headers(second)
    pair.server.end(second, http2.ABORTED, "gone")
    pair.move()
    ended = [event for event in pair.at_client if isinstance(event, http2.CallEnded)]
    assert ended == [http2.CallEnded(first, 5, "nö: 100%"), http2.CallEnded(second, 10, "gone")]


def test_messages_wait_for_the_window_and_go_on() -> None:
    pair = Pair()
    stream = pair.start(b"go")
    pair.server.send_headers(stream)
    big = prefixed(bytes(100_000))
    sent = 0
    while pair.server.writable(stream):
        pair.server.send(stream, big)
        sent += 1
    waiting = pair.server.queued_bytes(stream)
    assert waiting >= http2.QUEUE_BYTES_MAX
    pair.server.end(stream, http2.OK)
    pair.move()  # the client gives room as it reads
    received = [event for event in pair.at_client if isinstance(event, http2.MessageReceived)]
    assert len(received) == sent
    assert isinstance(pair.at_client[-1], http2.CallEnded)


def test_room_is_told() -> None:
    pair = Pair()
    stream = pair.start(b"go")
    pair.server.send_headers(stream)
    while pair.server.writable(stream):
        pair.server.send(stream, prefixed(bytes(100_000)))
    pair.at_server.clear()
    pair.move()
    assert http2.Room(stream) in pair.at_server
    assert pair.server.writable(stream)


def test_resets_both_ways() -> None:
    pair = Pair()
    stream = pair.start()
    pair.client.reset(stream)
    pair.move()
    assert pair.at_server[-1] == http2.CallReset(stream)
    other = pair.start()
    pair.server.reset(other)
    pair.move()
    assert pair.at_client[-1] == http2.CallReset(other)
    pair.server.send(other, b"late")  # nothing happens
    pair.server.end(other, 0)
    pair.server.send_headers(other)
    assert not pair.server.writable(other)
    assert pair.server.queued_bytes(other) == 0


def test_a_client_that_makes_room_and_gives_up_in_the_same_packet() -> None:
    pair = Pair()
    stream, other = pair.start(b"go"), pair.start(b"stay")
    pair.server.send_headers(stream)
    while pair.server.writable(stream):
        pair.server.send(stream, prefixed(bytes(100_000)))
    pair.client.receive(pair.server.data_to_send())
    pair.client.reset(stream)
    assert http2.CallReset(stream) in pair.server.receive(pair.client.data_to_send())
    pair.server.send_headers(other)
    pair.server.end(other, http2.OK)
    pair.move()
    assert pair.at_client[-1] == http2.CallEnded(other, 0, "")


def test_a_client_that_makes_room_and_says_goodbye_in_the_same_packet() -> None:
    pair = Pair()
    stream = pair.start(b"go")
    pair.server.send_headers(stream)
    while pair.server.writable(stream):
        pair.server.send(stream, prefixed(bytes(100_000)))
    pair.client.receive(pair.server.data_to_send())
    pair.client.goodbye()
    assert isinstance(pair.server.receive(pair.client.data_to_send())[-1], http2.ConnectionEnded)


def test_what_is_not_grpc_is_told_so() -> None:
    import h2.connection

    server = http2.GrpcConnection(client=False)
    client = h2.connection.H2Connection()
    client.initiate_connection()
    client.send_headers(
        1, [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")], end_stream=True
    )
    assert server.receive(client.data_to_send()) == []
    events = client.receive_data(server.data_to_send())
    assert any(dict(getattr(event, "headers", None) or {}).get(b":status") == b"415" for event in events)
    assert not server._streams
    client.send_headers(3, [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")])
    client.reset_stream(3)
    server.receive(client.data_to_send())
    assert not server._streams


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 100,
        PREFACE + b"\xff" * 20_000,  # a frame longer than was agreed, not whole yet
        PREFACE + bytes((0, 0, 3, 1, 5, 0, 0, 0, 1)) + b"\xff\xff\xff",  # headers that cannot be decompressed
    ],
    ids=["http/1", "zeros", "long frame", "bad headers"],
)
def test_noise_ends_the_connection(data: bytes) -> None:
    events = http2.GrpcConnection(client=False).receive(data)
    assert isinstance(events[-1], http2.ConnectionEnded)


@pytest.mark.parametrize(
    ("data", "status"),
    [(b"\0\xff\xff\xff\xff", http2.RESOURCE_EXHAUSTED), (b"\1\0\0\0\1x", http2.UNIMPLEMENTED)],
)
def test_messages_that_are_too_long_or_compressed(data: bytes, status: int) -> None:
    pair = Pair()
    stream = pair.start()
    pair.client.send(stream, data)
    pair.move()
    bad = pair.at_server[-1]
    assert isinstance(bad, http2.BadMessage)
    assert bad.status == status


def test_nothing_is_kept_after_a_message_that_was_refused() -> None:
    pair = Pair()
    stream = pair.start()
    pair.client.send(stream, b"\0\xff\xff\xff\xff")
    for _ in range(10):
        pair.client.send(stream, bytes(100_000))
        pair.move()
    assert [type(event) for event in pair.at_server if not isinstance(event, http2.CallStarted)] == [http2.BadMessage]
    assert pair.server._streams[stream].buffer.kept_bytes == 0


def test_requests_that_end_in_the_middle() -> None:
    pair = Pair()
    stream = pair.start()
    pair.client.send(stream, b"\0\0\0\0\5ab")
    pair.client.end_requests(stream)
    pair.move()
    assert [type(event) for event in pair.at_server[1:]] == [http2.BadMessage, http2.RequestsEnded]


def test_goodbye() -> None:
    pair = Pair()
    pair.server.goodbye()
    pair.move()
    assert isinstance(pair.at_client[-1], http2.ConnectionEnded)


def test_answers_that_are_not_grpc() -> None:
    pair = Pair()
    stream = pair.start()
    pair.server._h2.send_headers(stream, [(":status", "503")], end_stream=True)
    pair.move()
    assert pair.at_client[-1] == http2.CallEnded(stream, http2.UNKNOWN, "HTTP status 503")
    other = pair.start()
    pair.server.send_headers(other)
    pair.server._h2.end_stream(other)
    pair.move()
    assert pair.at_client[-1] == http2.CallEnded(other, http2.UNKNOWN, "the call ended without a status")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10S", 10.0),
        ("5m", 0.005),
        ("1H", 3600.0),
        ("2M", 120.0),
        ("7u", 7e-6),
        ("9n", 9e-9),
        ("", None),
        ("5", None),
        ("x5S", None),
        ("123456789S", None),
        ("²S", None),
    ],
)
def test_timeouts(text: str, seconds: float | None) -> None:
    assert http2.parse_timeout_s(text) == pytest.approx(seconds)
