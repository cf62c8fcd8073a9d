"""The table of columns: what it must always say, and that everything written by hand follows it."""

import inspect

import msgspec
import pyarrow as pa
import pytest

from headrace.admin.records import NewRecord, StoredRecord
from headrace.client.records import Record, to_batch
from headrace.log.batch import LAYOUT, Batch, Columns
from headrace.log.columns import COLUMNS, OPTIONAL, PUT_SCHEMA, SCHEMA, plain_rows
from headrace.spark.hub.dead_letters import DeadLetter, Envelope

TIMESTAMP = pa.timestamp("us", "UTC")


def test_the_schema_is_that_of_every_segment_on_disk() -> None:
    assert SCHEMA.equals(
        pa.schema(
            [
                pa.field("index", pa.int64(), nullable=False),
                pa.field("time", TIMESTAMP, nullable=False),
                pa.field("event_time", TIMESTAMP),
                pa.field("id", pa.int64()),
                pa.field("type", pa.string()),
                pa.field("key", pa.binary()),
                pa.field("payload", pa.binary(), nullable=False),
            ]
        )
    )


def test_what_spark_stages_has_its_order() -> None:
    assert [(field.name, field.type, field.nullable) for field in PUT_SCHEMA] == [
        ("payload", pa.binary(), True),
        ("id", pa.int64(), True),
        ("event_time", TIMESTAMP, True),
        ("type", pa.string(), True),
        ("key", pa.binary(), True),
    ]


def test_the_types_of_spark() -> None:
    assert {column.name: column.sql for column in COLUMNS} == {
        "index": "BIGINT NOT NULL",
        "time": "TIMESTAMP NOT NULL",
        "event_time": "TIMESTAMP",
        "id": "BIGINT",
        "type": "STRING",
        "key": "BINARY",
        "payload": "BINARY NOT NULL",
    }


def test_bits_of_a_body_are_single_and_differ() -> None:
    bits = [slot.bit for slot in LAYOUT]
    assert [bit.bit_count() for bit in bits] == [1] * len(OPTIONAL)
    assert len(set(bits)) == len(bits)


@pytest.mark.parametrize("struct", [NewRecord, StoredRecord, DeadLetter])
def test_json_structs_have_all_columns(struct: type[msgspec.Struct]) -> None:
    assert {column.json_name for column in OPTIONAL} | {"payload"} <= set(struct.__struct_fields__)


@pytest.mark.parametrize("struct", [Record, Envelope])
def test_structs_with_dates_have_all_columns(struct: type[msgspec.Struct]) -> None:
    assert {column.name for column in OPTIONAL} | {"payload"} <= set(struct.__struct_fields__)


def test_arguments_have_all_columns() -> None:
    names = {column.name for column in OPTIONAL}
    assert names <= set(inspect.signature(Batch.one).parameters)
    assert names <= set(inspect.signature(to_batch).parameters)
    assert {f"{name}s" for name in names} <= set(inspect.signature(Batch.of).parameters)


def test_plain_rows_know_times_of_any_year() -> None:
    batch = Batch.of([b"a", b"b"], event_times=[2**62, None], types="t", keys=[None, b"k"])
    first, second = plain_rows(Columns(batch.body).to_arrow(5, 1))
    assert first == {
        "index": 5,
        "time_us": 1,
        "event_time_us": 2**62,
        "id": None,
        "type": "t",
        "key": None,
        "payload": b"a",
    }
    assert (second["event_time_us"], second["key"]) == (None, b"k")
