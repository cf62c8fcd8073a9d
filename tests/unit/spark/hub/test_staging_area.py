"""The rules of stage and commit, against the real log on a disk in memory. No Spark here."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pytest
from support.spark_batches import Driver, chunks_of, payloads

from headrace.config import Config, Grant, Spark
from headrace.config import Log as LogSection
from headrace.errors import BadRequest, Fenced, Forbidden, LimitExceeded, LogFailed
from headrace.hub import Hub
from headrace.security import Principal, acting_as
from headrace.spark.hub import batch_files, staging_area
from headrace.spark.hub.batch_files import NotStaged, one_off_name, survey_of, write_chunk
from headrace.spark.hub.positions import Describe, Forget, MoveCursor, Positions, ReadPosition
from headrace.spark.hub.sink_state import BATCHES_REMEMBERED, SINKS, BatchChanged, Commit, Part, SourcePosition
from headrace.spark.hub.staging_area import Abort, Stage, StagingArea
from headrace.spark.sink.rows import OutgoingRows, to_records
from headrace.testing import FakeClock, memory_hub

WAIT_S = 30


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub() as opened:
        yield opened


@pytest.fixture
def area(hub: Hub, tmp_path: Path) -> StagingArea:
    return StagingArea(hub, tmp_path)


def staged(directory: Path) -> list[Path]:
    return list(directory.rglob("*.arrows"))


async def test_parts_become_records_in_order(hub: Hub, area: StagingArea, tmp_path: Path) -> None:
    driver = Driver(area)
    second = await driver.stage(0, [b"c"], part=1)
    first = await driver.stage(0, [b"a", b"b"], part=0)
    done = await driver.commit(0, [first, second])
    assert done.applied
    assert [(one.stream, one.first, one.count) for one in done.appended] == [("out", 0, 3)]
    assert await payloads(hub) == [b"a", b"b", b"c"]
    assert staged(tmp_path) == []


async def test_a_repeated_commit_is_acknowledged_and_stores_nothing(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    await driver.commit(0, [await driver.stage(0, [b"a"])])
    again = Driver(area, run="r2")
    done = await again.commit(0, [await again.stage(0, [b"a"])])
    assert not done.applied
    assert await payloads(hub) == [b"a"]


async def test_the_same_batch_with_another_digest_is_refused(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    await driver.commit(3, [await driver.stage(3, [b"a"])], "d1")
    with pytest.raises(BatchChanged, match="batch 3.*digest d2.*digest d1"):
        await driver.commit(3, [await driver.stage(3, [b"b"])], "d2")
    with pytest.raises(BatchChanged, match="no longer remembered"):
        await driver.commit(2, [], "d0")
    assert await payloads(hub) == [b"a"]


async def test_recent_batches_are_remembered(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    for batch in range(BATCHES_REMEMBERED + 2):
        await driver.commit(batch, [], f"d{batch}")
    assert not (await driver.commit(2, [], "d2")).applied
    with pytest.raises(BatchChanged):
        await driver.commit(1, [], "d1")


async def test_an_older_run_is_fenced_off(hub: Hub, area: StagingArea) -> None:
    old, new = Driver(area, run="old"), Driver(area, run="new")
    part = await old.stage(0, [b"a"])
    await new.stage(0, [b"a"])
    with pytest.raises(Fenced, match="replaced by run new"):
        await old.commit(0, [part])
    with pytest.raises(Fenced):
        await old.stage(1, [b"b"])
    with pytest.raises(Fenced):
        await area.abort(Abort("q", "old", 0))
    assert await payloads(hub) == []


class WatchedLock(asyncio.Lock):
    """Says when somebody waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for = asyncio.Event()

    async def acquire(self) -> Literal[True]:
        if self.locked():
            self.is_waited_for.set()
        return await super().acquire()


@pytest.mark.parametrize("run", ["r1", "another"])
async def test_a_chunk_that_comes_while_its_batch_is_stored(
    hub: Hub, area: StagingArea, monkeypatch: pytest.MonkeyPatch, run: str
) -> None:
    """Sent a second time, or by a driver that was replaced meanwhile: its file was cut while it was read, after its
    checksum was found to be right, and the rest of the rows was lost without a word."""
    sent = [b"a" * 300, b"b" * 300]
    first_chunk = chunks_of(sent)[0][0]
    real, reading, writes = area._write, batch_files.groups_of, itertools.count()
    begun, go, written = (threading.Event() for _ in range(3))

    def write(path: Path, offset: int, rows: bytes) -> int:
        if next(writes) > 0:
            return real(path, offset, rows)
        begun.set()
        go.wait(WAIT_S)
        size = real(path, offset, rows)
        written.set()
        return size

    def groups_of(reader: Any) -> Any:
        go.set()
        written.wait(WAIT_S)
        return reading(reader)

    monkeypatch.setattr(area, "_write", write)
    monkeypatch.setattr(batch_files, "groups_of", groups_of)
    lock = area._locks["q"] = WatchedLock()
    first = asyncio.create_task(area.stage(Stage("q", "r1", 0, 0, 0, *first_chunk)))
    await asyncio.to_thread(begun.wait, WAIT_S)
    driver = Driver(area, run=run)

    async def batch() -> None:
        assert (await driver.commit(0, [await driver.stage(0, sent)])).applied

    stored = asyncio.create_task(batch())
    waiting = asyncio.create_task(lock.is_waited_for.wait())
    await asyncio.wait({stored, waiting}, return_when=asyncio.FIRST_COMPLETED)
    go.set()
    await asyncio.gather(first, stored)
    waiting.cancel()
    assert await payloads(hub) == sent


async def test_queries_do_not_meet(hub: Hub, area: StagingArea) -> None:
    one, two = Driver(area, query="one"), Driver(area, query="two")
    await one.commit(0, [await one.stage(0, [b"a"])])
    await two.commit(0, [await two.stage(0, [b"b"])])
    assert await payloads(hub) == [b"a", b"b"]


async def test_only_the_attempt_that_the_driver_names_counts(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    await driver.stage(0, [b"lost"], attempt=0)
    won = await driver.stage(0, [b"won"], attempt=1)
    await driver.commit(0, [won])
    assert await payloads(hub) == [b"won"]


async def test_a_chunk_sent_twice_leaves_the_same_file(hub: Hub, area: StagingArea, tmp_path: Path) -> None:
    path = tmp_path / "x" / "f"
    write_chunk(path, 0, b"abc")
    write_chunk(path, 3, b"def")
    write_chunk(path, 3, b"def")
    assert path.read_bytes() == b"abcdef"
    with pytest.raises(NotStaged, match="begins at 9"):
        write_chunk(path, 9, b"x")


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"x")])
async def test_what_is_not_staged_whole_is_not_stored(
    hub: Hub, area: StagingArea, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    driver = Driver(area)
    part = await driver.stage(0, [b"a"])
    damage(staged(tmp_path)[0])
    with pytest.raises(NotStaged, match=r"query q: batch 0: 0\.0\.arrows"):
        await driver.commit(0, [part])
    assert await payloads(hub) == []


async def test_an_empty_batch_counts(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    assert (await driver.commit(0, [], "d0")).applied
    assert not (await driver.commit(0, [], "d0")).applied


async def test_several_streams_in_one_step(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    parts = [await driver.stage(0, [b"a"], part=0, to="x"), await driver.stage(0, [b"b"], part=1, to="y")]
    await driver.commit(0, parts)
    assert (await payloads(hub, "x"), await payloads(hub, "y")) == ([b"a"], [b"b"])


async def test_leftovers_expire(hub: Hub, tmp_path: Path) -> None:
    now_s = [1e12]
    area = StagingArea(hub, tmp_path, leftovers_expire_s=10, now_s=lambda: now_s[0])
    await Driver(area, query="gone").stage(0, [b"a"])
    assert len(staged(tmp_path)) == 1
    await Driver(area, query="here").stage(0, [b"a"])
    assert len(staged(tmp_path)) == 2
    now_s[0] += 100
    await Driver(area, query="here").stage(1, [b"a"])
    left = {path.parent.name for path in staged(tmp_path)}
    assert left == {"1"}


async def test_leftovers_expire_also_after_the_clock_was_set_back(hub: Hub, tmp_path: Path) -> None:
    """Until it had caught up nobody looked for them."""
    now_s = [1e12]
    area = StagingArea(hub, tmp_path, leftovers_expire_s=10, now_s=lambda: now_s[0])
    await Driver(area, query="gone").stage(0, [b"a"])
    leftover = staged(tmp_path)[0]
    now_s[0] = 1e9
    for path in (leftover, leftover.parent):
        os.utime(path, (now_s[0] - 100, now_s[0] - 100))
    await Driver(area, query="here").stage(1, [b"a"])
    assert not leftover.exists()


async def test_writes_without_a_name_are_forgotten(tmp_path: Path) -> None:
    """Each has a name that is never used again; named ones are kept, they may be repeated."""
    clock = FakeClock()
    async with memory_hub(clock=clock) as hub:
        area = StagingArea(hub, tmp_path, now_s=lambda: clock.now_us() / 1e6)
        once, named = Driver(area, query=one_off_name()), Driver(area, query="write/nightly")
        part = await once.stage(0, [b"a"])
        assert (await once.commit(0, [part])).applied
        assert not (await once.commit(0, [part])).applied
        await named.commit(0, [await named.stage(0, [b"b"])])
        clock.advance(staging_area.LEFTOVERS_EXPIRE_S_DEFAULT + 1)
        await Driver(area).stage(0, [b"c"])
        assert sorted(key for key, _ in hub.items(SINKS)) == [b"q", b"write/nightly"]


async def test_an_abort_drops_the_batch(hub: Hub, area: StagingArea, tmp_path: Path) -> None:
    driver = Driver(area)
    part = await driver.stage(0, [b"a"])
    await area.abort(Abort("q", "r1", 0))
    assert staged(tmp_path) == []
    with pytest.raises(NotStaged):
        await driver.commit(0, [part])


async def test_commits_at_the_same_time_store_once(hub: Hub, area: StagingArea) -> None:
    driver = Driver(area)
    part = await driver.stage(0, [b"a"])
    done = await asyncio.gather(*(driver.commit(0, [part]) for _ in range(5)))
    assert sorted(one.applied for one in done) == [False] * 4 + [True]
    assert await payloads(hub) == [b"a"]


async def test_positions_say_where_stored_results_end(hub: Hub, area: StagingArea) -> None:
    await hub.create_stream("in", 2)
    planning = Positions(hub)
    driver = Driver(area)
    assert await planning.position(ReadPosition("c", "in")) == [None, None]
    await driver.commit(0, [await driver.stage(0, [b"a"])], sources=[SourcePosition("c", "in", [5, 7])])
    assert hub.cursor("c", "in") is None  # Spark has not noted the batch yet: retention must wait
    assert await planning.position(ReadPosition("c", "in")) == [5, 7]
    await planning.move_cursor(MoveCursor("c", {"in": [9, 3], "gone": [1]}))
    assert await planning.position(ReadPosition("c", "in")) == [9, 7]
    assert await planning.forget(Forget("c")) == 1
    assert await planning.position(ReadPosition("c", "in")) == [9, 3]


async def test_a_partition_that_is_not_read_gets_no_cursor(hub: Hub, area: StagingArea) -> None:
    """One at its beginning would keep retention from it for ever."""
    await hub.create_stream("in", partitions=2)
    planning = Positions(hub)
    await planning.move_cursor(MoveCursor("c", {"in": [None, 8]}))
    assert [(one.partition, one.index) for one in hub.cursors("c")] == [(1, 8)]
    await Driver(area).commit(0, [], sources=[SourcePosition("c", "in", [None, 9])])
    assert await planning.position(ReadPosition("c", "in")) == [None, 9]


async def test_names_come_before_patterns(hub: Hub) -> None:
    for name in ("a[1]", "a1", "a2"):
        await hub.create_stream(name)
    await hub.create_table("a3")
    planning = Positions(hub)

    async def found(*names: str) -> list[str]:
        return [one.name for one in await planning.describe(Describe(list(names)))]

    assert await found("a[1]") == ["a[1]"]
    assert await found("a?") == ["a1", "a2"]
    assert await found("a2", "a*") == ["a1", "a2", "a[1]"]
    assert await found("a3", "nothing") == []
    await planning.move_cursor(MoveCursor("c", {"a[1]": [0]}))
    assert hub.cursor("c", "a[1]") == 0


class TestLargerThanOneTransaction:
    """A batch that does not fit into one transaction is stored in steps, once."""

    @pytest.fixture
    async def hub(self) -> AsyncIterator[Hub]:
        config = msgspec.structs.replace(Config(), log=LogSection(batch_bytes_max=4096))
        async with memory_hub(config) as opened:
            yield opened

    async def test_all_arrive_in_order(self, hub: Hub, area: StagingArea) -> None:
        driver = Driver(area)
        sent = [b"%06d" % number * 20 for number in range(200)]
        done = await driver.commit(0, [await driver.stage(0, sent)])
        assert done.applied
        assert len(done.appended) > 5
        assert await payloads(hub) == sent
        assert list(hub.items(staging_area.UNFINISHED)) == []
        assert not (await driver.commit(0, [])).applied

    @pytest.mark.parametrize("steps", [0, 1, 4])
    @pytest.mark.parametrize("finish", ["start", "commit", "stage"])
    async def test_an_end_in_the_middle_is_finished_once(
        self, hub: Hub, area: StagingArea, tmp_path: Path, steps: int, finish: str
    ) -> None:
        driver = Driver(area)
        sent = [b"%06d" % number * 20 for number in range(200)]
        await self._interrupted(hub, driver, sent, steps)
        after = StagingArea(hub, tmp_path)
        again = Driver(after, run="r2")
        if finish == "start":
            assert await after.recover() == 1
        elif finish == "stage":
            await again.stage(0, sent)
        assert not (await again.commit(0, [await again.stage(0, sent)])).applied
        assert await payloads(hub) == sent
        assert await after.recover() == 0

    async def test_a_record_that_the_log_refuses_keeps_all_slices_out(self, hub: Hub, area: StagingArea) -> None:
        driver = Driver(area)
        sent = [b"%06d" % number * 20 for number in range(200)]
        with pytest.raises(LimitExceeded, match="log.batch_bytes_max"):
            await driver.commit(0, [await driver.stage(0, [*sent, b"x" * 10_000])])
        assert not hub.streams("out")
        assert list(hub.items(staging_area.UNFINISHED)) == []
        assert (await driver.commit(0, [await driver.stage(0, sent)])).applied
        assert await payloads(hub) == sent

    async def test_large_records_beside_many_small_ones(self, hub: Hub, area: StagingArea) -> None:
        """A slice is measured, not estimated: large records may stand side by side."""
        driver = Driver(area)
        sent = [b""] * 20_000 + [b"x" * 1500] * 10 + [b""] * 20_000
        records = to_records(pa.record_batch({"payload": pa.array(sent, pa.binary())}))
        chunks: list[tuple[int, bytes]] = []
        outgoing = OutgoingRows(lambda offset, chunk: chunks.append((offset, chunk)), 1 << 20, lambda stream: 1)
        outgoing.write("out", records)
        size, crc = outgoing.finish()
        for offset, chunk in chunks:
            await area.stage(Stage("q", "r1", 0, 0, 0, offset, chunk))
        assert (await driver.commit(0, [Part(0, 0, size, crc)])).applied
        assert hub.bounds("out").next == len(sent)

    async def _interrupted(self, hub: Hub, driver: Driver, sent: list[bytes], steps: int = 3) -> None:
        """A commit that stops after some of its slices."""
        part = await driver.stage(0, sent)
        real, left = hub.transact, [steps]

        def failing(ops: Any) -> Any:
            if len(ops) > 1:
                left[0] -= 1
                if left[0] < 0:
                    raise LogFailed("killed here")
            return real(ops)

        hub.transact = failing  # type: ignore[method-assign]
        with pytest.raises(LogFailed):
            await driver.commit(0, [part])
        hub.transact = real  # type: ignore[method-assign]

    async def test_a_stream_that_was_deleted_meanwhile_is_made_again(
        self, hub: Hub, area: StagingArea, tmp_path: Path
    ) -> None:
        sent = [b"%06d" % number * 20 for number in range(200)]
        await self._interrupted(hub, Driver(area), sent)
        await hub.delete_stream("out")
        after = StagingArea(hub, tmp_path)
        assert await after.recover() == 1
        rest = await payloads(hub)
        assert 0 < len(rest) < len(sent)
        assert rest == sent[-len(rest) :]
        assert list(hub.items(staging_area.UNFINISHED)) == []

    async def test_a_commit_that_cannot_be_finished_does_not_keep_the_hub_from_starting(
        self, hub: Hub, area: StagingArea, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        sent = [b"%06d" % number * 20 for number in range(200)]
        await self._interrupted(hub, Driver(area), sent)
        for file in staged(tmp_path):
            file.unlink()
        after = StagingArea(hub, tmp_path)
        assert await after.recover() == 1
        assert "only partly stored" in caplog.text
        with pytest.raises(NotStaged):
            await Driver(after, run="r2").stage(0, sent)

    async def test_what_an_unfinished_commit_needs_does_not_expire(
        self, hub: Hub, area: StagingArea, tmp_path: Path
    ) -> None:
        sent = [b"%06d" % number * 20 for number in range(200)]
        await self._interrupted(hub, Driver(area), sent)
        later = StagingArea(hub, tmp_path, leftovers_expire_s=-1000)
        await Driver(later, query="other").stage(0, [b"x"])
        assert await later.recover() == 1
        assert await payloads(hub) == sent


async def test_a_stream_that_turned_out_to_have_fewer_partitions(hub: Hub, area: StagingArea) -> None:
    """Rows are spread before their stream exists; whoever makes it first says how many partitions it has."""
    chunks: list[tuple[int, bytes]] = []
    outgoing = OutgoingRows(lambda offset, chunk: chunks.append((offset, chunk)), 1 << 20, lambda stream: 4)
    keys = pa.array([b"%d" % number for number in range(50)], pa.binary())
    outgoing.write("out", to_records(pa.record_batch({"payload": keys, "key": keys})))
    size, crc = outgoing.finish()
    for offset, chunk in chunks:
        await area.stage(Stage("q", "r1", 0, 0, 0, offset, chunk))
    await hub.create_stream("out", partitions=1)
    with pytest.raises(NotStaged, match="which has 1; run the batch again"):
        await area.commit(Commit("q", "r1", 0, "d", [Part(0, 0, size, crc)], partitions=4))


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch", -1), ("batch", 1 << 63), ("query", ""), ("query", "q" * 1025), ("run", ""), ("partitions", 0)],
)
async def test_numbers_and_names_have_bounds(hub: Hub, area: StagingArea, field: str, value: object) -> None:
    area.register()
    request = {"query": "q", "run": "r", "batch": 0, "digest": "d", "parts": [], field: value}
    with pytest.raises(BadRequest, match=field):
        await hub.verbs.call("spark.commit", request, hub.security.anonymous())


async def test_the_largest_batch_number_is_stored(hub: Hub, area: StagingArea) -> None:
    area.register()
    request = {"query": "q", "run": "r", "batch": (1 << 63) - 1, "digest": "d", "parts": []}
    assert (await hub.verbs.call("spark.commit", request, hub.security.anonymous())).applied


async def test_a_batch_has_limits(tmp_path: Path) -> None:
    limits = Spark(parts_max=2, batch_bytes_max=3_000)
    async with memory_hub(msgspec.structs.replace(Config(), spark=limits)) as hub:
        driver = Driver(StagingArea(hub, tmp_path))
        for part in range(2):
            await driver.stage(0, [b"x"], part=part)
        await driver.stage(0, [b"y"], part=1)  # once more is no more
        with pytest.raises(LimitExceeded, match=r"spark\.parts_max"):
            await driver.stage(0, [b"x"], part=2)
        with pytest.raises(LimitExceeded, match=r"spark\.batch_bytes_max"):
            await driver.stage(1, [b"x" * 3_000])


async def test_what_a_dead_run_staged_does_not_count(tmp_path: Path) -> None:
    """A driver that died again and again in the same batch must not fill the batch by that."""
    limits = Spark(parts_max=2, batch_bytes_max=3_000)
    async with memory_hub(msgspec.structs.replace(Config(), spark=limits)) as hub:
        area = StagingArea(hub, tmp_path)
        for number in range(4):
            driver = Driver(area, run=f"r{number}")
            parts = [await driver.stage(0, [b"x"], part=part, attempt=10 * number + part) for part in range(2)]
        assert (await driver.commit(0, parts)).applied
        assert await payloads(hub) == [b"x", b"x"]


async def test_a_query_belongs_to_its_user(hub: Hub, area: StagingArea) -> None:
    """Who may write only some streams can neither take over, number nor drop the batches of somebody else."""

    def user(name: str, *streams: str) -> Principal:
        return Principal(name, (), (Grant(rights=["write"], streams=list(streams)),))

    driver, thief = Driver(area, "nightly"), Driver(area, "nightly", "r2")
    with acting_as(user("alice", "out")):
        part = await driver.stage(0, [b"a"])
    with acting_as(user("mallory", "mallory.*")):
        for attempt in (thief.stage(0, [b"b"]), thief.commit(7, []), area.abort(Abort("nightly", "r1", 0))):
            with pytest.raises(Forbidden, match="belongs to 'alice'"):
                await attempt
    with acting_as(user("alice", "out")):
        assert (await driver.commit(0, [part])).applied
    with acting_as(user("operator", "*")):
        assert (await thief.commit(1, [await thief.stage(1, [b"c"], to="out")])).applied
    assert await payloads(hub) == [b"a", b"c"]


async def test_a_query_from_before_there_were_users_finds_an_owner(hub: Hub, area: StagingArea) -> None:
    def user(name: str) -> Principal:
        return Principal(name, (), (Grant(rights=["write"], streams=["out"]),))

    driver = Driver(area)
    for name in ("anonymous", "alice"):
        with acting_as(user(name)):
            await driver.commit(0, [])
            driver.run = f"run of {name}"
            await driver.stage(1, [b"a"])
    with acting_as(user("mallory")), pytest.raises(Forbidden):
        await Driver(area, run="r3").stage(1, [b"a"])


@pytest.mark.slow
async def test_a_thousand_tiny_batches(hub: Hub, area: StagingArea, tmp_path: Path) -> None:
    """Each counts once, and nothing grows with their number."""
    driver = Driver(area)
    for number in range(1_000):
        part = await driver.stage(number, [b"%d" % number])
        await driver.commit(number, [part])
    assert await payloads(hub) == [b"%d" % number for number in range(1_000)]
    assert staged(tmp_path) == []
    assert len(hub.get(SINKS, b"q") or b"") < 2_000


def rows_of(*sizes: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"payload": pa.array([b"x" * size for size in sizes], pa.binary())})


@pytest.mark.parametrize("largest", [0, 1, 2])
def test_several_slices_are_all_measured_the_first_too(largest: int) -> None:
    sizes = [10, 10, 10]
    sizes[largest] = 5000
    survey = survey_of([[("s", number, rows_of(size, 1))] for number, size in enumerate(sizes)])
    assert (survey.slices, survey.streams) == (3, {"s": 2})
    assert 5000 <= survey.record_bytes <= survey.slice_bytes < 6000


@pytest.mark.parametrize("slices", [[], [[("s", 0, rows_of(5000))]]])
def test_one_slice_is_left_to_the_log_to_measure(slices: Any) -> None:
    survey = survey_of(slices)
    assert (survey.slices, survey.record_bytes, survey.slice_bytes) == (1, 0, 0)
