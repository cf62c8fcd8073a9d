"""Reading over a real socket, with a Flight client that knows nothing of Headrace."""

import json
import threading

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from support.flight_peer import code_of, failing, get, payloads, put, rows
from support.until import wait_until

from headrace.config import Config, Log
from headrace.log.batch import Batch
from headrace.testing import served_hub


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


def test_a_follower_of_a_stream_that_is_deleted_is_told(served, orders):
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
    wait_until(lambda: _settled(served, sent), "the reader does not get ahead any more")
    assert session.details["state"] == "reading"
    assert sent[-1] < 24 * 1024, "more was sent than the wire holds"
    reader.cancel()


async def _append(hub, batch):
    return await hub.append("orders", batch)


def _settled(served, sent: list[int]) -> bool:
    sent.append(served.hub.sessions.list("flight")[0].details["sent"])
    return len(sent) > 60 and sent[-1] == sent[-60]
