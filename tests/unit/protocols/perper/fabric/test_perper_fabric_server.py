"""The gRPC listener, through our own client: every rpc, rights, limits, hostile peers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any

import pytest
from support.perper_peer import Served, hang_up, key, new_stream, put_execution, put_listener, served
from support.until import until

from headrace.config import Config, Grant, Perper, SecuritySection, User
from headrace.errors import LogFailed
from headrace.log.batch import Batch
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.client import ClientCall, RpcError
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.security import EVERYTHING
from headrace.testing import FakeClock

EXECUTIONS = "/perper.Fabric/Executions"
RESERVED = "/perper.Fabric/ReservedExecutions"
ITEMS = "/perper.Fabric/StreamItems"
LOWEST, HIGHEST = -(2**63), 2**63 - 1


async def take(call: ClientCall, count: int) -> list[str]:
    found = []
    for _ in range(count):
        message = await asyncio.wait_for(call.next(), 60)
        assert message is not None
        sign = "-" if message.cancelled else "+"
        found.append("|" if message.startOfStream else sign + message.execution)
    return found


async def keys(call: ClientCall, count: int) -> list[int]:
    found = []
    for _ in range(count):
        message = await asyncio.wait_for(call.next(), 60)
        assert message is not None
        found.append(message.key)
    return found


async def remove(pair: Served, client: Any, name: str, cache: str = "executions") -> None:
    await client.request(1016, key(name), cache=cache)


async def test_executions_and_their_end() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await put_execution(client, "one")
        call = rpc.start(EXECUTIONS, {"agent": "a"})
        assert await take(call, 2) == ["+one", "|"]
        finished = asyncio.ensure_future(rpc.call("/perper.Fabric/ExecutionFinished", {"execution": "one"}))
        await put_execution(client, "two")
        await put_execution(client, "one", finished=True)
        await finished
        await remove(pair, client, "one")
        await remove(pair, client, "two")
        assert await take(call, 3) == ["+two", "-one", "-two"]
        for name in ("one", "never"):
            await rpc.call("/perper.Fabric/ExecutionFinished", {"execution": name})
        call.cancel()
        await until(lambda: not pair.fabric.executions._watchers)


async def test_all_executions() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        for name, delegate in (("one", "d"), ("two", "e")):
            await put_execution(client, name, delegate=delegate)
        found = await rpc.call("/perper.Fabric/AllExecutions", {"agent": "a", "delegate": "e"})
        assert [one.execution for one in found.executions] == ["two"]


async def test_an_execution_can_be_read_before_it_is_announced() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        call = rpc.start(EXECUTIONS, {"agent": "a"})
        assert await take(call, 1) == ["|"]
        for number in range(20):
            putting = asyncio.ensure_future(put_execution(client, f"x{number}"))
            assert await take(call, 1) == [f"+x{number}"]
            assert pair.hub.get("executions", key(f"x{number}")) is not None
            await putting


async def test_reserved_executions_and_a_lost_worker() -> None:
    async with served() as pair:
        client, first, second = await pair.client(), await pair.rpc(), await pair.rpc()
        asked = {"reserveNext": 1, "workGroup": "", "filter": {"agent": "a"}}
        one = first.start(RESERVED, asked, end=False)
        assert await take(one, 1) == ["|"]
        two = second.start(RESERVED, {"reserveNext": 1}, asked, end=False)  # permits may come before the filter
        assert await take(two, 1) == ["|"]
        await put_execution(client, "x")
        assert await take(one, 1) == ["+x"]
        await first.close()  # the worker is gone: no timeout, no thread
        assert await take(two, 1) == ["+x"]
        await put_execution(client, "y")
        assert await take(two, 1) == ["+y"]
        await put_execution(client, "x", finished=True)
        assert await take(two, 1) == ["-x"]
        two.end_requests()  # the worker takes no more and keeps what it has
        await remove(pair, client, "y")
        assert await take(two, 1) == ["-y"]


async def test_reserving_without_a_filter() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        call = rpc.start(RESERVED, {"reserveNext": 1})
        with pytest.raises(RpcError, match="filter"):
            await call.next()


async def test_reserve_execution() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await put_execution(client, "x")
        path = "/perper.Fabric/ReserveExecution"
        first = rpc.start(path, {"execution": "x", "workGroup": "g"})
        await first.next()
        second = rpc.start(path, {"execution": "x", "workGroup": "g"})
        await second.headers
        first.cancel()
        await asyncio.wait_for(second.next(), 60)
        missing = rpc.start(path, {"execution": "none", "workGroup": "g"})
        with pytest.raises(RpcError) as refused:
            await missing.next()
        assert refused.value.status == http2.CANCELLED


async def test_stream_items_packed_and_not() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await new_stream(client, "s")
        for number in (0, 1, 2, 5):
            await client.request(1002, key(number), key("x"), cache="s")
        packed = rpc.start(ITEMS, {"stream": "s", "startKey": 0, "stride": 1})
        plain = rpc.start(ITEMS, {"stream": "s", "startKey": 1})
        live = rpc.start(ITEMS, {"stream": "s", "startKey": -1})
        largest = rpc.start(ITEMS, {"stream": "s", "startKey": -1, "stride": 1})
        assert await keys(packed, 3) == [0, 1, 2]
        assert await keys(plain, 3) == [1, 2, 5]
        assert await keys(largest, 1) == [5]
        await asyncio.wait_for(live.headers, 60)  # metadata comes although there is no item
        for number in (4, 3, 6):
            await client.request(1002, key(number), key("x"), cache="s")
        assert await keys(packed, 4) == [3, 4, 5, 6]
        assert await keys(plain, 1) == [6]
        assert await keys(live, 2) == [4, 6]
        assert await keys(largest, 1) == [6]


async def test_an_item_can_be_read_before_its_key_is_sent() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await new_stream(client, "s")
        call = rpc.start(ITEMS, {"stream": "s", "startKey": 0, "stride": 1})
        await call.headers
        for number in range(30):
            putting = client.request(1002, key(number), key(f"v{number}"), cache="s")
            assert await keys(call, 1) == [number]
            assert await client.request(1000, key(number), cache="s") == key(f"v{number}")
            await putting


async def test_listening_to_a_table_with_long_keys() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await client.request(1052, "t")
        await client.request(1001, key(5), key("x"), cache="t")
        await client.request(1001, key("text"), key("x"), cache="t")
        call = rpc.start(ITEMS, {"stream": "t", "startKey": 0})
        live = rpc.start(ITEMS, {"stream": "t", "startKey": -1})
        assert await keys(call, 1) == [5]
        await live.headers
        await client.request(1001, key(5), key("again"), cache="t")
        await client.request(1004, [(key(8), key("x")), (key(7), key("x"))], cache="t")
        await client.request(1016, key(8), cache="t")
        await client.request(1001, key(9), key("x"), cache="t")
        assert await keys(live, 2) in ([7, 8], [8, 9], [7, 9])  # 8 was removed soon after it came
        assert (await keys(call, 1))[0] in (7, 8)


async def test_listening_to_another_protocols_stream() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        await pair.hub.create_stream("orders")
        await pair.hub.append("orders", Batch.of([b"a", b"b", b"c"]))
        await pair.hub.trim("orders", 1)
        call = rpc.start(ITEMS, {"stream": "orders", "startKey": 0, "stride": 1})
        live = rpc.start(ITEMS, {"stream": "orders", "startKey": -1, "stride": 0})
        assert await keys(call, 2) == [1, 2]
        await live.headers
        await pair.hub.append("orders", Batch.of([b"d"]))
        assert await keys(call, 1) == [3]
        assert await keys(live, 1) == [3]
        client = await pair.client()
        await put_listener(client, "l", "orders", 2)
        assert [(c.name, c.index) for c in pair.hub.cursors(stream="orders")] == [("l", 2)]
        await remove(pair, client, "l", "stream-listeners")
        await until(lambda: not pair.hub.cursors(stream="orders"))
        assert pair.hub.bounds("orders").first == 1  # never cleaned up from here


async def test_streams_that_are_missing_or_destroyed() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        with pytest.raises(RpcError, match="does not exist") as missing:
            await rpc.start(ITEMS, {"stream": "none"}).next()
        assert missing.value.status == http2.NOT_FOUND
        await new_stream(client, "s")
        call = rpc.start(ITEMS, {"stream": "s"})
        await call.headers
        await client.request(1056, java_hash("s"))
        with pytest.raises(RpcError, match="destroyed"):
            await call.next()


@pytest.mark.parametrize("name", ["later", "later:1"])
async def test_a_listener_that_waits_for_its_stream(name: str) -> None:
    async with served(Config(perper=Perper(missing_stream="wait"))) as pair:
        client, rpc = await pair.client(), await pair.rpc()
        call = rpc.start(ITEMS, {"stream": name, "startKey": 0, "stride": 1})
        await asyncio.wait_for(call.headers, 60)
        await until(lambda: pair.fabric.catalogue._wanted._waiting.get(name))
        await new_stream(client, name)
        await client.request(1002, key(0), key("x"), cache=name)
        assert await keys(call, 1) == [0]
        assert not pair.fabric.catalogue._wanted._waiting.get(name)
        assert not pair.hub._new_streams._waiting


async def test_a_listener_that_waits_for_a_stream_of_another_protocol() -> None:
    async with served(Config(perper=Perper(missing_stream="wait"))) as pair:
        rpc = await pair.rpc()
        calls = [
            rpc.start(ITEMS, {"stream": name, "startKey": 0, "stride": 1}) for name in ("orders", "orders;partition=1")
        ]
        await until(lambda: {"orders", "orders;partition=1"} <= pair.fabric.catalogue._wanted._waiting.keys())
        await pair.hub.create_stream("orders")
        await pair.hub.append("orders", Batch.of([b"a"]))
        assert await keys(calls[0], 1) == [0]
        await pair.hub.grow_stream("orders", 2)
        await pair.hub.append("orders", Batch.of([b"b"]), partition=1)
        assert await keys(calls[1], 1) == [0]


async def test_who_waits_for_a_stream_is_told_when_the_log_has_failed() -> None:
    async with served(Config(perper=Perper(missing_stream="wait"))) as pair:
        call = (await pair.rpc()).start(ITEMS, {"stream": "later"})
        await until(lambda: pair.fabric.catalogue._wanted._waiting.get("later"))
        pair.hub._give_up(LogFailed("no disk"))
        with pytest.raises(RpcError, match="no disk"):
            await asyncio.wait_for(call.next(), 60)


async def test_a_listened_stream_that_another_protocol_deletes() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        await pair.hub.create_stream("orders")
        await pair.hub.append("orders", Batch.of([b"a"]))
        call = rpc.start(ITEMS, {"stream": "orders", "startKey": 0, "stride": 1})
        assert await keys(call, 1) == [0]
        await pair.hub.delete_stream("orders")
        with pytest.raises(RpcError, match="was destroyed"):
            await asyncio.wait_for(call.next(), 60)
        again = rpc.start(ITEMS, {"stream": "orders"})
        with pytest.raises(RpcError, match="does not exist"):
            await again.next()


async def test_an_agent_that_says_goodbye_in_the_middle() -> None:
    async with served() as pair:
        client, leaver, stayer = await pair.client(), await pair.rpc(), await pair.rpc()
        calls = [rpc.start(EXECUTIONS, {"agent": "a"}) for rpc in (leaver, stayer)]
        for call in calls:
            assert await take(call, 1) == ["|"]
        leaver.grpc.goodbye()
        leaver.flush()
        await put_execution(client, "x")
        assert await take(calls[1], 1) == ["+x"]
        await until(lambda: len(pair.hub.sessions.list("fabric")) == 1)


async def test_listener_attached() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        path = "/perper.Fabric/ListenerAttached"
        waiting = asyncio.ensure_future(rpc.call(path, {"stream": "s"}))
        given_up = rpc.start(path, {"stream": "s"})
        await until(lambda: len(pair.fabric.listeners._attached._waiting["s"]) == 2)
        given_up.cancel()
        await until(lambda: len(pair.fabric.listeners._attached._waiting["s"]) == 1)
        await put_listener(client, "l", "s", HIGHEST)
        await waiting
        await rpc.call(path, {"stream": "s"})


async def fill(pair: Served, client: Any, name: str, count: int = 10) -> None:
    await new_stream(client, name)
    for number in range(count):
        await client.request(1002, key(number), key("x"), cache=name)


def left(pair: Served, name: str) -> tuple[int, int]:
    bounds = pair.hub.bounds(name)
    return bounds.first, bounds.next


async def test_ephemeral_streams_are_cleaned_up_by_their_listeners() -> None:
    async with served(Config(perper=Perper(cleanup_s=0.01))) as pair:
        client = await pair.client()
        await fill(pair, client, "s")
        assert left(pair, "s") == (0, 10)  # without listeners nothing goes
        await put_listener(client, "slow", "s", LOWEST)
        await put_listener(client, "fast", "s", 8)
        await put_listener(client, "trigger", "s", HIGHEST)
        cursors = {cursor.name: cursor.index for cursor in pair.hub.cursors(stream="s")}
        assert cursors == {"slow": 0, "fast": 8}
        await put_listener(client, "slow", "s", 4)
        await until(lambda: left(pair, "s") == (4, 10))
        assert await client.request(1000, key(3), cache="s") == b"\x65"
        assert await client.request(1000, key(4), cache="s") == key("x")
        await remove(pair, client, "slow", "stream-listeners")
        await until(lambda: left(pair, "s") == (8, 10))
        await remove(pair, client, "fast", "stream-listeners")
        await until(lambda: left(pair, "s") == (10, 10))  # the trigger holds nothing
        await remove(pair, client, "trigger", "stream-listeners")
        assert await client.request(1002, key(10), key("x"), cache="s") is True
        assert pair.hub.cursors(stream="s") == []


async def test_persistent_streams_keep_all() -> None:
    async with served(Config(perper=Perper(cleanup_s=0.01))) as pair:
        client = await pair.client()
        await fill(pair, client, "s")
        await fill(pair, client, "witness")
        for stream in ("s", "witness"):
            await put_listener(client, f"{stream}-l", stream, 5)
            if stream == "s":
                await put_listener(client, "s-persist", "s", LOWEST)
        await put_listener(client, "s-l", "s", 7)
        await remove(pair, client, "s-l", "stream-listeners")
        await until(lambda: left(pair, "witness") == (5, 10))
        assert left(pair, "s")[1] == 10
        assert left(pair, "s")[0] in (0, 5)  # what was cleaned before the persistent listener came


async def test_items_that_arrived_out_of_order_are_cleaned_up_by_key() -> None:
    async with served(Config(perper=Perper(cleanup_s=0.01))) as pair:
        client = await pair.client()
        await new_stream(client, "s")
        for number in (5, 1, 2, 9):
            await client.request(1002, key(number), key("x"), cache="s")
        await put_listener(client, "l", "s", 5)
        await until(lambda: pair.fabric.catalogue.find_name("s").cache.size() == 2)  # type: ignore[union-attr]
        assert left(pair, "s") == (0, 4)  # item 5 came first: its record is still needed
        assert await client.request(1000, key(1), cache="s") == b"\x65"
        await put_listener(client, "l", "s", 9)
        await until(lambda: left(pair, "s") == (3, 4))


async def test_slow_readers_cost_a_position_only() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        count = 30_000
        await pair.hub.create_stream("raw")
        await pair.hub.append("raw", Batch.of([b""] * count))
        rpc._transport.pause_reading()
        call = rpc.start(ITEMS, {"stream": "raw", "startKey": 0, "stride": 1})
        await until(lambda: pair.hub.sessions.list("fabric"))
        rpc._transport.resume_reading()
        assert await keys(call, count) == list(range(count))


async def test_scaler() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        path = "/externalscaler.ExternalScaler/"

        def reference(**metadata: str) -> dict[str, Any]:
            return {"name": "math", "namespace": "n", "scalerMetadata": metadata}

        assert not (await rpc.call(path + "IsActive", reference())).result
        stream = rpc.start(path + "StreamIsActive", reference())
        assert not (await stream.next()).result
        await put_execution(client, "x", agent="math")
        await put_execution(client, "done", agent="math", finished=True)
        assert (await asyncio.wait_for(stream.next(), 60)).result
        assert (await rpc.call(path + "IsActive", reference())).result
        assert not (await rpc.call(path + "IsActive", reference(agent="other"))).result
        metrics = await rpc.call(path + "GetMetrics", {"scaledObjectRef": reference(), "metricName": "any"})
        assert [(m.metricName, m.metricValue) for m in metrics.metricValues] == [
            ("math-executions", 2),
            ("math-instances", 0),
        ]
        specs = await rpc.call(path + "GetMetricSpec", reference(targetInstances="3"))
        assert [(spec.metricName, spec.targetSize) for spec in specs.metricSpecs] == [("math-instances", 3)]
        with pytest.raises(RpcError, match="not a number"):
            await rpc.call(path + "GetMetricSpec", reference(targetExecutions="many"))
        with pytest.raises(RpcError, match="scaledObjectRef"):
            await rpc.call(path + "GetMetrics", {})
        for name in ("x", "done"):
            await remove(pair, client, name)
        assert not (await asyncio.wait_for(stream.next(), 60)).result


async def test_health_and_reflection() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        assert (await rpc.call("/grpc.health.v1.Health/Check", {"service": "perper.Fabric"})).status == 1
        with pytest.raises(RpcError, match="no service"):
            await rpc.call("/grpc.health.v1.Health/Check", {"service": "none"})
        watch = rpc.start("/grpc.health.v1.Health/Watch", {"service": "none"})
        assert (await watch.next()).status == 3
        for version in ("v1", "v1alpha"):
            path = f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
            call = rpc.start(
                path,
                {"list_services": "*"},
                {"file_containing_symbol": "perper.Fabric"},
                {"file_by_filename": "externalscaler.proto"},
                {"file_by_filename": "none.proto"},
                {"all_extension_numbers_of_type": "x"},
            )
            answers: list[Any] = [await call.next() for _ in range(5)]
            listed, symbol, file, missing, extensions = answers
            assert await call.next() is None
            assert "perper.Fabric" in [service.name for service in listed.list_services_response.service]
            assert len(symbol.file_descriptor_response.file_descriptor_proto) == 2
            assert len(file.file_descriptor_response.file_descriptor_proto) == 1
            assert missing.error_response.error_code == 5
            assert extensions.error_response.error_code == 5


async def test_bad_requests_deadlines_and_unknown_methods() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        stream = rpc.grpc.start_call("h", "/no/Method")
        rpc._calls[stream] = call = ClientCall(rpc, EXECUTIONS, stream)
        rpc.flush()
        with pytest.raises(RpcError, match="no method"):
            await call.next()
        for raw, status in ((b"\0\0\0\0\1\xff", 3), (b"\0\xff\xff\xff\xff", 8), (b"\1\0\0\0\0", 12)):
            call = rpc.start(EXECUTIONS, end=False)
            rpc.grpc.send(call._stream, raw)
            rpc.flush()
            with pytest.raises(RpcError) as refused:
                await call.next()
            assert refused.value.status == status
        with pytest.raises(RpcError, match="needs a request"):
            await rpc.start(EXECUTIONS).next()
        twice = rpc.start("/perper.Fabric/ListenerAttached", {"stream": "s"}, {"stream": "s"})
        with pytest.raises(RpcError, match="takes one request"):
            await twice.next()
        late = rpc.start("/perper.Fabric/ListenerAttached", {"stream": "s"}, metadata=[("grpc-timeout", "20m")])
        with pytest.raises(RpcError) as passed:
            await asyncio.wait_for(late.next(), 60)
        assert passed.value.status == http2.DEADLINE_EXCEEDED


async def test_noise_harms_nobody_else() -> None:
    async with served() as pair:
        good = await pair.rpc()
        for data in (b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 30_000):
            reader, writer = await asyncio.open_connection(*pair.grpc)
            writer.write(data)
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 60)
            await hang_up(writer)
        assert not (await good.call("/perper.Fabric/AllExecutions", {"agent": "a"})).executions


async def test_users_and_rights() -> None:
    config = Config(
        security=SecuritySection(
            users={"all": User(secret="pw", roles=["admin"]), "some": User(secret="pw", roles=["one"])},
            roles={"one": [Grant(rights=["read"], streams=["open-*", "stream-listeners"])]},
        )
    )

    def login(user: str, password: str) -> list[tuple[str, str]]:
        return [("authorization", "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode())]

    async with served(config) as pair:
        await pair.hub.create_stream("open-1")
        await pair.hub.create_stream("closed")
        rpc = await pair.rpc()
        path, request = "/perper.Fabric/AllExecutions", {"agent": "a"}
        for metadata, status in (([], 16), (login("all", "wrong"), 16), (login("some", "pw"), 7)):
            with pytest.raises(RpcError) as refused:
                await rpc.start(path, request, metadata=metadata).next()
            assert refused.value.status == status
        assert not (await rpc.start(path, request, metadata=login("all", "pw")).next()).executions
        with pytest.raises(RpcError) as denied:
            await rpc.start(ITEMS, {"stream": "closed"}, metadata=login("some", "pw")).next()
        assert denied.value.status == http2.PERMISSION_DENIED
        allowed = rpc.start(ITEMS, {"stream": "open-1"}, metadata=login("some", "pw"))
        await asyncio.wait_for(allowed.headers, 60)
        with pytest.raises(RpcError) as reserve:
            await rpc.start(RESERVED, {"filter": {"agent": "a"}}, metadata=login("some", "pw")).next()
        assert reserve.value.status == http2.PERMISSION_DENIED
        assert (await rpc.call("/grpc.health.v1.Health/Check", {"service": ""})).status == 1


async def test_what_people_see() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await put_execution(client, "x")
        call = rpc.start(RESERVED, {"reserveNext": 1, "filter": {"agent": "a"}}, end=False)
        assert await take(call, 2) == ["|", "+x"]
        details = pair.hub.sessions.list("fabric")[0].details
        assert details["calls"] == {RESERVED: 1}
        text = pair.hub.metrics.text().decode()
        assert "headrace_perper_reservations 1.0" in text
        assert "headrace_perper_executions 1.0" in text
        listed = await pair.hub.verbs.call("agents.executions", {}, EVERYTHING)
        assert [one.execution for one in listed] == ["x"]
        caches = await pair.hub.verbs.call("agents.caches", {}, EVERYTHING)
        assert [one.name for one in caches] == ["executions", "stream-listeners"]
        page = await pair.hub.verbs.call("agents.caches", {"limit": 1}, EVERYTHING)
        rest = await pair.hub.verbs.call("agents.caches", {"after": page.next}, EVERYTHING)
        assert [one.name for one in (*page.items, *rest.items)] == ["executions", "stream-listeners"]
        await put_execution(client, "inst-1", agent="Registry")
        process = {
            "agent": "i",
            "instance": "inst-1",
            "state": "running",
            "process_id": 1,
            "restarts": 0,
            "exit_code": None,
        }
        free = {**process, "instance": None}
        gone = {**process, "instance": "other"}
        await pair.hub.verbs.call("agents.report", {"runner": "r", "processes": [process, free, gone]}, EVERYTHING)
        agents = await pair.hub.verbs.call("agents.list", {}, EVERYTHING)
        assert [(one.instance, one.process.state) for one in agents] == [
            ("inst-1", "running"),
            ("other", "running"),
            (None, "running"),
        ]


async def test_a_stopping_hub_says_so() -> None:
    async with served() as pair:
        rpc = await pair.rpc()
        call = rpc.start("/perper.Fabric/ListenerAttached", {"stream": "s"})
        await until(lambda: pair.fabric.listeners._attached._waiting.get("s"))
    call.send({"stream": "s"})  # neither of these breaks anything
    for late in (call, rpc.start("/perper.Fabric/ListenerAttached", {"stream": "s"})):
        with pytest.raises(RpcError) as ended:
            await late.next()
        assert ended.value.status == http2.UNAVAILABLE


async def test_executions_say_who_works_on_them_and_how_long() -> None:
    clock = FakeClock()
    async with served(clock=clock) as pair:
        client, rpc = await pair.client(), await pair.rpc()
        principal = pair.hub.security.anonymous()
        assert principal is not None

        async def shown() -> list[tuple[str, bool, bool, int | None]]:
            found = await pair.hub.verbs.call("agents.executions", {}, principal)
            return [
                (
                    one.execution,
                    one.worker is not None,
                    one.finished,
                    one.finished_us and one.finished_us - one.started_us,
                )
                for one in found
            ]

        await put_execution(client, "one")
        await put_execution(client, "two")
        assert await shown() == [("one", False, False, None), ("two", False, False, None)]
        call = rpc.start(RESERVED, {"reserveNext": 1, "filter": {"agent": "a"}}, end=False)
        assert await take(call, 2) == ["|", "+one"]
        assert await shown() == [("one", True, False, None), ("two", False, False, None)]
        [details] = [info.details for info in pair.hub.sessions.list("fabric")]
        assert (details["permits"], details["call_states"]) == (0, [["ReservedExecutions", "serving"]])
        clock.advance(2)
        await put_execution(client, "one", finished=True)
        assert (await shown())[0] == ("one", False, True, 2_000_000)
        await remove(pair, client, "one")
        assert await shown() == [("two", False, False, None)]
        assert "executions" in pair.hub.sessions.list("ignite")[0].writes
