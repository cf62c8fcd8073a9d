"""Large Ignite requests: read beside the event loop, in their place."""

from __future__ import annotations

import asyncio
import struct
import threading
from random import Random
from typing import Any

import pytest
from support.perper_peer import hang_up, key, served
from support.until import until

from headrace.hub.intake import LARGE_BYTES
from headrace.protocols.perper.ignite import codec, operations
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.protocols.perper.ignite.server import Connection
from headrace.protocols.perper.ignite.session import Session
from headrace.protocols.perper.ignite.shapes import Encoded
from headrace.serving.tcp import SLICE_BYTES_MIN


async def test_large_requests_are_read_beside_the_loop_and_keep_their_place(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, threads = codec.decode_request, {}

    def noted(data: bytes, start: int, end: int, *more: Any) -> Any:
        threads[end - start >= LARGE_BYTES] = threading.current_thread()
        return decode(data, start, end, *more)

    monkeypatch.setattr(codec, "decode_request", noted)
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        large = struct.pack("<bii", 23, -1, 100_000) + b"\x65" * 100_000
        values = [key("small"), large, key("again"), encode_byte_array(bytes(1 << 20)), key("last")]
        order: list[int] = []
        puts = [client.request(1001, key(1), value, cache="kv") for value in values]
        for number, each in enumerate(puts):
            each.add_done_callback(lambda _, n=number: order.append(n))
        assert await client.request(1000, key(1), cache="kv") == key("last")
        assert order == [0, 1, 2, 3, 4]
        assert await client.request(1000, key(1), cache="kv") == key("last")
        assert threads[False] is threading.main_thread()
        assert threads[True] is not threading.main_thread()


async def test_nothing_more_is_read_while_there_is_something_to_deal_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even of a client that does not wait for the answer to its login."""
    data_received, held = Connection.data_received, []

    def noted(connection: Connection, data: bytes) -> None:
        held.append(len(connection._unsliced))
        data_received(connection, data)

    monkeypatch.setattr(Connection, "data_received", noted)
    hello = codec.encode_handshake(codec.Handshake(codec.NEWEST, codec.THIN_CLIENT))
    small, large = (
        codec.encode_request(codec.Request(1000, 1, (encode_byte_array(bytes(size)),), 1))
        for size in (SLICE_BYTES_MIN, 2 * LARGE_BYTES)
    )
    async with served() as pair:
        reader, writer = await asyncio.open_connection(*pair.ignite)
        writer.write(hello + small + large * 100)
        reading = asyncio.create_task(reader.read())
        await until(lambda: any(session.details["requests"] == 101 for session in pair.hub.sessions.list()))
        await hang_up(writer)
        await reading
    assert len(held) > 5
    assert set(held) == {0}


async def test_a_broken_request_among_large_ones_ends_the_connection() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        client.send_raw(codec.frame(bytes(LARGE_BYTES)) + codec.frame(b"short"))
        await until(lambda: len(pair.hub.sessions) == 0)
        [ended] = pair.hub.sessions.list(ended=True)
        assert "no room for its header" in str(ended.reason)


async def test_the_pieces_of_a_large_request_are_joined_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    decode_large, threads = Session.decode_large, []

    def noted(session: Session, pieces: list[bytes]) -> Any:
        threads.append(threading.current_thread())
        decoded = decode_large(session, pieces)
        assert not pieces  # freed
        return decoded

    monkeypatch.setattr(Session, "decode_large", noted)
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        value = encode_byte_array(bytes(1 << 20))
        await client.request(1001, key(1), value, cache="kv")
        assert await client.request(1000, key(1), cache="kv") == value
        assert threads
        assert threading.main_thread() not in threads


@pytest.mark.parametrize("seed", range(20))
def test_frames_are_the_same_however_they_come_and_however_large_they_are(seed: int) -> None:
    chance = Random(seed)
    payloads = [bytes([number]) * chance.choice([0, 1, 5, 99, 100, 101, 300]) for number in range(20)]
    data = b"".join(map(codec.frame, payloads))
    buffer, found = codec.FrameBuffer(1000), []
    while data:
        size = chance.randrange(1, 250)
        piece, data = data[:size], data[size:]
        while piece and (large := buffer.feed_large(piece, 100)) is not None:
            pieces, piece = large
            found.append(b"".join(pieces)[4:])
        whole, spans = buffer.feed(piece)
        found += [whole[start:end] for start, end in spans]
    assert found == payloads
    assert buffer.kept_bytes == 0


async def test_answers_with_many_rows_are_written_and_freed_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    encode, free, threads, freed = Encoded.of, operations.let_go, set(), []

    def noted(op: int, value: object) -> Encoded:
        threads.add(threading.current_thread())
        return encode(op, value)

    def let_go(items: list[Any]) -> None:
        threads.add(threading.current_thread())
        freed.append(len(items))
        free(items)

    monkeypatch.setattr(Encoded, "of", noted)
    monkeypatch.setattr(operations, "let_go", let_go)
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        entries = [(key(number), key(f"value {number}")) for number in range(1000)]
        await client.request(1004, entries, cache="kv")
        assert await client.request(1003, [one for one, _ in entries], cache="kv") == entries
        assert freed == [1000, 1000, 1000]  # the rows, their keys, and what was asked for
        first = await client.request(2000, b"\x65", 600, -1, False, cache="kv")
        second = await client.request(2001, first.cursor)
        assert first.rows + second.rows == entries
        assert freed[3:] == [600, 400]
        assert threads
        assert threading.main_thread() not in threads


async def test_a_scan_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "kv")
        await client.request(1004, [(key(number), key("value")) for number in range(1000)], cache="kv")
        monkeypatch.setattr("headrace.hub.turns.TURN_S", -1.0)  # each has been long at it
        turns, soon = [], pair.hub.intake.turns.soon
        monkeypatch.setattr(pair.hub.intake.turns, "soon", lambda work: (turns.append(work), soon(work)))
        await client.request(2000, b"\x65", 1000, -1, False, cache="kv")
        assert len(turns) >= 1000
