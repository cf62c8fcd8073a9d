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

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from pyspark.sql import functions as F

from headrace.log.columns import SCHEMA
from headrace.spark.errors import PipelineError
from headrace.spark.pipelines.archive_storage import storage_of
from headrace.spark.pipelines.checkpoints import directory_name

COLUMNS = ("stream", "partition", *SCHEMA.names)
SMALL_BYTES = 32 << 20
JOIN_FILES_MIN = 8
JOINED_BYTES_MAX = 256 << 20
# What is being written. No stream's directory has an "@" in its name, and readers pass over names that begin with "_".
_WORK = "_writing@"
_JOINING = "_joining@"
_NAME = re.compile(r"(\d+)-(\d{20})-(\d{20})\.parquet")


@dataclass(frozen=True)
class ArchivedFile:
    """A file and the records that its name promises, `last` included. Those below `begin` are in the file before."""

    path: str
    partition: int
    first: int
    last: int
    size: int = 0
    begin: int = 0


@dataclass(frozen=True)
class WrittenFile:
    """A file that Spark has just written, and what it holds."""

    path: str
    stream: str
    date: str
    partition: int
    first: int
    last: int


def file_name(partition: int, first: int, last: int) -> str:
    """The name of the file with these records."""
    return f"{partition}-{first:020d}-{last:020d}.parquet"


class Archive:
    """An archive at a path that Spark can write. Each stream has one writer at a time; writers of different streams
    share the path and are told apart by their names."""

    def __init__(
        self, path: str | Path, spark: Any, *, writer: str = "archive", join_files_min: int = JOIN_FILES_MIN
    ) -> None:
        self._spark = spark
        self._storage, self._path = storage_of(str(path), spark)
        self._work = f"{self._path}/{_WORK}{directory_name(writer)}"
        self._joining = f"{self._path}/{_JOINING}{directory_name(writer)}"
        self._join_files_min = join_files_min

    def store(self, batch: Any, batch_id: int) -> None:
        """Write one batch: what `foreachBatch` calls."""
        work = self._work
        self._storage.remove(work)
        day = F.date_format("time", "yyyy-MM-dd")
        rows = batch.select(*COLUMNS, F.col("stream").alias("of"), day.alias("date"))
        self._write(rows, f"{work}/{batch_id}", "of", "date")
        written = self._written(f"{work}/{batch_id}")
        self._remove_leftovers(written)
        touched = {self._publish(file) for file in written}
        self._storage.remove(work)
        for directory in sorted(touched):
            self._storage.settle(directory)
            self.join(directory)

    def _write(self, rows: Any, to: str, *by: str) -> None:
        # Plain microseconds in UTC, which every reader understands, not Spark's older default of 96 bits.
        rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        writer = rows.write.option("compression", "zstd")
        (writer.partitionBy(*by) if by else writer).parquet(self._storage.location(to))

    def _written(self, work: str) -> list[WrittenFile]:
        """What Spark has just written, file by file, from the files themselves."""
        files = {
            (
                unquote(of.name[len("of=") :]),
                day.name[len("date=") :],
                file.name,
            ): f"{work}/{of.name}/{day.name}/{file.name}"
            for of in self._storage.list(work)
            for day in (self._storage.list(f"{work}/{of.name}") if of.is_directory else ())
            for file in self._storage.list(f"{work}/{of.name}/{day.name}")
            if file.name.endswith(".parquet")
        }
        if not files:
            return []
        rows = self._spark.read.parquet(*(self._storage.location(path) for path in files.values()))
        day = F.date_format("time", "yyyy-MM-dd").alias("date")
        held = rows.groupBy("stream", day, F.col("_metadata.file_name").alias("file")).agg(
            F.min("partition").alias("partition"),
            F.max("partition").alias("partition_last"),
            F.min("index").alias("first"),
            F.max("index").alias("last"),
            F.count("index").alias("count"),
        )
        return [_identified(row, files[row["stream"], row["date"], row["file"]]) for row in held.collect()]

    def _remove_leftovers(self, written: Sequence[WrittenFile]) -> None:
        written = sorted(written, key=lambda file: -file.first)
        firsts = {(file.stream, file.partition): file.first for file in written}  # the lowest comes last and stays
        for stream in {file.stream for file in written}:
            for old in self.files(stream):
                if old.first >= firsts.get((stream, old.partition), old.first + 1):
                    self._storage.remove(old.path)

    def _publish(self, file: WrittenFile) -> str:
        directory = f"{self.directory(file.stream)}/date={file.date}"
        self._storage.put(file.path, f"{directory}/{file_name(file.partition, file.first, file.last)}")
        return directory

    def directory(self, stream: str) -> str:
        """Where the files of a stream are."""
        return f"{self._path}/{quote(stream, safe='')}"

    def streams(self) -> list[str]:
        """The streams that have files here."""
        names = (entry.name for entry in self._storage.list(self._path) if entry.is_directory)
        return sorted(unquote(name) for name in names if not name.startswith((_WORK, _JOINING)))

    def files(self, stream: str) -> list[ArchivedFile]:
        """All files of a stream, by partition and index."""
        directory = self.directory(stream)
        days = [day.name for day in self._storage.list(directory) if day.is_directory and day.name.startswith("date=")]
        return _ordered(file for day in days for file in self._files_in(f"{directory}/{day}"))

    def _files_in(self, directory: str) -> Iterator[ArchivedFile]:
        for entry in self._storage.list(directory):
            if (match := _NAME.fullmatch(entry.name)) is not None:
                partition, first, last = map(int, match.groups())
                yield ArchivedFile(f"{directory}/{entry.name}", partition, first, last, entry.size)

    def covering(self, stream: str) -> list[ArchivedFile]:
        """Files that hold every archived record of a stream once; a gap between them is an error."""
        return list(_cover(self.files(stream), stream))

    def ranges(self, stream: str) -> dict[int, tuple[int, int]]:
        """By partition, the first index that is archived and the one after the last."""
        ranges: dict[int, tuple[int, int]] = {}
        for file in self.covering(stream):
            ranges[file.partition] = (ranges.get(file.partition, (file.first, 0))[0], file.last + 1)
        return ranges

    def frame(self, stream: str) -> Any:
        """The archived records of a stream as a DataFrame; None when there are none."""
        files = self.covering(stream)
        if not files:
            return None
        locations = [self._storage.location(file.path) for file in files if file.begin <= file.first]
        frame = self._spark.read.parquet(*locations).select(*COLUMNS)
        for file in files:
            if file.begin > file.first:
                part = self._spark.read.parquet(self._storage.location(file.path)).select(*COLUMNS)
                frame = frame.union(part.where(part["index"] >= file.begin))
        return frame

    def join(self, directory: str) -> int:
        """Join small neighbours in one directory; how many files went."""
        files = _ordered(self._files_in(directory))
        contained = _contained(files)
        for file in contained:
            self._storage.remove(file.path)
        gone = len(contained)
        for run in _small_runs([file for file in files if file not in contained]):
            if len(run) >= self._join_files_min:
                gone += self._join_run(directory, run)
        return gone

    def _join_run(self, directory: str, run: Sequence[ArchivedFile]) -> int:
        work = self._joining
        self._storage.remove(work)
        parts = self._spark.read.parquet(*(self._storage.location(file.path) for file in run)).select(*COLUMNS)
        self._write(parts.coalesce(1).sortWithinPartitions("index"), work)
        (joined,) = [entry.name for entry in self._storage.list(work) if entry.name.endswith(".parquet")]
        target = file_name(run[0].partition, run[0].first, run[-1].last)
        self._storage.put(f"{work}/{joined}", f"{directory}/{target}")
        self._storage.settle(directory)
        for file in run:
            self._storage.remove(file.path)
        self._storage.remove(work)
        return len(run)


def _identified(held: Any, path: str) -> WrittenFile:
    if held["partition"] != held["partition_last"] or held["last"] - held["first"] + 1 != held["count"]:
        raise PipelineError(f"{path} does not hold one unbroken range of one partition; archive streams as they are")
    return WrittenFile(path, held["stream"], held["date"], held["partition"], held["first"], held["last"])


def _ordered(files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    return sorted(files, key=lambda file: (file.partition, file.first, -file.last))


def _cover(files: Iterable[ArchivedFile], stream: str) -> Iterator[ArchivedFile]:
    """Files may overlap: a pipeline that was reset begins its first file anywhere in what was joined before."""
    expected: dict[int, int] = {}
    for file in files:
        after = expected.get(file.partition)
        if after is not None and file.last < after:
            continue
        if after is not None and file.first > after:
            raise PipelineError(
                f"the archive of stream {stream!r} partition {file.partition} is not whole: {file.path} does not "
                f"begin at index {after}"
            )
        expected[file.partition] = file.last + 1
        yield file if after is None else replace(file, begin=after)


def _contained(files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    """Files whose records a larger file holds too: the parts of a joined one."""
    contained = []
    last: dict[int, int] = {}
    for file in files:
        if file.last <= last.get(file.partition, -1):
            contained.append(file)
        else:
            last[file.partition] = file.last
    return contained


def _small_runs(files: Sequence[ArchivedFile]) -> Iterator[list[ArchivedFile]]:
    """Runs of small files that follow each other without a gap, each not too large when joined."""
    run: list[ArchivedFile] = []
    size = 0
    for file in files:
        follows = bool(run) and file.partition == run[-1].partition and file.first == run[-1].last + 1
        if file.size > SMALL_BYTES or not follows or size + file.size > JOINED_BYTES_MAX:
            if run:
                yield run
            run, size = [], 0
        if file.size <= SMALL_BYTES:
            run.append(file)
            size += file.size
    if run:
        yield run
