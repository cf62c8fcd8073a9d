from datetime import UTC, date, datetime

import numpy as np
import pandas
import pyarrow as pa
import pytest

from headrace.client.records import Record, one_record, records_of, to_batch, to_microseconds
from headrace.errors import BadRequest
from headrace.protocols.flight.codec import split


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"a", [b"a"]),
        ("ä", ["ä".encode()]),
        ({"a": 1}, [b'{"a":1}']),
        (bytearray(b"a"), [b"a"]),
        (memoryview(b"a"), [b"a"]),
        (Record(payload=b"a"), [b"a"]),
        ([b"a", "b", {}], [b"a", b"b", b"{}"]),
        ((b"a", b"b"), [b"a", b"b"]),
        ((each for each in "ab"), [b"a", b"b"]),
        ([], []),
        (pa.table({"payload": ["a", "b"]}), [b"a", b"b"]),
        (pa.RecordBatch.from_pydict({"payload": ["a"]}), [b"a"]),
        (pa.table({"payload": pa.array([], pa.binary())}), []),
        (pa.concat_tables([pa.table({"payload": ["a"]}), pa.table({"payload": ["b"]})]), [b"a", b"b"]),
        (pandas.DataFrame({"payload": ["a", "b"]}), [b"a", b"b"]),
    ],
)
def test_what_may_be_appended(data, payloads):
    batch = to_batch(data)
    assert batch.column("payload").to_pylist() == payloads
    assert batch.schema.names == ["payload"]


def test_columns_for_all_or_for_each():
    time = datetime(2026, 1, 1, tzinfo=UTC)
    batch = to_batch(["a", "b"], type="t", key=["k", None], id=[(1 << 64) - 1, 2], event_time=time)
    assert batch.column("type").to_pylist() == ["t", "t"]
    assert batch.column("key").to_pylist() == [b"k", None]
    assert batch.column("id").to_pylist() == [-1, 2]
    assert batch.column("event_time").to_pylist() == [time, time]


def test_a_record_brings_its_own_columns():
    record = Record(payload=b"a", type="t", key=b"k", id=5, event_time=datetime(2026, 1, 1, tzinfo=UTC), index=9)
    batch = to_batch([record, b"b"])
    assert batch.column("type").to_pylist() == ["t", None]
    assert batch.column("id").to_pylist() == [5, None]
    assert to_batch(record, type="other").column("type").to_pylist() == ["other"]


def test_arguments_override_what_a_record_brings():
    record = Record(payload=b"", type="t", key=b"k", id=5, event_time=7)
    single = one_record(record, "", b"", 0, 0)
    assert single is not None
    assert (single.type, single.key, single.id, single.event_time_us) == ("", b"", 0, 0)


@pytest.mark.parametrize(
    ("data", "columns", "names"),
    [
        (5, {}, "type int cannot be appended"),
        ([b"a", 5], {}, "record 1 is a value of type int"),
        ([b"a"], {"type": ["x", "y"]}, "'type' has 2 values for 1 records"),
        ([b"a"], {"id": "x"}, "'id' does not fit"),
        ([b"a"], {"id": 1 << 64}, "'id' does not fit"),
        ([b"a"], {"type": 7}, "'type' does not fit"),
        ([b"a"], {"key": 7}, "'key' does not fit"),
        ([b"a"], {"event_time": datetime(2026, 1, 1)}, "has no time zone"),
        ([b"a"], {"event_time": "2026-01-01"}, "type str is not a time"),
        ([b"a"], {"event_time": [1.5]}, "type float is not a time"),
        ([b"a"], {"event_time": date(2026, 1, 1)}, "type date is not a time"),
        ([b"a"], {"key": "\ud800"}, "the key is not UTF-8 text"),
        ([b"a", "\ud800"], {}, "record 1 is not UTF-8 text"),
        ({"a": object()}, {}, "record 0 cannot be sent as JSON: a value of type object has no form in JSON"),
        ([{"a": 1}, {(1, 2): 3}], {}, "record 1 cannot be sent as JSON"),
        (pa.table({"payload": ["a"]}), {"type": "x"}, "type='x' is not a column of the data, which has payload"),
        (pa.table({"payload": ["a"], "text": ["a"]}), {}, "no column 'text'"),
    ],
)
def test_bad_data_is_refused_by_name(data, columns, names):
    with pytest.raises(BadRequest, match=names):
        to_batch(data, **columns)


def test_a_single_record_is_refused_in_the_same_words():
    for data, event_time, key in (("a", "2026-01-01", None), ("a", None, "\ud800"), ({"a": object()}, None, None)):
        with pytest.raises(BadRequest) as single:
            one_record(data, None, key, None, event_time)
        with pytest.raises(BadRequest) as batch:
            to_batch(data, key=key, event_time=event_time)
        assert str(single.value) == str(batch.value)


def test_numbers_of_numpy_are_numbers_in_json():
    row = {"count": np.int64(4), "price": np.float32(4.5), "sizes": np.array([1, 2])}
    assert to_batch(row).column("payload").to_pylist() == [b'{"count":4,"price":4.5,"sizes":[1,2]}']


def test_microseconds():
    assert to_microseconds(5) == 5
    assert to_microseconds(datetime(1970, 1, 2, 0, 0, 1, 7, tzinfo=UTC)) == 86_401_000_007
    assert to_microseconds(datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)) == -1_000_000


def test_records_have_defaults_for_columns_that_were_not_asked_for():
    (record,) = records_of(pa.RecordBatch.from_pydict({"index": [3]}))
    assert (record.index, record.payload, record.type) == (3, b"", None)


def test_an_event_time_that_no_datetime_holds_is_its_number():
    near, far = datetime(2026, 11, 15, tzinfo=UTC), 1_700_000_000 * 10**9
    batch = to_batch([b"a", b"b", b"c"], event_time=[near, far, None])
    read = list(records_of(batch))
    assert [record.event_time for record in read] == [near, far, None]
    assert to_batch(read).column("event_time").equals(batch.column("event_time")), "what was read can be sent again"


def test_a_record_reads_its_payload():
    assert Record(payload="ä".encode()).text == "ä"
    assert Record(payload=b'{"a":1}').json() == {"a": 1}


def test_split_batch():
    parts = split(to_batch([b"x" * 100] * 8), 250)
    assert [part.num_rows for part in parts] == [2, 2, 2, 2]
