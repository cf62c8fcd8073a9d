"""Appending over a real socket, with a Flight client that knows nothing of Headrace."""

import asyncio
import errno
import gc
import json
import struct
import threading
import types

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.collector import count, no_collector
from support.flight_peer import PAYLOADS, call, code_of, command, failing, get, payloads, put, rows
from support.until import wait_until

from headrace.config import Config, Flight, Log
from headrace.errors import BadRequest
from headrace.log.ops import Appended, StreamOptions
from headrace.protocols.flight import puts
from headrace.protocols.flight.codec import decode_metadata
from headrace.protocols.flight.room import Window
from headrace.protocols.flight.session import PutSession
from headrace.testing import FaultyDisk, MemoryDisk, served_hub


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


def test_of_two_that_send_as_one_producer_only_one_goes_on(orders):
    first = [b'{"producer":"q","sequence":5,"after":-1}', b'{"producer":"q","sequence":9,"after":5}']
    assert [ack["first"] for ack in put(orders, [payloads(b"a"), payloads(b"b")], metadata=first)] == [0, 1]
    late = [b'{"producer":"q","sequence":7,"after":5}', b'{"producer":"q","sequence":11,"after":9}']
    with failing() as caught:
        put(orders, [payloads(b"x"), payloads(b"y")], metadata=late)
    assert code_of(caught.value) == "fenced"
    assert rows(orders, stream="orders") == [b"a", b"b"]
    assert call(orders, "producer.get", stream="orders", producer="q") == {"sequence": 9}


@pytest.mark.parametrize("after", [-2, 1 << 64])
def test_after_is_a_sequence_or_minus_one(after):
    with pytest.raises(BadRequest, match="'after' is"):
        decode_metadata(b'{"producer":"q","sequence":5,"after":%d}' % after)


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


def beyond_its_dictionary() -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array([0, 1 << 28], pa.int32()), pa.array([b"a"]), safe=False)


def beyond_its_views(kind: pa.DataType) -> pa.Array:
    """Two views of 20 bytes each, in a buffer that does not exist."""
    views = struct.pack("<i4sii", 20, b"abcd", 7, 1 << 20) * 2
    return pa.Array.from_buffers(kind, 2, [None, pa.py_buffer(views), pa.py_buffer(b"abc")])


def beyond_its_offsets() -> pa.Array:
    offsets = struct.pack("<qqq", 0, 1 << 30, 3)
    return pa.Array.from_buffers(pa.large_binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])


@pytest.mark.parametrize(
    "make",
    [
        beyond_its_dictionary,
        lambda: beyond_its_views(pa.binary_view()),
        lambda: beyond_its_views(pa.string_view()),
        beyond_its_offsets,
    ],
    ids=["dictionary", "binary view", "string view", "offsets"],
)
def test_a_column_that_points_outside_itself_is_refused_before_anything_follows_it(orders, make):
    batch = pa.RecordBatch.from_arrays([make()], ["payload"])
    writer, acks = orders.do_put(flight.FlightDescriptor.for_path("orders"), batch.schema)
    writer.write_batch(batch)
    refusal = json.loads(acks.read().to_pybytes())["error"]
    assert refusal["code"] == "bad-request"
    assert "column 'payload'" in refusal["message"]
    with failing(flight.FlightServerError):
        writer.close()
    assert rows(orders, stream="orders") == []


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


def test_nothing_is_stored_behind_a_refused_batch_even_if_it_was_under_way(monkeypatch):
    disk = FaultyDisk(MemoryDisk())
    with served_hub(Config(log=Log(commit_bytes_max=1)), disk=disk) as served:
        served.run(served.hub.create_stream("orders"))
        log = served.hub._log
        may_commit = threading.Event()
        commit_once = log.commit_once

        def commit_when_allowed():
            may_commit.wait(60)
            committed = commit_once()
            disk.heal()  # there is room again before the next commit
            return committed

        monkeypatch.setattr(log, "commit_once", commit_when_allowed)
        disk.fail_all("write", errno.ENOSPC)
        with flight.connect(f"grpc://{served.address}") as client:
            described = command(stream="orders", producer="shop", sequence=0)
            writer, acks = client.do_put(described, PAYLOADS)
            for payload in (b"0", b"1"):
                writer.write_batch(payloads(payload))
            wait_until(lambda: len(log.queue) == 2, "both batches are under way")
            may_commit.set()
            assert json.loads(acks.read().to_pybytes())["error"]["code"] == "disk-full"
            with failing(flight.FlightUnavailableError):
                writer.close()
            again = put(client, [payloads(b"0"), payloads(b"1")], described)
            assert [ack["duplicate"] for ack in again] == [False, False]
            assert rows(client, stream="orders") == [b"0", b"1"]


@pytest.mark.slow
def test_a_client_that_reads_no_acks_until_the_end_loses_nothing(orders, monkeypatch):
    """More acknowledgements than the wire holds: they are folded together, and the client is not held up."""
    monkeypatch.setattr(puts, "ACKS_WAITING_MAX", 100)
    writer, acks = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)
    total = 12_000
    for _ in range(total):
        writer.write_batch(payloads(b"x"))
    writer.done_writing()
    found = []
    while (message := acks.read()) is not None:
        found.append(json.loads(message.to_pybytes()))
    writer.close()
    assert len(found) < total
    assert sum(ack["count"] for ack in found) == total
    assert found[-1]["batch"] == total - 1
    assert [ack["batch"] for ack in found] == sorted({ack["batch"] for ack in found})


@pytest.mark.slow
def test_a_client_that_only_sends_is_told_of_a_refusal_in_the_end(orders, monkeypatch):
    monkeypatch.setattr(puts, "ACKS_WAITING_MAX", 100)
    monkeypatch.setattr(puts, "ACKS_STUCK_S", 0.1)
    writer, _ = orders.do_put(flight.FlightDescriptor.for_path("orders"), PAYLOADS)

    def send_all():
        for number in range(14_000):
            writer.write_batch(payloads(None) if number == 11_000 else payloads(b"x"))
        writer.close()

    with failing() as caught:
        send_all()
    assert "batch 11000: column 'payload' row 0 is null" in str(caught.value)
    assert orders.get_flight_info(flight.FlightDescriptor.for_path("orders", "0")).total_records == 11_000


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
    reading.join(60)
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


def test_a_window_lets_one_in_however_large_and_the_others_wait():
    window = Window(100)
    window.enter(500, give_up=lambda: None)
    entered = threading.Event()
    waiting = threading.Thread(target=lambda: (window.enter(50, lambda: None, 0.01), entered.set()))
    waiting.start()
    assert not entered.wait(0.05)
    window.leave(500)
    waiting.join(60)
    assert entered.is_set()


def test_whoever_waits_for_a_window_may_give_up():
    def give_up():
        raise TimeoutError

    window = Window(100)
    window.enter(100, give_up)
    with pytest.raises(TimeoutError):
        window.enter(1, give_up, 0.01)


def test_a_batch_is_copied_only_when_there_is_room_for_it(monkeypatch):
    """gRPC holds the message meanwhile: otherwise every put would have its batch in memory twice."""
    copied, stored = [], []
    from_arrow = puts.Batch.from_arrow
    monkeypatch.setattr(puts.Batch, "from_arrow", lambda records: copied.append(records) or from_arrow(records))
    with served_hub(Config(flight=Flight(puts_bytes_max=1))) as served:
        served.run(served.hub.create_stream("orders"))

        def append(*_, **__):
            stored.append(asyncio.get_running_loop().create_future())
            return stored[-1]

        monkeypatch.setattr(served.hub, "append", append)

        def produce():
            with flight.connect(f"grpc://{served.address}") as client:
                put(client, [payloads(b"x" * 100)])

        async def settle(index):
            stored[index].set_result(Appended(index, 1, False))

        producers = [threading.Thread(target=produce) for _ in range(2)]
        for each in producers:
            each.start()

        def received():
            return [each.details["batches_received"] for each in served.hub.sessions.list("flight")]

        wait_until(lambda: received() == [1, 1] and len(stored) == 1, "both have sent theirs")
        assert len(copied) == 1
        assert "headrace_flight_puts_bytes 0.0" not in served.hub.metrics.text().decode()
        served.run(settle(0))
        wait_until(lambda: len(stored) == 2, "the second found room")
        served.run(settle(1))
        for each in producers:
            each.join(60)
        assert len(copied) == 2
        assert "headrace_flight_puts_bytes 0.0" in served.hub.metrics.text().decode()


def test_a_batch_that_cannot_be_copied_leaves_its_room_to_others(served, orders, monkeypatch):
    def refuse(records):
        raise BadRequest("no")

    monkeypatch.setattr(puts.Batch, "from_arrow", refuse)
    with failing():
        put(orders, [payloads(b"x" * 100)])
    assert "headrace_flight_puts_bytes 0.0" in served.hub.metrics.text().decode()


def test_many_puts_share_what_may_wait_for_the_disk():
    with served_hub(Config(flight=Flight(puts_bytes_max=1))) as served:
        served.run(served.hub.create_stream("orders"))

        def produce():
            with flight.connect(f"grpc://{served.address}") as client:
                put(client, [payloads(b"x" * 100)] * 20)

        producers = [threading.Thread(target=produce) for _ in range(4)]
        for each in producers:
            each.start()
        for each in producers:
            each.join(60)
        assert served.hub.bounds("orders").next == 80


def frames_of_puts() -> list[types.FrameType]:
    """What errors have come through, and still hold."""
    frames = [each for each in gc.get_objects() if isinstance(each, types.FrameType)]
    return [
        frame
        for frame in frames
        if frame.f_code.co_name in ("_read", "_receive", "apply") and "flight" in frame.f_code.co_filename
    ]


@pytest.mark.parametrize("what", ["too much", "no number"])
def test_a_batch_that_is_refused_is_freed_at_once(orders, what):
    """Not when the garbage collector comes by, which counts objects and not what they hold."""
    column = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array([bytes(1 << 20)]))
    batch = pa.record_batch({"payload": column} if what == "too much" else {"payload": [b"x"], "id": ["no number"]})
    with no_collector():
        with failing():
            put(orders, [batch], schema=batch.schema)
        wait_until(lambda: not frames_of_puts(), "the batch is free")


def test_a_put_that_was_refused_leaves_nothing_to_collect(served, orders):
    """An error knows the frames that it came through, and these know the put."""
    with no_collector():
        for _ in range(3):
            with pytest.raises(flight.FlightError):
                put(orders, [payloads(b"x" * (served.hub.config.log.record_bytes_max + 1))])
        wait_until(lambda: not count(PutSession))
