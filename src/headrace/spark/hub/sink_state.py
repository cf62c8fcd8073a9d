"""What the hub remembers of each query that writes, in the table `spark/sinks`, and which commits it takes.

The rules for a commit of batch b with digest d by run r:

    r was replaced by a newer run          → refused: two drivers work on one checkpoint, the older must stop
    b is newer than the last batch         → appended
    b is known with the same digest d      → acknowledged again, nothing stored
    b is known with another digest         → refused: the checkpoint was lost or changed behind the hub's back
    b is older than what is remembered     → refused, for the same reason
    b begins below where results end       → refused, for the same reason (`result_ends.py`)
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import structs

from headrace.errors import Fenced, Forbidden, HeadraceError
from headrace.security import current

SINKS = "spark/sinks"
BATCHES_REMEMBERED = 16
RUNS_REMEMBERED = 16
UNOWNED = ("", "anonymous")
"""Owners of queries from a time without users: whoever goes on with one owns it."""

# Spark numbers batches, tasks and attempts with Java's long; a table keeps them in as many bits.
Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Crc = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class BatchChanged(HeadraceError):
    """A batch that was committed already is offered again with other contents."""

    code = "batch-changed"


class UnreadableRow(HeadraceError):
    """A row that the hub keeps for Spark means nothing to it."""

    code = "unreadable-row"


class SourcePosition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far a batch read a stream: `next` by partition, None where it is not read; `first` where the batch begins, if
    that is known. A source without a cursor, or of another hub, has none here."""

    cursor: str | None
    stream: str
    next: list[int | None]
    first: list[int | None] = []


class LiveSource(msgspec.Struct, frozen=True):
    """Partitions of a stream that a query reads in real time."""

    cursor: str | None
    stream: str
    partitions: list[int]


class Live(msgspec.Struct, frozen=True):
    """What a query in real time writes to and reads. Producers of that stream say how far its results are stored; where
    they go to several places, those of the table `spark/sinks` do."""

    stream: str
    sources: list[LiveSource]


class SinkState(msgspec.Struct, frozen=True):
    """What the hub remembers of a query that writes; by default nothing."""

    batch: int = -1
    run: str = ""
    digests: list[tuple[int, str]] = []
    replaced_runs: list[str] = []
    time_us: int = 0
    sources: list[SourcePosition] = []
    owner: str = ""
    live: Live | None = None


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file that a task staged, as the driver knows it."""

    part: Number
    attempt: Number
    size: Number
    crc: Crc


class Commit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything that a batch staged, in order."""

    query: Name
    run: Name
    batch: Number
    digest: Name
    parts: list[Part]
    sources: list[SourcePosition] = []
    partitions: Annotated[int, msgspec.Meta(ge=1)] = 1


def is_new(state: SinkState, commit: Commit) -> bool:
    """The rules above: whether a batch is to be stored, or was stored before."""
    check_run(state, commit.query, commit.run)
    if commit.batch > state.batch:
        return True
    known = dict(state.digests).get(commit.batch)
    if known == commit.digest:
        return False
    was = "is no longer remembered" if known is None else f"was stored with digest {known}"
    raise BatchChanged(
        f"query {commit.query}: batch {commit.batch} is offered with digest {commit.digest}, but it {was} (the last is "
        f"batch {state.batch}). Its checkpoint has gone back behind what is stored, as after a power cut or a restored "
        "copy. Nothing was appended. Start the query with a fresh checkpoint and start=cursor to continue where the "
        "stored results end"
    )


def check_run(state: SinkState, query: str, run: str) -> None:
    """Refuse a run that was replaced."""
    if run in state.replaced_runs:
        raise Fenced(f"query {query}: run {run} was replaced by run {state.run}; only one driver may run a query")


def after_commit(state: SinkState, commit: Commit, time_us: int) -> SinkState:
    """The state once a batch is stored."""
    return structs.replace(
        after_takeover(state, commit.run, time_us),
        batch=commit.batch,
        digests=[*state.digests, (commit.batch, commit.digest)][-BATCHES_REMEMBERED:],
        sources=[structs.replace(source, first=[]) for source in commit.sources] or state.sources,
    )


def after_takeover(state: SinkState, run: str, time_us: int) -> SinkState:
    """The state once a run has shown itself, under whose owner came first, not counting those without a name."""
    replaced = state.replaced_runs
    if state.run not in ("", run):
        replaced = [*replaced, state.run][-RUNS_REMEMBERED:]
    owner = current().name if state.owner in UNOWNED else state.owner
    return structs.replace(state, run=run, replaced_runs=replaced, time_us=time_us, owner=owner)


def check_owner(state: SinkState, query: str) -> None:
    """Refuse someone else's query to those who may not write everywhere: they could stop it, or number its batches."""
    principal = current()
    if state.owner in (*UNOWNED, principal.name) or principal.granted("write", SINKS):
        return
    raise Forbidden(f"{principal.name!r} may not write as query {query!r}, which belongs to {state.owner!r}")


async def sink_states(hub: Any) -> list[tuple[bytes, bytes, SinkState]]:
    """All that is remembered: the query, the state as it is stored, and what that means."""
    await hub.create_table(SINKS)
    return known_sinks(hub)


def known_sinks(hub: Any) -> list[tuple[bytes, bytes, SinkState]]:
    """The same, where nobody may wait: nothing before the first query."""
    if not hub.has_stream(SINKS):
        return []
    rows: list[tuple[bytes, bytes, SinkState]] = hub.set_aside.read(SINKS, hub.items(SINKS), read_sink)
    return rows


def read_sink(key: bytes, raw: bytes) -> tuple[bytes, bytes, SinkState]:
    """A row of the table."""
    key.decode()
    return key, raw, msgspec.msgpack.decode(raw, type=SinkState)


def check_rights(written: set[str], read: set[str]) -> None:
    """Refuse a commit that touches a stream which its caller may not touch."""
    principal = current()
    refused = [f"write {stream!r}" for stream in sorted(written) if not principal.may("write", stream)]
    refused += [f"read {stream!r}" for stream in sorted(read) if not principal.may("read", stream)]
    if refused:
        raise Forbidden(f"{principal.name!r} may not {', '.join(refused)}, which a Spark batch touches")
