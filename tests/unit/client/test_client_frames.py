"""What people who work with data expect of the SDK: frames in and out, keys, starts, errors and looks."""

import datetime

import pandas
import polars
import pyarrow as pa
import pytest

import headrace
from headrace.client.partitions import by_partition, partition_of
from headrace.client.records import to_batch
from headrace.errors import BadRequest

FRUIT = {"name": ["pear", "plum"], "count": [3, 4]}
EXPECTED = [{"name": "pear", "count": 3}, {"name": "plum", "count": 4}]


@pytest.fixture
def hub(served):
    with headrace.connect(served.address) as client:
        client.create("fruit")
        client.create("wide", partitions=4)
        yield client


@pytest.mark.parametrize(
    "frame", [pandas.DataFrame(FRUIT), polars.DataFrame(FRUIT), pa.table(FRUIT)], ids=["pd", "pl", "pa"]
)
def test_rows_of_a_frame_are_json(hub, frame):
    assert hub.append("fruit", frame, key="name", partition=0).count == 2
    records = hub.read("fruit").to_list()
    assert [record.json() for record in records] == EXPECTED
    assert [record.key for record in records] == [b"pear", b"plum"]


def test_columns_of_a_frame_are_named():
    day = datetime.datetime(2026, 11, 15, tzinfo=datetime.UTC)
    table = pa.table({"body": [b"x"], "kind": ["T"], "number": [7], "at": [day]})
    batch = to_batch(table, payload="body", type="kind", id="number", event_time="at", key="number")
    assert batch.to_pylist() == [{"payload": b"x", "type": "T", "id": 7, "event_time": day, "key": b"7"}]
    with pytest.raises(BadRequest, match="key='nothing' is not a column of the data, which has body, kind"):
        to_batch(table, key="nothing")
    with pytest.raises(BadRequest, match="'payload' names a column"):
        to_batch([b"x"], payload="body")
    times = to_batch(pa.table({"at": [day], "price": [pa.scalar(None, pa.int64())]}))
    assert times.column("payload")[0].as_py() == b'{"at":"2026-11-15T00:00:00Z","price":null}'


def test_a_list_of_bytes_and_others_mixed():
    assert to_batch([b"a", b"b"], type=["x", None]).to_pylist() == [
        {"payload": b"a", "type": "x"},
        {"payload": b"b", "type": None},
    ]
    mixed = to_batch([b"a", "b", {"c": 1}, headrace.Record(payload=b"d", type="T")])
    assert mixed.to_pylist()[3] == {"payload": b"d", "type": "T"}
    assert to_batch([]).num_rows == 0


def test_arrow_tools_take_a_reader_as_it_is(hub):
    hub.append("fruit", [{"name": "pear"}])
    assert pa.table(hub.read("fruit")).num_rows == 1
    assert polars.from_arrow(pa.RecordBatchReader.from_stream(hub.read("fruit"))).height == 1
    assert polars.DataFrame(hub.read("fruit")).height == 1
    assert hub.read("fruit").to_polars()["payload"].to_list() == [b'{"name":"pear"}']


def test_json_by_a_schema(hub):
    hub.append("fruit", [{"name": "pear", "count": 3}, b"not JSON", {"name": "plum"}])
    frame = (
        hub.read("fruit", columns=["index", "payload"]).decoded({"name": pa.string(), "count": pa.int64()}).to_pandas()
    )
    assert list(frame.columns) == ["index", "name", "count", "error"]
    assert frame["name"].tolist() == ["pear", None, "plum"]
    assert frame["error"].notna().tolist() == [False, True, False]
    with pytest.raises(BadRequest, match="nothing to decode"):
        hub.read("fruit", columns=["index"]).decoded({"name": pa.string()})
    with pytest.raises(BadRequest, match="'type' is a column"):
        hub.read("fruit").decoded({"type": pa.string()})


def test_starts_as_people_write_them(hub):
    hub.append("fruit", b"now")
    assert len(hub.read("fruit", "5m").to_list()) == 1
    assert len(hub.read("fruit", "2000-01-01T00:00:00Z").to_list()) == 1
    assert len(hub.read("fruit", "0", "1").to_list()) == 1
    assert hub.read("fruit", "latest").to_list() == []
    assert hub.read("fruit", end="2000-01-01T00:00:00Z").to_list() == []
    with pytest.raises(BadRequest, match="'soon' is not an index"):
        hub.read("fruit", "soon")


def test_one_type_and_one_column_as_plain_text(hub):
    hub.append("fruit", [b"a", b"b"], type=["ORDER", "OTHER"])
    assert [record.payload for record in hub.read("fruit", types="ORDER")] == [b"a"]
    assert hub.read("fruit", columns="payload").schema.names == ["payload"]


def test_a_payload_that_is_something_else_is_told(hub):
    hub.append("fruit", b"\xff not")
    (record,) = hub.read("fruit")
    with pytest.raises(BadRequest, match=r"the payload of record 0 is not JSON: .*; it is b'\\xff not'"):
        record.json()
    with pytest.raises(BadRequest, match="record 0 is not UTF-8"):
        _ = record.text


def test_looks(hub):
    hub.append("fruit", b"x" * 100, type="T")
    reader = hub.read("fruit")
    assert repr(reader).startswith("<Reader reads fruit partition 0, not begun: index, time")
    (record,) = reader
    assert repr(record).startswith("Record(index=0, time=")
    assert repr(record).endswith("type='T', payload=b'" + "x" * 57 + "…)")
    assert "next index 1" in repr(reader)
    assert repr(hub.cursor("c", "fruit")) == "<Cursor c in fruit partition 0>"
    assert repr(hub.table("t")) == "<Table t>"
    assert repr(hub) == f"<Client of {hub.address}>"


# Partitions -----------------------------------------------------------------------------------------------------------


def test_the_hash_of_a_key_is_fixed():
    """What the page says; other programs count on it."""
    assert [partition_of(key, 4) for key in (b"", b"a", b"pear", b"plum")] == [1, 3, 2, 1]
    assert {partition_of(str(number).encode(), 8) for number in range(100)} == set(range(8))


def test_a_batch_by_partition_keeps_the_order():
    batch = to_batch([b"0", b"1", b"2", b"3"], key=["a", "pear", None, "a"])
    parts = {number: part.column("payload").to_pylist() for number, part in by_partition(batch, 4)}
    assert parts == {0: [b"2"], 2: [b"1"], 3: [b"0", b"3"]}
    assert [number for number, _ in by_partition(batch, 1)] == [0]


def test_the_same_key_is_in_the_same_partition(hub):
    for _ in range(2):
        assert hub.append("wide", b"x", key="pear").first >= 0
    many = hub.append("wide", [b"0", b"1", b"2"], key=["a", "pear", None])
    assert many == headrace.Appended(-1, 3, False)
    records = hub.read("wide").to_list()
    assert {(record.key, record.partition) for record in records} == {(b"pear", 2), (b"a", 3), (None, 0)}
    assert len(records) == 5
    assert hub.append("wide", b"y", key="pear", partition=1) == headrace.Appended(0, 1, False)
    once = [hub.append("wide", [b"0", b"1"], key=["a", "pear"], producer="p", sequence=1) for _ in range(2)]
    assert [each.duplicate for each in once] == [False, True]


def test_all_partitions_are_read_and_their_cursors_move(hub):
    hub.append("wide", [b"0", b"1"], key=["a", "pear"])
    reader = hub.read("wide", cursor="c")
    assert len(reader.to_list()) == 2
    reader.save()
    assert {each.partition: each.index for each in hub.cursors(stream="wide")} == {2: 1, 3: 1}
    hub.append("wide", b"2", key="a")
    assert [record.payload for record in hub.read("wide", cursor="c")] == [b"2"]
    blind = hub.read("wide", cursor="c", columns=["payload"])
    blind.to_list()
    assert blind.save() is None
    assert hub.read("wide", partition=1).to_list() == []
    with pytest.raises(BadRequest, match="no cursor"):
        hub.read("wide").save()
