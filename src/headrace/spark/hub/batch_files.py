"""The files of the staging area: what a task staged, written chunk by chunk and read slice by slice.

A batch may be larger than the memory; a slice of it is not.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa

from headrace.errors import HeadraceError
from headrace.log.batch import Batch
from headrace.spark.pipelines.archive_storage import sync

READ_BYTES = 4 << 20

Group = tuple[str, int, pa.RecordBatch]
"""Rows for one stream partition."""

_ONE_OFF = re.compile(r"write/[0-9a-f]{32}")


def one_off_name() -> str:
    """What a write without a name of its own is called: nobody writes under that name again."""
    return f"write/{uuid.uuid4().hex}"


def is_one_off(query: str) -> bool:
    """Whether a query can never come back under this name."""
    return _ONE_OFF.fullmatch(query) is not None


class NotStaged(HeadraceError):
    """The rows that a commit names are not here, or not whole."""

    code = "not-staged"


def write_chunk(path: Path, offset: int, chunk: bytes) -> int:
    """Put a chunk at its place and cut what follows: a chunk sent twice leaves the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "w+b") as file:
        size = file.seek(0, 2)
        if offset > size:
            raise NotStaged(f"a staged chunk begins at {offset} but only {size} bytes came before it; run it again")
        file.seek(offset)
        file.write(chunk)
        file.truncate()
    return offset + len(chunk)


def staged_rows(path: Path, size: int, crc: int, what: str) -> Iterator[Group]:
    """The rows of one staged file with where they go, a batch at a time; NotStaged when it is missing or not whole.
    Nobody may write to the file meanwhile."""
    try:
        with pa.OSFile(str(path)) as file:
            stored, checksum = file.size(), 0
            while chunk := file.read(READ_BYTES):
                checksum = google_crc32c.extend(checksum, chunk)
            if stored != size or checksum != crc:
                raise NotStaged(f"{what}: {path.name} is damaged ({stored} bytes of {size}); run the batch again")
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield from groups_of(reader)
    except FileNotFoundError:
        raise NotStaged(f"{what}: {path.name} is not staged here; run the batch again") from None


def groups_of(reader: pa.RecordBatchStreamReader) -> Iterator[Group]:
    """The batches of an Arrow IPC stream, each with where it says that it goes."""
    for rows, metadata in reader.iter_batches_with_custom_metadata():
        yield metadata[b"stream"].decode(), int(metadata[b"partition"]), rows


@dataclass(frozen=True)
class Survey:
    """What a batch consists of: where its rows go (for each stream the highest partition), how many slices they are,
    the first of them; and when there are several, the largest record and slice in bytes."""

    streams: dict[str, int]
    slices: int
    first: list[Group]
    record_bytes: int = 0
    slice_bytes: int = 0


def survey_of(slices: Iterable[list[Group]]) -> Survey:
    """Look at all slices once. A batch without rows is one empty slice."""
    streams: dict[str, int] = {}
    first: list[Group] = []
    sizes: list[tuple[int, int]] = []
    count = 0
    for count, groups in enumerate(slices, 1):
        for stream, partition, _ in groups:
            streams[stream] = max(partition, streams.get(stream, 0))
        if count == 1:
            first = groups
            continue
        if count == 2:  # one slice alone is measured by the log, which takes it or not
            sizes.append(_sizes(first))
        sizes.append(_sizes(groups))
    record_bytes, slice_bytes = map(max, zip(*sizes, strict=True)) if sizes else (0, 0)
    return Survey(streams, max(1, count), first, record_bytes, slice_bytes)


def _sizes(groups: list[Group]) -> tuple[int, int]:
    """The largest record of a slice, and all of it, as the log counts."""
    encoded = [Batch.from_arrow(rows) for _, _, rows in groups]
    return max(batch.largest for batch in encoded), sum(batch.nbytes for batch in encoded)


def cut(groups: Iterable[Group], slice_bytes: int) -> Iterator[list[Group]]:
    """The rows in slices of about `slice_bytes`, in order. A record larger than that is a slice of its own.

    Within a slice, the rows of each destination are joined: they become one append.
    """
    gathered: dict[tuple[str, int], list[pa.RecordBatch]] = {}
    room = slice_bytes
    for stream, partition, rows in groups:
        for piece in _pieces(rows, slice_bytes):
            if piece.nbytes > room and gathered:
                yield _joined(gathered)
                gathered, room = {}, slice_bytes
            gathered.setdefault((stream, partition), []).append(piece)
            room -= piece.nbytes
    if gathered:
        yield _joined(gathered)


def _pieces(rows: pa.RecordBatch, piece_bytes: int) -> Iterator[pa.RecordBatch]:
    """Rows in pieces of at most `piece_bytes`, or of one record. Records may differ in size: each piece is measured."""
    count = max(1, rows.num_rows * piece_bytes // max(1, rows.nbytes))
    if count >= rows.num_rows:
        yield rows
        return
    for start in range(0, rows.num_rows, count):
        yield from _pieces(rows.slice(start, count), piece_bytes)


def _joined(gathered: Mapping[tuple[str, int], list[pa.RecordBatch]]) -> list[Group]:
    return [
        (stream, partition, rows[0] if len(rows) == 1 else pa.concat_batches(rows))
        for (stream, partition), rows in gathered.items()
    ]


def sync_files(directory: Path) -> None:
    """Force staged files to the disk, with their names and those of the directories that lead to them."""
    for path in [*directory.glob("*"), directory, directory.parent, directory.parent.parent]:
        sync(path)


def drop_batches(query_path: Path, up_to: int) -> None:
    """Remove the directories of batches up to and with `up_to`."""
    for entry in query_path.glob("*"):
        if entry.name.isdigit() and int(entry.name) <= up_to:
            shutil.rmtree(entry, ignore_errors=True)


def remove_older(directory: Path, before_s: float, needed: Set[Path]) -> None:
    """Remove batches that nobody touched since `before_s`, except those still needed."""
    for batch in set(directory.glob("*/*")) - needed:
        touched_s = max((file.stat().st_mtime for file in batch.glob("*")), default=batch.stat().st_mtime)
        if touched_s < before_s:
            shutil.rmtree(batch, ignore_errors=True)
