"""What the hub is asked for, given what DuckDB asks for."""

import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.log.columns import SCHEMA
from headrace.sql import wire
from headrace.sql.relations import ORIGIN, Source

PLACES = [("orders", 0, 100, 1_000), ("orders", 1, 0, 500), ("returns", 0, 0, 0)]
INDEX = pc.field("index")
NOON = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
NOON_US = int(NOON.timestamp() * 1e6)


class FakeHub:
    """Answers with records of one partition."""

    def __init__(self, parts):
        self.parts = [*parts, wire.Part(0)]
        self.asked = []

    def ask(self, message, kind):
        self.asked.append(message)
        if isinstance(message, wire.Scan):
            self.columns = message.columns
            return wire.Opened(7), b""
        part = wire.Part(0) if message.close else self.parts.pop(0)
        rows = [{"index": each, "type": "A", "payload": b"x"} for each in range(part.rows)]
        schema = pa.schema([SCHEMA.field(name).with_nullable(True) for name in self.columns])
        return part, pa.RecordBatch.from_pylist(rows, schema).serialize()


def source(*parts, places=PLACES):
    hub = FakeHub(parts)
    return hub, Source(hub, wire.Relation(0, "orders", 0, list(places), "payload", is_stream=True), SCHEMA)


def bounds(expression):
    return source()[1].bounds(expression, str(expression))


def test_a_stream_has_the_columns_of_a_record_and_where_it_came_from():
    assert source()[1].schema == pa.schema([*SCHEMA, *ORIGIN])


@pytest.mark.parametrize(
    ("expression", "least", "greatest"),
    [
        (INDEX > 5, 6, None),
        (INDEX >= 6, 6, None),
        (INDEX == 700, 700, 700),
        ((INDEX > 5) & (INDEX <= 10), 6, 10),
        (INDEX.isin([50, 70, 60]), 50, 70),
        ((INDEX < 20) | (INDEX > 40), None, None),
        ((pc.field("type") == "A") & (INDEX < 20), None, 19),
        (pc.field("type") == "index", None, None),
        (INDEX + 1 > 5, None, None),
    ],
    ids=str,
)
def test_the_least_and_greatest_index_that_can_pass(expression, least, greatest):
    found = bounds(expression)
    assert (found.index_min, found.index_max) == (least, greatest)


def test_the_least_and_greatest_time_that_can_pass():
    noon = pa.scalar(NOON, SCHEMA.field("time").type)
    later = bounds(pc.field("time") > noon)
    assert (later.time_min_us, later.time_max_us) == (NOON_US + 1, None)
    exactly = bounds(pc.field("time") == noon)
    assert (exactly.time_min_us, exactly.time_max_us) == (NOON_US, NOON_US)
    assert bounds(pc.field("event_time") == noon).time_min_us is None


def test_the_places_that_can_pass():
    assert bounds(pc.field("partition") == pa.scalar(1, pa.int32())).places == [1]
    assert bounds(pc.field("stream") == "returns").places == [2]
    assert bounds(INDEX > 5).places is None


def test_only_what_is_needed_is_asked_for_and_the_filter_is_obeyed():
    hub, orders = source(wire.Part(10, 1))
    wanted = (INDEX > 6) & (pc.field("type") == "A")
    reader = orders.scanner(columns=["payload", "partition"], filter=wanted).to_reader()
    assert reader.read_all().to_pylist() == [{"payload": b"x", "partition": 1}] * 3
    assert hub.asked[0] == wire.Scan(0, ["index", "type", "payload"], wire.Bounds(index_min=7))


def test_a_scan_that_is_given_up_is_closed():
    hub, orders = source(wire.Part(10), wire.Part(10))
    batches = orders._batches(["index"], None)
    next(batches)
    batches.close()
    assert hub.asked[-1] == wire.Next(7, close=True)


def test_an_empty_relation():
    _, orders = source(places=[])
    assert orders.bounds(INDEX > 5, "index") == wire.Bounds()
    assert orders.scanner().to_reader().read_all().num_rows == 0
