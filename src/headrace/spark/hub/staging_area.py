"""The hub's side of the Spark sink: rows wait here until their batch is committed, then become records at once.

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
files: it is still stored exactly once, only not in one instant. Which commits are taken, `sink_state.py` says.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import shutil
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from headrace.errors import LimitExceeded
from headrace.log.batch import Batch
from headrace.log.ops import Append, Delete, Put
from headrace.spark.hub.batch_files import (
    Group,
    NotStaged,
    Survey,
    cut,
    drop_batches,
    is_one_off,
    remove_older,
    staged_rows,
    survey_of,
    sync_files,
    write_chunk,
)
from headrace.spark.hub.result_ends import check_begin, end_live, put_state, take_over
from headrace.spark.hub.sink_state import (
    SINKS,
    Commit,
    Name,
    Number,
    SinkState,
    UnreadableRow,
    after_commit,
    check_owner,
    check_rights,
    check_run,
    is_new,
    read_sink,
    sink_states,
)
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.spark")
UNFINISHED = "spark/commits"
LEFTOVERS_EXPIRE_S_DEFAULT = 3600.0
_SWEEP_INTERVAL_S = 60.0


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chunk of a task's rows. The same chunk may come twice."""

    query: Name
    run: Name
    batch: Number
    part: Number
    attempt: Number
    offset: Number
    rows: bytes


class Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A batch that will not be committed by this run."""

    query: Name
    run: Name
    batch: Number


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


class UnfinishedCommit(msgspec.Struct, frozen=True):
    """A commit that is being stored in steps of `slice_bytes`, and how many slices are stored."""

    commit: Commit
    slices_done: int = 0
    slice_bytes: int = 0


def read_unfinished(key: bytes, raw: bytes) -> UnfinishedCommit:
    """A row of the table."""
    try:
        unfinished = msgspec.msgpack.decode(raw, type=UnfinishedCommit)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableRow(f"what is stored of a commit cannot be read ({error})") from error
    if unfinished.commit.query.encode() != key:
        raise UnreadableRow(f"it is a commit of query {unfinished.commit.query!r}, which belongs elsewhere")
    return unfinished


class StagingArea:
    """The staging area of one hub."""

    def __init__(
        self,
        hub: Any,
        directory: Path,
        *,
        leftovers_expire_s: float = LEFTOVERS_EXPIRE_S_DEFAULT,
        now_s: Callable[[], float] = lambda: time.time(),
    ) -> None:
        self._hub = hub
        self._directory = directory
        self._leftovers_expire_s = leftovers_expire_s
        self._now_s = now_s
        self._swept_s = 0.0
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def register(self) -> None:
        """Offer the verbs."""
        # Which streams a batch goes to is known only at its commit, which checks the right on each.
        add = partial(self._hub.verbs.register, right="write", filters=True)
        add("spark.stage", Stage, self.stage, summary="Stage rows of a Spark batch")
        add("spark.commit", Commit, self.commit, summary="Append a staged Spark batch")
        add("spark.abort", Abort, self.abort, summary="Drop a staged Spark batch")

    async def stage(self, request: Stage) -> int:
        """Keep a chunk; the size of the file so far."""
        # Alone: a file that is cut while a commit reads it loses rows, even if its checksum was right a moment ago.
        async with self.charged(request.query, request.run) as state:
            await self._sweep()
            if request.batch <= state.batch:  # stored already, and never read again
                return request.offset + len(request.rows)
            path = self._path(request.query, request.batch, request.part, request.attempt)
            size = await asyncio.to_thread(self._write, path, request.offset, request.rows)
        self._hub.metrics.spark.staged_bytes.inc(len(request.rows))
        return size

    def _write(self, path: Path, offset: int, rows: bytes) -> int:
        """Write a chunk, unless its batch outgrows the limits with it."""
        size = offset + len(rows)
        limits = self._hub.config.spark
        others = [file.stat().st_size for file in path.parent.glob("*.arrows") if file != path]
        _check_limit("parts of a Spark batch", len(others) + 1, limits.parts_max, "spark.parts_max")
        total = sum(others) + size
        _check_limit("bytes of a Spark batch", total, limits.batch_bytes_max, "spark.batch_bytes_max")
        return write_chunk(path, offset, rows)

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
        async with self.charged(request.query, request.run) as charged:
            state = await end_live(self._hub, request.query, charged)
            if not is_new(state, request):
                await asyncio.to_thread(drop_batches, self._query_path(request.query), request.batch)
                return Committed(applied=False)
            check_begin(self._hub, state, request)
            return Committed(applied=True, appended=await self._store_new(request, state))

    async def _store_new(self, request: Commit, state: SinkState) -> list[AppendedTo]:
        """Store a batch that was not begun yet."""
        unfinished = UnfinishedCommit(request, slice_bytes=int(self._hub.config.log.batch_bytes_max) // 2)
        survey = await asyncio.to_thread(survey_of, self._slices(unfinished))
        check_rights(set(survey.streams), {source.stream for source in request.sources if source.cursor})
        if survey.slices > 1:
            self._check_slices(survey, request, state)
        await self._make_streams(survey, request)
        if survey.slices > 1:
            await asyncio.to_thread(sync_files, self._batch_path(request.query, request.batch))
            await self._hub.put(UNFINISHED, request.query.encode(), msgspec.msgpack.encode(unfinished))
        return await self._store(unfinished, survey)

    def _check_slices(self, survey: Survey, request: Commit, state: SinkState) -> None:
        """Refuse a batch of which the log would take the first slices and not the rest."""
        limits = self._hub.config.log
        _check_limit("bytes of a record", survey.record_bytes, limits.record_bytes_max, "log.record_bytes_max")
        notes = (UnfinishedCommit(request, 1 << 62, 1 << 62), after_commit(state, request, self._hub.clock.now_us()))
        noted = len(request.query.encode()) + max(len(msgspec.msgpack.encode(note)) for note in notes)
        _check_limit("bytes of a batch", survey.slice_bytes + noted, limits.batch_bytes_max, "log.batch_bytes_max")

    async def _make_streams(self, survey: Survey, request: Commit) -> None:
        """The streams that rows go to; those that exist stay as they are."""
        for stream, partition in survey.streams.items():
            info = await self._hub.create_stream(stream, partitions=request.partitions, exist_ok=True)
            if partition >= info.partitions:
                raise NotStaged(
                    f"query {request.query}: batch {request.batch} has rows for partition {partition} of stream "
                    f"{stream!r}, which has {info.partitions}; run the batch again"
                )

    async def recover(self) -> int:
        """Finish the commits that an end of the hub interrupted; how many there were.

        One that cannot be finished now is tried again when its query comes back; the hub starts all the same.
        """
        await self._hub.create_table(UNFINISHED)
        await sink_states(self._hub)  # names rows that cannot be used
        queries = [unfinished.commit.query for unfinished in self._all_unfinished()]
        for query in queries:
            async with self._locks[query]:
                try:
                    await self._finish(query)
                except Exception as error:
                    logger.error("a Spark batch is only partly stored", extra=fields(query=query, error=str(error)))
        return len(queries)

    async def _finish(self, query: str) -> None:
        """Go on with a commit that was being stored in steps."""
        await self._hub.create_table(UNFINISHED)
        raw = self._hub.get(UNFINISHED, query.encode())
        if raw is not None:
            unfinished = read_unfinished(query.encode(), raw)
            survey = await asyncio.to_thread(survey_of, self._slices(unfinished))
            await self._make_streams(survey, unfinished.commit)  # one may have been deleted meanwhile
            await self._store(unfinished, survey)

    def _slices(self, unfinished: UnfinishedCommit) -> Iterator[list[Group]]:
        request = unfinished.commit
        parts = [(self._path(request.query, request.batch, part.part, part.attempt), part) for part in request.parts]
        what = f"query {request.query}: batch {request.batch}"
        groups = (group for path, part in parts for group in staged_rows(path, part.size, part.crc, what))
        return cut(groups, unfinished.slice_bytes)

    async def _store(self, unfinished: UnfinishedCommit, survey: Survey) -> list[AppendedTo]:
        """Append the slices that are not stored yet; the last one carries the sink's new state."""
        request, key = unfinished.commit, unfinished.commit.query.encode()
        slices = iter([survey.first]) if survey.slices == 1 else self._slices(unfinished)
        appended = []
        for number in range(survey.slices):
            groups = next(slices) if survey.slices == 1 else await asyncio.to_thread(next, slices)
            if number < unfinished.slices_done:
                continue
            ops: list[Any] = [Append(stream, Batch.from_arrow(rows), partition) for stream, partition, rows in groups]
            if number + 1 < survey.slices:
                note = msgspec.structs.replace(unfinished, slices_done=number + 1)
                ops.append(Put(UNFINISHED, key, msgspec.msgpack.encode(note)))
            else:
                state = after_commit(await self._state(request.query), request, self._hub.clock.now_us())
                ops.append(put_state(self._hub, request.query, state))
                if survey.slices > 1:
                    ops.append(Delete(UNFINISHED, key))
            results = await self._hub.transact(ops)
            for (stream, partition, _), result in zip(groups, results, strict=False):
                appended.append(AppendedTo(stream, partition, result.first, result.count))
        await asyncio.to_thread(drop_batches, self._query_path(request.query), request.batch)
        return appended

    async def abort(self, request: Abort) -> None:
        """Forget what this run staged for a batch."""
        async with self._alone(request.query) as state:
            check_run(state, request.query, request.run)
            await asyncio.to_thread(shutil.rmtree, self._batch_path(request.query, request.batch), True)

    @contextlib.asynccontextmanager
    async def charged(self, query: str, run: str) -> AsyncIterator[SinkState]:
        """The state of a query with this run in charge, and nobody else at work on it. A run that is new is noted, so
        that an older one that still lives is refused from now on."""
        async with self._alone(query) as state:
            check_run(state, query, run)
            if state.run != run:
                # What an older run staged counts towards the limits of a batch, and can never be committed.
                await asyncio.to_thread(shutil.rmtree, self._query_path(query), True)
                state = await take_over(self._hub, query, state, run)
            yield state

    async def _state(self, query: str) -> SinkState:
        await self._hub.create_table(SINKS)
        raw = self._hub.get(SINKS, query.encode())
        try:
            return SinkState() if raw is None else read_sink(query.encode(), raw)[2]
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise UnreadableRow(
                f"query {query}: what is known of it cannot be read ({error}); use another name"
            ) from error

    async def owned_state(self, query: str) -> SinkState:
        """What is known of a query that the caller may write as."""
        state = await self._state(query)
        check_owner(state, query)
        return state

    @contextlib.asynccontextmanager
    async def _alone(self, query: str) -> AsyncIterator[SinkState]:
        """The state of a query of which no commit is half done, and nobody else at work on it."""
        async with self._locks[query]:
            await self._finish(query)
            yield await self.owned_state(query)

    async def _sweep(self) -> None:
        """Remove leftovers of drivers that never came back."""
        now_s = self._now_s()
        if self._swept_s <= now_s < self._swept_s + _SWEEP_INTERVAL_S:  # a clock that was set back cannot tell
            return
        self._swept_s = now_s
        before_s = now_s - self._leftovers_expire_s
        await asyncio.to_thread(remove_older, self._directory, before_s, self._unfinished_paths())
        await self._forget_one_offs()

    async def _forget_one_offs(self) -> None:
        """What is known of a write without a name serves only its own repetition: it would stay for ever otherwise."""
        before_us = self._hub.clock.now_us() - int(self._leftovers_expire_s * 1_000_000)
        old = [
            (key, raw)
            for key, raw, state in await sink_states(self._hub)
            if is_one_off(key.decode()) and state.time_us < before_us and not self._locks[key.decode()].locked()
        ]
        for key, _ in old:
            del self._locks[key.decode()]
        await asyncio.gather(*(self._hub.delete(SINKS, key, raw) for key, raw in old))

    def _all_unfinished(self) -> list[UnfinishedCommit]:
        rows: list[UnfinishedCommit] = self._hub.set_aside.read(
            UNFINISHED, self._hub.items(UNFINISHED), read_unfinished
        )
        return rows

    def _unfinished_paths(self) -> set[Path]:
        """Where batches are that are stored in part: nothing but these files can complete them."""
        commits = [unfinished.commit for unfinished in self._all_unfinished()]
        return {self._batch_path(commit.query, commit.batch) for commit in commits}

    def _query_path(self, query: str) -> Path:
        # A query names itself; a digest of the name cannot leave the directory.
        return self._directory / hashlib.sha256(query.encode()).hexdigest()[:32]

    def _batch_path(self, query: str, batch: int) -> Path:
        return self._query_path(query) / str(batch)

    def _path(self, query: str, batch: int, part: int, attempt: int) -> Path:
        return self._batch_path(query, batch) / f"{part}.{attempt}.arrows"


def _check_limit(limit: str, value: int, maximum: int, key: str) -> None:
    if value > maximum:
        raise LimitExceeded(limit, value, maximum, key)
