"""What a start does for each of very many streams: counted, not timed."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
from unit.log.helpers import do, maintain, open_log, payloads

from headrace import collection
from headrace.collection import without_collection
from headrace.log import ops, runs, tail
from headrace.log.batch import Batch
from headrace.log.log import Log
from headrace.testing import FakeClock, MemoryDisk

STREAMS = 50


class CountingDisk(MemoryDisk):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def list(self, directory: str) -> list[str]:
        self.calls["list"] += 1
        return super().list(directory)

    def read(self, path: str) -> bytes:
        self.calls["read"] += 1
        return super().read(path)

    def size(self, path: str) -> int:
        self.calls["size"] += 1
        return super().size(path)


def started(streams: int, *, sealed: bool = False, killed: bool = False) -> tuple[Log, CountingDisk]:
    """A log with so many streams of ten records, stopped or killed and opened again."""
    disk, clock = CountingDisk(), FakeClock()
    settings = {"journal_file_bytes": 1_000_000, "segment_bytes": 100_000, "journal_bytes_max": 10_000_000}
    log = open_log(disk, clock, seal_age_s=1.0 if sealed else 600.0, **settings)
    for number in range(streams):
        do(log, ops.CreateStream(f"s{number}"))
        do(log, ops.Append(f"s{number}", Batch.of([b"x"] * 10)))
    if sealed:
        clock.advance(10)
        maintain(log)
    if not killed:
        log.close()
    disk.calls.clear()
    return open_log(disk, clock, **settings), disk


@pytest.mark.parametrize("killed", [False, True])
def test_streams_without_segments_cost_no_look_at_the_disk(killed: bool) -> None:
    log, few = started(STREAMS, killed=killed)
    assert all(log.bounds(f"s{number}") == (0, 10) for number in range(STREAMS))
    _, many = started(4 * STREAMS, killed=killed)
    assert many.calls == few.calls
    assert few.calls["list"] < 10


def test_a_stream_with_segments_costs_one_list_and_no_read() -> None:
    log, few = started(STREAMS, sealed=True)
    assert all(len(log.segments(f"s{number}")) == 1 for number in range(STREAMS))
    assert not log.state.tail_bytes
    _, many = started(4 * STREAMS, sealed=True)
    assert many.calls["list"] - few.calls["list"] == 3 * STREAMS
    assert many.calls["size"] - few.calls["size"] == 3 * STREAMS
    assert many.calls["read"] == few.calls["read"]


def test_what_there_is_of_each_stream_is_small() -> None:
    log, _ = started(1)
    stream = log.state.stream("s0")
    for thing in (stream, stream.partitions[0], stream.partitions[0].tail):
        assert not hasattr(thing, "__dict__"), f"{type(thing).__name__} takes a dict for each stream"
    for untracked in (stream.info, stream.info.options, stream.partitions[0].tail.oldest):
        assert not gc.is_tracked(untracked)


def test_tails_stay_packed_until_somebody_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "RUN_MIN", 2)
    disk = MemoryDisk()
    log = open_log(disk)
    for name in "ab":
        do(log, ops.CreateStream(name))
    for number in range(20):
        do(log, ops.Append("ab"[number % 2], Batch.one(b"%d" % number)))
    log.close()
    with monkeypatch.context() as patch:
        patch.setattr(tail, "unpack", lambda packed: pytest.fail("a tail is unpacked"))
        log = open_log(disk)
        do(log, ops.CreateStream("c"))
        do(log, ops.Append("c", Batch.one(b"x")))
        maintain(log)
        assert log.state.needed_sequence == 2
        assert log.gauges()["tail_bytes"] == log.state.tail_bytes > 0
    assert payloads(log, "a") == [b"%d" % number for number in range(0, 20, 2)]


@pytest.mark.parametrize("is_enabled", [False, True])
def test_the_collector_rests_during_recovery_and_is_as_before_afterwards(
    is_enabled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    resting = []
    monkeypatch.setattr(MemoryDisk, "list", _noting(MemoryDisk.list, lambda: resting.append(not gc.isenabled())))
    was_enabled = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        open_log(MemoryDisk())
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if was_enabled else gc.disable)()
    assert any(resting)


def test_nothing_is_collected_when_recovery_ends_and_what_was_frozen_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of the many objects would be looked at, and all of them stay."""
    was_enabled, thresholds = gc.isenabled(), gc.get_threshold()
    monkeypatch.setattr(collection, "_froze", False)  # a hub that another test has run in this process may have
    gc.unfreeze()
    gc.collect()
    gc.enable()
    gc.set_threshold(100_000, 1, 1)
    kept: list[object] = []
    collected: list[object] = []
    gc.callbacks.append(note := lambda phase, info: collected.append(phase))
    try:
        with without_collection():
            kept += ([] for _ in range(200_000))
        kept += ([] for _ in range(1_000))
        assert not collected
        assert not gc.get_freeze_count()
        collection.freeze()
        with without_collection():
            pass
        assert gc.get_freeze_count()
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        (gc.enable if was_enabled else gc.disable)()


def _noting(function, note):  # type: ignore[no-untyped-def]
    def noted(*arguments):  # type: ignore[no-untyped-def]
        note()
        return function(*arguments)

    return noted


def test_what_is_asked_every_second_does_not_look_at_every_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    log, _ = started(3, sealed=True)
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.SaveCursor("c", "s1", 5))
    maintain(log)
    monkeypatch.setattr(type(log.state), "partitions", lambda state: pytest.fail("every partition is looked at"))
    monkeypatch.setattr(log.state, "streams", _OnlyByName(log.state.streams))
    gauges = log.gauges()
    assert (gauges["streams"], gauges["tables"]) == (3, 1)
    assert gauges["segment_bytes"] > 0
    assert [(cursor.stream, cursor.lag) for cursor in log.cursors()] == [("s1", 5)]
    assert [info.name for info in log.streams("s2")] == ["s2"]
    assert log.streams("none") == []


class _OnlyByName(dict):  # type: ignore[type-arg]
    def values(self):  # type: ignore[no-untyped-def]
        pytest.fail("every stream is looked at")
