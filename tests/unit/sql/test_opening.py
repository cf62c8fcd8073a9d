"""`value`, and how rows become JSON."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest

from headrace.errors import BadSql
from headrace.sql import worker
from headrace.sql.json_rows import json_rows
from headrace.sql.opening import Opening, opened_as
from headrace.sql.wire import ValueLimits

FIELDS_MAX = 20
DEPTH_MAX = 5
LIMITS = ValueLimits(FIELDS_MAX, DEPTH_MAX)


@pytest.fixture(scope="module")
def connection():
    with worker.connect(64 << 20, 1) as opened:
        yield opened


def values(connection, payloads, select):
    listed = ", ".join(f"('{payload}'::BLOB)" for payload in payloads)
    return connection.execute(select(f"(SELECT * FROM (VALUES {listed}) t(payload))")).fetchall()


def value_of(connection, payloads, structure):
    return [
        row[-1]
        for row in values(connection, payloads, lambda source: Opening(LIMITS).opened(source, "payload", structure))
    ]


def test_what_does_not_fit_is_null_and_never_rounded(connection):
    payloads = ['{"n": 1}', '{"n": 1.5}', '{"n": -1}', '{"n": "1"}', '{"n": 99999999999999999999}', "{}", "[]", "no"]
    found = value_of(connection, payloads, '{"n": "UBIGINT"}')
    assert [each and each["n"] for each in found] == [1, None, -1, None, None, None, None, None]
    assert found[-1] is None


def test_nested_objects_and_lists(connection):
    structure = '{"d": {"e": ["UBIGINT"], "f": "VARCHAR"}, "odd \\"name": "BOOLEAN", "none": "NULL"}'
    payload = '{"d": {"e": [1, 2.5], "f": "x"}, "odd \\\\"name": true, "none": null}'.replace("\\\\", "\\")
    text = payload.replace("\\", "\\x5C")
    assert value_of(connection, [text], structure) == [
        {"d": {"e": [1, None], "f": "x"}, 'odd "name': True, "none": None}
    ]


def test_payloads_that_are_no_objects_are_json(connection):
    assert value_of(connection, ["[1, 2]", "no"], '["UBIGINT"]') == ["[1, 2]", None]
    assert value_of(connection, ["3"], None) == ["3"]


@pytest.mark.parametrize(
    ("structure", "names"),
    [
        ('{"": "VARCHAR", "a": "VARCHAR"}', ["a"]),
        ('{"a": "VARCHAR", "A": "VARCHAR"}', ["a"]),
        ('{"a\\u0000b": "VARCHAR", "a": "VARCHAR"}', ["a"]),
        (json.dumps({f"k{n}": "VARCHAR" for n in range(FIELDS_MAX + 1)}), [f"k{n}" for n in range(FIELDS_MAX)]),
    ],
)
def test_names_that_no_column_can_have_are_left_out(connection, structure, names):
    (found,) = value_of(connection, ["{}"], structure)
    assert list(found) == names


def test_inner_fields_count_too(connection):
    structure = json.dumps({"a": {f"k{n}": "VARCHAR" for n in range(FIELDS_MAX)}, "b": "VARCHAR"})
    (found,) = value_of(connection, ["{}"], structure)
    assert "b" in found
    assert len(found["a"]) == FIELDS_MAX - 2


def test_what_duckdb_cannot_take_the_types_of_is_not_sampled():
    def nested(depth):
        return b'{"a":' * depth + b"1" + b"}" * depth

    def wide(fields):
        return json.dumps({f"k{n}": 1 for n in range(fields)}).encode()

    fit = [b'{"a": 1}', b"3", b'"text"', b"[[1], 2]", nested(DEPTH_MAX), wide(FIELDS_MAX)]
    unfit = [nested(DEPTH_MAX + 1), nested(100_000), b"[" * 100_000, wide(FIELDS_MAX + 1), b"\xff", b'{"a"', b""]
    assert Opening(LIMITS).sampled(fit + unfit) == fit


@pytest.mark.parametrize(
    ("payload", "limits_met"),
    [
        (b'{"a":' * DEPTH_MAX + b"1" + b"}" * DEPTH_MAX, set()),
        (b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1), {"value_depth"}),
        (b"[" * 100_000 + b"]" * 100_000, {"value_depth"}),
        (json.dumps(dict.fromkeys(map(str, range(FIELDS_MAX)))).encode(), set()),
        (json.dumps(dict.fromkeys(map(str, range(FIELDS_MAX + 1)))).encode(), {"value_fields"}),
        (b'{"a"', set()),
    ],
)
def test_limits_that_a_sample_meets_are_known(payload, limits_met):
    opening = Opening(LIMITS)
    opening.sampled([payload])
    assert opening.limits_met == limits_met


@pytest.mark.parametrize(("fields", "limits_met"), [(FIELDS_MAX, set()), (FIELDS_MAX + 1, {"value_fields"})])
def test_fields_that_records_have_together_count(fields, limits_met):
    opening = Opening(LIMITS)
    opening.opened("source", "payload", json.dumps({f"k{n}": "VARCHAR" for n in range(fields)}))
    assert opening.limits_met == limits_met


def test_a_schema_names_the_fields(connection):
    schema = 'fruit STRING, "how many" DECIMAL(9,2), tags VARCHAR[]'
    payload = '{"fruit": "pear", "how many": 2.5, "tags": ["a"]}'
    (row,) = values(connection, [payload, "no"][:1], lambda source: opened_as(source, "payload", schema))
    assert row[-1] == {"fruit": "pear", "how many": decimal.Decimal("2.50"), "tags": ["a"]}


@pytest.mark.parametrize(
    "schema", ["", "fruit", "a INT, ", "a INT) , b", "a INT; DROP", "a STRUCT(b INT)", "a (SELECT 1)"]
)
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(BadSql, match="schema"):
        opened_as("source", "payload", schema)


def test_rows_as_json():
    batch = pa.record_batch(
        {
            "bytes": pa.array([b"text", b"\xff", None]),
            "time": pa.array([datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC), None, None]),
            "sum": pa.array([decimal.Decimal(2**70), None, None], pa.decimal128(38, 0)),
            "price": pa.array([decimal.Decimal("1.50"), None, None], pa.decimal128(9, 2)),
            "nested": pa.array([{"a": [b"x"]}, None, None]),
            "far": pa.array([2**62, None, None], pa.timestamp("us")),
            "nan": pa.array([float("nan"), 1.5, None]),
        }
    )
    rows = json.loads(b"[" + json_rows(batch) + b"]")
    assert rows[0][:5] == [{"text": "text"}, "2026-11-15T00:00:00Z", 2**70, "1.50", {"a": [{"text": "x"}]}]
    assert rows[1] == [{"base64": "/w=="}, None, None, None, None, None, 1.5]
    assert rows[0][6] is None
    assert json.loads(b"[" + json_rows(pa.record_batch({"a": pa.array([], pa.int64())})) + b"]") == []
