"""The files of the staging area: what a task staged, written chunk by chunk and read slice by slice.

No PySpark here: this runs inside the hub. A batch may be larger than the memory; a slice of it is not.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import google_crc32c
import pyarrow as pa

from headrace.errors import HeadraceError

READ_BYTES = 4 << 20

Group = tuple[str, int, pa.RecordBatch]
"""Rows for one stream partition."""


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

    Read, not mapped: a chunk that comes late may cut the file under us.
    """
    try:
        with pa.OSFile(str(path)) as file:
            found, seen = file.size(), 0
            while chunk := file.read(READ_BYTES):
                seen = google_crc32c.extend(seen, chunk)
            if found != size or seen != crc:
                raise NotStaged(f"{what}: {path.name} is damaged ({found} bytes of {size}); run the batch again")
            file.seek(0)
            with pa.ipc.open_stream(file) as reader:
                yield from _with_destinations(reader)
    except FileNotFoundError:
        raise NotStaged(f"{what}: {path.name} is not staged here; run the batch again") from None


def _with_destinations(reader: pa.ipc.RecordBatchStreamReader) -> Iterator[Group]:
    while True:
        try:
            rows, metadata = reader.read_next_batch_with_custom_metadata()
        except StopIteration:
            return
        yield metadata[b"stream"].decode(), int(metadata[b"partition"]), rows


@dataclass(frozen=True)
class Survey:
    """What a batch consists of: where its rows go, how many slices they are, and the first of them."""

    streams: set[str]
    slices: int
    first: list[Group]


def survey_of(slices: Iterable[list[Group]]) -> Survey:
    """Look at all slices once. A batch without rows is one empty slice."""
    streams: set[str] = set()
    first: list[Group] = []
    count = 0
    for groups in slices:
        streams |= {stream for stream, _, _ in groups}
        first = first or groups
        count += 1
    return Survey(streams, max(1, count), first)


def cut(groups: Iterable[Group], slice_bytes: int) -> Iterator[list[Group]]:
    """The rows in slices of about `slice_bytes`, in order. A record larger than that is a slice of its own.

    Within a slice, the rows of each destination are joined: they become one append.
    """
    gathered: dict[tuple[str, int], list[pa.RecordBatch]] = {}
    room = slice_bytes
    for stream, partition, rows in groups:
        each = max(1, rows.num_rows * slice_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, each):
            piece = rows.slice(start, each)
            if piece.nbytes > room and gathered:
                yield _joined(gathered)
                gathered, room = {}, slice_bytes
            gathered.setdefault((stream, partition), []).append(piece)
            room -= piece.nbytes
    if gathered:
        yield _joined(gathered)


def _joined(gathered: Mapping[tuple[str, int], list[pa.RecordBatch]]) -> list[Group]:
    return [
        (stream, partition, rows[0] if len(rows) == 1 else pa.concat_batches(rows))
        for (stream, partition), rows in gathered.items()
    ]


def sync_files(directory: Path) -> None:
    """Force staged files to the disk, with their names."""
    for path in [*directory.glob("*"), directory]:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def drop_batches(query_path: Path, up_to: int) -> None:
    """Remove the directories of batches up to and with `up_to`."""
    if not query_path.is_dir():
        return
    for entry in query_path.iterdir():
        if entry.name.isdigit() and int(entry.name) <= up_to:
            shutil.rmtree(entry, ignore_errors=True)


def remove_older(directory: Path, before_s: float) -> int:
    """Remove batches that nobody touched since `before_s`; how many."""
    removed = 0
    for batch in directory.glob("*/*"):
        touched_s = max((file.stat().st_mtime for file in batch.glob("*")), default=batch.stat().st_mtime)
        if touched_s < before_s:
            shutil.rmtree(batch, ignore_errors=True)
            removed += 1
    return removed
