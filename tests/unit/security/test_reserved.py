"""What the hub keeps for itself: every way in, and a start with rows that mean nothing."""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pyarrow.flight as flight
import pytest
from support import flight_peer, ockam_peer, wallaroo_peer
from support.perper_peer import key, put_listener

from headrace.config import Grant
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.doctor.data import check_data
from headrace.errors import BadRequest, Forbidden, HeadraceError
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.protocols.ambrosia.coordinator.store import Registration
from headrace.protocols.ockam import codec as ockam_codec
from headrace.protocols.ockam.routing import LegacyFraming
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import FabricClient, RpcError
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.security import EVERYTHING, Principal, acting_as, is_own_cursor, is_reserved
from headrace.security.reserved import own_tables
from headrace.serving.runtime import LISTENERS, Runtime
from headrace.spark.hub.sink_state import check_rights

LOG, PENDING, INBOX = (f"immortal/counter/{name}" for name in ("log", "pending", "inbox"))
STREAMS = (LOG, PENDING)
NAMES = (*own_tables(), *STREAMS)
ROLES = ("admin", "writer", "reader")
CLIENTS_OWN = {"executions", "stream-listeners"}
"""Tables that Perper's clients write themselves."""


@asynccontextmanager
async def running(data: Path, *flags: str) -> AsyncIterator[Runtime]:
    """A hub with everything that it can serve."""
    listeners = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    runtime = await Runtime.start(load(environment={}, flags=[*listeners, f"log.data={data}", *flags]))
    try:
        yield runtime
    finally:
        await runtime.stop()


async def fill(hub: Hub) -> None:
    """Make everything that the hub makes for itself."""
    await hub.verbs.call("immortal.register", {"name": "counter"}, EVERYTHING)
    for table in own_tables():
        await hub.create_table(table)


@asynccontextmanager
async def filled(data: Path, role: str) -> AsyncIterator[Runtime]:
    """A hub without users, on which everybody has a role."""
    async with running(data, f"security.anonymous={role}", "futoin.insecure=true") as runtime:
        await fill(runtime.hub)
        yield runtime


def state(hub: Hub) -> dict[str, Any]:
    """What nobody may have changed."""
    streams = {name: [hub.bounds(name), hub.cursors(stream=name), hub.stream(name)] for name in NAMES}
    return streams | {f"{table} rows": list(hub.items(table)) for table in own_tables()}


def test_the_names_are_those_that_the_page_lists() -> None:
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")
    section = page.partition("### What the hub keeps for itself")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in own_tables())
    assert not is_reserved(INBOX)
    assert not any(map(is_reserved, ("orders", "spark", "spark/other", "perper.callers", "immortal/counter/inbox", "")))


async def test_every_table_that_a_hub_makes_for_itself_is_reserved(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        await runtime.hub.verbs.call("immortal.register", {"name": "counter"}, EVERYTHING)
        assert {info.name for info in runtime.hub.streams(kind="table")} <= {*own_tables(), *CLIENTS_OWN}
        assert {info.name for info in runtime.hub.streams()} == {LOG, PENDING, INBOX}


def sample(kind: Any) -> Any:
    """A value for a field that has to be given."""
    samples = {"StrType": "x", "IntType": 0, "BytesType": "", "ListType": [], "UnionType": 0, "StructType": {}}
    return samples[type(kind).__name__]


def body(request: type[msgspec.Struct], field: str, name: str) -> dict[str, Any]:
    """The smallest request about a name."""
    wanted = msgspec.inspect.type_info(request).fields  # type: ignore[attr-defined]
    return {each.name: sample(each.type) for each in wanted if each.required} | {field: name}


@pytest.mark.parametrize("role", ROLES)
async def test_no_verb_writes_and_only_admins_read(tmp_path: Path, role: str) -> None:
    async with filled(tmp_path, role) as runtime:
        hub = runtime.hub
        anyone = hub.security.anonymous()
        assert anyone is not None
        before = state(hub)
        verbs = [verb for verb in hub.verbs if verb.stream_field is not None]
        assert {"table.put", "stream.append", "stream.delete", "stream.trim", "cursor.save", "stream.rewind"} <= {
            verb.name for verb in verbs
        }
        for verb in verbs:
            for name in NAMES:
                if role == "admin" and (verb.moves_cursor or verb.right == "read"):
                    continue
                with pytest.raises(Forbidden):
                    await hub.verbs.call(verb.name, body(verb.request, str(verb.stream_field), name), anyone)
        assert state(hub) == before


async def test_admins_read_and_keep_cursors(tmp_path: Path) -> None:
    async with filled(tmp_path, "admin") as runtime:
        call = runtime.hub.verbs.call
        assert (await call("stream.read", {"stream": LOG}, EVERYTHING)).records == []
        items = await call("table.items", {"table": "ambrosia/immortals"}, EVERYTHING)
        assert [item.key for item in items] == [b"counter"]
        at = {"stream": LOG, "cursor": "watcher"}
        await call("cursor.save", at | {"index": 0}, EVERYTHING)
        await call("cursor.reset", at | {"to": "earliest"}, EVERYTHING)
        await call("cursor.delete", at, EVERYTHING)
        assert runtime.hub.cursors(stream=LOG) == []
        for verb, more in (("save", {"index": 9}), ("reset", {"to": 0}), ("delete", {})):
            for stream in (PENDING, INBOX):
                with pytest.raises(Forbidden):
                    await call(f"cursor.{verb}", {"stream": stream, "cursor": "ambrosia"} | more, EVERYTHING)
        with pytest.raises(Forbidden):
            await call("spark.move-cursor", {"cursor": "ambrosia", "positions": {INBOX: [9]}}, EVERYTHING)
        await call("stream.append", {"stream": INBOX, "records": [{"text": "1"}]}, EVERYTHING)
        assert runtime.hub.bounds(INBOX).next == 1


def test_reading_takes_both_rights_on_the_name() -> None:
    for rights in (["read"], ["admin"], ["read", "write"]):
        assert not Principal("p", (), (Grant(rights=rights),)).may("read", LOG)  # type: ignore[arg-type]
    one = Principal("p", (), (Grant(rights=["read", "write", "admin"], streams=["immortal/counter/*"]),))
    assert one.may("read", LOG)
    assert not one.may("read", "spark/pipelines")
    assert one.granted("write", LOG)
    assert not any(one.may(right, LOG) for right in ("write", "admin"))  # type: ignore[arg-type]
    assert is_own_cursor("ambrosia", INBOX)
    assert not is_own_cursor("ambrosia", "orders")


@pytest.mark.parametrize("producer", ["wallaroo", "wallaroo:p:i:1"])
async def test_no_caller_moves_the_position_of_a_connector(tmp_path: Path, producer: str) -> None:
    named = {"producer": producer, "sequence": 9}

    def put(address: str) -> None:
        with flight.connect(f"grpc://{address}") as client:
            for of_put, of_batch in ((named, {}), ({}, named)):
                descriptor, metadata = flight_peer.command(stream="w.orders", **of_put), [msgspec.json.encode(of_batch)]
                with pytest.raises(flight.FlightUnauthorizedError, match="one of the hub's own"):
                    flight_peer.put(client, [flight_peer.payloads(b"x")], descriptor, metadata=metadata)

    async with running(tmp_path) as runtime:
        hub = runtime.hub
        await hub.create_stream("w.orders")
        await asyncio.to_thread(put, runtime.addresses["flight"])
        asked = {"stream": "w.orders", "records": [{"text": "x"}], **named}
        with pytest.raises(Forbidden, match="one of the hub's own"):
            await hub.verbs.call("stream.append", asked, EVERYTHING)
        assert hub.producers("w.orders") == {}
        assert hub.bounds("w.orders").next == 0
        await hub.verbs.call("stream.append", asked | {"producer": "wallaroo2"}, EVERYTHING)


def refused_by_flight(address: str, name: str, role: str) -> None:
    with flight.connect(f"grpc://{address}") as client:
        for path in (flight.FlightDescriptor.for_path(name), flight_peer.command(stream=name)):
            with pytest.raises(flight.FlightUnauthorizedError):
                flight_peer.put(client, [flight_peer.payloads(b"x")], path)
        with pytest.raises(flight.FlightUnauthorizedError):
            flight_peer.call(client, "table.put", table=name, key="", value="")
        if role != "admin":
            with pytest.raises(flight.FlightUnauthorizedError):
                flight_peer.rows(client, stream=name)
            with pytest.raises(flight.FlightUnauthorizedError):
                client.get_flight_info(flight.FlightDescriptor.for_path(name))
        elif name in STREAMS:
            assert flight_peer.rows(client, stream=name, end="latest") == []


async def by_flight(runtime: Runtime, name: str, role: str) -> None:
    await asyncio.to_thread(refused_by_flight, runtime.addresses["flight"], name, role)


async def by_http(runtime: Runtime, name: str, role: str) -> None:
    async with httpx.AsyncClient(base_url=f"http://{runtime.addresses['http']}") as client:
        put = await client.post("/api/v1/table.put", json={"table": name, "key": "", "value": ""})
        assert put.status_code == 403
        if role != "admin":
            assert (await client.get("/console/live", params={"stream": name})).status_code == 403
            assert (await client.post("/api/v1/console.stream", json={"stream": name})).status_code == 403


async def by_futoin(runtime: Runtime, name: str, role: str) -> None:
    calls = {"futoin.evt.gen:1.1:addEvent": {"type": "EVT", "data": 1}}
    if role != "admin":
        calls["futoin.evt.poll:1.1:registerConsumer"] = {"component": "c"}
        calls["futoin.evt.poll:1.1:pollEvents"] = {"component": "LIVE", "last_id": None, "want": None}
    async with httpx.AsyncClient(base_url=f"http://{runtime.addresses['http']}") as client:
        for function, params in calls.items():
            answer = await client.post(f"/futoin/{quote(name, safe='')}", json={"f": function, "p": params})
            assert answer.json()["e"] in ("Unauthorized", "UnknownInterface"), (function, answer.json())


async def by_ockam(runtime: Runtime, name: str, role: str) -> None:
    reader, writer = await asyncio.open_connection(*split_address(runtime.addresses["ockam"]))
    peer = ockam_peer.Peer(reader, writer, LegacyFraming())
    try:
        if role == "admin" and name in STREAMS:  # to read there
            address = await peer.create(name)
            assert await peer.push(address, b"x") == [ockam_codec.PushConfirm(0, False, 0)]
        partitions = ockam_codec.CreateRequest(ockam_codec.CREATE_PARTITIONED, name, 2)
        assert isinstance(await peer.ask("stream", partitions), ockam_codec.Error)
        if role != "admin":
            create = ockam_codec.CreateRequest(ockam_codec.CREATE, name)
            assert isinstance(await peer.ask("stream", create), ockam_codec.Error)
    finally:
        writer.close()


async def by_wallaroo(runtime: Runtime, name: str, role: str) -> None:
    async with await wallaroo_peer.Peer.connect(runtime.addresses["wallaroo"]) as peer:
        await peer.hello()
        peer.send(wallaroo_peer.frames.Notify(1, name.encode(), wallaroo_peer.frames.NO_POINT))
        assert "may not write" in await peer.error()


async def by_ignite(runtime: Runtime, name: str, role: str) -> None:
    client = await IgniteClient.connect(*split_address(runtime.addresses["ignite"]))
    try:
        for operation in (1051, 1052):
            with pytest.raises(PeerError, match="needs the right"):
                await client.request(operation, name)
        with pytest.raises(PeerError):
            await client.request(1001, key(1), key("x"), cache=name)
        if role != "admin":
            with pytest.raises(PeerError):
                await client.request(1000, key(0), cache=name)
        assert name not in await client.request(1050)
        if role != "reader":
            await put_listener(client, "ambrosia", name, 0)
    finally:
        await client.close()


async def by_fabric(runtime: Runtime, name: str, role: str) -> None:
    if role == "admin":
        return  # reads
    client = await FabricClient.connect(*split_address(runtime.addresses["fabric"]))
    try:
        call = client.start("/perper.Fabric/StreamItems", {"stream": name, "startKey": 0, "stride": 0})
        with pytest.raises(RpcError, match="needs the right"):
            await call.next()
    finally:
        await client.close()


async def by_spark(runtime: Runtime, name: str, role: str) -> None:
    anyone = runtime.hub.security.anonymous()
    assert anyone is not None
    with acting_as(anyone), pytest.raises(Forbidden):
        check_rights({name}, set())
    described = await runtime.hub.verbs.call("spark.describe", {"names": ["*"]}, anyone)
    assert name not in [each.name for each in described]
    if role != "admin":
        assert await runtime.hub.verbs.call("spark.describe", {"names": [name]}, anyone) == []
        with pytest.raises(Forbidden):
            await runtime.hub.verbs.call("spark.move-cursor", {"cursor": "c", "positions": {name: [0]}}, anyone)


WAYS: dict[str, Callable[[Runtime, str, str], Awaitable[None]]] = {
    "flight": by_flight,
    "http": by_http,
    "futoin": by_futoin,
    "ockam": by_ockam,
    "wallaroo": by_wallaroo,
    "ignite": by_ignite,
    "fabric": by_fabric,
    "spark": by_spark,
}


def test_every_listener_is_a_way() -> None:
    assert set(LISTENERS) <= set(WAYS)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("way", WAYS)
async def test_no_way_in_writes_and_only_admins_read(tmp_path: Path, way: str, role: str) -> None:
    async with filled(tmp_path, role) as runtime:
        own = {"ockam.addresses", "perper.listened"}  # of the streams that were opened for reading, and of listeners
        before = state(runtime.hub)
        for name in NAMES:
            await WAYS[way](runtime, name, role)
        after = state(runtime.hub)
        changed = {name for name in before if before[name] != after[name]}
        assert {name.removesuffix(" rows") for name in changed} <= own


async def test_lists_show_it_only_when_asked(tmp_path: Path) -> None:
    async with filled(tmp_path, "admin") as runtime:
        call = runtime.hub.verbs.call

        async def listed(verb: str, **asked: Any) -> set[str]:
            found = await call(verb, asked, EVERYTHING)
            return {each.name for each in getattr(found, "rows", found)}

        for verb, more in (("stream.list", {}), ("console.streams", {})):
            assert await listed(verb, **more) == {INBOX}
            assert await listed(verb, **more, all=True) == {LOG, PENDING, INBOX}
        for verb, more in (("table.list", {}), ("console.streams", {"kind": "table"})):
            assert await listed(verb, **more) == CLIENTS_OWN
            assert await listed(verb, **more, all=True) == {*own_tables(), *CLIENTS_OWN}
        assert await listed("stream.list", pattern=LOG) == {LOG}
        for more, names in (({}, {INBOX}), ({"all": True}, {LOG, PENDING, INBOX})):
            channels = (await call("hub.asyncapi", more, EVERYTHING))["channels"].values()
            assert {channel["address"] for channel in channels} == names


async def test_flights_show_it_only_when_asked(tmp_path: Path) -> None:
    def names(address: str, criteria: bytes) -> set[bytes]:
        with flight.connect(f"grpc://{address}") as client:
            return {info.descriptor.path[0] for info in client.list_flights(criteria)}

    async with filled(tmp_path, "admin") as runtime:
        address = runtime.addresses["flight"]
        assert await asyncio.to_thread(names, address, b"") == {INBOX.encode()}
        every = {stream.encode() for stream in (LOG, PENDING, INBOX)}
        assert await asyncio.to_thread(names, address, b'{"all":true}') == every


LONG = "ü" * 127
GARBAGE = {
    "text": (b"x", b"garbage"),
    "empty value": (b"y", b""),
    "no text": (b"\xff\xfe", b"\xff\xfe\x00\x81"),
    "as an address": (b"ST_S_0123456789abcdef", b"\xc1"),
    "as a key": (b"key", b"short"),
    "a name that no stream can have": (
        LONG.encode(),
        msgspec.json.encode(Registration(name=LONG, committer=1, started=True)),
    ),
}
FINE = {("perper.listened", key) for key, _ in GARBAGE.values() if key != b"\xff\xfe"} | {
    ("perper.type-names", key) for key, value in GARBAGE.values() if value.decode(errors="replace").encode() == value
}
"""Rows that mean something all the same."""


@pytest.mark.parametrize("kind", GARBAGE)
async def test_no_row_keeps_a_hub_from_starting(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str) -> None:
    key, value = GARBAGE[kind]
    async with running(tmp_path) as runtime:
        await fill(runtime.hub)
        for table in (*own_tables(), *CLIENTS_OWN):
            await runtime.hub.put(table, key, value)
    named = [finding for finding in await asyncio.to_thread(lambda: list(check_data(tmp_path))) if finding.stream]
    with caplog.at_level(logging.ERROR, "headrace.hub"):
        async with running(tmp_path) as runtime:
            report = runtime.hub.health.report()
            assert report.ready
            assert "set aside" in report.notes["tables"]
            for name in ("orders", "more"):
                await runtime.hub.verbs.call("stream.create", {"stream": name}, EVERYTHING)
            reader, writer = await asyncio.open_connection(*split_address(runtime.addresses["ockam"]))
            assert await ockam_peer.Peer(reader, writer, LegacyFraming()).create("orders")
            writer.close()
            async with await wallaroo_peer.Peer.connect(runtime.addresses["wallaroo"], wallaroo_peer.DRAFT) as peer:
                await peer.hello()
            for verb in ("immortal.list", "pipeline.list"):
                assert isinstance(await runtime.hub.verbs.call(verb, {}, EVERYTHING), list)
            assert [each.name for each in await runtime.hub.verbs.call("immortal.list", {}, EVERYTHING)] == ["counter"]
    readable = {table for table, reader in own_tables().items() if not reader} | {
        table for table, row in FINE if row == key
    }
    for table in {*own_tables()} - readable:
        if kind == "a name that no stream can have" and table == "ambrosia/immortals":
            continue  # only the start can tell
        assert any(finding.stream == table for finding in named), table
    told = "\n".join(caplog.messages)
    for table in {*own_tables(), *CLIENTS_OWN} - readable:
        assert f"table {table!r}: the row {key!r}" in told


async def test_a_row_that_was_set_aside_can_be_written_again(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        await runtime.hub.put("ambrosia/immortals", b"counter", b"garbage")
        await runtime.hub.create_table("spark/pipelines")
        await runtime.hub.put("spark/pipelines", b"p", b"garbage")
    async with running(tmp_path) as runtime:
        call = runtime.hub.verbs.call
        await call("immortal.register", {"name": "counter"}, EVERYTHING)
        await call("pipeline.create", {"name": "p", "sql": "select 1", "into": "out"}, EVERYTHING)
    async with running(tmp_path) as runtime:
        assert runtime.hub.health.report().notes == {}
        assert runtime.hub.get("spark/pipelines", b"p") is not None
        assert [each.name for each in await runtime.hub.verbs.call("immortal.list", {}, EVERYTHING)] == ["counter"]


async def test_the_inbox_takes_records_and_the_log_takes_them_from_there_only(tmp_path: Path) -> None:
    async with filled(tmp_path, "writer") as runtime:
        anyone = runtime.hub.security.anonymous()
        assert anyone is not None
        await runtime.hub.verbs.call("stream.append", {"stream": INBOX, "records": [{"text": "1"}]}, anyone)
        with pytest.raises(HeadraceError):
            await runtime.hub.verbs.call("stream.append", {"stream": LOG, "records": [{"text": "1"}]}, anyone)
        await runtime.hub.append(LOG, Batch.one(b"the owner's"))  # inside the process nobody is asked


async def test_admins_remove_rows_that_were_set_aside_and_no_others(tmp_path: Path) -> None:
    async with running(tmp_path) as runtime:
        await runtime.hub.verbs.call("immortal.register", {"name": "counter"}, EVERYTHING)
        await runtime.hub.put("ambrosia/immortals", b"x", b"garbage")
    async with running(tmp_path) as runtime:
        call = runtime.hub.verbs.call
        row = {"table": "ambrosia/immortals", "key": base64.b64encode(b"x").decode()}
        with pytest.raises(Forbidden):
            await call("table.drop-row", row, Principal("w", (), (Grant(rights=["read", "write"]),)))
        with pytest.raises(BadRequest):
            await call("table.drop-row", row | {"key": base64.b64encode(b"counter").decode()}, EVERYTHING)
        await call("table.drop-row", row, EVERYTHING)
        assert [key for key, _ in runtime.hub.items("ambrosia/immortals")] == [b"counter"]
        assert runtime.hub.health.report().notes == {}


OWNERS = {
    "spark": {"pipelines"},
    "console": {"console"},
    "wallaroo": {"wallaroo"},
    "ockam": {"ockam"},
    "perper": {"ignite", "fabric"},
    "ambrosia": {"ambrosia"},
}
"""Which parts need the tables of a family."""


@pytest.mark.parametrize("family", OWNERS)
async def test_a_stream_with_the_name_of_a_table_of_the_hub_keeps_no_hub_from_starting(
    tmp_path: Path, family: str
) -> None:
    """It was there before the name was reserved, or before the part was installed."""
    taken = [table for table in own_tables() if re.split(r"[./]", table)[0] == family]
    hub = await Hub.open(tmp_path / "data")
    for table in taken:
        await hub.create_stream(table)
        await hub.append(table, Batch.one(b"somebody's"))
    await hub.create_stream("orders")
    await hub.close()
    named = await asyncio.to_thread(lambda: list(check_data(tmp_path / "data")))
    assert {finding.stream for finding in named if finding.level == "fail"} == {*taken}
    async with running(tmp_path / "data") as runtime:
        call = runtime.hub.verbs.call
        reasons = runtime.hub.health.report().reasons
        assert reasons.keys() == OWNERS[family]
        assert all("headrace stream delete" in reason for reason in reasons.values())
        assert not {*runtime.addresses} & OWNERS[family]
        await call("stream.append", {"stream": "orders", "records": [{"text": "1"}]}, EVERYTHING)
        reader = Principal("r", (), (Grant(rights=["read", "write"]),))
        for table in taken:
            assert (await call("stream.read", {"stream": table}, EVERYTHING)).records
            with pytest.raises(Forbidden):
                await call("stream.append", {"stream": table, "records": [{"text": "1"}]}, EVERYTHING)
            with pytest.raises(Forbidden):
                await call("stream.delete", {"stream": table}, reader)
            await call("stream.delete", {"stream": table}, EVERYTHING)
    async with running(tmp_path / "data") as runtime:
        assert runtime.hub.health.report().ready
        for table in taken:
            await runtime.hub.create_table(table)
            with pytest.raises(Forbidden):
                await runtime.hub.verbs.call("stream.delete", {"stream": table}, EVERYTHING)
