"""The hub's side of the Spark sink: rows wait here until their batch is committed, then become records at once.

No PySpark here: this runs inside the hub.

On disk, under `<data>/spark-staging/`, one directory per (query, batch) and one file per (part, attempt), an Arrow IPC
stream. Files, not memory: a batch may be large, and what was staged outlives a restart of the hub, so a running query
need not begin its batch again. They are not synced; after a power cut a file may be short, its checksum says so, and
the query stages again.

The table `spark/sinks` holds one `SinkState` per query: the last batch, recent digests, the run in charge, and how far
the sources had been read. A commit appends the rows and replaces that value in one transaction, so either all of it
happened or none. The cursors of the sources are not moved here but when Spark has noted the batch too (cursors.py):
until then Spark may read the same records again, and a cursor that was ahead of it would let retention take them away.

A batch that is larger than one transaction may be (`log.batch_bytes_max`) is stored in steps. Its files are synced and
the commit itself is written down in the table `spark/commits` first; each step appends a slice and notes how many are
done. Whatever stops it, the next commit or stage of the query, or the next start of the hub, finishes it from the same
files: it is still stored exactly once, only not in one instant.

The rules for a commit of batch b with digest d by run r:

    r was replaced by a newer run          → refused: two drivers work on one checkpoint, the older must stop
    b is newer than the last batch         → appended
    b is known with the same digest d      → acknowledged again, nothing stored
    b is known with another digest         → refused: the checkpoint was lost or changed behind the hub's back
    b is older than what is remembered     → refused, for the same reason
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import google_crc32c
import msgspec
import pyarrow as pa

from headrace.errors import BadRequest, Forbidden, HeadraceError

SINKS = "spark/sinks"
UNFINISHED = "spark/commits"
BATCHES_REMEMBERED = 16
RUNS_REMEMBERED = 16
LEFTOVERS_EXPIRE_S_DEFAULT = 3600.0
_SWEEP_INTERVAL_S = 60.0


class Fenced(HeadraceError):
    """A newer run of the same query is in charge."""

    code = "fenced"


class BatchChanged(HeadraceError):
    """A batch that was committed already is offered again with other contents."""

    code = "batch-changed"


class NotStaged(HeadraceError):
    """The rows that a commit names are not here, or not whole."""

    code = "not-staged"


class SourcePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far the reader behind a cursor had come when a batch was stored; `next` by partition."""

    cursor: str
    stream: str
    next: list[int]


class SinkState(msgspec.Struct, frozen=True):
    """What the hub remembers of a query that writes."""

    batch: int
    run: str
    digests: list[tuple[int, str]]
    replaced_runs: list[str]
    time_us: int
    sources: list[SourcePosition] = []


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk of a task's rows. The same chunk may come twice."""

    query: str
    run: str
    batch: int
    part: int
    attempt: int
    offset: int
    rows: bytes


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a task staged, as the driver knows it."""

    part: int
    attempt: int
    size: int
    crc: int


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a batch staged, in order."""

    query: str
    run: str
    batch: int
    digest: str
    parts: list[Part]
    sources: list[SourcePosition] = []
    partitions: int = 1


class Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that will not be committed by this run."""

    query: str
    run: str
    batch: int


class AppendedTo(msgspec.Struct, frozen=True):
    """Where rows of a commit went."""

    stream: str
    partition: int
    first: int
    count: int


class Committed(msgspec.Struct, frozen=True):
    """The answer to a commit; `applied` is false when the batch was stored before."""

    applied: bool
    appended: list[AppendedTo] = []


class Unfinished(msgspec.Struct, frozen=True):
    """A commit that is being stored in steps, and how many slices are stored."""

    commit: Commit
    slices_done: int = 0


Verdict = Literal["new", "again"]
Group = tuple[str, int, pa.RecordBatch]
"""Rows for one stream partition."""


def judge(state: SinkState | None, commit: Commit) -> Verdict:
    """The rules in the module's head, as a function."""
    if state is None:
        return "new"
    check_run(state, commit.query, commit.run)
    if commit.batch > state.batch:
        return "new"
    known = dict(state.digests).get(commit.batch)
    if known == commit.digest:
        return "again"
    was = "is no longer remembered" if known is None else f"was stored with digest {known}"
    raise BatchChanged(
        f"query {commit.query}: batch {commit.batch} is offered with digest {commit.digest}, but it {was} (the last is "
        f"batch {state.batch}). Its checkpoint has gone back behind what is stored, as after a power cut or a restored "
        "copy. Nothing was appended. Start the query with a fresh checkpoint and start=cursor to go on from where the "
        "stored results end"
    )


def check_run(state: SinkState, query: str, run: str) -> None:
    """Refuse a run that was replaced."""
    if run in state.replaced_runs:
        raise Fenced(f"query {query}: run {run} was replaced by run {state.run}; only one driver may run a query")


def after_commit(state: SinkState | None, commit: Commit, time_us: int) -> SinkState:
    """The state once a batch is stored."""
    digests = [] if state is None else list(state.digests)
    return SinkState(
        batch=commit.batch,
        run=commit.run,
        digests=[*digests, (commit.batch, commit.digest)][-BATCHES_REMEMBERED:],
        replaced_runs=_replaced(state, commit.run),
        time_us=time_us,
        sources=commit.sources or ([] if state is None else state.sources),
    )


def taken_over(state: SinkState | None, run: str, time_us: int) -> SinkState:
    """The state once a new run has shown itself."""
    if state is None:
        return SinkState(batch=-1, run=run, digests=[], replaced_runs=[], time_us=time_us)
    return msgspec.structs.replace(state, run=run, replaced_runs=_replaced(state, run), time_us=time_us)


def _replaced(state: SinkState | None, run: str) -> list[str]:
    if state is None:
        return []
    if state.run == run:
        return state.replaced_runs
    return [*state.replaced_runs, state.run][-RUNS_REMEMBERED:]


class Staging:
    """The staging area of one hub."""

    def __init__(
        self,
        hub: Any,
        directory: Path,
        *,
        leftovers_expire_s: float = LEFTOVERS_EXPIRE_S_DEFAULT,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._hub = hub
        self._directory = directory
        self._leftovers_expire_s = leftovers_expire_s
        self._now_s = now_s
        self._swept_s = 0.0
        self._locks: dict[str, asyncio.Lock] = {}

    def register(self) -> None:
        """Offer the verbs."""
        verbs = self._hub.verbs
        for name, request, handler, summary in (
            ("spark.stage", Stage, self.stage, "Stage rows of a Spark batch"),
            ("spark.commit", Commit, self.commit, "Append a staged Spark batch"),
            ("spark.abort", Abort, self.abort, "Drop a staged Spark batch"),
        ):
            # Which streams a batch goes to is known only at its commit, which checks the right on each.
            verbs.register(name, request, handler, right="write", summary=summary, filters=True)

    async def stage(self, request: Stage) -> int:
        """Keep a chunk; the size of the file so far."""
        await self._take_charge(request.query, request.run)
        await self._sweep()
        path = self._path(request.query, request.batch, request.part, request.attempt)
        self._hub.metrics.spark.staged_bytes.inc(len(request.rows))
        return await asyncio.to_thread(write_chunk, path, request.offset, request.rows)

    async def commit(self, request: Commit) -> Committed:
        """Make a batch part of the log, once."""
        outcome = "refused"
        about = {"headrace.spark.query": request.query, "headrace.spark.batch": request.batch}
        with self._hub.tracing.span("spark.commit", about) as span:
            try:
                done = await self._commit(request)
                outcome = "stored" if done.applied else "again"
                return done
            finally:
                span.set_attribute("headrace.spark.outcome", outcome)
                self._hub.metrics.spark.commits.labels(outcome=outcome).inc()

    async def _commit(self, request: Commit) -> Committed:
        async with self._lock(request.query):
            await self._finish(request.query)
            state = self._state(await self._raw(request.query))
            if judge(state, request) == "again":
                await self._drop(request.query, request.batch)
                return Committed(applied=False)
            groups = await asyncio.to_thread(self._gather, request)
            check_rights({stream for stream, _, _ in groups}, {source.stream for source in request.sources})
            for stream in {stream for stream, _, _ in groups}:
                await self._hub.create_stream(stream, partitions=request.partitions, exist_ok=True)
            slices = cut(groups, self._slice_bytes())
            if len(slices) > 1:
                await asyncio.to_thread(sync_files, self._batch_path(request.query, request.batch))
                note = msgspec.msgpack.encode(Unfinished(request))
                await self._hub.put(UNFINISHED, request.query.encode(), note)
            appended = await self._store(request, slices, 0)
        return Committed(applied=True, appended=appended)

    async def recover(self) -> int:
        """Finish the commits that an end of the hub interrupted; how many there were."""
        await self._hub.create_table(UNFINISHED)
        queries = [key.decode() for key, _ in list(self._hub.items(UNFINISHED))]
        for query in queries:
            async with self._lock(query):
                await self._finish(query)
        return len(queries)

    async def _finish(self, query: str) -> None:
        """Go on with a commit that was being stored in steps."""
        await self._hub.create_table(UNFINISHED)
        raw = self._hub.get(UNFINISHED, query.encode())
        if raw is not None:
            unfinished = msgspec.msgpack.decode(raw, type=Unfinished)
            groups = await asyncio.to_thread(self._gather, unfinished.commit)
            await self._store(unfinished.commit, cut(groups, self._slice_bytes()), unfinished.slices_done)

    async def _store(self, request: Commit, slices: list[list[Group]], done: int) -> list[AppendedTo]:
        """Append the slices that are not stored yet; the last one carries the sink's new state."""
        from headrace.log.batch import Batch
        from headrace.log.ops import ABSENT, Append, Delete, Put

        appended = []
        key = request.query.encode()
        for number in range(done, max(1, len(slices))):
            groups = slices[number] if slices else []
            ops: list[Any] = [Append(stream, Batch.from_arrow(rows), partition) for stream, partition, rows in groups]
            if number + 1 < len(slices):
                ops.append(Put(UNFINISHED, key, msgspec.msgpack.encode(Unfinished(request, number + 1))))
            else:
                raw = await self._raw(request.query)
                state = after_commit(self._state(raw), request, self._hub.clock.now_us())
                ops.append(Put(SINKS, key, msgspec.msgpack.encode(state), ABSENT if raw is None else raw))
                if len(slices) > 1:
                    ops.append(Delete(UNFINISHED, key))
            results = await self._hub.transact(ops)
            for (stream, partition, _), result in zip(groups, results, strict=False):
                appended.append(AppendedTo(stream, partition, result.first, result.count))
        await self._drop(request.query, request.batch)
        return appended

    def _slice_bytes(self) -> int:
        return int(self._hub.config.log.batch_bytes_max) // 2

    async def abort(self, request: Abort) -> None:
        """Forget what this run staged for a batch."""
        async with self._lock(request.query):
            await self._finish(request.query)
            state = self._state(await self._raw(request.query))
            if state is not None:
                check_run(state, request.query, request.run)
            await asyncio.to_thread(shutil.rmtree, self._batch_path(request.query, request.batch), True)

    def _gather(self, request: Commit) -> list[Group]:
        """The staged rows by destination, parts in order; NotStaged when something is missing."""
        found: dict[tuple[str, int], list[pa.RecordBatch]] = {}
        for part in request.parts:
            data = self._whole(request, part)
            with pa.ipc.open_stream(data) as reader:
                while True:
                    try:
                        batch, metadata = reader.read_next_batch_with_custom_metadata()
                    except StopIteration:
                        break
                    to = (metadata[b"stream"].decode(), int(metadata[b"partition"]))
                    found.setdefault(to, []).append(batch)
        return [(stream, partition, pa.concat_batches(rows)) for (stream, partition), rows in found.items()]

    def _whole(self, request: Commit, part: Part) -> pa.Buffer:
        path = self._path(request.query, request.batch, part.part, part.attempt)
        what = f"query {request.query}: part {part.part} of batch {request.batch}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotStaged(f"{what} is not staged here; run the batch again") from None
        if len(data) != part.size or google_crc32c.value(data) != part.crc:
            raise NotStaged(f"{what} is damaged ({len(data)} bytes of {part.size}); run the batch again")
        return pa.py_buffer(data)

    async def _take_charge(self, query: str, run: str) -> None:
        """Note a run that is new, so that an older one that still lives is refused from now on."""
        state = self._state(await self._raw(query))
        if state is not None and state.run == run:
            return
        async with self._lock(query):
            await self._finish(query)
            state = self._state(await self._raw(query))
            if state is not None and state.run == run:
                return
            if state is not None:
                check_run(state, query, run)
            value = msgspec.msgpack.encode(taken_over(state, run, self._hub.clock.now_us()))
            await self._hub.put(SINKS, query.encode(), value)

    async def _raw(self, query: str) -> bytes | None:
        await self._hub.create_table(SINKS)
        value: bytes | None = self._hub.get(SINKS, query.encode())
        return value

    @staticmethod
    def _state(raw: bytes | None) -> SinkState | None:
        return None if raw is None else msgspec.msgpack.decode(raw, type=SinkState)

    def _lock(self, query: str) -> asyncio.Lock:
        return self._locks.setdefault(query, asyncio.Lock())

    async def _drop(self, query: str, batch: int) -> None:
        """Remove what was staged for this batch and for older ones."""
        await asyncio.to_thread(drop_batches, self._query_path(query), batch)

    async def _sweep(self) -> None:
        """Remove leftovers of drivers that never came back."""
        now_s = self._now_s()
        if now_s - self._swept_s < _SWEEP_INTERVAL_S:
            return
        self._swept_s = now_s
        await asyncio.to_thread(remove_older, self._directory, now_s - self._leftovers_expire_s)

    def _query_path(self, query: str) -> Path:
        # A query names itself; a digest of the name cannot leave the directory.
        return self._directory / hashlib.sha256(query.encode()).hexdigest()[:32]

    def _batch_path(self, query: str, batch: int) -> Path:
        return self._query_path(query) / str(batch)

    def _path(self, query: str, batch: int, part: int, attempt: int) -> Path:
        return self._batch_path(query, batch) / f"{part}.{attempt}.arrows"


def check_rights(written: set[str], read: set[str]) -> None:
    """Refuse a commit that touches a stream which its caller may not touch."""
    from headrace.security import current

    principal = current()
    refused = [f"write {one!r}" for one in sorted(written) if not principal.may("write", one)]
    refused += [f"read {one!r}" for one in sorted(read) if not principal.may("read", one)]
    if refused:
        raise Forbidden(f"{principal.name!r} may not {', '.join(refused)}, which a Spark batch touches")


def write_chunk(path: Path, offset: int, chunk: bytes) -> int:
    """Put a chunk at its place and cut what follows: a chunk sent twice leaves the same file."""
    if offset < 0:
        raise BadRequest(f"offset {offset} of a staged chunk is negative")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("r+b" if path.exists() else "w+b") as file:
        size = file.seek(0, 2)
        if offset > size:
            raise NotStaged(f"a staged chunk begins at {offset} but only {size} bytes came before it; run it again")
        file.seek(offset)
        file.write(chunk)
        file.truncate()
    return offset + len(chunk)


def cut(groups: list[Group], slice_bytes: int) -> list[list[Group]]:
    """The rows in slices of about `slice_bytes`, in order. A record larger than that is a slice of its own."""
    slices: list[list[Group]] = []
    room = 0
    for stream, partition, rows in groups:
        each = max(1, rows.num_rows * slice_bytes // max(1, rows.nbytes))
        for start in range(0, rows.num_rows, each):
            piece = rows.slice(start, each)
            if piece.nbytes > room:
                slices.append([])
                room = slice_bytes
            slices[-1].append((stream, partition, piece))
            room -= piece.nbytes
    return slices


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
