from __future__ import annotations

from datetime import UTC, datetime

import google_crc32c
import pyarrow as pa
import pytest

from headrace.log.columns import PUT_SCHEMA
from headrace.spark.sink.rows import OutgoingRows, key_partitions, rows_digest, to_records


class Sent:
    def __init__(self) -> None:
        self.data = b""
        self.chunks: list[int] = []

    def __call__(self, offset: int, chunk: bytes) -> None:
        assert offset == len(self.data)
        self.data += chunk
        self.chunks.append(len(chunk))

    def batches(self) -> list[tuple[str, int, pa.RecordBatch]]:
        reader = pa.ipc.open_stream(self.data)
        found = []
        while True:
            try:
                batch, metadata = reader.read_next_batch_with_custom_metadata()
            except StopIteration:
                return found
            found.append((metadata[b"stream"].decode(), int(metadata[b"partition"]), batch))


def rows(count: int, **columns: object) -> pa.RecordBatch:
    return pa.record_batch({"payload": [b"%d" % number for number in range(count)], **columns})


def test_rows_arrive_as_records_with_a_checksum() -> None:
    sent = Sent()
    outgoing = OutgoingRows(sent, 1000, lambda stream: 1)
    outgoing.write("a", to_records(rows(500, type=["t"] * 500)))
    size, crc = outgoing.finish()
    assert (size, crc) == (len(sent.data), google_crc32c.value(sent.data))
    assert len(sent.chunks) > 1
    table = pa.Table.from_batches([batch for _, _, batch in sent.batches()])
    assert table.schema.equals(PUT_SCHEMA)
    assert table["payload"].to_pylist() == [b"%d" % number for number in range(500)]


def test_no_rows_send_nothing() -> None:
    sent = Sent()
    outgoing = OutgoingRows(sent, 1000, lambda stream: 1)
    outgoing.write("a", to_records(rows(0)))
    assert outgoing.finish() == (0, 0)
    assert sent.chunks == []


def test_one_key_stays_in_one_partition_and_in_order() -> None:
    sent = Sent()
    outgoing = OutgoingRows(sent, 1 << 20, lambda stream: 4)
    keys = [b"k%d" % (number % 10) if number % 7 else None for number in range(200)]
    outgoing.write("a", to_records(rows(200, key=pa.array(keys, pa.binary()))))
    outgoing.finish()
    where: dict[bytes | None, set[int]] = {}
    for _, partition, batch in sent.batches():
        numbers = [int(payload) for payload in batch["payload"].to_pylist()]
        assert numbers == sorted(numbers)
        for key in batch["key"].to_pylist():
            where.setdefault(key, set()).add(partition)
    assert all(len(partitions) == 1 for partitions in where.values())
    assert where[None] == {0}
    assert len(set.union(*where.values())) > 1


def test_the_partition_of_a_key_never_changes() -> None:
    assert list(key_partitions(pa.array([b"pear", b"plum", None, b"pear"]), 8)) == [5, 2, 0, 5]


def test_rows_by_stream_column() -> None:
    outgoing = OutgoingRows(Sent(), 1000, lambda stream: 1)
    split = dict(outgoing.by_stream(rows(4, to=["x", "y", "x", "y"]), None, "to"))
    assert {name: batch["payload"].to_pylist() for name, batch in split.items()} == {
        "x": [b"0", b"2"],
        "y": [b"1", b"3"],
    }
    with pytest.raises(ValueError, match="null"):
        list(outgoing.by_stream(rows(1, to=pa.array([None], pa.string())), None, "to"))


def test_texts_become_bytes_and_null_payloads_are_refused() -> None:
    batch = pa.record_batch({"payload": ["é"], "key": ["k"]})
    assert to_records(batch)["payload"].to_pylist() == ["é".encode()]
    with pytest.raises(ValueError, match="payload"):
        to_records(pa.record_batch({"payload": pa.array([None], pa.binary())}))


def test_digest_knows_no_order_and_sees_every_change() -> None:
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    base = to_records(rows(3, type=["a", "b", None], event_time=[moment, None, None], id=[1, 2, 3]))
    turned = base.take(pa.array([2, 0, 1]))
    assert rows_digest("s", base) == rows_digest("s", turned)
    assert rows_digest("s", base) != rows_digest("other", base)
    for changed in (
        rows(3, type=["a", "b", "c"], event_time=[moment, None, None], id=[1, 2, 3]),
        rows(3, type=["a", "b", None], event_time=[None, None, None], id=[1, 2, 3]),
        rows(3, type=["a", "b", None], event_time=[moment, None, None], id=[1, 2, 4]),
        rows(4, type=["a", "b", None, None], event_time=[moment, None, None, None], id=[1, 2, 3, 4]),
    ):
        assert rows_digest("s", to_records(changed)) != rows_digest("s", base)
