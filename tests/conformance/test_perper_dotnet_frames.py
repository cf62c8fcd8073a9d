"""Frames shaped as the .NET clients of Ignite and Perper write them, built from the layouts alone, over a real socket.

What differs from pyignite: other feature bits, fields sorted by name, type names registered for a platform of its own,
binary objects sent inside the envelope, records changed by a builder (more fields, other letter case), listeners by
get-and-put-if-absent before StreamItems, results by replace-if-equals, configurations with all 31 properties, states
whose keys are strings and ints, several requests at once on one connection.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from support.perper_peer import Served, served

EXECUTION, LISTENER = 922529474, -1232432076
DOTNET = 1  # the platform of type names
FEATURES = 0b10111010  # bits 1, 3, 4, 5 and 7: compute, endpoints, cluster groups, services, SQL batches
NULL = b"\x65"


def i32(number: int) -> bytes:
    return struct.pack("<i", number)


def string(text: str | None) -> bytes:
    return NULL if text is None else b"\x09" + i32(len(text.encode())) + text.encode()


def long(number: int) -> bytes:
    return b"\x04" + struct.pack("<q", number)


def integer(number: int) -> bytes:
    return b"\x03" + i32(number)


def signed(number: int) -> int:
    return (number & 0xFFFFFFFF) - ((number & 0x80000000) << 1)


def hash_of(text: str) -> int:
    """String.hashCode of Java and .NET's Ignite: over UTF-16 units."""
    value = 0
    for unit in struct.unpack(f"<{len(text.encode('utf-16-le')) // 2}H", text.encode("utf-16-le")):
        value = value * 31 + unit
    return signed(value)


def field_id(name: str) -> int:
    return hash_of(name.lower())


def schema_of(names: list[str]) -> int:
    value = 0x811C9DC5
    for name in names:
        for byte in struct.pack("<i", field_id(name)):
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return signed(value)


def complex_object(type_id: int, fields: dict[str, bytes], *, compact: bool = True, raw: bytes = b"") -> bytes:
    """Fields in the order given; full footers carry the ids; raw data stands behind the fields."""
    body, places = b"", []
    for data in fields.values():
        places.append(24 + len(body))
        body += data
    footer = b"".join(
        (b"" if compact else i32(field_id(name))) + struct.pack("<H", at)
        for name, at in zip(fields, places, strict=True)
    )
    end = 24 + len(body) + len(raw)
    flags = 1 | 2 | 16 | (32 if compact else 0)
    if raw:
        flags |= 4
        footer += i32(24 + len(body))
    head = struct.pack("<BBHiiiii", 0x67, 1, flags, type_id, 0, end + len(footer), schema_of(list(fields)), end)
    return head + body + raw + footer


def wrapped(value: bytes) -> bytes:
    return b"\x1b" + i32(len(value)) + value + i32(0)


def objects(*items: bytes) -> bytes:
    return b"\x17" + i32(-1) + i32(len(items)) + b"".join(items)


def execution(finished: bool = False, **changes: bytes) -> bytes:
    fields = {
        "agent": string("net"),
        "delegate": string("Do"),
        "error": NULL,
        "finished": b"\x08" + bytes([finished]),
        "instance": string("net-1"),
        "parameters": objects(long(1), string("x")),
        "result": NULL,
    }
    assert list(fields) == sorted(fields)
    return complex_object(EXECUTION, fields | changes)


def type_metadata(type_id: int, name: str, fields: list[tuple[str, int]], schemas: list[list[str]]) -> bytes:
    parts = [i32(type_id), string(name), NULL, i32(len(fields))]
    parts += [string(field) + i32(code) + i32(field_id(field)) for field, code in fields]
    parts += [b"\0", i32(len(schemas))]
    for names in schemas:
        parts += [i32(schema_of(names)), i32(len(names)), *(i32(field_id(field)) for field in names)]
    return b"".join(parts)


EXECUTION_FIELDS = [
    ("agent", 9),
    ("delegate", 9),
    ("error", 9),
    ("finished", 8),
    ("instance", 9),
    ("parameters", 23),
    ("result", 23),
]


class Wire:
    """One connection; requests by number, answers in whatever order they come."""

    def __init__(self, pair: Served, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pair = pair
        self.writer = writer
        self._reader = reader
        self._number = 0
        self._answers: dict[int, bytes] = {}

    async def frame(self) -> bytes:
        length = struct.unpack("<i", await asyncio.wait_for(self._reader.readexactly(4), 60))[0]
        return await asyncio.wait_for(self._reader.readexactly(length), 60)

    async def handshake(self, minor: int = 7) -> bytes:
        features = b"\x0c" + i32(1) + bytes([FEATURES]) if minor >= 7 else b""
        payload = b"\x01" + struct.pack("<hhh", 1, minor, 0) + b"\x02" + features
        self.writer.write(i32(len(payload)) + payload)
        return await self.frame()

    def send(self, op: int, body: bytes, cache: str | None = None, flags: bytes = b"\x01") -> int:
        """Cache operations of a cache `WithKeepBinary` have flag 1."""
        self._number += 1
        head = b"" if cache is None else i32(hash_of(cache)) + flags
        payload = struct.pack("<hq", op, self._number) + head + body
        self.writer.write(i32(len(payload)) + payload)
        return self._number

    async def answer(self, number: int) -> bytes:
        while number not in self._answers:
            payload = await self.frame()
            self._answers[struct.unpack_from("<q", payload)[0]] = payload[8:]
        return self._answers.pop(number)

    async def ask(self, op: int, body: bytes = b"", cache: str | None = None, flags: bytes = b"\x01") -> bytes:
        """The body of an answer that says yes."""
        answer = await self.answer(self.send(op, body, cache, flags))
        assert answer[:2] == b"\0\0", answer
        return answer[2:]

    async def refused(self, op: int, body: bytes = b"", cache: str | None = None) -> tuple[int, str]:
        answer = await self.answer(self.send(op, body, cache))
        assert answer[:2] == b"\1\0", answer
        length = struct.unpack_from("<i", answer, 7)[0]
        return struct.unpack_from("<i", answer, 2)[0], answer[11 : 11 + length].decode()


@pytest_asyncio.fixture
async def wire() -> AsyncIterator[Wire]:
    async with served() as pair:
        connection = Wire(pair, *await asyncio.open_connection(*pair.ignite))
        welcome = await connection.handshake()
        # success, no feature of theirs is served, and the node's id
        assert welcome[:8] == b"\x01\x0c" + i32(1) + b"\x00" + b"\x0a"
        assert len(welcome) == 24
        yield connection
        connection.writer.close()


@pytest.mark.parametrize("minor", [2, 3, 4, 5, 6, 7])
async def test_every_version_a_net_client_may_begin_with(minor: int) -> None:
    async with served() as pair:
        connection = Wire(pair, *await asyncio.open_connection(*pair.ignite))
        assert (await connection.handshake(minor))[:1] == b"\1"
        number = connection.send(1052, string("executions"))
        answer = await connection.answer(number)
        assert answer == (bytes(2) if minor >= 4 else bytes(4))
        connection.writer.close()


async def register_execution(wire: Wire) -> None:
    names = [name for name, _ in EXECUTION_FIELDS]
    await wire.ask(3001, bytes([DOTNET]) + i32(EXECUTION) + string("Perper.Protocol.Cache.ExecutionData"))
    await wire.ask(3003, type_metadata(EXECUTION, "ExecutionData", EXECUTION_FIELDS, [names]))


async def test_a_call_from_its_creation_to_its_removal(wire: Wire) -> None:
    await register_execution(wire)
    name = await wire.ask(3000, bytes([DOTNET]) + i32(EXECUTION))
    assert name == string("Perper.Protocol.Cache.ExecutionData")
    await wire.ask(1052, string("executions"))
    rpc = await wire.pair.rpc()
    worker = rpc.start(
        "/perper.Fabric/ReservedExecutions", {"reserveNext": 1, "filter": {"agent": "net", "delegate": "Do"}}, end=False
    )
    start = await worker.next()
    assert start is not None
    assert start.startOfStream

    call, record = string("Do-1"), execution()
    assert await wire.ask(1002, call + wrapped(record), "executions") == b"\1"
    assert await wire.ask(1002, call + record, "executions") == b"\0"
    offered = await asyncio.wait_for(worker.next(), 60)
    assert offered is not None
    assert (offered.execution, offered.instance, offered.delegate) == ("Do-1", "net-1", "Do")
    assert await wire.ask(1000, call, "executions") == wrapped(record)

    # The builder keeps the object's fields and adds its own, named as the properties are: the ids are the same.
    finished = execution(finished=True, result=objects(long(2)))
    more = [*EXECUTION_FIELDS, ("Finished", 8), ("Result", 23)]
    await wire.ask(3003, type_metadata(EXECUTION, "ExecutionData", more, [[name for name, _ in EXECUTION_FIELDS]]))
    waiting = asyncio.ensure_future(rpc.call("/perper.Fabric/ExecutionFinished", {"execution": "Do-1"}))
    assert await wire.ask(1010, call + wrapped(finished) + wrapped(finished), "executions") == b"\0"
    assert not waiting.done()
    assert await wire.ask(1010, call + wrapped(record) + wrapped(finished), "executions") == b"\1"
    await asyncio.wait_for(waiting, 60)
    cancelled = await asyncio.wait_for(worker.next(), 60)
    assert cancelled is not None
    assert cancelled.cancelled
    assert await wire.ask(1007, call, "executions") == wrapped(finished)
    assert await wire.ask(1011, call, "executions") == b"\0"
    types = await wire.ask(3002, i32(EXECUTION))
    assert string("finished") + i32(8) in types
    assert string("Finished") + i32(8) in types


@pytest.mark.parametrize("compact", [True, False])
async def test_footers_with_and_without_field_ids(wire: Wire, compact: bool) -> None:
    fields = {"position": long(5), "stream": string("s")}
    record = complex_object(LISTENER, fields, compact=compact)
    await wire.ask(1001, string("l") + record, "stream-listeners")
    found = wire.pair.fabric.listeners.get("l")
    assert found is not None
    assert (found.stream, found.position) == ("s", 5)
    assert await wire.ask(1000, string("l"), "stream-listeners") == wrapped(record)


async def test_a_stream_whose_listener_comes_before_its_items(wire: Wire) -> None:
    await wire.ask(1053, configuration("numbers"))
    rpc = await wire.pair.rpc()
    attached = asyncio.ensure_future(rpc.call("/perper.Fabric/ListenerAttached", {"stream": "numbers"}))
    start = complex_object(LISTENER, {"position": long(-(2**63)), "stream": string("numbers")})
    listener = string("numbers-reader")
    assert await wire.ask(1008, listener + wrapped(start), "stream-listeners") == NULL
    await asyncio.wait_for(attached, 60)
    other = complex_object(LISTENER, {"position": long(7), "stream": string("numbers")})
    assert await wire.ask(1008, listener + wrapped(other), "stream-listeners") == wrapped(start)

    items = rpc.start("/perper.Fabric/StreamItems", {"stream": "numbers", "startKey": -1, "stride": 1})
    await asyncio.wait_for(items.headers, 60)
    numbers = [wire.send(1002, long(key) + string(f"item {key}"), "numbers") for key in range(3)]
    assert [await wire.answer(number) for number in reversed(numbers)] == [b"\0\0\1"] * 3
    for key in range(3):
        item = await asyncio.wait_for(items.next(), 60)
        assert item is not None
        assert item.key == key
    await wire.ask(1001, listener + wrapped(other), "stream-listeners")
    assert await wire.ask(1017, listener + wrapped(start), "stream-listeners") == b"\0"
    assert await wire.ask(1017, listener + wrapped(other), "stream-listeners") == b"\1"


def configuration(name: str) -> bytes:
    """All 31 properties, in the order of their codes, with a length that is right."""
    texts = {0: string(name), 100: NULL, 203: NULL, 400: NULL}
    flags = dict.fromkeys((5, 6, 101, 205, 405, 406), b"\1")
    longs = {code: struct.pack("<q", code) for code in (301, 302, 304, 306, 402)}
    numbers = {code: i32(1) for code in (1, 2, 3, 4, 201, 202, 204, 206, 300, 303, 305, 403, 404)}
    others = {200: i32(0), 401: i32(1) + string("Key") + string("affinity"), 407: b"\0"}
    properties: dict[int, bytes] = dict(sorted((texts | flags | longs | numbers | others).items()))
    assert len(properties) == 31
    body = struct.pack("<h", 31) + b"".join(struct.pack("<h", code) + value for code, value in properties.items())
    return i32(len(body)) + body


async def test_a_cache_with_all_properties(wire: Wire) -> None:
    for _ in range(2):
        await wire.ask(1054, configuration("full"))
    answer = await wire.ask(1055, cache="full")
    assert struct.unpack_from("<i", answer)[0] == len(answer) - 4
    assert string("full") in answer
    assert string("Key") + string("affinity") in answer
    assert struct.pack("<q", 402) in answer
    assert (await wire.refused(1053, configuration("full")))[0] == 1001


async def test_states_with_keys_of_several_types(wire: Wire) -> None:
    state = "net-1-"
    await wire.ask(1052, string(state))
    entries: dict[bytes, bytes] = {
        string("start_index"): integer(0),
        string("end_index"): integer(2),
        integer(0): string("first"),
        integer(1): wrapped(complex_object(77, {"a": NULL}, raw=b"raw data of a serializer")),
        long(1): string("another key than the int 1"),
    }
    for key, value in entries.items():
        assert await wire.ask(1005, key + value, state) == NULL
    for key, value in entries.items():
        assert await wire.ask(1000, key, state) == value
    assert await wire.ask(1006, integer(0) + string("new"), state) == string("first")
    page = await wire.ask(2000, NULL + i32(2) + i32(-1) + b"\0", state)
    cursor, rows, more = struct.unpack_from("<q", page)[0], struct.unpack_from("<i", page, 8)[0], page[-1]
    assert (rows, more) == (2, 1)
    await wire.ask(0, struct.pack("<q", cursor))
    assert (await wire.refused(2001, struct.pack("<q", cursor)))[0] == 1011
    await wire.ask(1019, cache=state)
    assert await wire.ask(1020, i32(0), state) == bytes(8)


async def test_sql_of_linq_without_a_query_entity_is_refused_and_the_connection_goes_on(wire: Wire) -> None:
    await wire.ask(1053, configuration("numbers"))
    query = string("numbers") + i32(1024) + i32(-1) + string('select _T0._KEY, _T0._VAL from "numbers".X as _T0')
    query += i32(0) + b"\1" + bytes(6) + struct.pack("<q", 0) + b"\0"
    status, message = await wire.refused(2004, query, "numbers")
    assert status == 1
    assert message == "Failed to set schema for DB connection for thread [schema=numbers]"
    assert await wire.ask(1020, i32(0), "numbers") == bytes(8)


async def test_names_beyond_the_basic_plane_have_the_ids_of_utf_16(wire: Wire) -> None:
    name = "\U0001f600"
    await wire.ask(1052, string(name))
    assert hash_of(name) == 1772899
    await wire.ask(1001, string("k") + string("v"), name)
    assert await wire.ask(1000, string("k"), name) == string("v")


async def test_an_expiry_policy_comes_before_the_key(wire: Wire) -> None:
    await wire.ask(1052, string("short"))
    flags = b"\x05" + struct.pack("<qqq", 3_600_000, -2, -1)
    await wire.ask(1001, string("k") + string("v"), "short", flags)
    assert await wire.ask(1000, string("k"), "short") == string("v")
    assert wire.pair.fabric.catalogue.expiries.has("short", string("k"))


async def test_a_type_that_changes_is_refused_with_both_types_named(wire: Wire) -> None:
    await register_execution(wire)
    changed: list[Any] = [("finished", 9)]
    status, message = await wire.refused(3003, type_metadata(EXECUTION, "ExecutionData", changed, []))
    assert status == 1
    assert "finished" in message
    assert "8" in message
    assert "9" in message
