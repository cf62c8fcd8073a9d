"""What can be done to the log in a transaction, and what it answers.

A transaction is a list of operations. It becomes one journal frame: all of it is durable, or none of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import add
from typing import NamedTuple

import msgspec

from headrace.log.batch import Batch
from headrace.slicing import SLICE, lengths


class Expect(Enum):
    """What must be true of a table's key for a `Put` or `Delete` to apply."""

    ANY = "any"
    ABSENT = "absent"
    PRESENT = "present"


PUT = "put"
DELETE = "delete"
"""Types of the records of a table."""
ANY = Expect.ANY
ABSENT = Expect.ABSENT
PRESENT = Expect.PRESENT


class Line:
    """Appends of one sender that were handed in without waiting for each other. Once one of them is refused, those
    behind it are refused too: otherwise a later sequence could be stored, and make a duplicate of the refused one when
    it is sent again. Only the log's writer changes it."""

    __slots__ = ("refused",)

    def __init__(self) -> None:
        self.refused = False


class Append(msgspec.Struct, frozen=True, gc=False):
    """Add records to a stream. With a producer, a sequence not above the last one seen is a duplicate.

    `after` is the producer's last sequence as its sender knows it, -1 for none: any other is `Fenced`. So of two that
    send under one name, only one can go on.
    """

    stream: str
    batch: Batch
    partition: int = 0
    producer: str | None = None
    sequence: int | None = None
    line: Line | None = None
    after: int | None = None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Set a key of a table. `expect` may also be the exact bytes that must be there."""

    table: str
    key: bytes
    value: bytes
    expect: Expect | bytes = ANY

    def records(self) -> Batch:
        """What is stored."""
        return Batch.one(self.value, type=PUT, key=self.key)


def holds(expect: Expect | bytes, previous: bytes | None) -> bool:
    """Whether what is there is what is expected."""
    if expect is ANY:
        return True
    if expect is ABSENT:
        return previous is None
    if expect is PRESENT:
        return previous is not None
    return previous == expect


class Measured(NamedTuple):
    """What the log has to know of many keys, and their values, before it takes them. To find it out takes as long as
    they are many: whoever has them in another thread than the event loop's does it there."""

    nbytes: int
    largest: int
    """Of a key with its value."""
    batch: Batch | None = None
    """The records that put them, if they were made already."""

    @classmethod
    def of(cls, keys: Sequence[bytes], values: Sequence[bytes] | None = None) -> Measured:
        if len(keys) <= SLICE:
            sizes = list(map(len, keys)) if values is None else list(map(add, map(len, keys), map(len, values)))
            return cls(sum(sizes), max(sizes, default=0))
        each = lengths(keys) if values is None else lengths(keys) + lengths(values)
        return cls(int(each.sum()), int(each.max()))

    @classmethod
    def made(cls, keys: Sequence[bytes], values: Sequence[bytes]) -> Measured:
        """The same with the records."""
        batch = Batch.of(values, types=PUT, keys=keys) if keys else None
        return cls.of(keys, values)._replace(batch=batch)


class PutMany(msgspec.Struct, frozen=True, gc=False):
    """Set many keys of a table, whatever is there: one batch of records, at a fraction of what single puts cost."""

    table: str
    keys: Sequence[bytes]
    values: Sequence[bytes]
    measured: Measured | None = None

    def records(self) -> Batch:
        """What is stored."""
        made = None if self.measured is None else self.measured.batch
        return made or Batch.of(self.values, types=PUT, keys=self.keys)


class Delete(msgspec.Struct, frozen=True, gc=False):
    """Remove a key of a table; removing an absent key is no change."""

    table: str
    key: bytes
    expect: Expect | bytes = ANY

    def records(self) -> Batch:
        """What is stored."""
        return Batch.one(b"", type=DELETE, key=self.key)


class DeleteMany(msgspec.Struct, frozen=True, gc=False):
    """Remove many keys of a table, whatever is there: one batch of records. The result is how many were there."""

    table: str
    keys: Sequence[bytes]
    measured: Measured | None = None


class Rewrite(msgspec.Struct, frozen=True, gc=False):
    """The log's own: write again what keys of a table hold, unless a newer record than those before `before` says it.
    The result is how many were written."""

    table: str
    keys: Sequence[bytes]
    before: int
    nbytes: int
    """Of the keys and their values."""


class ClearTable(msgspec.Struct, frozen=True, gc=False):
    """Remove all keys of a table: one record, however many there are. The result is how many there were."""

    table: str


class AcceptDamage(msgspec.Struct, frozen=True, gc=False):
    """Serve a table again whose records are damaged: what the readable ones say counts. The result is a
    `LostChanges`, or None when there is no damage."""

    table: str


class SaveCursor(msgspec.Struct, frozen=True, gc=False):
    """Set a consumer's position: the index it reads next. Goes back only with `rewind`."""

    cursor: str
    stream: str
    index: int
    partition: int = 0
    rewind: bool = False


class DeleteCursor(msgspec.Struct, frozen=True, gc=False):
    """Forget a consumer: it gates nothing any more."""

    cursor: str
    stream: str
    partition: int = 0


class SetProducer(msgspec.Struct, frozen=True, gc=False):
    """Set a producer's last sequence, also backwards; None forgets the producer. `after` as in `Append`."""

    stream: str
    producer: str
    sequence: int | None
    partition: int = 0
    after: int | None = None


class RenameProducer(msgspec.Struct, frozen=True, gc=False):
    """Give a producer another name. It keeps its last sequence, whatever is stored until then; appends `after` a
    sequence under its old name are `Fenced` from then on. Nothing happens to a producer that is not known."""

    stream: str
    producer: str
    to: str
    partition: int = 0


class StreamOptions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """How a stream is kept and acknowledged."""

    retention_age_s: float | None = None
    """Records older than this may go."""
    retention_bytes: int | None = None
    """The oldest records may go while a partition's sealed segments exceed this."""
    retention_cursors: bool = False
    """Records that every registered cursor has passed may go."""
    max_hold_s: float | None = None
    """Records older than this go even when a cursor still needs them; it is logged when that happens."""
    ack: str = "durable"
    """`durable`, or `processed:<cursor>`: acknowledge when that cursor has passed."""
    labels: dict[str, str] = {}


class CreateStream(msgspec.Struct, frozen=True, gc=False):
    """Create a stream or table; with `exist_ok`, an existing one of the same kind is left as it is."""

    name: str
    partitions: int = 1
    options: StreamOptions = StreamOptions()
    kind: str = "stream"
    exist_ok: bool = True
    is_own: bool = False
    """The hub's own: made even when there are as many streams as there may be, so that a full hub starts."""


class GrowStream(msgspec.Struct, frozen=True, gc=False):
    """Give a stream more partitions; never fewer."""

    name: str
    partitions: int


class SetOptions(msgspec.Struct, frozen=True, gc=False):
    """Replace a stream's options."""

    name: str
    options: StreamOptions


class DeleteStream(msgspec.Struct, frozen=True, gc=False):
    """Remove a stream or table with its records and cursors. Its indexes are never used again."""

    name: str


class Cause(Enum):
    """Why records are trimmed."""

    ASKED = "asked"
    RETENTION = "retention"
    """What a cursor needs stays, even if the cursor came while the trim was on its way."""
    COMPACTION = "compaction"
    """Nothing live in a table needs them. Anything else would take values out of it at the next start."""


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Forget the records below an index. Those of a table go only by compaction."""

    stream: str
    before: int
    partition: int = 0
    cause: Cause = Cause.ASKED


class RegisterCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Make a finished blob known, with the position it stands for."""

    id: int
    stream: str
    position: int
    size: int
    meta: dict[str, str]


class DropCheckpoint(msgspec.Struct, frozen=True, gc=False):
    """Forget a checkpoint; its blob is removed."""

    id: int


class StoreSegment(msgspec.Struct, frozen=True, gc=False):
    """The log's own: a shared store has a segment."""

    stream_id: int
    partition: int
    first: int
    next: int
    bytes: int
    name: str


class StoreSnapshot(msgspec.Struct, frozen=True, gc=False):
    """The log's own: a shared store has a snapshot, and lacks what was removed since the last one."""

    sequence: int
    name: str
    removed: list[str]


Op = (
    Append
    | Put
    | PutMany
    | Delete
    | DeleteMany
    | Rewrite
    | ClearTable
    | AcceptDamage
    | SaveCursor
    | DeleteCursor
    | SetProducer
    | RenameProducer
    | CreateStream
    | GrowStream
    | SetOptions
    | DeleteStream
    | Trim
    | RegisterCheckpoint
    | DropCheckpoint
    | StoreSegment
    | StoreSnapshot
)


STRUCTURAL = (CreateStream, GrowStream, SetOptions, DeleteStream)
"""Operations that change which streams there are. They stand alone in a transaction, and do not mix with others in a
commit: so every other operation finds the streams as they are on disk."""

RELIEVING = (
    Trim,
    Delete,
    DeleteMany,
    ClearTable,
    DeleteStream,
    DropCheckpoint,
    SetOptions,
    SaveCursor,
    DeleteCursor,
    StoreSegment,
    StoreSnapshot,
)
"""Operations that make room on the disk, or let retention or compaction do so."""


def relieves(op: Op) -> bool:
    """Whether an operation may use the room that is kept for those that make more."""
    return isinstance(op, RELIEVING) or (isinstance(op, SetProducer) and op.sequence is None)


class Appended(msgspec.Struct, frozen=True, gc=False):
    """Where records stand. For a duplicate: where the producer's last batch stands."""

    first: int
    count: int
    duplicate: bool


class PutResult(NamedTuple):
    """Whether a `Put` or `Delete` applied, and what was there before. None, too, when damage hides that from one that
    expected nothing."""

    applied: bool
    previous: bytes | None


class LostChanges(NamedTuple):
    """What is given up with the damage of a table: records between `first` and `last`, and with them perhaps the newest
    value, or the removal, of so many of its keys, and keys that only they named."""

    first: int
    last: int
    keys: int


class Bounds(NamedTuple):
    """The durable records of a partition: first ≤ index < next."""

    first: int
    next: int


class StreamInfo(msgspec.Struct, frozen=True, gc=False):
    """What the catalog knows of a stream or table."""

    name: str
    id: int
    kind: str
    partitions: int
    options: StreamOptions
    created_us: int


class CursorInfo(msgspec.Struct, frozen=True):
    """A consumer's position in one partition."""

    name: str
    stream: str
    partition: int
    index: int
    updated_us: int
    lag: int


class CheckpointInfo(msgspec.Struct, frozen=True):
    """A blob and the position it stands for."""

    id: int
    stream: str
    position: int
    size: int
    time_us: int
    meta: dict[str, str]


class SegmentInfo(msgspec.Struct, frozen=True):
    """A sealed Arrow IPC file: records first ≤ index < next."""

    first: int
    next: int
    bytes: int
    path: str | None


class NewSegment(msgspec.Struct, frozen=True):
    """A segment that has just been put in its place."""

    stream_id: int
    first: int
    next: int
    bytes: int
    began_us: int
    ended_us: int
