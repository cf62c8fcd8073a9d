"""The endpoint over a real socket, with a Flight client that knows nothing of Headrace."""

import asyncio
import errno
import gc
import json
import threading
import time

import msgspec
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Flight, Log, SecuritySection, Tls, User
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.protocols.flight import bridge, putting
from headrace.protocols.flight.server import serve
from headrace.testing import FaultyDisk, MemoryDisk, memory_hub, served_hub

PAYLOADS = pa.schema([("payload", pa.binary())])


def wait_until(condition, what: str, timeout_s: float = 10.0):
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never happened: {what}"
        time.sleep(0.005)
    return found


def call(client, verb, options=None, **params):
    (result,) = client.do_action(flight.Action(verb, json.dumps(params).encode()), options)
    return json.loads(result.body.to_pybytes())


def put(client, batches, descriptor=None, *, metadata=None, schema=PAYLOADS):
    """Send everything, read every ack, close; returns the acks."""
    writer, acks = client.do_put(descriptor or flight.FlightDescriptor.for_path("orders"), schema)
    for number, batch in enumerate(batches):
        if metadata is None:
            writer.write_batch(batch)
        else:
            writer.write_with_metadata(batch, metadata[number])
    writer.done_writing()
    found = []
    while (message := acks.read()) is not None:
        found.append(json.loads(message.to_pybytes()))
    writer.close()
    return found


def payloads(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": list(values)}, schema=PAYLOADS)


def get(client, **ticket):
    return client.do_get(flight.Ticket(json.dumps(ticket).encode()))


def rows(client, **ticket) -> list[bytes]:
    return get(client, **ticket).read_all().column("payload").to_pylist()


def command(**fields) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(json.dumps(fields).encode())


def code_of(error: flight.FlightError) -> str:
    return json.loads(error.extra_info)["code"]


def failing(kind=flight.FlightError):
    return pytest.raises(kind)


@pytest.fixture
def orders(served, plain):
    """A stream with two partitions."""
    served.run(served.hub.create_stream("orders", 2))
    return plain


def test_put_and_get(orders):
    acks = put(orders, [payloads(b"a", b"b"), payloads(b"c")])
    assert [(ack["batch"], ack["first"], ack["count"], ack["duplicate"]) for ack in acks] == [
        (0, 0, 2, False),
        (1, 2, 1, False),
    ]
    table = get(orders, stream="orders").read_all()
    assert table.column("index").to_pylist() == [0, 1, 2]
    assert table.column("payload").to_pylist() == [b"a", b"b", b"c"]


def test_every_column_makes_the_way_there_and_back(orders):
    batch = pa.RecordBatch.from_pydict(
        {
            "payload": [b"\0\xff", b""],
            "id": pa.array([(1 << 64) - 1, None], pa.uint64()),
            "event_time": pa.array([1_000, None], pa.timestamp("ms")),
            "type": ["paid", None],
            "key": [None, b"k"],
        }
    )
    put(orders, [batch], schema=batch.schema)
    first, second = get(orders, stream="orders").read_all().to_pylist()
    assert (first["payload"], first["id"], first["type"], first["key"]) == (b"\0\xff", -1, "paid", None)
    assert first["event_time"].timestamp() == 1
    assert (second["payload"], second["id"], second["event_time"], second["key"]) == (b"", None, None, b"k")


def test_a_table_read_from_one_partition_can_be_put_into_another(orders):
    put(orders, [payloads(b"a", b"b")])
    table = get(orders, stream="orders").read_all()
    put(orders, table.to_batches(), command(stream="orders", partition=1), schema=table.schema)
    assert rows(orders, stream="orders", partition=1) == [b"a", b"b"]


def test_producer_and_sequence_store_once(orders):
    there = command(stream="orders", producer="shop", sequence=1)
    assert [ack["duplicate"] for ack in put(orders, [payloads(b"a"), payloads(b"b")], there)] == [False, False]
    again = put(orders, [payloads(b"a"), payloads(b"b"), payloads(b"c")], there)
    assert [ack["duplicate"] for ack in again] == [True, True, False]
    beside = put(orders, [payloads(b"c"), payloads(b"d")], metadata=[b'{"producer":"shop","sequence":3}', b""])
    assert [ack["duplicate"] for ack in beside] == [True, False]
    assert rows(orders, stream="orders") == [b"a", b"b", b"c", b"d"]
    assert call(orders, "producer.get", stream="orders", producer="shop") == {"sequence": 3}


def test_one_ack_for_all_is_enough_for_clients_that_do_not_read_them(orders):
    acks = put(orders, [payloads(b"x")] * 5, command(stream="orders", acks="last"))
    assert [(ack["batch"], ack["first"], ack["count"]) for ack in acks] == [(4, 0, 5)]


def test_empty_batches_are_acknowledged_and_nothing_is_stored(orders):
    acks = put(orders, [payloads(), payloads(b"a")])
    assert [(ack["first"], ack["count"]) for ack in acks] == [(-1, 0), (0, 1)]


def test_a_put_of_nothing_is_fine(orders):
    assert put(orders, []) == []


@pytest.mark.parametrize(
    ("descriptor", "schema", "code", "names"),
    [
        (flight.FlightDescriptor.for_path("nowhere"), PAYLOADS, "unknown-stream", "nowhere"),
        (flight.FlightDescriptor.for_path("orders", "7"), PAYLOADS, "unknown-stream", "partition 7"),
        (flight.FlightDescriptor.for_path("orders", "x"), PAYLOADS, "bad-request", "partition number"),
        (flight.FlightDescriptor.for_command(b"{"), PAYLOADS, "bad-request", "descriptor command"),
        (command(stream="orders", colour="red"), PAYLOADS, "bad-request", "colour"),
        (flight.FlightDescriptor.for_path("orders"), pa.schema([("payload", pa.int8())]), "bad-request", "'payload'"),
        (flight.FlightDescriptor.for_path("orders"), pa.schema([("key", pa.binary())]), "bad-request", "'payload'"),
    ],
)
def test_a_bad_put_is_refused_with_a_name(orders, descriptor, schema, code, names):
    with failing() as caught:
        put(orders, [], descriptor, schema=schema)
    assert code_of(caught.value) == code
    assert names in str(caught.value)


def test_a_bad_batch_ends_the_put_and_what_came_before_it_is_stored(orders):
    batches = [payloads(b"a"), payloads(b"b", None), payloads(b"c")]
    writer, acks = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    for batch in batches:
        writer.write_batch(batch)
    assert json.loads(acks.read().to_pybytes())["first"] == 0
    refusal = json.loads(acks.read().to_pybytes())
    assert (refusal["batch"], refusal["error"]["code"]) == (1, "bad-request")
    with failing() as caught:
        writer.close()
    assert "batch 1: column 'payload' row 1 is null" in str(caught.value)
    assert rows(orders, stream="orders") == [b"a"]


def test_bad_metadata_ends_the_put(orders):
    for metadata, names in ((b"{", "app_metadata"), (b'{"sequence":1}', "without 'producer'")):
        with failing() as caught:
            put(orders, [payloads(b"a")], metadata=[metadata])
        assert names in str(caught.value)
    assert rows(orders, stream="orders") == []


def test_a_message_without_records_is_refused(orders):
    writer, _ = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    writer.write_metadata(b"{}")
    with failing() as caught:
        writer.close()
    assert "a message without records" in str(caught.value)


def test_the_limit_of_a_record_from_both_sides():
    with served_hub(Config(log=Log(record_bytes_max=1000, batch_bytes_max=4000))) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            put(client, [payloads(b"x" * 1000)])
            with failing() as caught:
                put(client, [payloads(b"y"), payloads(b"x" * 1001), payloads(b"z")])
            assert code_of(caught.value) == "limit-exceeded"
            assert json.loads(caught.value.extra_info)["details"]["key"] == "log.record_bytes_max"
            with failing() as caught:
                put(client, [payloads(*[b"x" * 1000] * 4)])
            assert json.loads(caught.value.extra_info)["details"]["key"] == "log.batch_bytes_max"
            assert rows(client, stream="orders") == [b"x" * 1000, b"y"]


def test_acks_come_while_the_client_still_sends(orders):
    writer, acks = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    for number in range(20):
        writer.write_batch(payloads(b"x"))
        assert json.loads(acks.read().to_pybytes())["first"] == number
    writer.done_writing()
    assert acks.read() is None
    writer.close()


def test_nothing_is_acknowledged_before_it_is_durable():
    disk = FaultyDisk(MemoryDisk())
    with served_hub(disk=disk) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            disk.fail_all("sync", errno.EIO)
            writer, acks = client.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
            writer.write_batch(payloads(b"x"))
            refusal = json.loads(acks.read().to_pybytes())
            assert refusal["error"]["code"] == "log-failed"
            with failing(flight.FlightUnavailableError):
                writer.close()


def test_a_client_that_reads_no_acks_is_told_in_the_end(orders, monkeypatch):
    monkeypatch.setattr(putting, "ACKS_WAITING_MAX", 10)
    monkeypatch.setattr(putting.Putting, "_send", lambda self, ack: stuck.wait(10))
    stuck = threading.Event()
    writer, _ = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    for _ in range(30):
        writer.write_batch(payloads(b"x"))
    threading.Timer(0.3, stuck.set).start()
    with failing(flight.FlightUnavailableError) as caught:
        writer.close()
    assert "acks 'last'" in str(caught.value)


def test_acks_of_a_processed_stream_wait_for_its_cursor(served, plain):
    served.run(served.hub.create_stream("orders", options=StreamOptions(ack="processed:mill")))
    writer, acks = plain.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    writer.write_batch(payloads(b"x"))
    wait_until(lambda: served.hub.bounds("orders").next == 1, "stored")
    answer = []
    reading = threading.Thread(target=lambda: answer.append(acks.read().to_pybytes()))
    reading.start()
    reading.join(0.3)
    assert not answer
    served.run(served.hub.save_cursor("mill", "orders", 1))
    reading.join(10)
    assert json.loads(answer[0])["first"] == 0
    writer.close()


def test_more_than_one_put_may_be_under_way_but_not_too_many():
    with served_hub(Config(flight=Flight(writers_max=2))) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            path = flight.FlightDescriptor.for_path("orders")
            open_puts = [client.do_put(path, PAYLOADS) for _ in range(2)]
            for writer, acks in open_puts:
                writer.write_batch(payloads(b"x"))
                acks.read()
            with failing() as caught:
                put(client, [], path)
            assert code_of(caught.value) == "limit-exceeded"
            assert "flight.writers_max" in str(caught.value)
            for writer, _ in open_puts:
                writer.close()
            wait_until(lambda: not served.hub.sessions.list("flight"), "puts ended")
            put(client, [payloads(b"y")], path)


# Reading ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def ten(served, orders):
    put(orders, [payloads(*[b"%d" % n for n in range(10)])])
    return orders


@pytest.mark.parametrize(
    ("ticket", "expected"),
    [
        ({}, range(10)),
        ({"start": 3}, range(3, 10)),
        ({"start": 3, "end": 5}, range(3, 5)),
        ({"start": 3, "end": 100}, range(3, 10)),
        ({"start": 100}, ()),
        ({"start": 5, "end": 5}, ()),
        ({"start": "latest"}, ()),
        ({"end": "latest"}, range(10)),
        ({"limit": 4}, range(4)),
        ({"limit": 0}, ()),
        ({"start": {"time_us": 0}}, range(10)),
        ({"end": {"time_us": 0}}, ()),
        ({"start": {"time_us": 1 << 60}}, ()),
        ({"batch_bytes": 1}, range(10)),
    ],
)
def test_ranges(ten, ticket, expected):
    assert rows(ten, stream="orders", **ticket) == [b"%d" % n for n in expected]


def test_columns_and_types(served, orders):
    batch = pa.RecordBatch.from_pydict({"payload": [b"a", b"b", b"c"], "type": ["x", "y", None]})
    put(orders, [batch], schema=batch.schema)
    table = get(orders, stream="orders", types=["x", None], columns=["payload", "index", "partition"]).read_all()
    assert table.to_pylist() == [
        {"payload": b"a", "index": 0, "partition": 0},
        {"payload": b"c", "index": 2, "partition": 0},
    ]


def test_several_ranges_in_one_ticket(served, ten):
    put(ten, [payloads(b"p")], flight.FlightDescriptor.for_path("orders", "1"))
    table = get(ten, ranges=[{"stream": "orders", "partition": 1}, {"stream": "orders", "start": 8}]).read_all()
    assert table.select(["stream", "partition", "index"]).to_pylist() == [
        {"stream": "orders", "partition": 1, "index": 0},
        {"stream": "orders", "partition": 0, "index": 8},
        {"stream": "orders", "partition": 0, "index": 9},
    ]


@pytest.mark.parametrize(
    ("ticket", "code"),
    [
        (b"", "bad-request"),
        (b'{"stream":"nowhere"}', "unknown-stream"),
        (b'{"stream":"orders","partition":2}', "unknown-stream"),
        (b'{"stream":"orders","columns":["colour"]}', "bad-request"),
        (b'{"ranges":[{"stream":"orders"},{"stream":"nowhere"}]}', "unknown-stream"),
    ],
)
def test_a_bad_ticket_is_refused(ten, served, ticket, code):
    with failing() as caught:
        ten.do_get(flight.Ticket(ticket)).read_all()
    assert code_of(caught.value) == code
    wait_until(lambda: not served.hub.sessions.list("flight"), "no reader is left behind")


def test_what_was_trimmed_is_an_error_unless_it_may_be_skipped(served, ten):
    served.run(served.hub.trim("orders", 4))
    with failing() as caught:
        rows(ten, stream="orders", start=0)
    assert json.loads(caught.value.extra_info)["details"] == {
        "stream": "orders",
        "partition": 0,
        "asked": 0,
        "first": 4,
    }
    assert len(rows(ten, stream="orders", start=0, on_trimmed="skip")) == 6
    assert len(rows(ten, stream="orders")) == 6
    served.run(served.hub.trim("orders", 10))
    with failing() as caught:
        rows(ten, stream="orders", start=0)
    assert code_of(caught.value) == "trimmed"
    assert rows(ten, stream="orders", start=0, end=3, on_trimmed="skip") == []


def test_follow_gives_what_is_there_and_what_comes(served, ten):
    reader = get(ten, stream="orders", start=8, follow=True)
    assert reader.read_chunk().data.column("payload").to_pylist() == [b"8", b"9"]
    for number in range(10, 15):
        put(ten, [payloads(b"%d" % number)])
        assert reader.read_chunk().data.column("payload").to_pylist() == [b"%d" % number]
    reader.cancel()
    wait_until(lambda: not served.hub.sessions.list("flight"), "the reader's place is free again")


def test_follow_ends_at_its_end_or_limit(ten):
    for ticket in ({"end": 12}, {"limit": 4}):
        reader = get(ten, stream="orders", start=8, follow=True, **ticket)
        put(ten, [payloads(b"x")] * 4)
        assert reader.read_all().num_rows == 4


def test_follow_of_several_partitions(ten):
    reader = get(
        ten, ranges=[{"stream": "orders", "start": "latest"}, {"stream": "orders", "partition": 1}], follow=True
    )
    for partition in ("1", "0", "1"):
        put(ten, [payloads(b"x")], flight.FlightDescriptor.for_path("orders", partition))
        assert reader.read_chunk().data.column("partition").to_pylist() == [int(partition)]
    reader.cancel()


def test_follow_while_many_append_sees_every_record_once_and_in_order(served, orders):
    total = 2_000
    reader = get(orders, stream="orders", follow=True, limit=total)

    def produce(name: int):
        with flight.connect(f"grpc://{served.address}") as client:
            put(client, [payloads(*[b"%d" % name] * 10)] * (total // 40))

    producers = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    for each in producers:
        each.start()
    indexes = reader.read_all().column("index").to_pylist()
    for each in producers:
        each.join()
    assert indexes == list(range(total))


def test_a_follower_of_a_stream_that_is_deleted_is_told(served, orders, monkeypatch):
    monkeypatch.setattr("headrace.protocols.flight.reading.LOOK_AGAIN_S", 0.05)
    reader = get(orders, stream="orders", follow=True)
    wait_until(lambda: served.hub.sessions.list("flight"), "the reader is open")
    served.run(served.hub.delete_stream("orders"))
    with failing() as caught:
        reader.read_chunk()
    assert code_of(caught.value) == "unknown-stream"


def test_readers_are_limited():
    with served_hub(Config(log=Log(readers_max=2))) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            readers = [get(client, stream="orders", follow=True) for _ in range(2)]
            wait_until(lambda: len(served.hub.sessions.list("flight")) == 2, "two readers are open")
            with failing() as caught:
                get(client, stream="orders").read_all()
            assert code_of(caught.value) == "limit-exceeded"
            assert "open readers is 3, above the maximum of 2; the limit is set by 'log.readers_max'" in str(
                caught.value
            )
            readers[0].cancel()
            wait_until(lambda: len(served.hub.sessions.list("flight")) == 1, "one has gone")
            assert get(client, stream="orders").read_all().num_rows == 0
            readers[1].cancel()


def test_a_reader_that_is_dropped_before_it_reads_gives_its_place_back(served, ten):
    for _ in range(20):
        get(ten, stream="orders").cancel()
    gc.collect()
    wait_until(lambda: not served.hub.sessions.list("flight"), "no reader is left behind")


@pytest.mark.slow
def test_a_slow_reader_holds_little(served, orders):
    """64 MiB wait for a reader that reads one batch and no more: the hub sends only what fits on the way."""
    batch = Batch.of([b"x" * 1024] * 1024)
    for _ in range(64):
        served.run(_append(served.hub, batch))
    reader = get(orders, stream="orders")
    reader.read_chunk()
    (session,) = wait_until(lambda: served.hub.sessions.list("flight"), "the session is open")
    sent = []
    wait_until(lambda: _settled(served, sent), "the reader does not get ahead any more", 30)
    assert session.details["state"] == "reading"
    assert sent[-1] < 24 * 1024, "more was sent than the wire holds"
    reader.cancel()


async def _append(hub, batch):
    return await hub.append("orders", batch)


def _settled(served, sent: list[int]) -> bool:
    sent.append(served.hub.sessions.list("flight")[0].details["sent"])
    return len(sent) > 60 and sent[-1] == sent[-60]


# Looking, verbs, the rest ----------------------------------------------------------------------------------------------


def test_flight_info_has_a_ticket_for_each_partition(ten):
    info = ten.get_flight_info(flight.FlightDescriptor.for_path("orders"))
    assert info.total_records == 10
    assert [len(ten.do_get(endpoint.ticket).read_all()) for endpoint in info.endpoints] == [10, 0]
    info = ten.get_flight_info(flight.FlightDescriptor.for_path("orders", "1"))
    assert (info.total_records, len(info.endpoints)) == (0, 1)
    info = ten.get_flight_info(command(stream="orders", start=4, columns=["index"]))
    assert info.total_records == 6
    assert info.schema.names == ["index"]
    assert ten.do_get(info.endpoints[0].ticket).read_all().num_rows == 6
    assert ten.get_flight_info(command(stream="orders", follow=True)).total_records == -1
    assert ten.get_schema(flight.FlightDescriptor.for_path("orders")).schema.names[0] == "index"
    with failing() as caught:
        ten.get_flight_info(flight.FlightDescriptor.for_path("nowhere"))
    assert code_of(caught.value) == "unknown-stream"


def test_list_flights(served, ten):
    served.run(served.hub.create_stream("other"))
    assert {info.descriptor.path[0] for info in ten.list_flights()} == {b"orders", b"other"}
    (only,) = ten.list_flights(b'{"pattern":"oth*"}')
    assert only.descriptor.path == [b"other"]
    with failing():
        list(ten.list_flights(b"{"))


def test_every_verb_is_an_action(served, plain):
    names = {action.type for action in plain.list_actions()}
    assert names == {verb.name for verb in served.hub.verbs}
    assert "stream.create" in names


def test_an_action_that_is_not_a_verb(plain):
    with failing() as caught:
        call(plain, "stream.fly")
    assert code_of(caught.value) == "unknown-verb"


def test_a_bug_is_not_told_to_the_client(served, plain, caplog):
    async def broken(request: msgspec.Struct) -> None:
        raise ZeroDivisionError("a secret")

    served.hub.verbs.register("test.broken", msgspec.Struct, broken, right="read")
    with failing(flight.FlightInternalError) as caught:
        call(plain, "test.broken")
    assert "secret" not in str(caught.value)
    assert "a secret" in caplog.text


def test_a_large_body_is_refused(plain, monkeypatch):
    monkeypatch.setattr("headrace.protocols.flight.server.ACTION_BYTES_MAX", 100)
    with failing() as caught:
        call(plain, "stream.list", pattern="x" * 100)
    assert "above" in str(caught.value)


def test_sessions_are_shown(served, ten):
    reader = get(ten, stream="orders", follow=True)
    reader.read_chunk()
    (session,) = served.hub.sessions.list("flight")
    assert session.details == {"state": "following", "streams": ["orders/0"], "position": [10], "sent": 10}
    reader.cancel()
    wait_until(lambda: not served.hub.sessions.list("flight"), "ended")
    ended = served.hub.sessions.list("flight", ended=True)
    assert {info.details["state"] for info in ended} == {"following", "ended"}


def test_metrics_count_records(served, ten):
    rows(ten, stream="orders")
    text = served.hub.metrics.text().decode()
    assert 'headrace_records_in_total{protocol="flight"} 10.0' in text
    assert 'headrace_records_out_total{protocol="flight"} 10.0' in text


# Stopping --------------------------------------------------------------------------------------------------------------


def test_a_hub_that_stops_tells_its_followers(served, orders):
    reader = get(orders, stream="orders", follow=True)
    wait_until(lambda: served.hub.sessions.list("flight"), "the reader is open")
    served.stop()
    with failing(flight.FlightUnavailableError) as caught:
        reader.read_chunk()
    assert code_of(caught.value) == "closed"


@pytest.mark.slow
async def test_a_stop_does_not_wait_for_clients_that_do_nothing():
    """One client has an open put, another does not read what it asked for: neither holds up the stop."""
    async with memory_hub() as hub:
        await hub.create_stream("orders")
        await hub.append("orders", Batch.of([b"x" * 1024] * 32 * 1024))
        listener = await serve(hub, "127.0.0.1:0")
        client = flight.connect(f"grpc://{listener.address}")
        writer, acks = await asyncio.to_thread(client.do_put, flight.FlightDescriptor.for_path("orders"), PAYLOADS)
        await asyncio.to_thread(writer.write_batch, payloads(b"x"))
        await asyncio.to_thread(acks.read)
        reader = await asyncio.to_thread(get, client, stream="orders", batch_bytes=1 << 20)
        await asyncio.to_thread(reader.read_chunk)
        await asyncio.wait_for(listener.close(), 10)
        with failing():
            await asyncio.to_thread(reader.read_all)
        with failing():
            await asyncio.to_thread(writer.close)
        client.close()


async def test_after_a_stop_the_port_is_free():
    async with memory_hub() as hub:
        listener = await serve(hub, "127.0.0.1:0")
        await listener.close()
        again = await serve(hub, listener.address)
        assert again.address == listener.address
        await again.close()


def test_cut_connections_touches_nothing_else(orders):
    assert bridge.cut_connections(1) == 0
    assert put(orders, [payloads(b"x")])


# Who are you? ----------------------------------------------------------------------------------------------------------

USERS = SecuritySection(
    users={
        "ann": User(secret="pear", tokens=["ann-token"], roles=["admin"]),
        "rob": User(tokens=["rob-token"], roles=["reader"]),
    }
)


def options(header: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", header.encode())])


@pytest.fixture
def guarded():
    with served_hub(Config(security=USERS)) as served:
        served.run(served.hub.create_stream("orders"))
        with flight.connect(f"grpc://{served.address}") as client:
            yield client


def test_strangers_are_refused_everywhere(guarded):
    path = flight.FlightDescriptor.for_path("orders")
    attempts = [
        lambda: call(guarded, "stream.list"),
        lambda: call(guarded, "stream.list", options("Bearer wrong")),
        lambda: call(guarded, "stream.list", options("Basic !")),
        lambda: call(guarded, "stream.list", options("Bearer hf_forged")),
        lambda: get(guarded, stream="orders").read_all(),
        lambda: put(guarded, [payloads(b"x")]),
        lambda: guarded.get_flight_info(path),
        lambda: list(guarded.list_flights()),
        lambda: list(guarded.list_actions()),
    ]
    for attempt in attempts:
        with failing(flight.FlightUnauthenticatedError) as caught:
            attempt()
        assert code_of(caught.value) == "unauthenticated"
    with pytest.raises(OSError, match="this hub asks who you are"):  # pyarrow loses the kind of this one
        guarded.get_schema(path)


def test_a_token_and_a_password_open_the_door(guarded):
    for header in ("Bearer ann-token", "Basic YW5uOnBlYXI="):
        assert call(guarded, "stream.list", options(header))[0]["name"] == "orders"


def test_the_handshake_gives_a_token(guarded):
    pair = guarded.authenticate_basic_token("ann", "pear")
    assert pair[1].startswith(b"Bearer hf_")
    assert call(guarded, "stream.list", flight.FlightCallOptions(headers=[pair]))
    with failing(flight.FlightUnauthenticatedError):
        guarded.authenticate_basic_token("ann", "apple")


def test_rights_are_checked(guarded):
    reader = options("Bearer rob-token")
    assert guarded.do_get(flight.Ticket(b'{"stream":"orders"}'), reader).read_all().num_rows == 0
    writer, _ = guarded.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS, reader)
    with failing(flight.FlightUnauthorizedError) as caught:
        writer.close()
    assert code_of(caught.value) == "forbidden"
    assert "'rob' may not write stream 'orders'" in str(caught.value)
    with failing(flight.FlightUnauthorizedError):
        call(guarded, "stream.delete", reader, stream="orders")


def test_tls(tmp_path):
    key, root = make_self_signed(["127.0.0.1"])
    (tmp_path / "key.pem").write_bytes(key)
    (tmp_path / "certificate.pem").write_bytes(root)
    config = Config(tls=Tls(certificate=str(tmp_path / "certificate.pem"), key=str(tmp_path / "key.pem")))
    with served_hub(config) as served:
        with flight.connect(f"grpc+tls://{served.address}", tls_root_certs=root) as client:
            assert call(client, "stream.list") == []
        with flight.connect(f"grpc://{served.address}") as client, failing():
            call(client, "stream.list")
