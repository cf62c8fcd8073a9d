"""The archive: streams as Parquet files by date, exactly once, for DuckDB, pandas, Spark and whoever comes later.

    <path>/<stream>/date=2026-11-15/<partition>-<first index>-<last index>.parquet

Every file says in its name which records it holds: all from the first to the last index of one partition. That makes
the archive its own ledger. A batch that Spark runs again first removes the files at and above its first index (they
can only be leftovers of the attempt that failed) and then writes them anew. A file appears under its name whole, by a
rename, after it was synced. The pipeline's cursor follows when Spark has noted the batch, so with the stream's option
`retention_cursors` the hub discards only what the archive holds.

Small neighbouring files are joined. If a crash leaves both the joined file and its parts, `covering` reads each record
once, and the next joining removes the parts.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow.parquet as pq

from headrace.spark.errors import PipelineError

COLUMNS = ("stream", "partition", "index", "time", "event_time", "id", "type", "key", "payload")
SMALL_BYTES = 32 << 20
JOIN_FILES_MIN = 8
JOINED_BYTES_MAX = 256 << 20
ROW_GROUP_ROWS = 131_072
_WORK = "_writing"
_NAME = re.compile(r"(\d+)-(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True)
class ArchivedFile:
    """A file and the records that its name promises; `last` is inclusive."""

    path: Path
    partition: int
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.path.stat().st_size


def file_name(partition: int, first: int, last: int) -> str:
    """The name of the file with these records."""
    return f"{partition}-{first:020d}-{last:020d}.parquet"


class Archive:
    """An archive in a directory that this machine can write. One writer at a time."""

    def __init__(self, path: str | Path, *, join_files_min: int = JOIN_FILES_MIN) -> None:
        self.path = Path(path)
        self._join_files_min = join_files_min

    def store(self, batch: Any, batch_id: int) -> None:
        """Write one batch: what `foreachBatch` calls."""
        from pyspark.sql import functions as F

        # Plain microseconds in UTC, which every reader understands, not Spark's older default of 96 bits.
        batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        work = self.path / _WORK / str(batch_id)
        shutil.rmtree(work.parent, ignore_errors=True)
        day = F.date_format("time", "yyyy-MM-dd")
        rows = batch.select(*COLUMNS, F.col("stream").alias("of"), day.alias("date"))
        rows.write.partitionBy("of", "date").option("compression", "zstd").parquet(_location(work))
        arrived = [one for path in sorted(work.rglob("*.parquet")) if (one := _identify(path)) is not None]
        self._remove_leftovers(arrived)
        touched = {self._publish(*one) for one in arrived}
        shutil.rmtree(work.parent, ignore_errors=True)
        for directory in touched:
            _sync(directory)
            self.join(directory)

    def _remove_leftovers(self, arrived: Sequence[tuple[Path, str, str, int, int, int]]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for _, stream, _, partition, first, _ in arrived:
            firsts[stream, partition] = min(first, firsts.get((stream, partition), first))
        for stream in {stream for stream, _ in firsts}:
            for file in self.files(stream):
                if file.first >= firsts.get((stream, file.partition), file.first + 1):
                    file.path.unlink()

    def _publish(self, path: Path, stream: str, date: str, partition: int, first: int, last: int) -> Path:
        directory = self.directory(stream) / f"date={date}"
        directory.mkdir(parents=True, exist_ok=True)
        _sync(path)
        path.replace(directory / file_name(partition, first, last))
        return directory

    def directory(self, stream: str) -> Path:
        """Where the files of a stream are."""
        return self.path / quote(stream, safe="")

    def streams(self) -> list[str]:
        """The streams that have files here."""
        found = (one for one in self.path.iterdir() if one.is_dir()) if self.path.is_dir() else iter(())
        return sorted(unquote(one.name) for one in found if one.name != _WORK)

    def files(self, stream: str) -> list[ArchivedFile]:
        """All files of a stream, by partition and index."""
        found = [_parsed(path) for path in self.directory(stream).glob("date=*/*.parquet")]
        return sorted((one for one in found if one is not None), key=lambda one: (one.partition, one.first, -one.last))

    def covering(self, stream: str) -> list[ArchivedFile]:
        """Files that hold every archived record of a stream once; a gap between them is an error."""
        return list(_cover(self.files(stream), stream))

    def next_indexes(self, stream: str) -> dict[int, int]:
        """By partition, the index after the last that is archived."""
        return {one.partition: one.last + 1 for one in self.covering(stream)}

    def frame(self, spark: Any, stream: str) -> Any:
        """The archived records of a stream as a DataFrame; None when there are none."""
        files = self.covering(stream)
        if not files:
            return None
        return spark.read.parquet(*(_location(one.path) for one in files)).select(*COLUMNS)

    def join(self, directory: Path) -> int:
        """Join small neighbours in one directory; how many files went."""
        found = [_parsed(path) for path in directory.glob("*.parquet")]
        files = sorted((one for one in found if one is not None), key=lambda one: (one.partition, one.first, -one.last))
        gone = _remove_contained(files)
        for run in _small_runs([one for one in files if one.path.exists()]):
            if len(run) >= self._join_files_min:
                gone += self._join_run(directory, run)
        return gone

    def _join_run(self, directory: Path, run: Sequence[ArchivedFile]) -> int:
        target = directory / file_name(run[0].partition, run[0].first, run[-1].last)
        half = directory / f".{target.name}.half"
        schema = pq.read_schema(run[0].path)
        with pq.ParquetWriter(half, schema, compression="zstd") as writer:
            for one in run:
                writer.write_table(
                    pq.read_table(one.path, partitioning=None).cast(schema), row_group_size=ROW_GROUP_ROWS
                )
        _sync(half)
        half.replace(target)
        _sync(directory)
        for one in run:
            one.path.unlink()
        return len(run)


def _identify(path: Path) -> tuple[Path, str, str, int, int, int] | None:
    """What a file that Spark wrote holds: (path, stream, date, partition, first, last). None for an empty one."""
    date = path.parent.name.removeprefix("date=")
    stream = unquote(path.parent.parent.name.removeprefix("of="))
    columns = pq.read_table(path, columns=["partition", "index"], partitioning=None)
    if columns.num_rows == 0:
        return None
    partitions, indexes = columns["partition"].to_numpy(), columns["index"].to_numpy()
    partition, first, last = int(partitions[0]), int(indexes.min()), int(indexes.max())
    if (partitions != partition).any() or last - first + 1 != len(indexes):
        raise PipelineError(f"{path} does not hold one unbroken range of one partition; archive streams as they are")
    return path, stream, date, partition, first, last


def _parsed(path: Path) -> ArchivedFile | None:
    found = _NAME.fullmatch(path.name)
    return None if found is None else ArchivedFile(path, int(found[1]), int(found[2]), int(found[3]))


def _cover(files: Iterable[ArchivedFile], stream: str) -> Iterator[ArchivedFile]:
    expected: dict[int, int] = {}
    for one in files:
        after = expected.get(one.partition)
        if after is not None and one.last < after:
            continue
        if after is not None and one.first != after:
            raise PipelineError(
                f"the archive of stream {stream!r} partition {one.partition} is not whole: {one.path.name} does not "
                f"begin at index {after}"
            )
        expected[one.partition] = one.last + 1
        yield one


def _remove_contained(files: Sequence[ArchivedFile]) -> int:
    gone = 0
    last: dict[int, int] = {}
    for one in files:
        if one.last <= last.get(one.partition, -1):
            one.path.unlink()
            gone += 1
        last[one.partition] = max(one.last, last.get(one.partition, -1))
    return gone


def _small_runs(files: Sequence[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Runs of small files that follow each other without a gap, each not too large when joined."""
    run: list[ArchivedFile] = []
    size = 0
    for one in files:
        follows = bool(run) and one.partition == run[-1].partition and one.first == run[-1].last + 1
        if one.size > SMALL_BYTES or not follows or size + one.size > JOINED_BYTES_MAX:
            if run:
                yield run
            run, size = [], 0
        if one.size <= SMALL_BYTES:
            run.append(one)
            size += one.size
    if run:
        yield run


def _location(path: Path) -> str:
    """A path as Spark takes it: Hadoop does not undo the escapes of a proper URI."""
    return f"file://{path.absolute()}"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
