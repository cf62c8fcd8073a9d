"""Segments: Arrow files that anybody reads, and that we never read wrongly."""

from __future__ import annotations

import pyarrow as pa
import pytest

from headrace.log import segment
from headrace.log.batch import Batch, Columns
from headrace.log.columns import SCHEMA
from headrace.log.segment import Segment, SegmentDamaged, SegmentRef, content_crc, list_segments, write_segment
from headrace.log.store import DirectoryStore
from headrace.testing import FaultyDisk, MemoryDisk


def batches(count: int = 10, base: int = 5, size: int = 20) -> list[pa.RecordBatch]:
    made = Batch.of(
        [bytes([number % 256]) * size for number in range(count)],
        ids=[number if number % 3 else None for number in range(count)],
        types=["even" if number % 2 == 0 else None for number in range(count)],
        keys=[b"k" * number for number in range(count)],
    )
    return [Columns(made.body).to_arrow(base, 1_000_000)]


def make(disk: MemoryDisk, **arguments: int) -> SegmentRef:
    return write_segment(DirectoryStore(disk), "orders", 7, 0, batches(**arguments))


def test_any_arrow_reader_opens_it() -> None:
    disk = MemoryDisk()
    ref = make(disk)
    assert ref.path == "segments/7/0/00000000000000000005-00000000000000000015.arrow"
    table = pa.ipc.open_file(disk.map(ref.path)).read_all()
    assert table.schema.equals(SCHEMA)
    assert table.to_batches()[0].equals(batches()[0])
    assert ref.bytes == disk.size(ref.path)


def test_the_manifest_says_what_is_inside() -> None:
    disk = MemoryDisk()
    manifest = Segment(DirectoryStore(disk), make(disk)).manifest
    assert (manifest.stream, manifest.stream_id, manifest.partition) == ("orders", 7, 0)
    assert (manifest.first, manifest.next, manifest.types) == (5, 15, ["even"])
    assert (manifest.batches[0].time_min_us, manifest.batches[0].time_max_us) == (1_000_000, 1_000_000)


def test_large_segments_have_several_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BATCH_BYTES", 500)
    disk = MemoryDisk()
    opened = Segment(DirectoryStore(disk), make(disk, count=40))
    assert len(opened.manifest.batches) > 2
    for index in range(5, 45):
        assert opened.read(index, 1).column("index").to_pylist() == [index]
    everything = [opened.batch(position) for position in range(len(opened.manifest.batches))]
    assert pa.Table.from_batches(everything).equals(pa.Table.from_batches(batches(40)))
    assert opened.damage() == []


def test_many_types_are_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "TYPES_MAX", 0)
    disk = MemoryDisk()
    assert Segment(DirectoryStore(disk), make(disk)).manifest.types is None


def test_the_checksum_does_not_depend_on_how_arrow_lays_columns_out() -> None:
    whole = batches(20)[0]
    again = pa.RecordBatch.from_pylist(whole.to_pylist(), schema=SCHEMA)
    assert content_crc(whole) == content_crc(again)
    middle = whole.slice(3, 9)
    assert content_crc(middle) == content_crc(pa.RecordBatch.from_pylist(middle.to_pylist(), schema=SCHEMA))
    assert content_crc(middle) != content_crc(whole.slice(4, 9))


def test_every_flipped_bit_is_noticed_or_harmless() -> None:
    disk = MemoryDisk()
    ref = make(disk, count=3)
    truth = batches(3)[0].to_pylist()
    data = disk.read(ref.path)
    noticed = 0
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        disk.put(ref.path, bytes(changed))
        try:
            opened = Segment(DirectoryStore(disk), ref)
            rows = opened.read(5, 10).to_pylist()
        except SegmentDamaged as damage:
            assert (damage.first, damage.last) == (5, 7)
            noticed += 1
        else:
            assert rows == truth
    assert noticed > len(data)  # padding and redundant metadata are the rest


def test_every_truncation_is_noticed() -> None:
    disk = MemoryDisk()
    ref = make(disk, count=3)
    data = disk.read(ref.path)
    for size in range(0, len(data), 7):
        disk.put(ref.path, data[:size])
        with pytest.raises(SegmentDamaged):
            Segment(DirectoryStore(disk), ref)


def test_a_file_under_another_name_is_refused() -> None:
    disk = MemoryDisk()
    ref = make(disk)
    moved = ref._replace(first=6, next=16)
    with pytest.raises(SegmentDamaged):
        Segment(DirectoryStore(disk), moved)
    without = pa.BufferOutputStream()
    with pa.ipc.new_file(without, SCHEMA) as writer:
        writer.write_batch(batches()[0])
    disk.put(ref.path, without.getvalue().to_pybytes())
    with pytest.raises(SegmentDamaged):
        Segment(DirectoryStore(disk), ref)


def test_a_schema_of_another_shape_is_refused() -> None:
    disk = MemoryDisk()
    ref = make(disk)
    metadata = pa.ipc.open_file(disk.map(ref.path)).schema.metadata
    other = batches()[0].drop_columns(["key"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, other.schema.with_metadata(metadata)) as writer:
        writer.write_batch(other)
    disk.put(ref.path, sink.getvalue().to_pybytes())
    with pytest.raises(SegmentDamaged):
        Segment(DirectoryStore(disk), ref)


def test_damage_names_the_batch_and_spares_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment, "BATCH_BYTES", 500)
    disk = MemoryDisk()
    ref = make(disk, count=40)
    data = bytearray(disk.read(ref.path))
    data[data.index(bytes([20]) * 20)] ^= 1
    disk.put(ref.path, bytes(data))
    opened = Segment(DirectoryStore(disk), ref)
    [damage] = opened.damage()
    assert damage.first <= 25 <= damage.last
    assert opened.read(5, 1).num_rows == 1
    assert opened.read(44, 1).num_rows == 1


def test_interrupted_merges_and_seals_leave_nothing_that_counts() -> None:
    disk = MemoryDisk()
    small = [make(disk, base=5, count=5), make(disk, base=10, count=5)]
    merged = make(disk, base=5, count=10)
    disk.put("segments/7/0/00000000000000000015-00000000000000000021.arrow.tmp", b"half")
    later = make(disk, base=15, count=5)
    disk.put("segments/7/0/strange", b"")
    for tidy in (False, True):
        refs, leftovers = list_segments(DirectoryStore(disk), 7, 0, tidy=tidy)
        assert refs == [merged, later]
        assert sorted(leftovers) == [small[0].path, small[1].path, "segments/7/0/strange"]
        assert [path for path in disk.paths() if path.endswith(".tmp")] == [] or not tidy
    assert list_segments(DirectoryStore(disk), 8, 0) == ([], [])


def test_a_segment_is_synced_in_parts() -> None:
    """Or the journal's next sync would wait for all of it."""
    disk = FaultyDisk(MemoryDisk())
    write_segment(DirectoryStore(disk), "orders", 7, 0, batches(count=12, size=segment.BATCH_BYTES))
    calls = [call for call, _ in disk.calls]
    assert calls.count("sync") == 12 * segment.BATCH_BYTES // segment.SYNC_BYTES + 1
    assert calls.count("write") >= 12
