"""Hostile peers, one for each protocol and each way to be one. `python attacks.py NAME ADDRESSES` runs one until its
standard input ends; it writes a line once it is under way.

    largest     messages as large as may be              slowest   a byte now and then, of many messages
    deepest     nested as deep as may be, and deeper     fastest   asks as fast as it can, and reads no answer
    elements    as many elements as may be, and more     zeros     little that unfolds to much
    half-open   10,000 connections that say half of something, or as many as this process may open
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import resource
import socket
import struct
import sys
import threading
from collections.abc import Awaitable, Callable

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from headrace.admin.records import NewRecord, StreamAppend
from headrace.config.address import split_address
from headrace.protocols.ambrosia import codec as ambrosia
from headrace.protocols.ambrosia.pairing import mark_of
from headrace.protocols.flight import requests as lines
from headrace.protocols.ockam import codec as ockam
from headrace.protocols.ockam.routing import LegacyFraming, Message, local
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import prefixed
from headrace.protocols.perper.ignite.binary import encode_byte_array, encode_long, java_hash
from headrace.protocols.perper.ignite.codec import NEWEST, THIN_CLIENT, Handshake, Request, encode_handshake
from headrace.protocols.perper.ignite.codec import encode_request as encode_ignite
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import V3

MIB = 1 << 20
HALF_OPEN = int(os.environ.get("HOSTILE_HALF_OPEN", "10000"))
SLOW_CONNECTIONS = 50
AT_ONCE = 4
"""Connections of an attack that needs no crowd."""

Addresses = dict[str, str]
Attack = Callable[[Addresses], Awaitable[None]]


# What is said. --------------------------------------------------------------------------------------------------------


def wallaroo_hello(instance: bytes = b"hostile") -> bytes:
    hello = V3.encode(frames.Hello(frames.VERSION, b"", b"hostile", instance))
    return hello + V3.encode(frames.Notify(1, instance, frames.NO_POINT))


IGNITE_HELLO = encode_handshake(Handshake(NEWEST, THIN_CLIENT))
CACHE = java_hash("hostile")


def ignite_put(value: bytes) -> bytes:
    create = encode_ignite(Request(1052, 1, ("hostile",)))
    return create + encode_ignite(Request(1001, 2, (encode_long(1), value), CACHE))


MANY_KEYS = [encode_long(number) for number in range(100_000)]


def ignite_many(op: int, argument: object) -> bytes:
    return encode_ignite(Request(1052, 1, ("hostile",))) + encode_ignite(Request(op, 2, (argument,), CACHE))


def ignite_array(items: bytes, count: int) -> bytes:
    return struct.pack("<bii", 23, -1, count) + items


def nested_array(depth: int) -> bytes:
    value = b"\x65"
    for _ in range(depth):
        value = ignite_array(value, 1)
    return value


def ockam_frame(to: str, payload: bytes, hops: int = 1) -> bytes:
    return LegacyFraming().encode(Message((local(to),) * hops, (local("me"),), payload))


def grpc_call(path: str, body: bytes) -> bytes:
    grpc = http2.GrpcConnection(client=True)
    number = grpc.start_call("hub", path)
    grpc._h2.remote_settings.initial_window_size = 1 << 30
    grpc.send(number, body)
    return grpc.data_to_send()


def http_post(verb: str, body: bytes, *headers: bytes) -> bytes:
    head = [f"POST /api/v1/{verb} HTTP/1.1".encode(), b"host: localhost", b"content-type: application/json", *headers]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


def http_form(path: str, body: bytes) -> bytes:
    return http_post("", body).replace(b"/api/v1/", f"/api/{path}".encode(), 1)


UPGRADE = (
    b"GET /futoin/hostile.events HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def websocket_frame(data: bytes) -> bytes:
    return struct.pack(">BBQI", 0x82, 0xFF, len(data), 0) + data


def add_event(data: object) -> bytes:
    return json.dumps({"f": "futoin.evt.gen:1.0:addEvent", "p": {"type": "EVT", "data": data}, "rid": "C1"}).encode()


def raw_json(data: bytes) -> bytes:
    return b'{"f":"futoin.evt.gen:1.0:addEvent","rid":"C1","p":{"type":"EVT","data":%b}}' % data


# How it is said. ------------------------------------------------------------------------------------------------------


async def say(address: str, *words: bytes, reads: bool = True) -> None:
    """Connect and say it, again and again: in one connection while it lasts."""
    while True:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(*split_address(address))
            reading = asyncio.create_task(_read_away(reader)) if reads else None
            try:
                for each in words[:-1]:
                    writer.write(each)
                while not writer.is_closing() and not (reading is not None and reading.done()):
                    writer.write(words[-1])
                    await writer.drain()
                    await asyncio.sleep(0)
            finally:
                if reading is not None:
                    reading.cancel()
                writer.transport.abort()
        await asyncio.sleep(0.01)


async def _read_away(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(MIB):
            pass


def many(
    address: str, *words: bytes, reads: bool = True, count: int = AT_ONCE
) -> Callable[[Addresses], Awaitable[None]]:
    async def attack(addresses: Addresses) -> None:
        await asyncio.gather(*(say(addresses[address], *words, reads=reads) for _ in range(count)))

    return attack


def slowly(address: str, first: bytes, rest: bytes) -> Attack:
    """Half of the rest at once, then a byte every half second."""

    async def one(target: str) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*split_address(target))
                reading = asyncio.create_task(_read_away(reader))
                writer.write(first)
                await asyncio.sleep(0.5)
                writer.write(rest[: len(rest) // 2])
                for byte in rest[len(rest) // 2 :]:
                    if reading.done():
                        break
                    writer.write(bytes((byte,)))
                    await asyncio.sleep(0.5)
                writer.transport.abort()
            await asyncio.sleep(0.1)

    async def attack(addresses: Addresses) -> None:
        await asyncio.gather(*(one(addresses[address]) for _ in range(SLOW_CONNECTIONS)))

    return attack


def half_open(address: str, words: bytes) -> Attack:
    """As many connections as can be, each with the beginning of something; those that are cut off come again."""

    async def one(target: str) -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await asyncio.open_connection(*split_address(target))
                writer.write(words)
                await _read_away(reader)
                writer.transport.abort()
            await asyncio.sleep(1)

    async def attack(addresses: Addresses) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(min(HALF_OPEN, open_files() - 100)):
                group.create_task(one(addresses[address]))
                if number % 50 == 0:
                    await asyncio.sleep(0.01)

    return attack


def both(one: Attack, other: Attack) -> Attack:
    """Two at once."""

    async def attack(addresses: Addresses) -> None:
        await asyncio.gather(one(addresses), other(addresses))

    return attack


def open_files() -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, HALF_OPEN + 200):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, HALF_OPEN + 200), hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def in_threads(work: Callable[[str], None], count: int = AT_ONCE) -> Attack:
    """Something that blocks, again and again; refusals are what it is after."""

    def again(address: str) -> None:
        while True:
            with contextlib.suppress(pa.ArrowException, flight.FlightError, OSError):
                work(address)

    async def attack(addresses: Addresses) -> None:
        for _ in range(count):
            threading.Thread(target=again, args=(addresses["flight"],), daemon=True).start()
        await asyncio.Event().wait()

    return attack


def put(batch: pa.RecordBatch, codec: str | None = None) -> Callable[[str], None]:
    def work(address: str) -> None:
        with flight.connect(f"grpc://{address}") as client:
            list(client.do_action(flight.Action("stream.create", b'{"stream":"hostile.flight"}')))
            options = flight.FlightCallOptions(write_options=pa.ipc.IpcWriteOptions(compression=codec))
            writer, _ = client.do_put(flight.FlightDescriptor.for_path("hostile.flight"), batch.schema, options)
            with writer:
                writer.write_batch(batch)

    return work


def zeros(size: int) -> pa.RecordBatch:
    return pa.record_batch({"payload": pa.array([bytes(size // 64)] * 64)})


def shared(rows: int, size: int) -> pa.RecordBatch:
    """Rows that all show the same value."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([bytes(size)]))
    return pa.record_batch({"payload": column})


def large_dictionary(size: int) -> pa.RecordBatch:
    column = pa.DictionaryArray.from_arrays(pa.array([0], pa.int32()), pa.array([bytes(size // 64)] * 64))
    return pa.record_batch({"payload": column})


def action(body: bytes, verb: str = "table.put") -> Callable[[str], None]:
    def work(address: str) -> None:
        with flight.connect(f"grpc://{address}") as client:
            list(client.do_action(flight.Action(verb, body)))

    return work


def read_nothing(address: str) -> None:
    """Many reads of which nothing is taken."""
    client = flight.connect(f"grpc://{address}")
    list(client.do_action(flight.Action("stream.create", b'{"stream":"hostile.flight"}')))
    writer, _ = client.do_put(flight.FlightDescriptor.for_path("hostile.flight"), pa.schema([("payload", pa.binary())]))
    with writer:
        writer.write_batch(pa.record_batch({"payload": pa.array([bytes(MIB)] * 8)}))
    ticket = flight.Ticket(b'{"stream":"hostile.flight"}')
    readers = [client.do_get(ticket) for _ in range(50)]
    threading.Event().wait()
    del readers


# Lines, which begin as calls and continue at the HTTP listener.


def line_head(address: str) -> bytes:
    """Has the hub offer a line, and opens it; what comes behind that is the line's."""
    with flight.connect(f"grpc://{address}") as client:
        (result,) = client.do_action(flight.Action(lines.OFFER_ACTION, b""))
    offer = msgspec.json.decode(result.body.to_pybytes(), type=lines.LineOffer)
    head = f"GET {lines.PATH} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: {lines.UPGRADE}\r\n"
    return f"{head}{lines.TICKET_HEADER}: {offer.ticket}\r\n\r\n".encode() + lines.client_proof(offer.secret)


def on_lines(words: bytes, *, reads: bool = True, count: int = AT_ONCE) -> Attack:
    """Say it on lines, again and again; those that end are opened again."""

    async def one(addresses: Addresses) -> None:
        while True:
            with contextlib.suppress(OSError, pa.ArrowException, flight.FlightError):
                head = await asyncio.to_thread(line_head, addresses["flight"])
                reader, writer = await asyncio.open_connection(*split_address(addresses["http"]))
                reading = asyncio.create_task(_read_away(reader)) if reads else None
                writer.write(head)
                while not writer.is_closing() and not (reading is not None and reading.done()):
                    writer.write(words)
                    await writer.drain()
                    await asyncio.sleep(0)
                writer.transport.abort()
            await asyncio.sleep(0.01)

    async def attack(addresses: Addresses) -> None:
        await asyncio.gather(*(one(addresses) for _ in range(count)))

    return attack


def half_lines(words: bytes, count: int) -> Attack:
    """Many lines that say the beginning of a request; those that are cut off come again."""

    async def one(addresses: Addresses) -> None:
        while True:
            with contextlib.suppress(OSError, pa.ArrowException, flight.FlightError):
                head = await asyncio.to_thread(line_head, addresses["flight"])
                reader, writer = await asyncio.open_connection(*split_address(addresses["http"]))
                writer.write(head + words)
                await _read_away(reader)
                writer.transport.abort()
            await asyncio.sleep(1)

    async def attack(addresses: Addresses) -> None:
        await asyncio.gather(*(one(addresses) for _ in range(count)))

    return attack


def line_append(records: list[NewRecord]) -> bytes:
    return lines.framed(lines.Request(append=StreamAppend("wallaroo", records)))


def line_verb(params: bytes) -> bytes:
    body = b'{"verb":"table.put","params":%b}' % params
    return len(body).to_bytes(lines.LENGTH_BYTES, "big") + body


AMBROSIA = "ambrosia.hostile.receive"


def with_binding(words: bytes) -> Attack:
    """A binding that says it once it is linked; its other socket is not read."""

    async def attack(addresses: Addresses) -> None:
        while True:
            with contextlib.suppress(OSError):
                _, out = await asyncio.open_connection(*split_address(addresses[AMBROSIA]))
                _, back = await asyncio.open_connection(*split_address(addresses["ambrosia.hostile.send"]))
                out.write(ambrosia.encode(ambrosia.InitialMessage(b"hi")) + ambrosia.encode(ambrosia.Checkpoint(0)))
                while not out.is_closing():
                    out.write(words)
                    await out.drain()
                    await asyncio.sleep(0)
                back.transport.abort()
            await asyncio.sleep(0.05)

    return attack


def call_to(destination: bytes, arguments: bytes, method: int = 1) -> bytes:
    return ambrosia.encode(ambrosia.Call(method, ambrosia.RpcType.FORK, arguments, destination))


def batch_of(count: int) -> bytes:
    calls = b"".join(call_to(b"", b"x" * (1 + number % 3), number % 5) for number in range(min(count, 300_000)))
    return ambrosia.frame(ambrosia.Type.RPC_BATCH, ambrosia.zigzag_int(count) + calls)


MARK = mark_of(1)
"""Of a binding whose other socket comes from port 1: it never does."""
PUSH = ockam.encode_request(ockam.PushRequest(1, bytes(60_000)))
FABRIC = "/perper.Fabric/AllExecutions"
PING = b"\0\0\x08\6\0\0\0\0\0" + bytes(8)

ATTACKS: dict[str, Callable[[], Attack]] = {
    "wallaroo largest": lambda: many(
        "wallaroo", wallaroo_hello(), V3.encode(frames.Message(1, 1, bytes(4 * MIB - 100)))
    ),
    "wallaroo elements": lambda: many("wallaroo", wallaroo_hello(), V3.encode(frames.Message(1, 1, b"")) * 900),
    "wallaroo slowest": lambda: slowly("wallaroo", wallaroo_hello(), b"\0\x3f\0\0\5" + bytes(4 * MIB - 500)),
    "wallaroo fastest": lambda: many("wallaroo", wallaroo_hello(), V3.encode(frames.Message(1, 1, b"x")), reads=False),
    "wallaroo half-open": lambda: half_open("wallaroo", b"\0\0\0"),
    "ockam largest": lambda: many("ockam", ockam_frame("stream", PUSH)),
    "ockam elements": lambda: many("ockam", b"\xff\xff\1\xff\x7d" + bytes(65_532)),
    "ockam slowest": lambda: slowly("ockam", b"\0\0", b"\xff\xff" + bytes(60_000)),
    "ockam fastest": lambda: many(
        "ockam",
        ockam_frame("stream", ockam.encode_request(ockam.CreateRequest(ockam.CREATE, "hostile.ockam"))),
        reads=False,
    ),
    "ockam half-open": lambda: half_open("ockam", b"\1"),
    "ignite largest": lambda: many("ignite", IGNITE_HELLO, ignite_put(encode_byte_array(bytes(60 * MIB)))),
    "ignite deepest": lambda: many(
        "ignite", IGNITE_HELLO, ignite_put(nested_array(64)) + ignite_put(nested_array(10_000))
    ),
    "ignite elements": lambda: many("ignite", IGNITE_HELLO, ignite_put(ignite_array(b"\x65" * 249_000, 249_000))),
    "ignite too many": lambda: many("ignite", IGNITE_HELLO, ignite_put(ignite_array(b"\x65" * 15_000_000, 15_000_000))),
    "ignite put all": lambda: many(
        "ignite", IGNITE_HELLO, ignite_many(1004, [(one, one) for one in MANY_KEYS]), count=2
    ),
    "ignite get all": lambda: many("ignite", IGNITE_HELLO, ignite_many(1003, MANY_KEYS), count=2),
    "ignite remove keys": lambda: many("ignite", IGNITE_HELLO, ignite_many(1018, MANY_KEYS), count=2),
    "ignite slowest": lambda: slowly("ignite", IGNITE_HELLO, struct.pack("<i", 60 * MIB) + bytes(60 * MIB)),
    "ignite fastest": lambda: many("ignite", IGNITE_HELLO, encode_ignite(Request(1050, 1, ())) * 100, reads=False),
    "ignite half-open": lambda: half_open("ignite", b"\1\0"),
    "fabric largest": lambda: many("fabric", grpc_call(FABRIC, prefixed(bytes(60_000)))),
    "fabric elements": lambda: many("fabric", grpc_call(FABRIC, b""), PING * 1000),
    "fabric slowest": lambda: slowly("fabric", b"", grpc_call(FABRIC, prefixed(bytes(100_000))[:60_000])),
    "fabric fastest": lambda: many("fabric", grpc_call(FABRIC, b""), PING * 1000, reads=False),
    "fabric zeros": lambda: many(
        "fabric", grpc_call(FABRIC, b"\1" + struct.pack(">I", 20_000) + gzip.compress(bytes(20 * MIB))[:20_000])
    ),
    "fabric half-open": lambda: half_open("fabric", b"PRI * HTTP/2.0"),
    "http largest": lambda: many("http", http_post("table.put", b'{"table":"x","key":"' + b"k" * (23 * MIB) + b'"}')),
    "http too large": lambda: many("http", http_post("table.put", b'{"table":"x","key":"' + b"k" * (60 * MIB) + b'"}')),
    "http deepest": lambda: many("http", http_post("table.put", b'{"table":' + b"[" * 500_000)),
    "http elements": lambda: many("http", http_post("table.put", b'{"table":[' + b"[]," * (7 * MIB) + b"[]]}")),
    "http values": lambda: many(
        "http", http_post("stream.append", b'{"stream":"wallaroo","records":[' + b"{}," * 195_000 + b"{}]}")
    ),
    "http inside": lambda: many(
        "http",
        http_post("stream.append", b'{"stream":"hostile","records":[{"json":[' + b"[]," * 195_000 + b"[]]}]}"),
    ),
    "http form": lambda: many("http", http_form("immortals/hostile/x", b'{"a":[' + b"[]," * (6 * MIB) + b"[]]}")),
    "http header": lambda: many("http", b"GET / HTTP/1.1\r\nhost: localhost\r\na: ", b"b" * MIB),
    "http headers": lambda: many("http", b"GET / HTTP/1.1\r\nhost: localhost\r\n", b"a: b\r\n" * 10_000),
    "http slowest": lambda: slowly("http", b"", http_post("stream.list", bytes(20 * MIB))),
    "http fastest": lambda: many("http", b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n" * 100, reads=False),
    "http zeros": lambda: many(
        "http", http_post("table.put", gzip.compress(bytes(50 * MIB)), b"content-encoding: gzip")
    ),
    "http half-open": lambda: half_open("http", b"GET / HTTP/1.1\r\n"),
    "futoin largest": lambda: many("http", UPGRADE, websocket_frame(add_event("x" * 60_000))),
    "futoin deepest": lambda: many("http", UPGRADE, websocket_frame(raw_json(b"[" * 30_000 + b"]" * 30_000))),
    "futoin elements": lambda: many("http", UPGRADE, websocket_frame(raw_json(b"[" + b"[]," * 20_000 + b"[]]"))),
    "futoin fragments": lambda: many("http", UPGRADE + b"\x02\x81\0\0\0\0a", b"\0\x80\0\0\0\0" * 1000),
    "futoin slowest": lambda: slowly("http", UPGRADE, websocket_frame(bytes(60_000))),
    "futoin fastest": lambda: many("http", UPGRADE, websocket_frame(add_event("x")), reads=False),
    "ambrosia largest": lambda: with_binding(call_to(b"", bytes(15 * MIB))),
    "ambrosia elements": lambda: with_binding(batch_of(240_000)),
    "ambrosia too many": lambda: with_binding(batch_of(3_000_000)),
    "ambrosia slowest": lambda: slowly(AMBROSIA, b"", bytes(4000)),
    "ambrosia half-open": lambda: half_open(AMBROSIA, b"\1"),
    "ambrosia crowd": lambda: both(half_open(AMBROSIA, MARK), half_open("ambrosia.hostile.send", b"")),
    "ambrosia garbage": lambda: many(AMBROSIA, bytes(range(256)) * 1000),
    "flight largest": lambda: in_threads(put(zeros(60 * MIB))),
    "flight elements": lambda: in_threads(put(pa.record_batch({"payload": pa.array([b""] * 2_000_000)}))),
    "flight zeros": lambda: in_threads(put(zeros(1024 * MIB), "zstd"), 2),
    "flight dictionary": lambda: in_threads(put(large_dictionary(1024 * MIB), "zstd"), 2),
    "flight shared": lambda: in_threads(put(shared(1000, 8 * MIB))),
    "flight action": lambda: in_threads(action(b'{"table":"' + b"x" * (60 * MIB) + b'"}')),
    "flight fastest": lambda: in_threads(read_nothing, 2),
    "flight half-open": lambda: half_open("flight", b"PRI * HTTP/2.0"),
    "line largest": lambda: on_lines(line_append([NewRecord(text="x" * 65_000)])),
    "line deepest": lambda: on_lines(line_verb(b'{"table":' + b"[" * 32_000 + b"]" * 32_000 + b"}")),
    "line elements": lambda: on_lines(line_append([NewRecord(text="")] * 5_000)),
    "line slowest": lambda: half_lines(b"\0\0\xff\xff" + bytes(30_000), SLOW_CONNECTIONS),
    "line fastest": lambda: on_lines(line_verb(b"{}") * 1_000, reads=False),
    "line half-open": lambda: half_lines(b"\0", 1_200),
}


async def main(name: str, addresses: Addresses) -> None:
    loop = asyncio.get_running_loop()
    ended = loop.run_in_executor(None, sys.stdin.read)
    attack = asyncio.ensure_future(ATTACKS[name]()(addresses))
    print("under way", flush=True)
    await asyncio.wait([ended, attack], return_when=asyncio.FIRST_COMPLETED)
    if attack.done():
        attack.result()


if __name__ == "__main__":
    socket.setdefaulttimeout(30)
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2])))
