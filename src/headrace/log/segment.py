"""Segments: sealed records of one partition as an Arrow IPC file that any Arrow reader opens as it is.

    segments/<stream id>/<partition>/<first index, 20 digits>-<next index, 20 digits>.arrow
    (in a shared store `…-<hub>.arrow`)

The file has the columns of `records.SCHEMA`, uncompressed, in record batches of about `BATCH_BYTES`. Arrow has no
checksums of its own, so the schema's metadata has one entry, `headrace`: MessagePack of `Manifest` with a CRC-32C of
the contents of every record batch, and behind it the CRC-32C of the manifest itself. A batch is checked when it is
first touched; one that fails is never served.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.log.columns import SCHEMA
from headrace.log.records import concat
from headrace.log.store import NewBlob, Store

DIRECTORY = "segments"
SUFFIX = ".arrow"
NAME = re.compile(r"([0-9]{20})-([0-9]{20})\.arrow")
INDEXES_MAX = 2**63 - 1
METADATA_KEY = b"headrace"
BATCH_BYTES = 1024 * 1024
SYNC_BYTES = 4 * 1024 * 1024
"""So much of a new segment is handed to the disk before the rest waits for it."""
TYPES_MAX = 32
"""How many distinct types a manifest lists; with more it lists none."""


class SegmentRef(NamedTuple):
    """A segment, known by its name."""

    first: int
    next: int
    path: str
    """Its name in the store."""
    bytes: int


class BatchManifest(msgspec.Struct, frozen=True, array_like=True):
    """One record batch of a segment: how to check it, and what it can be skipped for."""

    first: int
    count: int
    crc: int
    time_min_us: int
    time_max_us: int


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """What a segment says of itself."""

    stream: str
    stream_id: int
    partition: int
    first: int
    next: int
    batches: list[BatchManifest]
    types: list[str] | None


class SegmentDamaged(Exception):
    """Records first to last (inclusive) of a segment fail their checksum."""

    def __init__(self, first: int, last: int, path: str) -> None:
        super().__init__(f"{path}: indexes {first} to {last}")
        self.first = first
        self.last = last
        self.path = path


def folder(stream_id: int) -> str:
    return f"{DIRECTORY}/{stream_id}"


def name_of(stream_id: int, partition: int, first: int, next_index: int, tag: str = "") -> str:
    return f"{folder(stream_id)}/{partition}/{first:020d}-{next_index:020d}{tag}{SUFFIX}"


def list_segments(
    store: Store, stream_id: int, partition: int, *, tidy: bool = False
) -> tuple[list[SegmentRef], list[str]]:
    """The segments that count, oldest first, and what is left over from an interrupted merge."""
    refs = []
    leftovers = []
    for last in store.list(f"{folder(stream_id)}/{partition}", tidy=tidy):
        name = f"{folder(stream_id)}/{partition}/{last}"
        bounds = _parse_name(last)
        if bounds is None:
            leftovers.append(name)
        else:
            refs.append(SegmentRef(*bounds, name, store.size(name)))
    kept: list[SegmentRef] = []
    for ref in sorted(refs, key=lambda ref: (ref.first, -ref.next)):
        if kept and ref.next <= kept[-1].next:
            leftovers.append(ref.path)  # a merge was interrupted after the larger file was in place
        else:
            kept.append(ref)
    return kept, leftovers


def _parse_name(name: str) -> tuple[int, int] | None:
    match = NAME.fullmatch(name)
    if match is None:
        return None
    first, next_index = int(match[1]), int(match[2])
    return (first, next_index) if first < next_index <= INDEXES_MAX else None


def write_segment(
    store: Store, stream: str, stream_id: int, partition: int, batches: list[pa.RecordBatch], tag: str = ""
) -> SegmentRef:
    """Put records in place as one durable segment. They are contiguous and at least one."""
    chunks = list(_rechunk(batches))
    first = chunks[0].column(0)[0].as_py()
    next_index = first + sum(chunk.num_rows for chunk in chunks)
    manifest = Manifest(
        stream, stream_id, partition, first, next_index, [_describe(chunk) for chunk in chunks], _types(chunks)
    )
    encoded = msgspec.msgpack.encode(manifest)
    schema = SCHEMA.with_metadata({METADATA_KEY: encoded + crc32c(encoded).to_bytes(4, "little")})
    with store.create(name_of(stream_id, partition, first, next_index, tag)) as blob:
        size = _write_batches(blob, schema, chunks)
    return SegmentRef(first, next_index, blob.name, size)


def _write_batches(blob: NewBlob, schema: pa.Schema, chunks: list[pa.RecordBatch]) -> int:
    """Write an Arrow file and return its size. The disk is given it by the megabyte and not as a whole, or the
    journal's next sync would wait for all of it."""
    sink = _Sink(blob)
    synced = 0
    with pa.PythonFile(sink, mode="w") as stream, pa.ipc.new_file(stream, schema) as writer:
        for chunk in chunks:
            writer.write_batch(pa.RecordBatch.from_arrays(chunk.columns, schema=schema))
            if sink.gathered_bytes >= BATCH_BYTES // 2:
                sink.flush()
                blob.begin_sync()
            if sink.tell() - synced >= SYNC_BYTES:
                blob.sync()
                synced = sink.tell()
    return sink.tell()


class _Sink:
    """What Arrow writes to: its pieces are gathered, and go to the store in one call. Each call costs this thread its
    turn, and a record batch has more than twenty pieces."""

    closed = False

    def __init__(self, blob: NewBlob) -> None:
        self._blob = blob
        self._gathered: list[bytes | memoryview] = []
        self._size = 0
        self.gathered_bytes = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        self._gathered.append(memoryview(data))
        self._size += len(data)
        self.gathered_bytes += len(data)
        return len(data)

    def flush(self) -> None:
        self._blob.write(*self._gathered)
        self._gathered.clear()
        self.gathered_bytes = 0

    def tell(self) -> int:
        return self._size

    def close(self) -> None:
        self.flush()
        self.closed = True


def _rechunk(batches: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same records in batches of about BATCH_BYTES; what is near that already is not copied."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pieces = max(1, round(batch.nbytes / BATCH_BYTES))
        rows_each = -(-batch.num_rows // pieces)
        for start in range(0, batch.num_rows, rows_each):
            piece = batch.slice(start, rows_each)
            gathered.append(piece)
            size += piece.nbytes
            if size >= BATCH_BYTES // 4:
                yield concat(gathered)
                gathered, size = [], 0
    if gathered:
        yield concat(gathered)


def _describe(batch: pa.RecordBatch) -> BatchManifest:
    times = batch.column(1).cast(pa.int64())
    return BatchManifest(
        batch.column(0)[0].as_py(), batch.num_rows, content_crc(batch), times[0].as_py(), times[-1].as_py()
    )


def _types(batches: list[pa.RecordBatch]) -> list[str] | None:
    types: set[str] = set()
    for batch in batches:
        types.update(pc.unique(batch.column(4).drop_null()).to_pylist())
        if len(types) > TYPES_MAX:
            return None
    return sorted(types)


def content_crc(batch: pa.RecordBatch) -> int:
    """A checksum of what the columns say, the same however Arrow has laid them out in memory."""
    crc = crc32c(batch.num_rows.to_bytes(8, "little"))
    for column in batch.columns:
        for part in _content(column):
            crc = crc32c_extend(crc, part)
    return int(crc)


def _content(column: pa.Array) -> Iterator[bytes | pa.Buffer]:
    """The bytes that define an array: validity, then values or offsets from 0 and data.

    The bitmap itself counts, not only the number of nulls that Arrow keeps beside it: either may rot alone."""
    count = len(column)
    buffers = column.buffers()
    yield column.null_count.to_bytes(8, "little", signed=True)
    if buffers[0] is not None:
        bits = np.unpackbits(np.frombuffer(buffers[0], np.uint8), bitorder="little")
        valid = bits[column.offset : column.offset + count]
        if not valid.any():
            yield b"all null"
            return
        if not valid.all():
            yield np.packbits(valid).tobytes()
    if len(buffers) == 2:
        yield buffers[1].slice(8 * column.offset, 8 * count)
        return
    offsets = np.frombuffer(buffers[1], np.int32, count + 1, 4 * column.offset)
    start, end = int(offsets[0]), int(offsets[-1])
    yield (offsets - np.int32(start) if start else offsets).tobytes()
    if end > start:
        yield buffers[2].slice(start, end - start)


class Segment:
    """An open segment. Reading is thread safe: two threads may at worst check the same batch twice."""

    def __init__(self, store: Store, ref: SegmentRef) -> None:
        self.ref = ref
        try:
            self._reader = pa.ipc.open_file(pa.BufferReader(store.map(ref.path)))
            self.manifest = self._read_manifest()
        except (pa.ArrowException, msgspec.MsgspecError, ValueError, OSError, KeyError, TypeError) as error:
            raise SegmentDamaged(ref.first, ref.next - 1, ref.path) from error
        self._firsts = [batch.first for batch in self.manifest.batches]
        self._checked: set[int] = set()

    def _read_manifest(self) -> Manifest:
        stored = self._reader.schema.metadata[METADATA_KEY]
        encoded = stored[:-4]
        if crc32c(encoded).to_bytes(4, "little") != stored[-4:]:
            raise ValueError("the manifest fails its checksum")
        manifest = msgspec.msgpack.decode(encoded, type=Manifest)
        rows = sum(batch.count for batch in manifest.batches)
        if (manifest.first, manifest.next, rows) != (self.ref.first, self.ref.next, self.ref.next - self.ref.first):
            raise ValueError("the manifest is of another segment")
        if not self._reader.schema.equals(SCHEMA) or self._reader.num_record_batches != len(manifest.batches):
            raise ValueError("the file is not what its manifest says")
        return manifest

    def batch_position(self, index: int) -> int:
        """Which record batch holds an index of this segment."""
        return int(np.searchsorted(self._firsts, index, side="right")) - 1

    def batch(self, position: int) -> pa.RecordBatch:
        """One record batch, checked."""
        expected = self.manifest.batches[position]
        try:
            batch = self._reader.get_batch(position)
            if position not in self._checked:
                batch.validate()  # before anything looks behind the offsets
                if batch.num_rows != expected.count or content_crc(batch) != expected.crc:
                    raise ValueError("the records fail their checksum")
                self._checked.add(position)
        except (pa.ArrowException, ValueError, OSError, OverflowError, TypeError, AttributeError) as error:
            raise SegmentDamaged(expected.first, expected.first + expected.count - 1, self.ref.path) from error
        return batch

    def read(self, start: int, limit: int) -> pa.RecordBatch:
        """Records from `start`, at most `limit`, never across record batches of the file."""
        position = self.batch_position(start)
        batch = self.batch(position)
        return batch.slice(start - self.manifest.batches[position].first, limit)

    def damage(self) -> list[SegmentDamaged]:
        """Check everything."""
        damages = []
        for position in range(len(self.manifest.batches)):
            try:
                self.batch(position)
            except SegmentDamaged as damage:
                damages.append(damage)
        return damages
