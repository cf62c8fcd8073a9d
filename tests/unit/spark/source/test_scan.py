"""What a task reads: files where they can be opened, the hub where not, and never less than was asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.errors import Damaged, Trimmed, Unreachable
from headrace.log.columns import SCHEMA
from headrace.log.disk import OsDisk
from headrace.log.segment import Segment, SegmentRef, write_segment
from headrace.log.store import DirectoryStore
from headrace.spark.errors import DataLoss
from headrace.spark.hub_client import HubPort
from headrace.spark.source.offsets import Range
from headrace.spark.source.scan import BYTES_PER_BATCH_MAX, ROWS_PER_BATCH_MAX, Piece, Shape, regroup, scan

ALL = pa.schema([*(pa.field(one.name, one.type) for one in SCHEMA), ("stream", pa.string()), ("partition", pa.int32())])


def records(first: int, after: int, size: int = 3) -> pa.RecordBatch:
    count = after - first
    columns = {
        "index": pa.array(range(first, after), pa.int64()),
        "time": pa.array(range(first, after), pa.int64()).cast(pa.timestamp("us", "UTC")),
        "event_time": pa.nulls(count, pa.timestamp("us", "UTC")),
        "id": pa.nulls(count, pa.int64()),
        "type": pa.array(["odd" if number % 2 else None for number in range(first, after)], pa.string()),
        "key": pa.nulls(count, pa.binary()),
        "payload": pa.array([b"x" * size for _ in range(count)], pa.binary()),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), schema=SCHEMA)


class FakeHub:
    """Answers reads with the records it holds."""

    def __init__(self, first: int = 0, after: int = 100, fail_times: int = 0, missing: range = range(0)) -> None:
        self.first, self.after, self.fail_times, self.missing = first, after, fail_times, missing
        self.asked: list[tuple[int, int]] = []
        self.types: Sequence[str] | None = None

    def call(self, verb: str, request: dict[str, object]) -> object:
        raise NotImplementedError

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None,
        types: Sequence[str] | None,
    ) -> Iterator[pa.RecordBatch]:
        self.asked.append((start, end))
        self.types = types
        if types is not None and start < self.first:
            raise Trimmed(stream, partition, start, self.first)
        for at in range(max(start, self.first), min(end, self.after), 10):
            if self.fail_times and at != start:
                self.fail_times -= 1
                raise Unreachable("gone")
            if at not in self.missing:
                found = records(at, min(at + 10, end))
                kept = found if types is None else found.filter(pc.is_in(found["type"], pa.array(types)))
                yield kept.select(columns or SCHEMA.names)

    def close(self) -> None:
        pass


def read(hub: FakeHub, start: int, end: int, *files: SegmentRef, shape: Shape | None = None) -> pa.Table:
    port = HubPort("fake", lambda: hub, wait_s=0.5)
    shape = shape or Shape(ALL)
    return pa.Table.from_batches(list(scan(port, Piece(Range("s", 2, start, end), files), shape)), shape.schema)


def sealed(
    directory: Path, first: int, after: int, *, stream: str = "s", partition: int = 2, size: int = 3
) -> SegmentRef:
    disk = OsDisk(directory)
    ref = write_segment(DirectoryStore(disk), stream, 1, partition, [records(first, after, size)])
    disk.close()
    return SegmentRef(first, after, str(directory / ref.path), ref.bytes)


def test_from_the_hub_alone() -> None:
    table = read(FakeHub(), 5, 47)
    assert table["index"].to_pylist() == list(range(5, 47))
    assert set(table["stream"].to_pylist()) == {"s"}
    assert set(table["partition"].to_pylist()) == {2}


def test_files_where_there_are_some_and_the_hub_around_them(tmp_path: Path) -> None:
    hub = FakeHub()
    files = [sealed(tmp_path, 20, 40), sealed(tmp_path, 60, 70)]
    table = read(hub, 5, 90, *files)
    assert table["index"].to_pylist() == list(range(5, 90))
    assert hub.asked == [(5, 20), (40, 60), (70, 90)]


def test_files_alone_need_no_hub(tmp_path: Path) -> None:
    hub = FakeHub()
    assert read(hub, 25, 35, sealed(tmp_path, 20, 40))["index"].to_pylist() == list(range(25, 35))
    assert hub.asked == []


def test_a_file_that_is_gone_or_another_is_read_from_the_hub(tmp_path: Path) -> None:
    hub = FakeHub()
    other = sealed(tmp_path, 0, 10)
    strange = SegmentRef(30, 40, other.path, other.bytes)
    assert read(hub, 20, 50, SegmentRef(20, 30, "/nowhere", 0), strange)["index"].to_pylist() == list(range(20, 50))
    assert hub.asked == [(20, 30), (30, 40), (40, 50)]


def test_a_file_of_another_hub_under_the_same_name_is_not_ours(tmp_path: Path) -> None:
    """Executors elsewhere, and containers, may have a hub of their own with the same paths."""
    ours = sealed(tmp_path / "ours", 20, 40)
    for number, other in enumerate(({"stream": "other"}, {"partition": 1}, {"size": 4})):
        theirs = sealed(tmp_path / str(number), 20, 40, **other)  # type: ignore[arg-type]
        hub = FakeHub()
        table = read(hub, 20, 40, SegmentRef(20, 40, theirs.path, ours.bytes))
        assert set(table["payload"].to_pylist()) == {b"xxx"}
        assert hub.asked == [(20, 40)]


def test_a_damaged_file_is_never_data(tmp_path: Path) -> None:
    file = sealed(tmp_path, 0, 50)
    data = bytearray(Path(file.path).read_bytes())
    place = data.find(b"xxxxxxxxxxxx")
    data[place + 3] ^= 1
    Path(file.path).write_bytes(data)
    with pytest.raises(Damaged, match="0 to 49"):
        read(FakeHub(), 0, 50, file)


def test_a_hub_that_returns_is_read_on_where_it_was() -> None:
    hub = FakeHub(fail_times=2)
    assert read(hub, 0, 50)["index"].to_pylist() == list(range(50))
    assert hub.asked == [(0, 50), (10, 50), (20, 50)]


def test_a_hub_that_stays_away_is_an_error() -> None:
    def away() -> FakeHub:
        raise Unreachable("nobody there")

    with pytest.raises(Unreachable, match=r"fake.*0\.3 s.*nobody there"):
        HubPort("fake", away, wait_s=0.3).describe(["s"])


@pytest.mark.parametrize(
    ("hub", "named"),
    [(FakeHub(first=20), "0 to 19"), (FakeHub(after=30), "30 to 49"), (FakeHub(missing=range(10, 20)), "10 to 19")],
)
def test_what_is_missing_is_named(hub: FakeHub, named: str) -> None:
    with pytest.raises(DataLoss, match=named):
        read(hub, 0, 50)


def test_what_is_missing_may_be_allowed() -> None:
    shape = Shape(ALL, fail_on_data_loss=False)
    assert read(FakeHub(first=20, after=30), 0, 50, shape=shape)["index"].to_pylist() == list(range(20, 30))


def test_types_and_columns() -> None:
    shape = Shape(pa.schema([("index", pa.int64())]), types=("odd",))
    hub = FakeHub()
    assert read(hub, 0, 10, shape=shape)["index"].to_pylist() == [1, 3, 5, 7, 9]
    assert hub.types == ("odd",)  # what is not wanted does not travel
    assert shape.stored_columns == ["index", "type"]


def test_types_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = pa.schema([("index", pa.int64())])
    file = sealed(tmp_path, 0, 10)
    assert read(FakeHub(), 0, 10, file, shape=Shape(schema, types=("odd",)))["index"].to_pylist() == [1, 3, 5, 7, 9]
    monkeypatch.setattr(Segment, "batch", lambda *_: pytest.fail("its manifest says that it holds no such type"))
    assert read(FakeHub(), 0, 10, file, shape=Shape(schema, types=("other",))).num_rows == 0


def test_a_loss_is_named_although_the_hub_filters() -> None:
    schema = pa.schema([("index", pa.int64())])
    with pytest.raises(DataLoss, match="indexes 0 to 19"):
        read(FakeHub(first=20), 0, 50, shape=Shape(schema, types=("odd",)))
    lenient = Shape(schema, types=("odd",), fail_on_data_loss=False)
    assert read(FakeHub(first=20), 0, 25, shape=lenient)["index"].to_pylist() == [21, 23]


def test_text_payloads_that_are_not_text_are_explained() -> None:
    schema = pa.schema([("payload", pa.string())])
    assert read(FakeHub(), 0, 3, shape=Shape(schema, "string"))["payload"].to_pylist() == ["xxx"] * 3
    bad = pa.record_batch([pa.array([0], pa.int64()), pa.array([b"\xff"])], names=["index", "payload"])
    hub = FakeHub()
    hub.read = lambda *_: iter([bad])  # type: ignore[method-assign]
    with pytest.raises(ValueError, match="UTF-8"):
        read(hub, 0, 1, shape=Shape(schema, "string"))


def test_batches_of_a_good_size() -> None:
    tiny = [records(number, number + 1) for number in range(1000)]
    assert [batch.num_rows for batch in regroup(tiny)] == [1000]
    many = records(0, 3 * ROWS_PER_BATCH_MAX + 5, size=1)
    assert max(batch.num_rows for batch in regroup([many])) <= ROWS_PER_BATCH_MAX
    wide = records(0, 40, size=1 << 20)
    sizes = [batch.nbytes for batch in regroup([wide])]
    assert sum(batch.num_rows for batch in regroup([wide])) == 40
    assert max(sizes) <= BYTES_PER_BATCH_MAX + (1 << 20)
