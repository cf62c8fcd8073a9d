"""One commit: transactions checked in order, turned into frames, and applied to the state once they are durable.

Operations see the effects of those before them in the same commit through `pending_…` fields, which only the writer
looks at. When the commit does not become durable these are forgotten and nothing has happened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.config.sections import Log as LogSettings
from headrace.errors import (
    BadRequest,
    Busy,
    ConditionFailed,
    HeadraceError,
    LimitExceeded,
    StreamExists,
    UnknownCheckpoint,
)
from headrace.log import frame, limits, ops, retention
from headrace.log.batch import Batch
from headrace.log.journal_port import JournalPort
from headrace.log.partition import Partition, ProducerState, check_after
from headrace.log.pending import Pending
from headrace.log.slices import ManyChanges, Removals
from headrace.log.state import STREAM, TABLE, CursorPosition, State, Stream
from headrace.log.table import CLEAR, DAMAGE_ACCEPTED, Table
from headrace.log.tail import TailEntry


class Commit:
    """The transactions of one write and one sync."""

    def __init__(
        self, state: State, settings: LogSettings, journal: JournalPort, now_us: int, is_single: bool = False
    ) -> None:
        """`is_single` says that it takes one operation, and is durable before the next commit begins: nobody looks at
        what it changes meanwhile."""
        self._state = state
        self._is_single = is_single
        self._settings = settings
        self._journal = journal
        self._now_us = now_us
        self._directory: list[bytes] = []
        self._bodies: list[bytes] = []
        self._undo: list[Callable[[], None]] | None = None
        self._touched: dict[int, Partition] = {}
        self._tables: dict[int, Table] = {}
        self._appended: list[tuple[Partition, TailEntry]] = []
        self._changed: list[Callable[[], None]] = []
        """Applies the changes of tables."""
        self._events: list[frame.AnyEvent] = []
        self._created = 0
        self._sequence = journal.next_sequence
        self._has_set_off = False
        self._ends: list[tuple[Partition, int, int, dict[str, ProducerState | None]]] = []
        self._prepared: Removals | Batch | None = None
        self.late: ManyChanges | None = None
        """What is settled, and not folded into its table yet."""
        self.frames: list[frame.EncodedFrame] = []

    # -- gathering -------------------------------------------------------------------------------------------------

    def add(self, pending: Pending) -> None:
        """Check a transaction and encode its frame. Sets `result`, or `error` when it is refused."""
        self._directory.clear()
        self._bodies.clear()
        many = len(pending.operations) > 1
        self._undo = [] if many else None
        self._prepared = pending.prepared
        marks = len(self._appended), len(self._changed), len(self._events)
        try:
            pending.result = [self._operate(op, position, many) for position, op in enumerate(pending.operations)]
        except HeadraceError as error:
            pending.refuse(error.to_keep())
            for undo in reversed(self._undo or []):
                undo()
            del self._appended[marks[0] :], self._changed[marks[1] :], self._events[marks[2] :]
            return
        finally:
            self._undo = None  # what it holds knows this commit, and all its records
        if self._directory:
            self.frames.append(self._journal.frame(len(self.frames), b"".join(self._directory), *self._bodies))

    def _operate(self, op: ops.Op, position: int, many: bool) -> Any:
        match op:
            case ops.Append():
                return self._append(op, position, many)
            case ops.Put():
                return self._put(op, op.value, position, many)
            case ops.PutMany():
                return self._put_many(op)
            case ops.Delete():
                return self._put(op, None, position, many)
            case ops.DeleteMany():
                return self._delete_many(op)
            case ops.Rewrite():
                return self._rewrite(op)
            case ops.ClearTable():
                return self._clear_table(op)
            case ops.AcceptDamage():
                return self._accept_damage(op)
            case ops.SaveCursor():
                return self._save_cursor(op)
            case ops.DeleteCursor():
                return self._delete_cursor(op)
            case ops.SetProducer():
                return self._set_producer(op)
            case ops.RenameProducer():
                return self._rename_producer(op)
            case ops.Trim():
                return self._trim(op)
            case ops.RegisterCheckpoint():
                return self._register_checkpoint(op)
            case ops.DropCheckpoint():
                return self._drop_checkpoint(op)
            case ops.StoreSegment():
                return self._store_segment(op)
            case ops.StoreSnapshot():
                return self._event(frame.SnapshotStored(op.sequence, op.name, op.removed))
            case _:
                return self._structural(op)

    def _append(self, op: ops.Append, position: int, many: bool) -> ops.Appended:
        stream = self._state.stream(op.stream)
        if stream.table is not None:
            raise BadRequest(f"{op.stream!r} is a table: change it with put and delete, not with append")
        partition = stream.partition(op.partition)
        if op.line is not None and op.line.refused:
            raise Busy(f"not stored in {op.stream!r}: an append before it in the same line was refused")
        if op.producer is None:
            if op.after is not None:
                raise BadRequest("'after' is given without a producer")
            return self._store(partition, op.batch, b"", 0)
        sequence = op.sequence
        if sequence is None or not 0 <= sequence < 2**64:
            raise BadRequest(f"producer {op.producer!r} needs a sequence from 0 to 2^64-1, not {sequence}")
        last = partition.producer(op.producer)
        if op.after is not None:
            check_after(op.producer, sequence, op.after, last)
        if last is not None and sequence <= last.sequence:
            if many:
                raise ConditionFailed(position, f"sequence {sequence} of producer {op.producer!r} is stored already")
            return ops.Appended(last.first, last.count, True)
        if last is None:
            limits.check_producer(self._settings, partition, op.producer)
        appended = self._store(partition, op.batch, op.producer.encode(), sequence)
        self._set_pending_producer(partition, op.producer, ProducerState(sequence, appended.first, appended.count))
        return appended

    def _set_pending_producer(self, partition: Partition, name: str, state: ProducerState | None) -> None:
        self._touched[id(partition)] = partition
        pending = partition.pending_producers
        if self._undo is not None:
            before = partition.producer(name)
            self._undo.append(lambda: pending.__setitem__(name, before))
        pending[name] = state

    def _store(self, partition: Partition, batch: Batch, producer: bytes, sequence: int) -> ops.Appended:
        """Give the records of a batch their place in a partition."""
        base = partition.pending_next
        time_us = max(self._now_us, partition.pending_time_us)
        if self._undo is not None:
            before = base, partition.pending_time_us
            self._undo.append(lambda: self._restore_next(partition, *before))
        self._touched[id(partition)] = partition
        partition.pending_next = base + batch.count
        partition.pending_time_us = time_us
        body = batch.body
        self._directory.append(
            frame.encode_records(
                partition.stream_id, partition.number, batch.count, base, time_us, producer, sequence, len(body)
            )
        )
        self._bodies.append(body)
        journal_sequence = self._sequence + len(self.frames)
        self._appended.append((partition, TailEntry(base, batch.count, time_us, body, journal_sequence)))
        return ops.Appended(base, batch.count, False)

    @staticmethod
    def _restore_next(partition: Partition, next_index: int, time_us: int) -> None:
        partition.pending_next = next_index
        partition.pending_time_us = time_us

    def _put(self, op: ops.Put | ops.Delete, value: bytes | None, position: int, many: bool) -> ops.PutResult:
        table, partition = self._table(op.table)
        is_doubtful = table.is_doubtful(op.key)
        # Whoever writes whatever is there ends the doubt. All others ask what is there, and are told of the damage.
        previous = None if is_doubtful and op.expect is ops.ANY else table.peek(op.key)
        if not ops.holds(op.expect, previous):
            if many:
                raise ConditionFailed(
                    position, f"the key's value in table {op.table!r} is not what was expected", previous
                )
            return ops.PutResult(False, previous)
        if value is None and previous is None and not is_doubtful:
            return ops.PutResult(True, None)
        growth = table.growth(op.key, value)
        self._check_table_room(table, op.table, growth)
        records = self._prepared if isinstance(self._prepared, Batch) else op.records()
        base = self._store(partition, records, b"", 0).first
        self._tables[id(table)] = table
        if self._undo is not None:
            self._undo.append(table.undo_of([op.key], growth))
        table.set_pending([(op.key, value)], growth)
        self._changed.append(partial(table.apply, op.key, value, base))
        return ops.PutResult(True, previous)

    def _put_many(self, op: ops.PutMany) -> int:
        """How many were put."""
        table, partition = self._table(op.table)
        measured = op.measured or ops.Measured.of(op.keys, op.values)
        growth = measured.nbytes
        if table.pending_bytes + growth > self._settings.table_bytes_max:  # it matters which of them are there already
            growth = sum(map(table.growth, op.keys, op.values))
        self._check_table_room(table, op.table, growth)
        records = self._prepared if isinstance(self._prepared, Batch) else op.records()
        self._change_many(table, partition, op.keys, op.values, records, growth)
        return len(op.keys)

    def _delete_many(self, op: ops.DeleteMany) -> int:
        table, partition = self._table(op.table)
        made = self._prepared
        found = made if isinstance(made, Removals) else Removals(table, op.keys).complete()
        if keys := found.keys:
            batch = Batch.of([b""] * len(keys), types=ops.DELETE, keys=keys)
            self._change_many(table, partition, keys, [None] * len(keys), batch, found.growth)
        return found.there

    def _rewrite(self, op: ops.Rewrite) -> int:
        table, partition = self._table(op.table)
        keys, values = table.to_rewrite(op.keys, op.before)
        if keys:
            self._change_many(table, partition, keys, values, Batch.of(values, types=ops.PUT, keys=keys), 0)
        return len(keys)

    def _change_many(
        self,
        table: Table,
        partition: Partition,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        batch: Batch,
        growth: int,
    ) -> None:
        base = self._store(partition, batch, b"", 0).first
        self._tables[id(table)] = table
        if self._undo is not None:
            self._undo.append(table.undo_of(keys, growth))
        if not self._is_single:
            table.set_pending(zip(keys, values, strict=True), growth)
        self._changed.append(ManyChanges(table, keys, values, base))

    def _clear_table(self, op: ops.ClearTable) -> int:
        """One record for those who follow the table, and a trim of all before it."""
        table, partition = self._table(op.table)
        if table.is_blank:
            return 0
        there = table.pending_count
        base = self._store(partition, Batch.one(b"", type=CLEAR), b"", 0).first
        self._event(frame.StreamTrimmed(partition.stream_id, partition.number, base))
        self._tables[id(table)] = table
        undo = table.set_cleared()
        if self._undo is not None:
            self._undo.append(undo)
        self._changed.append(lambda: self._state.discarded.append(table.clear()))
        return there

    def _accept_damage(self, op: ops.AcceptDamage) -> ops.LostChanges | None:
        table, partition = self._table(op.table)
        lost = table.lost_changes()
        if lost is not None:
            self._store(partition, Batch.one(b"", type=DAMAGE_ACCEPTED), b"", 0)
            self._changed.append(table.accept_damage)
        return lost

    def _table(self, name: str) -> tuple[Table, Partition]:
        stream = self._state.stream(name)
        if stream.table is None:
            raise BadRequest(f"{name!r} is a stream, not a table: add to it with append")
        return stream.table, stream.partitions[0]

    def _check_table_room(self, table: Table, name: str, growth: int) -> None:
        size = table.pending_bytes + growth
        if growth > 0 and size > self._settings.table_bytes_max:
            raise LimitExceeded(f"bytes of table {name!r}", size, self._settings.table_bytes_max, "log.table_bytes_max")

    def _save_cursor(self, op: ops.SaveCursor) -> int:
        stream = self._state.stream(op.stream)
        partition = stream.partition(op.partition)
        if not 0 <= op.index < 2**63:
            raise BadRequest(f"cursor {op.cursor!r}: index {op.index} is not from 0 to 2^63-1")
        limits.check_name(self._settings, "cursor", op.cursor)
        stored = self._state.peek_cursor(stream.info.id, op.cursor, op.partition)
        if stored is None:
            self._check_cursor_room(stream)
        elif op.index <= stored.index and not op.rewind:
            return stored.index
        position = CursorPosition(op.index, self._now_us)
        self._set_pending_cursor((stream.info.id, op.cursor, op.partition), position)
        self._event(frame.CursorSaved(op.cursor, stream.info.id, partition.number, op.index, self._now_us))
        return op.index

    def _check_cursor_room(self, stream: Stream) -> None:
        count = len(self._state.cursors.get(stream.info.id, {}))
        if count >= self._settings.cursors_max:
            raise LimitExceeded(
                f"cursors of stream {stream.info.name!r}", count + 1, self._settings.cursors_max, "log.cursors_max"
            )

    def _delete_cursor(self, op: ops.DeleteCursor) -> bool:
        stream = self._state.stream(op.stream)
        if self._state.peek_cursor(stream.info.id, op.cursor, op.partition) is None:
            return False
        self._set_pending_cursor((stream.info.id, op.cursor, op.partition), None)
        self._event(frame.CursorDeleted(op.cursor, stream.info.id, op.partition))
        return True

    def _set_pending_cursor(self, key: tuple[int, str, int], position: CursorPosition | None) -> None:
        pending = self._state.pending_cursors
        if self._undo is not None:
            before = self._state.peek_cursor(*key)
            self._undo.append(lambda: pending.__setitem__(key, before))
        pending[key] = position

    def _set_producer(self, op: ops.SetProducer) -> None:
        partition = self._state.stream(op.stream).partition(op.partition)
        if op.sequence is not None and not 0 <= op.sequence < 2**64:
            raise BadRequest(f"producer {op.producer!r}: sequence {op.sequence} is not from 0 to 2^64-1")
        last = partition.producer(op.producer)
        if op.after is not None:
            check_after(op.producer, op.sequence, op.after, last)
        if last is None:
            limits.check_producer(self._settings, partition, op.producer)
        state = None if op.sequence is None else ProducerState(op.sequence, 0, 0)
        self._set_pending_producer(partition, op.producer, state)
        self._event(frame.ProducerSet(partition.stream_id, partition.number, op.producer, op.sequence))

    def _rename_producer(self, op: ops.RenameProducer) -> None:
        last = self._state.stream(op.stream).partition(op.partition).producer(op.producer)
        if last is not None:
            self._set_producer(ops.SetProducer(op.stream, op.to, last.sequence, op.partition))
            self._set_producer(ops.SetProducer(op.stream, op.producer, None, op.partition))

    def _trim(self, op: ops.Trim) -> int:
        stream = self._state.stream(op.stream)
        partition = stream.partition(op.partition)
        if stream.table is not None and op.cause is not ops.Cause.COMPACTION:
            raise BadRequest(
                f"{op.stream!r} is a table: its old changes are removed automatically once no key needs them"
            )
        if not 0 <= op.before <= partition.pending_next:
            raise BadRequest(
                f"stream {op.stream!r} partition {op.partition}: cannot trim before {op.before}; "
                f"the next index is {partition.pending_next}"
            )
        before = op.before
        if op.cause is ops.Cause.RETENTION:
            before = min(before, self._state.peek_lowest_cursor(partition.stream_id, op.partition, before))
        first = max(before, partition.first)
        if first > partition.first:
            self._event(frame.StreamTrimmed(partition.stream_id, partition.number, first))
        return first

    def _register_checkpoint(self, op: ops.RegisterCheckpoint) -> ops.CheckpointInfo:
        stream = self._state.stream(op.stream)
        parts = op.id, stream.info.id, op.position, op.size, self._now_us, op.meta
        if not self._state.is_shared:
            self._event(frame.CheckpointAdded(*parts))
        elif op.id in self._state.finished_blobs:
            self._event(frame.CheckpointStored(*parts, self._state.finished_blobs[op.id]))
        else:
            raise BadRequest(f"the blob of checkpoint {op.id} is not in the store; write it again")
        return ops.CheckpointInfo(op.id, op.stream, op.position, op.size, self._now_us, op.meta)

    def _store_segment(self, op: ops.StoreSegment) -> None:
        stream = self._state.by_id.get(op.stream_id)
        if stream is None or op.next <= stream.partition(op.partition).first:
            raise ConditionFailed(0, f"the records of {op.name} were deleted or trimmed meanwhile")
        self._event(frame.SegmentStored(op.stream_id, op.partition, op.first, op.next, op.bytes, op.name))

    def _drop_checkpoint(self, op: ops.DropCheckpoint) -> None:
        if op.id not in self._state.checkpoints:
            raise UnknownCheckpoint(f"there is no checkpoint {op.id}; list checkpoints to see the numbers")
        self._event(frame.CheckpointDropped(op.id))

    def _event(self, event: frame.AnyEvent) -> None:
        try:
            entry = frame.encode_event(event)
        except (OverflowError, UnicodeEncodeError) as error:  # the writer must outlive whatever it is handed
            raise BadRequest(f"something in {type(event).__name__} does not fit the journal: {error}") from error
        self._directory.append(entry)
        self._events.append(event)

    # -- structural operations -------------------------------------------------------------------------------------

    def _structural(self, op: ops.CreateStream | ops.GrowStream | ops.SetOptions | ops.DeleteStream) -> Any:
        match op:
            case ops.CreateStream():
                return self._create_stream(op)
            case ops.GrowStream():
                return self._grow_stream(op)
            case ops.SetOptions():
                stream = self._state.stream(op.name)
                retention.check_options(op.name, stream.info.kind, op.options)
                self._event(frame.OptionsChanged(stream.info.id, op.options))
                return None
            case ops.DeleteStream():
                stream = self._state.stream(op.name)
                self._event(frame.StreamDeleted(stream.info.id, [partition.next for partition in stream.partitions]))
                return None

    def _create_stream(self, op: ops.CreateStream) -> bool:
        """Whether the stream is new."""
        limits.check_name(self._settings, op.kind, op.name)
        limits.check_partitions(self._settings, op.name, op.partitions)
        retention.check_options(op.name, op.kind, op.options)
        if op.kind not in (STREAM, TABLE) or (op.kind == TABLE and op.partitions != 1):
            raise BadRequest(f"{op.name!r}: the kind is {STREAM!r}, or {TABLE!r} with one partition")
        existing = self._state.streams.get(op.name)
        if existing is not None:
            if op.exist_ok and existing.info.kind == op.kind:
                return False
            raise StreamExists(f"{existing.info.kind} {op.name!r} exists already")
        count = len(self._state.streams) + self._created + 1
        if count > self._settings.streams_max and not op.is_own:
            raise LimitExceeded("streams", count, self._settings.streams_max, "log.streams_max")
        firsts = self._state.firsts_for(op.name, 0, op.partitions)
        id = self._state.next_stream_id + self._created
        self._event(frame.StreamCreated(id, op.name, op.kind, op.options, self._now_us, firsts))
        self._created += 1
        return True

    def _grow_stream(self, op: ops.GrowStream) -> None:
        stream = self._state.stream(op.name)
        limits.check_partitions(self._settings, op.name, op.partitions)
        count = len(stream.partitions)
        if stream.table is not None or op.partitions < count:
            raise BadRequest(f"{op.name!r} has {count} partitions and cannot have {op.partitions}")
        if op.partitions > count:
            firsts = self._state.firsts_for(op.name, count, op.partitions)
            self._event(frame.StreamGrown(stream.info.id, firsts))

    # -- the outcome -----------------------------------------------------------------------------------------------

    def set_off(self) -> None:
        """All is added, and other commits are made before this one is durable. They see what it changes."""
        for table in self._tables.values():
            table.set_off()
        self._ends = [(partition, *partition.set_off()) for partition in self._touched.values()]
        self._state.flying_cursors += (self._state.pending_cursors,)
        self._state.pending_cursors = {}
        self._has_set_off = True

    def settle(self, *, may_slice: bool = False) -> set[tuple[str, int]]:
        """The frames are durable, and those of all commits before: apply them. Returns the partitions that have new
        records. With `may_slice`, what takes long is left in `late`."""
        for event in self._events:
            self._state.apply(event)
        for partition, entry in self._appended:
            partition.tail.append(entry)
            self._state.tail_bytes += len(entry.body)
        for apply in self._changed:
            if may_slice and self._is_single and isinstance(apply, ManyChanges) and apply.is_long:
                self.late = apply
                apply.table.is_behind = True
            else:
                apply()
        if self._has_set_off:
            for table in self._tables.values():
                table.land()
            for partition, next_index, time_us, producers in self._ends:
                partition.land(next_index, time_us, producers)
            self._state.flying_cursors = self._state.flying_cursors[1:]
        else:
            for table in self._tables.values():
                table.settle_pending()
            for partition in self._touched.values():
                partition.settle_pending()  # after the tail: a reader that sees the new bounds finds the records
            self._state.pending_cursors.clear()
        self._state.sequence = self._sequence + len(self.frames)
        return {(partition.stream, partition.number) for partition, _ in self._appended}

    @property
    def largest_tail_bytes(self) -> int:
        """Of the partitions that this commit appended to."""
        return max((partition.tail.bytes for partition in self._touched.values()), default=0)

    def abandon(self) -> None:
        """The commit did not happen, and neither did those behind it."""
        for partition in self._touched.values():
            partition.forget_pending()
        for table in self._tables.values():
            table.settle_pending()
        self._state.pending_cursors.clear()
        self._state.flying_cursors = ()
