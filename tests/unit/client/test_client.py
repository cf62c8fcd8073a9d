"""The SDK against a real hub over a real socket."""

import json
import threading
from datetime import UTC, datetime, timedelta

import pandas
import pyarrow as pa
import pyarrow.flight as flight
import pytest

import headrace
from headrace import errors
from headrace.client import client as client_module
from headrace.log.ops import Bounds, StreamOptions
from headrace.protocols.flight.codec import AtTime


def payloads(reader) -> list[bytes]:
    return [record.payload for record in reader]


def test_streams(client):
    options = StreamOptions(retention_age_s=60, labels={"team": "mill"})
    made = client.create("other", partitions=3, options=options)
    assert (made.name, made.partitions, made.options, made.records) == ("other", 3, options, 0)
    assert [each.name for each in client.streams()] == ["orders", "other"]
    assert [each.name for each in client.streams("oth*")] == ["other"]
    assert client.grow("other", 4).partitions == 4
    assert client.set_options("other", {"retention_bytes": 5}).options == StreamOptions(retention_bytes=5)
    described = client.describe("other")
    assert [bounds.partition for bounds in described.bounds] == [0, 1, 2, 3]
    client.delete("other")
    with pytest.raises(errors.UnknownStream):
        client.describe("other")
    with pytest.raises(errors.StreamExists):
        client.create("orders", exist_ok=False)


def test_append_and_read(client):
    assert client.append("orders", b"a") == headrace.Appended(0, 1, False)
    assert client.append("orders", ["b", {"c": 1}], type="t") == headrace.Appended(1, 2, False)
    assert client.append("orders", pa.table({"payload": ["d"], "key": ["k"]}), partition=0).first == 3
    assert client.append("orders", pandas.DataFrame({"payload": ["e"]})).first == 4
    assert client.append("orders", b"other", partition=1).first == 0
    records = client.read("orders", partition=0).to_list()
    assert [record.payload for record in records] == [b"a", b"b", b'{"c":1}', b"d", b"e"]
    assert [record.type for record in records] == [None, "t", "t", None, None]
    assert records[3].key == b"k"
    assert records[2].json() == {"c": 1}
    assert client.bounds("orders") == Bounds(0, 5)


def test_append_is_idempotent_with_a_sequence(client):
    first = client.append("orders", [b"a", b"b"], producer="shop", sequence=1)
    again = client.append("orders", [b"a", b"b"], producer="shop", sequence=1)
    assert (again.first, again.count, again.duplicate) == (first.first, 2, True)
    assert client.append("orders", b"c", producer="shop", sequence=2).first == 2
    assert client.producer_sequence("orders", "shop") == 2
    assert client.producer_sequence("orders", "nobody") is None
    for arguments in ({"producer": "p"}, {"sequence": 1}):
        with pytest.raises(errors.BadRequest, match="belong together"):
            client.append("orders", b"x", **arguments)
        with pytest.raises(errors.BadRequest, match="belong together"):
            client.writer("orders", **arguments)


def test_large_arrow_data_goes_in_parts(client, monkeypatch):
    monkeypatch.setattr(client_module, "PART_BYTES", 10_000)
    table = pa.table({"payload": [b"x" * 100] * 1_000})
    assert client.append("orders", table) == headrace.Appended(0, 1_000, False)
    assert client.read("orders").to_arrow().num_rows == 1_000


def test_errors_come_back_as_ours_and_the_next_append_works(client):
    with pytest.raises(errors.UnknownStream) as caught:
        client.append("nowhere", b"x")
    assert caught.value.stream == "nowhere"
    with pytest.raises(errors.UnknownStream) as caught:
        client.append("orders", b"x", partition=9)
    assert caught.value.partition == 9
    with pytest.raises(errors.LimitExceeded) as limit:
        client.append("orders", b"x" * ((16 << 20) + 1))
    assert (limit.value.key, limit.value.maximum) == ("log.record_bytes_max", 16 << 20)
    with pytest.raises(errors.BadRequest, match="record 0"):
        client.append("orders", [5])
    assert client.append("orders", b"fine").first == 0
    with pytest.raises(errors.HeadraceError) as unknown:
        client.call("stream.fly")
    assert unknown.value.code == "unknown-verb"


def test_the_largest_record_makes_the_way_there_and_back(client):
    largest = b"x" * (16 << 20)
    client.append("orders", largest)
    assert payloads(client.read("orders")) == [largest]


@pytest.fixture
def ten(client):
    client.append("orders", [b"%d" % number for number in range(10)], type=["even", "odd"] * 5)
    client.append("orders", b"p", partition=1)
    return client


def test_ranges(ten):
    now = datetime.now(UTC)
    assert payloads(ten.read("orders", 8)) == [b"8", b"9"]
    assert payloads(ten.read("orders", 2, 4)) == [b"2", b"3"]
    assert payloads(ten.read("orders", limit=1)) == [b"0"]
    assert payloads(ten.read("orders", "latest")) == []
    assert len(payloads(ten.read("orders", now - timedelta(hours=1), now + timedelta(hours=1), partition=0))) == 10
    assert payloads(ten.read("orders", now + timedelta(hours=1))) == []
    assert payloads(ten.read("orders", types=["odd"], limit=2)) == [b"1", b"3"]
    assert payloads(ten.read("orders", partition=1)) == [b"p"]
    assert ten.index_at_time("orders", 0) == 0
    assert ten.index_at_time("orders", now + timedelta(hours=1)) == 10


def test_all_partitions_and_several_streams(ten):
    ten.create("other")
    ten.append("other", b"o")
    table = ten.read(["orders", "other"], partition=None).to_arrow()
    assert table.num_rows == 12
    assert table.schema.names[:2] == ["stream", "partition"]
    found = {(record.stream, record.partition) for record in ten.read(["orders", "other"], partition=None)}
    assert found == {("orders", 0), ("orders", 1), ("other", 0)}
    assert ten.read(["orders", "other"], 9).to_arrow().column("payload").to_pylist() == [b"9"]


def test_frames(ten):
    frame = ten.read("orders", columns=["index", "payload"], partition=0).to_pandas()
    assert list(frame.columns) == ["index", "payload"]
    assert len(frame) == 10
    reader = ten.read("orders", partition=0)
    assert sum(batch.num_rows for batch in reader.batches()) == 10
    assert reader.position == 10
    assert reader.next_batch() is None


def test_what_was_trimmed(ten):
    assert ten.trim("orders", 4) == Bounds(4, 10)
    with pytest.raises(errors.Trimmed) as caught:
        ten.read("orders", 0).to_list()
    assert (caught.value.asked, caught.value.first) == (0, 4)
    assert len(ten.read("orders", 0, on_trimmed="skip", partition=0).to_list()) == 6
    assert len(ten.read("orders", partition=0).to_list()) == 6


def test_follow(ten):
    with ten.follow("orders", 8) as reader:
        found = []
        for record in reader:
            found.append(record.payload)
            if len(found) == 2:
                ten.append("orders", [b"10", b"11"])
            if len(found) == 4:
                break
        assert found == [b"8", b"9", b"10", b"11"]
        assert reader.position == 12
    assert reader.next_batch() is None


def test_follow_with_a_limit_ends_by_itself(ten):
    assert len(ten.follow("orders", limit=10).to_list()) == 10


def test_follow_can_wait_for_a_while(ten):
    with ten.follow("orders", "latest") as reader:
        with pytest.raises(errors.Busy, match="no record came"):
            reader.next_batch(0.05)
        ten.append("orders", b"x")
        assert reader.next_batch(10).num_rows == 1


def test_closing_a_follower_from_another_thread_ends_it(ten):
    reader = ten.follow("orders", "latest")
    closing = threading.Timer(0.1, reader.close)
    closing.start()
    assert list(reader) == []
    closing.join()


def test_a_follower_of_a_hub_that_stops_is_told(ten, served):
    reader = ten.follow("orders", "latest")
    served.stop()
    with pytest.raises((errors.Closed, errors.Unreachable)):
        reader.next_batch()
    with pytest.raises((errors.Closed, errors.Unreachable)):
        reader.next_batch()


def test_a_reader_with_a_cursor(ten):
    with ten.read("orders", cursor="mill", limit=4) as reader:
        assert reader.save() is None
        assert len(list(reader)) == 4
        assert reader.save() == 4
    assert payloads(ten.read("orders", cursor="mill", limit=1)) == [b"4"]
    assert payloads(ten.read("orders", 9, cursor="mill")) == [b"9"]
    follower = iter(ten.follow("orders", cursor="mill"))
    assert next(follower).payload == b"4"
    with pytest.raises(errors.BadRequest, match="has no cursor"):
        ten.read("orders").save()


def test_cursors(ten):
    cursor = ten.cursor("mill", "orders")
    assert cursor.get() is None
    assert (cursor.save(5), cursor.save(3), cursor.get()) == (5, 5, 5)
    move = cursor.reset(2, dry_run=True)
    assert (move.before, move.after, move.read_again, move.skipped) == (5, 2, 3, 0)
    assert cursor.get() == 5
    assert cursor.reset("latest").skipped == 5
    assert cursor.reset(AtTime(0)).after == 0
    assert [(info.name, info.index, info.lag) for info in ten.cursors("mi*", stream="orders")] == [("mill", 0, 10)]
    cursor.delete()
    assert ten.cursors() == []


def test_tables(client):
    table = client.create_table("prices")
    assert table.put("pear", "3").applied
    assert table.get(b"pear") == b"3"
    assert table.get("plum") is None
    refused = table.put("pear", "4", expect="absent")
    assert (refused.applied, refused.previous) == (False, b"3")
    assert table.put("pear", "4", expect=b"3").applied
    assert table.put("plum", b"\0", expect="absent").applied
    assert list(client.table("prices").items()) == [(b"pear", b"4"), (b"plum", b"\0")]
    assert table.delete("plum").applied
    assert [(info.name, info.keys) for info in client.tables()] == [("prices", 1)]
    table.drop()
    assert client.tables() == []


def test_lists_come_in_pages_and_one_by_one(client, monkeypatch):
    monkeypatch.setattr("headrace.client.client.PAGE_ENTRIES", 2)
    for number in range(5):
        client.create(f"s{number}")
        client.create_table(f"t{number}")
        client.cursor("c", f"s{number}").save(0)
    assert [info.name for info in client.streams("s*")] == ["s0", "s1", "s2", "s3", "s4"]
    assert [info.name for info in client.tables("t*")] == ["t0", "t1", "t2", "t3", "t4"]
    assert [info.stream for info in client.cursors()] == ["s0", "s1", "s2", "s3", "s4"]
    calls = []
    request = client.request
    monkeypatch.setattr(client, "request", lambda *arguments: calls.append(arguments[0]) or request(*arguments))
    streams = client.iter_streams("s*")
    assert [next(streams).name, next(streams).name] == ["s0", "s1"]
    assert calls == ["stream.list"]
    assert len(list(streams)) == 3
    assert len(list(client.iter_tables())) == len(list(client.iter_cursors(stream="s1"))) + 4 == 5


def test_an_earlier_client_gets_the_first_page_and_a_second_result(client):
    for number in range(3):
        client.create(f"s{number}")
    bodies = [
        result.body.to_pybytes() for result in client._connection.flight.do_action(flight.Action("stream.list", b"{}"))
    ]
    assert len(bodies) == 1
    for number in range(3, 1_000):  # and `orders`
        client.create(f"s{number}")
    bodies = [
        result.body.to_pybytes() for result in client._connection.flight.do_action(flight.Action("stream.list", b"{}"))
    ]
    assert len(json.loads(bodies[0])) == 1_000
    rest = client.call("stream.list", {"after": json.loads(bodies[1])["next"]})
    assert [entry["name"] for entry in rest["items"]] == ["s999"]
    assert len(client.streams()) == 1_001


def test_many_keys_of_a_table_at_once(client):
    table = client.create_table("prices")
    assert table.put_many({"pear": "3", b"plum": b"4"}) == 2
    assert table.put_many([("fig", "5")]) == 1
    assert table.delete_many(["pear", "none"]) == 1
    assert table.clear() == 2
    assert list(table.items()) == []
    assert table.accept_damage().first is None


def test_table_items_come_in_pages(client, monkeypatch):
    monkeypatch.setattr("headrace.client.handles.PAGE_ITEMS", 2)
    table = client.create_table("prices")
    for number in range(5):
        table.put(str(number), "x")
    assert [key for key, _ in table.items()] == [b"0", b"1", b"2", b"3", b"4"]


def test_segments(client):
    client.append("orders", b"x")
    found = client.segments("orders")
    assert [(each.partition, each.first, each.next) for each in found.partitions] == [(0, 0, 1), (1, 0, 0)]
    assert len(client.segments("orders", partition=1).partitions) == 1


def test_text_that_is_not_unicode_is_refused(client):
    for attempt in (lambda: client.create("\ud800"), lambda: client.append("orders", b"x", type="\ud800")):
        with pytest.raises(errors.BadRequest, match="is not UTF-8 text"):
            attempt()
