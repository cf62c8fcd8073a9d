"""The whole log on a simulated disk and clock, against a model, with faults between any two steps.

Deterministic: hypothesis chooses the steps and the seeds, prints the failing sequence as a program, and replays it.
The rule: what was acknowledged is there, unchanged, at its index; no index is used twice; nothing else is served.
"""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.config import Log as LogSettings
from headrace.errors import LogFailed
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.directory import open_directory
from headrace.log.pending import Pending
from headrace.testing import FakeClock, FaultyDisk, MemoryDisk

TINY = LogSettings(
    commit_bytes_max=2_000,
    journal_file_bytes=1_500,
    journal_bytes_max=4_000,
    segment_bytes=1_200,
    tail_bytes_max=6_000,
    seal_age_s=50.0,
    merge_segments_min=3,
    compact_bytes_min=600,
    open_segments_max=2,
    disk_reserve_bytes=0,
    maintenance_interval_s=1.0,
)
STREAMS = ["orders", "clicks"]
small_keys = st.binary(min_size=1, max_size=1)
payloads = st.lists(st.binary(max_size=60), min_size=1, max_size=5)


class Model:
    """What must be true: everything acknowledged, and what was submitted but never answered, which may be there."""

    def __init__(self) -> None:
        self.records: dict[str, dict[int, bytes]] = {}
        self.first: dict[str, int] = {}
        self.used: dict[str, int] = {}
        """The highest index that anybody ever saw, plus one."""
        self.table: dict[bytes, bytes] = {}
        self.cursors: dict[tuple[str, str], int] = {}
        self.producers: dict[tuple[str, str], int] = {}


class LogMachine(RuleBasedStateMachine):
    """Rules are what users do and what machines suffer."""

    @initialize(seed=st.integers(0, 2**32))
    def start(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = FakeClock()
        self.memory = MemoryDisk()
        self.model = Model()
        self.waiting: list[tuple[Pending, str]] = []
        self.open()

    def open(self) -> None:
        self.disk = FaultyDisk(self.memory, short_writes=self.random.choice([None, 7, 100]))
        self.log = open_directory(self.disk, self.clock, TINY)
        assert not self.log.recovered.damage

    # -- what users do ---------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(STREAMS))
    def create(self, name: str) -> None:
        self.submit([ops.CreateStream(name)])

    @rule()
    def create_table(self) -> None:
        self.submit([ops.CreateStream("state", kind="table")])

    @rule(name=st.sampled_from(STREAMS), values=payloads)
    def append(self, name: str, values: list[bytes]) -> None:
        self.submit([ops.Append(name, Batch.of(values))])

    @rule(name=st.sampled_from(STREAMS), value=st.binary(max_size=20), sequence=st.integers(0, 12))
    def append_once(self, name: str, value: bytes, sequence: int) -> None:
        self.submit([ops.Append(name, Batch.one(value, id=sequence), 0, "producer", sequence)])

    @rule(values=payloads, key=st.binary(min_size=1, max_size=2), value=st.binary(max_size=30))
    def transaction(self, values: list[bytes], key: bytes, value: bytes) -> None:
        self.submit(
            [
                ops.Append("orders", Batch.of(values)),
                ops.Put("state", key, value),
                ops.Append("clicks", Batch.of(values)),
                ops.SaveCursor("reader", "orders", self.random.randint(0, 50)),
            ]
        )

    @rule(key=st.binary(min_size=1, max_size=2), value=st.none() | st.binary(max_size=30))
    def put(self, key: bytes, value: bytes | None) -> None:
        self.submit([ops.Delete("state", key) if value is None else ops.Put("state", key, value)])

    @rule(pairs=st.lists(st.tuples(small_keys, st.binary(max_size=30)), min_size=1, max_size=6), clears=st.booleans())
    def put_many(self, pairs: list[tuple[bytes, bytes]], clears: bool) -> None:
        put = ops.PutMany("state", [key for key, _ in pairs], [value for _, value in pairs])
        self.submit([ops.ClearTable("state"), put] if clears else [put])

    @rule(keys=st.lists(small_keys, max_size=6))
    def delete_many(self, keys: list[bytes]) -> None:
        self.submit([ops.DeleteMany("state", keys)])

    @rule()
    def clear(self) -> None:
        self.submit([ops.ClearTable("state")])

    @rule(name=st.sampled_from(STREAMS), index=st.integers(0, 60), rewind=st.booleans())
    def save_cursor(self, name: str, index: int, rewind: bool) -> None:
        self.submit([ops.SaveCursor("reader", name, index, 0, rewind)])

    @rule(name=st.sampled_from(STREAMS))
    def trim(self, name: str) -> None:
        if name in self.log.state.streams:
            bounds = self.log.bounds(name)
            self.submit([ops.Trim(name, self.random.randint(bounds.first, bounds.next))])

    @rule(name=st.sampled_from(STREAMS))
    def delete(self, name: str) -> None:
        self.submit([ops.DeleteStream(name)])

    @rule(name=st.sampled_from(STREAMS), values=payloads)
    def recreate(self, name: str, values: list[bytes]) -> None:
        for operation in (
            ops.CreateStream(name),
            ops.Append(name, Batch.of(values)),
            ops.DeleteStream(name),
            ops.CreateStream(name),
            ops.Append(name, Batch.of(values)),
        ):
            self.submit([operation])
        self.commit()

    @rule(name=st.sampled_from(STREAMS), value=st.binary(min_size=40, max_size=60), rounds=st.integers(5, 60))
    def burst(self, name: str, value: bytes, rounds: int) -> None:
        """Enough to roll journal files, seal, merge and take snapshots."""
        self.submit([ops.CreateStream(name)])
        for _ in range(rounds):
            self.submit([ops.Append(name, Batch.of([value, value]))])
            self.commit()
            self.maintain()

    def submit(self, operations: list[ops.Op]) -> None:
        try:
            self.waiting.append((self.log.submit(operations), ""))
        except LogFailed:
            self.restart_after_failure()

    # -- what the log does -----------------------------------------------------------------------------------------

    @rule()
    def commit(self) -> None:
        while self.log.commit_once():
            self.settle()

    @rule()
    def maintain(self) -> None:
        for _ in range(20):
            if not self.log.maintain_once():
                break

    @rule(seconds=st.integers(-20, 60))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds)

    # -- what machines suffer ----------------------------------------------------------------------------------------

    @rule()
    def killed(self) -> None:
        self.memory = self.memory.after_kill()
        self.recover()

    @rule()
    def power_cut(self) -> None:
        self.memory = self.memory.after_power_cut(self.random)
        self.recover()

    @rule()
    def restarted(self) -> None:
        self.log.close()
        self.settle()
        assert not self.waiting
        self.memory = self.memory.after_kill()
        self.open()
        self.check()

    @rule()
    def power_cut_during_recovery(self) -> None:
        self.memory = self.memory.after_power_cut(self.random)
        self.open()
        self.memory = self.memory.after_power_cut(self.random)
        self.recover()

    @precondition(lambda self: self.waiting)
    @rule(room_bytes=st.integers(0, 400))
    def disk_full(self, room_bytes: int) -> None:
        """Appends are refused, or stored as long as there was room; when room comes back, so do they."""
        self.disk.room_bytes = room_bytes
        while self.log.commit_once():
            assert self.log.failed is None
        self.settle()
        self.check()
        self.maintain()
        self.disk.heal()

    @precondition(lambda self: self.waiting)
    @rule(call=st.sampled_from(["sync", "write"]))
    def input_output_error(self, call: str) -> None:
        self.disk.fail_all(call, errno.EIO)
        self.log.commit_once()
        if self.log.failed is None:  # nothing had to be written
            self.disk.heal()
            self.settle()
            return
        for pending, _ in self.waiting:
            assert not pending.done or pending.error is not None or not pending.result
        self.restart_after_failure()

    def restart_after_failure(self) -> None:
        """The process exits with a failed log; the page cache may or may not reach the disk."""
        self.memory = self.memory.after_power_cut(self.random)
        self.recover()

    def recover(self) -> None:
        unanswered = [pending for pending, _ in self.waiting]
        self.waiting = []
        self.open()
        self.adopt(unanswered)
        self.check()

    # -- the model ---------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take over what has been acknowledged."""
        for pending, _ in [one for one in self.waiting if one[0].done]:
            if pending.error is None:
                for operation, result in zip(pending.operations, pending.result, strict=True):
                    self.apply(operation, result)
        self.waiting = [one for one in self.waiting if not one[0].done]

    def apply(self, operation: ops.Op, result: object) -> None:
        model = self.model
        match operation:
            case ops.CreateStream() if operation.kind == "stream":
                model.records.setdefault(operation.name, {})
                model.first.setdefault(operation.name, 0)
            case ops.DeleteStream():
                model.used[operation.name] = max(
                    model.used.get(operation.name, 0), max(model.records.pop(operation.name, {}), default=-1) + 1
                )
                model.first.pop(operation.name)
                model.cursors.pop(("reader", operation.name), None)
                model.producers.pop(("producer", operation.name), None)
            case ops.Append():
                assert isinstance(result, ops.Appended)
                self.apply_append(operation, result)
            case ops.Put():
                model.table[operation.key] = operation.value
            case ops.PutMany():
                model.table.update(zip(operation.keys, operation.values, strict=True))
            case ops.Delete():
                model.table.pop(operation.key, None)
            case ops.DeleteMany():
                for key in operation.keys:
                    model.table.pop(key, None)
            case ops.ClearTable():
                model.table.clear()
            case ops.SaveCursor():
                assert isinstance(result, int)
                model.cursors[operation.cursor, operation.stream] = result
            case ops.Trim():
                assert isinstance(result, int)
                model.first[operation.stream] = max(model.first[operation.stream], result)

    def apply_append(self, operation: ops.Append, result: ops.Appended) -> None:
        if result.duplicate:
            return
        stored = self.model.records[operation.stream]
        assert result.first not in stored, "an index was used twice"
        assert result.first >= self.model.used.get(operation.stream, 0), "an index was used again after a delete"
        for offset, value in enumerate(payloads_of(operation.batch)):
            stored[result.first + offset] = value
        if operation.producer is not None:
            assert operation.sequence is not None
            assert operation.sequence > self.model.producers.get((operation.producer, operation.stream), -1)
            self.model.producers[operation.producer, operation.stream] = operation.sequence

    def adopt(self, unanswered: list[Pending]) -> None:
        """Transactions without an answer may have happened, wholly: the recovered log decides which."""
        model, log = self.model, self.log
        for name in STREAMS:
            if name not in log.state.streams:
                if name in model.records:
                    assert any(isinstance(p.operations[0], ops.DeleteStream) for p in unanswered)
                    self.apply(ops.DeleteStream(name), None)
                continue
            bounds = log.bounds(name)
            known = model.records.setdefault(name, {})
            model.first[name] = max(model.first.get(name, 0), bounds.first)
            candidates = {
                value
                for pending in unanswered
                for operation in pending.operations
                if isinstance(operation, ops.Append) and operation.stream == name
                for value in payloads_of(operation.batch)
            }
            for batch in log.scan(name, bounds.first, bounds.next):
                for row in batch.select(["index", "payload"]).to_pylist():
                    if row["index"] not in known:
                        assert row["payload"] in candidates, "something was served that nobody sent"
                        known[row["index"]] = row["payload"]
            state = log.partition(name).producers.get("producer")
            if state is not None:
                model.producers["producer", name] = state.sequence
            position = log.state.cursor(log.stream(name).id, "reader", 0)
            if position is not None:
                model.cursors["reader", name] = position.index
        if "state" in log.state.streams:
            table = log.state.stream("state").table
            assert table is not None
            changes = {
                change
                for pending in unanswered
                for operation in pending.operations
                for change in changes_of(operation, model.table)
            }
            now = dict(table.items())
            for key in now.keys() | model.table.keys():
                if now.get(key) != model.table.get(key):
                    assert (key, now.get(key)) in changes, "a table changed by itself"
            model.table = now

    @invariant()
    def nothing_acknowledged_is_missing_or_changed(self) -> None:
        if hasattr(self, "log"):
            self.settle()
            self.check()

    def check(self) -> None:
        model, log = self.model, self.log
        for name, known in model.records.items():
            assert name in log.state.streams, f"stream {name} is gone"
            bounds = log.bounds(name)
            kept = {index: value for index, value in known.items() if index >= bounds.first}
            assert bounds.first >= model.first[name]
            served = {
                row["index"]: row["payload"]
                for batch in log.scan(name, bounds.first, bounds.next)
                for row in batch.select(["index", "payload"]).to_pylist()
            }
            assert served == kept
            state = log.partition(name).producers.get("producer")
            assert (None if state is None else state.sequence) == model.producers.get(("producer", name))
            position = log.state.cursor(log.stream(name).id, "reader", 0)
            assert (None if position is None else position.index) == model.cursors.get(("reader", name))
        if "state" in log.state.streams:
            table = log.state.stream("state").table
            assert table is not None
            assert dict(table.items()) == model.table
            assert self.replayed() == model.table
        assert log.state.tail_bytes == sum(partition.tail.bytes for partition in log.state.partitions())

    def replayed(self) -> dict[bytes, bytes]:
        """The table as whoever reads its records makes it."""
        bounds = self.log.bounds("state")
        table: dict[bytes, bytes] = {}
        for batch in self.log.scan("state", bounds.first, bounds.next):
            for row in batch.select(["type", "key", "payload"]).to_pylist():
                if row["type"] == "clear":
                    table.clear()
                elif row["type"] == "delete":
                    table.pop(row["key"], None)
                else:
                    table[row["key"]] = row["payload"]
        return table


def changes_of(operation: ops.Op, table: dict[bytes, bytes]) -> list[tuple[bytes, bytes | None]]:
    """What an operation may have made of which keys of the table."""
    match operation:
        case ops.Put():
            return [(operation.key, operation.value)]
        case ops.PutMany():
            return list(zip(operation.keys, operation.values, strict=True))
        case ops.Delete():
            return [(operation.key, None)]
        case ops.DeleteMany():
            return [(key, None) for key in operation.keys]
        case ops.ClearTable():
            return [(key, None) for key in table]
    return []


def payloads_of(batch: Batch) -> list[bytes]:
    from headrace.log.batch import Columns

    return [bytes(value) for value in Columns(batch.body).payload.to_pylist()]


LogMachine.TestCase.settings = settings(
    max_examples=300,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    print_blob=True,
)
TestLogSimulation = pytest.mark.slow(LogMachine.TestCase)
