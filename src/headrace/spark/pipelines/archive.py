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
        touched = {self._publish(one) for one in written}
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
                date.name[len("date=") :],
                file.name,
            ): f"{work}/{of.name}/{date.name}/{file.name}"
            for of in self._storage.list(work)
            for date in (self._storage.list(f"{work}/{of.name}") if of.is_directory else ())
            for file in self._storage.list(f"{work}/{of.name}/{date.name}")
            if file.name.endswith(".parquet")
        }
        if not files:
            return []
        rows = self._spark.read.parquet(*(self._storage.location(one) for one in files.values()))
        day = F.date_format("time", "yyyy-MM-dd").alias("date")
        held = rows.groupBy("stream", day, F.col("_metadata.file_name").alias("file")).agg(
            F.min("partition").alias("partition"),
            F.max("partition").alias("partition_last"),
            F.min("index").alias("first"),
            F.max("index").alias("last"),
            F.count("index").alias("count"),
        )
        return [_identified(one, files[one["stream"], one["date"], one["file"]]) for one in held.collect()]

    def _remove_leftovers(self, written: Sequence[WrittenFile]) -> None:
        firsts: dict[tuple[str, int], int] = {}
        for one in sorted(written, key=lambda one: one.first):
            firsts.setdefault((one.stream, one.partition), one.first)
        for stream in {one.stream for one in written}:
            for file in self.files(stream):
                if file.first >= firsts.get((stream, file.partition), file.first + 1):
                    self._storage.remove(file.path)

    def _publish(self, one: WrittenFile) -> str:
        directory = f"{self.directory(one.stream)}/date={one.date}"
        self._storage.put(one.path, f"{directory}/{file_name(one.partition, one.first, one.last)}")
        return directory

    def directory(self, stream: str) -> str:
        """Where the files of a stream are."""
        return f"{self._path}/{quote(stream, safe='')}"

    def streams(self) -> list[str]:
        """The streams that have files here."""
        found = (one.name for one in self._storage.list(self._path) if one.is_directory)
        return sorted(unquote(name) for name in found if not name.startswith((_WORK, _JOINING)))

    def files(self, stream: str) -> list[ArchivedFile]:
        """All files of a stream, by partition and index."""
        directory = self.directory(stream)
        days = [one.name for one in self._storage.list(directory) if one.is_directory and one.name.startswith("date=")]
        return _ordered(file for day in days for file in self._files_in(f"{directory}/{day}"))

    def _files_in(self, directory: str) -> Iterator[ArchivedFile]:
        for one in self._storage.list(directory):
            found = _NAME.fullmatch(one.name)
            if found is not None:
                yield ArchivedFile(f"{directory}/{one.name}", int(found[1]), int(found[2]), int(found[3]), one.size)

    def covering(self, stream: str) -> list[ArchivedFile]:
        """Files that hold every archived record of a stream once; a gap between them is an error."""
        return list(_cover(self.files(stream), stream))

    def ranges(self, stream: str) -> dict[int, tuple[int, int]]:
        """By partition, the first index that is archived and the one after the last."""
        ranges: dict[int, tuple[int, int]] = {}
        for one in self.covering(stream):
            ranges[one.partition] = (ranges.get(one.partition, (one.first, 0))[0], one.last + 1)
        return ranges

    def frame(self, stream: str) -> Any:
        """The archived records of a stream as a DataFrame; None when there are none."""
        files = self.covering(stream)
        if not files:
            return None
        whole = [self._storage.location(one.path) for one in files if one.begin <= one.first]
        found = self._spark.read.parquet(*whole).select(*COLUMNS)
        for one in files:
            if one.begin > one.first:
                part = self._spark.read.parquet(self._storage.location(one.path)).select(*COLUMNS)
                found = found.union(part.where(part["index"] >= one.begin))
        return found

    def join(self, directory: str) -> int:
        """Join small neighbours in one directory; how many files went."""
        files = _ordered(self._files_in(directory))
        contained = _contained(files)
        for one in contained:
            self._storage.remove(one.path)
        gone = len(contained)
        for run in _small_runs([one for one in files if one not in contained]):
            if len(run) >= self._join_files_min:
                gone += self._join_run(directory, run)
        return gone

    def _join_run(self, directory: str, run: Sequence[ArchivedFile]) -> int:
        work = self._joining
        self._storage.remove(work)
        parts = self._spark.read.parquet(*(self._storage.location(one.path) for one in run)).select(*COLUMNS)
        self._write(parts.coalesce(1).sortWithinPartitions("index"), work)
        (joined,) = [one.name for one in self._storage.list(work) if one.name.endswith(".parquet")]
        target = file_name(run[0].partition, run[0].first, run[-1].last)
        self._storage.put(f"{work}/{joined}", f"{directory}/{target}")
        self._storage.settle(directory)
        for one in run:
            self._storage.remove(one.path)
        self._storage.remove(work)
        return len(run)


def _identified(held: Any, path: str) -> WrittenFile:
    if held["partition"] != held["partition_last"] or held["last"] - held["first"] + 1 != held["count"]:
        raise PipelineError(f"{path} does not hold one unbroken range of one partition; archive streams as they are")
    return WrittenFile(path, held["stream"], held["date"], held["partition"], held["first"], held["last"])


def _ordered(files: Iterable[ArchivedFile]) -> list[ArchivedFile]:
    return sorted(files, key=lambda one: (one.partition, one.first, -one.last))


def _cover(files: Iterable[ArchivedFile], stream: str) -> Iterator[ArchivedFile]:
    """Files may overlap: a pipeline that was reset begins its first file anywhere in what was joined before."""
    expected: dict[int, int] = {}
    for one in files:
        after = expected.get(one.partition)
        if after is not None and one.last < after:
            continue
        if after is not None and one.first > after:
            raise PipelineError(
                f"the archive of stream {stream!r} partition {one.partition} is not whole: {one.path} does not "
                f"begin at index {after}"
            )
        expected[one.partition] = one.last + 1
        yield one if after is None else replace(one, begin=after)


def _contained(files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
    """Files whose records a larger file holds too: the parts of a joined one."""
    contained = []
    last: dict[int, int] = {}
    for one in files:
        if one.last <= last.get(one.partition, -1):
            contained.append(one)
        else:
            last[one.partition] = one.last
    return contained


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
