"""A connector written from a description of the published one, sharing no code with Headrace.

It does what the published Python client is known to do and to insist on: it reads OK with one `recv`, counts credits
for NOTIFY and MESSAGE but not for EOS, sends NOTIFY even at zero credits, waits for NOTIFY_ACK, asks again for a
refused stream when an ACK comes, resets its source when an ACK goes back, and finishes only on an ACK of exactly its
last id.
"""

from __future__ import annotations

import asyncio
import hashlib
import socket
import struct
import threading

import pytest
from support.wallaroo_peer import hub_and_address, records

NOTHING = 2**64 - 1


def text(value: bytes) -> bytes:
    return struct.pack(">H", len(value)) + value


def frame(tag: int, body: bytes) -> bytes:
    return struct.pack(">IB", 1 + len(body), tag) + body


class DescribedClient:
    """Blocking, one thread, several counting sources."""

    def __init__(self, address: str, names: list[bytes], last: int, cookie: bytes = b"") -> None:
        host, port = address.rsplit(":", 1)
        self.where = (host, int(port))
        self.cookie = cookie
        self.last = last
        self.names = {int.from_bytes(hashlib.sha256(name).digest()[:8], "big"): name for name in names}
        self.position = dict.fromkeys(self.names, 0)
        self.acked: dict[int, int | None] = dict.fromkeys(self.names)
        self.finished: set[int] = set()
        self.connections = 0
        self.problems: list[str] = []
        self.cut_after: int | None = None

    def run(self) -> None:
        while len(self.finished) < len(self.names) and not self.problems:
            self.connections += 1
            with socket.create_connection(self.where, timeout=60) as self.socket:
                try:
                    self.one_connection()
                except ConnectionError:
                    continue

    def one_connection(self) -> None:
        hello = b"".join(map(text, (b"0.0.1", self.cookie, b"described", b"instance")))
        self.socket.sendall(frame(0, hello))
        ok = self.socket.recv(4096)
        length, tag, self.credits = struct.unpack(">IBI", ok)  # fails if OK comes in pieces
        assert (length, tag) == (5, 1)
        self.window = self.credits
        self.open: set[int] = set()
        self.ended: set[int] = set()
        self.retry: set[int] = set()
        self.buffer = b""
        for stream_id in self.names:
            if stream_id not in self.finished:
                self.notify(stream_id)
        while len(self.finished) < len(self.names) and not self.problems:
            self.send_what_credits_allow()
            self.handle(*self.next_frame())

    def notify(self, stream_id: int) -> None:
        point = self.acked[stream_id]
        body = struct.pack(">Q", stream_id) + text(self.names[stream_id])
        self.socket.sendall(frame(3, body + struct.pack(">Q", NOTHING if point is None else point)))
        self.credits -= 1

    def send_what_credits_allow(self) -> None:
        for stream_id in sorted(self.open - self.ended):
            while self.credits > 0 and self.position[stream_id] < self.last:
                self.position[stream_id] += 1
                number = self.position[stream_id]
                body = struct.pack(">QQq", stream_id, number, 0) + text(b"key") + b"%d" % number
                self.socket.sendall(frame(5, body))
                self.credits -= 1
                if self.cut_after is not None and number == self.cut_after:
                    self.cut_after = None
                    raise ConnectionError("cut on purpose")
            if self.position[stream_id] >= self.last:
                self.socket.sendall(frame(8, struct.pack(">Q", stream_id)))
                self.ended.add(stream_id)

    def next_frame(self) -> tuple[int, bytes]:
        while len(self.buffer) < 4 or len(self.buffer) < 4 + struct.unpack(">I", self.buffer[:4])[0]:
            data = self.socket.recv(4096)
            if not data:
                raise ConnectionError("closed")
            self.buffer += data
        length = struct.unpack(">I", self.buffer[:4])[0]
        whole, self.buffer = self.buffer[4 : 4 + length], self.buffer[4 + length :]
        return whole[0], whole[1:]

    def handle(self, tag: int, body: bytes) -> None:
        if tag == 4:
            success, stream_id, point = struct.unpack(">BQQ", body)
            if success:
                self.open.add(stream_id)
                self.position[stream_id] = 0 if point == NOTHING else point
                self.acked[stream_id] = None if point == NOTHING else point
            else:
                self.retry.add(stream_id)
        elif tag == 6:
            credits, count = struct.unpack(">II", body[:8])
            self.credits += credits
            if self.credits > self.window:
                self.problems.append("more credits than were ever granted")
            for stream_id, point in struct.iter_unpack(">QQ", body[8 : 8 + 16 * count]):
                self.take_ack(stream_id, point)
            for stream_id in sorted(self.retry):
                self.retry.discard(stream_id)
                self.notify(stream_id)
        elif tag == 2:
            self.problems.append(body[2:].decode())
        else:
            self.problems.append(f"tag {tag} is not known to published clients")

    def take_ack(self, stream_id: int, point: int) -> None:
        before = self.acked[stream_id]
        if point == NOTHING or point > self.position[stream_id]:
            self.problems.append(f"an ACK of {point}, and {self.position[stream_id]} was sent")
        elif before is not None and point < before:
            self.problems.append("an ACK went back")
        self.acked[stream_id] = point
        if stream_id in self.ended and point == self.last:
            self.finished.add(stream_id)


async def run(client: DescribedClient) -> None:
    thread = threading.Thread(target=client.run, daemon=True)
    thread.start()
    await asyncio.get_running_loop().run_in_executor(None, thread.join, 60)
    assert not thread.is_alive(), "the client hangs"


@pytest.mark.parametrize("window", [1, 2, 50, 1_000])
async def test_streams_arrive_whole_with_any_window(window: int) -> None:
    names = [b"a"] if window == 1 else [b"a", b"b", b"c"]
    async with hub_and_address(window_credits=window) as (hub, address):
        client = DescribedClient(address, names, 300)
        await run(client)
        assert client.problems == []
        assert client.credits == client.window
        for name in names:
            found = await records(hub, f"instance.{name.decode()}")
            assert [(row["id"], row["key"]) for row in found] == [(n, b"key") for n in range(1, 301)]


async def test_a_client_that_dies_resumes_behind_the_durable_point() -> None:
    async with hub_and_address(window_credits=50) as (hub, address):
        client = DescribedClient(address, [b"a"], 2_000)
        client.cut_after = 777
        await run(client)
        assert client.problems == []
        assert client.connections == 2
        assert [row["id"] for row in await records(hub, "instance.a")] == list(range(1, 2_001))


async def test_two_clients_want_one_stream_and_the_second_gets_its_turn() -> None:
    async with hub_and_address(open_wait_s=0.02, window_credits=10) as (hub, address):
        clients = [DescribedClient(address, [b"a"], 500) for _ in range(2)]
        await asyncio.gather(*(run(client) for client in clients))
        assert [client.problems for client in clients] == [[], []]
        assert [row["id"] for row in await records(hub, "instance.a")] == list(range(1, 501))


async def test_a_reason_reaches_the_user() -> None:
    async with hub_and_address(cookie="secret") as (_, address):
        client = DescribedClient(address, [b"a"], 1, cookie=b"guess")
        with socket.create_connection(client.where) as client.socket:
            client.socket.sendall(frame(0, b"".join(map(text, (b"0.0.1", b"guess", b"p", b"i")))))
            answer = await asyncio.get_running_loop().run_in_executor(None, client.socket.recv, 4096)
        assert answer == frame(2, text(b"Bad cookie"))
