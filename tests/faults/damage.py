"""Damage of every kind to every kind of file: the answer is the truth, an error, or a stated gap. Never silence.

    PYTHONPATH=src:tests python tests/faults/damage.py [--sample 0.1] [--seed 1] [--show 20] [--processes 2]

A small log has a little of everything: streams of several partitions, a stream that was deleted and made again, tables
whose keys are written over, cursors, producers, checkpoints, trims, transactions; segments, snapshots, spares, what
is left of sealing, and a torn tail in quarantine. It ends in three ways: stopped, killed while idle, killed at work. In
each copy one file is damaged: every bit flipped, every length cut, every sector of 512 bytes and every block of 4 KiB
zeroed and garbled, the file removed, or all files of its folder. Then the log is opened, compared with what it held,
written to, and opened again.

    truth    all that was acknowledged is served
    error    the log refuses to open, and says why
    gap      something is not served, and recovery or the reader says so
    silence  something is wrong, or missing, or used again, and nobody says so: there must be none
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from unit.log.helpers import do, fill, maintain, open_log

from headrace.errors import Damaged, HeadraceError
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.checkpoint import CheckpointDamaged
from headrace.log.log import Log
from headrace.testing import FakeClock, MemoryDisk

SETTINGS = {
    "segment_bytes": 1_500,
    "journal_file_bytes": 1_500,
    "journal_bytes_max": 3_000,
    "tail_bytes_max": 6_000,
    "merge_segments_min": 3,
}
ENDINGS = ("stopped", "killed", "killed at work")
SECTOR, BLOCK = 512, 4096
TELL_S = 10.0


class Damage(NamedTuple):
    path: str
    how: str
    at: int

    def apply(self, data: bytes) -> bytes | None:
        """What is left of a file; None when it is gone."""
        if self.how == "flip":
            return data[: self.at // 8] + bytes([data[self.at // 8] ^ 1 << self.at % 8]) + data[self.at // 8 + 1 :]
        if self.how == "cut":
            return data[: self.at]
        if self.how == "remove":
            return None
        size = BLOCK if "block" in self.how else SECTOR
        piece = data[self.at : self.at + size]
        harmed = bytes(len(piece)) if "zero" in self.how else bytes(byte ^ 0x5A for byte in piece)
        return data[: self.at] + harmed + data[self.at + size :]


def damages(path: str, data: bytes) -> Iterator[Damage]:
    yield Damage(path, "remove", 0)
    yield Damage(path, "remove folder", 0)
    for how, size in (("sector", SECTOR), ("block", BLOCK)):
        for at in range(0, len(data), size):
            yield Damage(path, f"zero {how}", at)
            yield Damage(path, f"garble {how}", at)
    for at in range(len(data)):
        yield Damage(path, "cut", at)
    for at in range(8 * len(data)):
        yield Damage(path, "flip", at)


def kind_of(path: str) -> str:
    if path.endswith(".spare"):
        return "spare"
    if path.endswith(".tmp"):
        return "leftover"
    return path.partition("/")[0]


def scripted(log: Log) -> None:
    """A little of everything, every transaction acknowledged."""
    do(log, ops.CreateStream("s", 2))
    do(log, ops.CreateStream("quiet"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.CreateStream("gone"))
    do(log, ops.Append("quiet", Batch.one(b"the only one")))
    do(log, ops.SaveCursor("early", "quiet", 1))
    fill(log, "gone", 2, size=10)
    do(log, ops.DeleteStream("gone"))
    do(log, ops.CreateStream("gone"))
    for number in range(14):
        do(log, ops.Append("s", Batch.one(b"record %d" % number * 6, id=number, type="T"), 0, "p", number))
        do(
            log,
            ops.Put("t", b"key %d" % (number % 3), b"value %d" % number),
            ops.Append("s", Batch.of([b"a%d" % number, b"b%d" % number]), 1),
            ops.SaveCursor("c", "s", number),
        )
        if number in (4, 9):
            blob = log.begin_checkpoint("s")
            blob.write(b"state at %d" % number * 5)
            blob.finish()
            do(log, ops.RegisterCheckpoint(blob.id, "s", number, blob.size, {"by": "test"}))
        if number == 7:
            do(log, ops.GrowStream("s", 3))
            do(log, ops.Append("s", Batch.one(b"third"), 2, "late", 5))
            do(log, ops.Trim("s", 3))
            do(log, ops.Delete("t", b"key 1"))
            do(log, ops.SetOptions("quiet", ops.StreamOptions(labels={"a": "b"})))
        maintain(log)
    do(log, ops.CreateStream("u", kind="table"))
    do(log, ops.PutMany("u", [b"key 1", b"x", b"y"], [b"1", b"2", b"3"]))
    do(log, ops.ClearTable("u"))
    do(log, ops.PutMany("u", [b"y", b"z"], [b"4", b"5"]))
    do(log, ops.SaveCursor("c", "s", 20, 1))
    do(log, ops.Append("gone", Batch.one(b"again"), 0, "p", 1))
    do(log, ops.Put("t", b"last", b"one"))


class Truth(NamedTuple):
    """What a log holds."""

    bounds: dict[tuple[str, int], ops.Bounds]
    records: dict[tuple[str, int], dict[int, bytes]]
    producers: dict[tuple[str, int, str], int]
    cursors: dict[tuple[str, str, int], int]
    tables: dict[str, dict[bytes, bytes]]
    checkpoints: dict[int, tuple[ops.CheckpointInfo, bytes]]
    options: dict[str, ops.StreamOptions]


def places(log: Log) -> list[tuple[str, int]]:
    return [(info.name, number) for info in log.streams() for number in range(info.partitions)]


def truth_of(log: Log) -> Truth:
    records: dict[tuple[str, int], dict[int, bytes]] = {}
    for name, number in places(log):
        bounds = log.bounds(name, number)
        held = records[name, number] = {}
        for batch in log.scan(name, bounds.first, bounds.next, number):
            held.update(zip(batch.column("index").to_pylist(), batch.column("payload").to_pylist(), strict=True))
    return Truth(
        {place: log.bounds(*place) for place in places(log)},
        records,
        {(*place, producer): at for place in places(log) for producer, at in log.producers(*place).items()},
        {(info.name, info.stream, info.partition): info.index for info in log.cursors()},
        {info.name: dict(log.table_items(info.name)) for info in log.streams() if info.kind == "table"},
        {info.id: (info, b"".join(log.read_checkpoint(info.id))) for info in log.checkpoints()},
        {info.name: info.options for info in log.streams()},
    )


def ended(ending: str) -> tuple[MemoryDisk, Truth]:
    """The disk of a log that has ended, and what it held."""
    disk = MemoryDisk()
    log = open_log(disk, FakeClock(), **SETTINGS)
    scripted(log)
    truth = truth_of(log)
    if ending != "killed at work":
        log.mark()
        maintain(log)
    if ending == "stopped":
        log.close()
    left = disk.after_kill()
    first = next(path for path in left.paths() if path.endswith(".arrow"))
    left.put(first.rpartition("/")[0] + "/half.arrow.tmp", left.read(first)[:200])  # of a sealer that died
    journal = next(path for path in left.paths() if path.endswith(".journal"))
    left.put(f"quarantine/{journal.rpartition('/')[2]}.77", b"torn once" * 4)
    left.put(f"{journal}.spare", left.read(journal))
    left.put("LOCK", b"4711\n")
    return left, truth


class Judge:
    """Opens a damaged log and compares."""

    def __init__(self, truth: Truth, ending: str) -> None:
        self._truth = truth
        self._ending = ending
        self._rested = ending != "killed at work"
        self._may_lose_the_end = ending == "killed at work"

    def verdict(self, disk: MemoryDisk, *, goes_on: bool) -> tuple[str, str]:
        """One of the four answers, and a word about it. With `goes_on` the log is written to and opened again."""
        try:
            log = open_log(disk, FakeClock(), **SETTINGS)
        except HeadraceError as error:
            return "error", error.code
        except Exception as error:
            return "silence", f"a traceback: {error!r}"
        answer = self._compare(log)
        if goes_on and answer[0] != "silence":
            wrong = self._go_on(log, disk)
            if wrong is not None:
                return "silence", wrong
        return answer

    def _compare(self, log: Log) -> tuple[str, str]:
        told = bool(log.recovered.damage) or (self._may_lose_the_end and bool(log.recovered.unproven))
        wrong, missing, refused = self._look(log)
        if wrong:
            return "silence", f"wrong: {wrong[0]}"
        if missing and not told:
            return "silence", f"not a word of {missing[0]}"
        if missing or refused:
            return "gap", (missing + refused)[0]
        return "truth", ""

    def _look(self, log: Log) -> tuple[list[str], list[str], list[str]]:
        """What is wrong, what is missing although nothing was refused, and what is refused."""
        wrong: list[str] = []
        missing: list[str] = []
        refused: list[str] = []
        for place, bounds in self._truth.bounds.items():
            self._look_at_records(log, place, bounds, wrong, missing, refused)
        for (stream, number, producer), sequence in self._truth.producers.items():
            if (stream, number) in places(log) and (log.producer(stream, producer, number) or -1) != sequence:
                (wrong if self._rested else missing).append(f"producer {producer} of {stream}/{number}")
        for (cursor, stream, number), index in self._truth.cursors.items():
            if (stream, number) in places(log) and log.cursor(cursor, stream, number) != index:
                (wrong if self._rested else missing).append(f"cursor {cursor} of {stream}/{number}")
        for table, values in self._truth.tables.items():
            if log.has_stream(table):
                older = missing if self._may_lose_the_end else wrong
                self._look_at_table(log, table, values, older, refused)
        for id, (info, data) in self._truth.checkpoints.items():
            try:
                if log.checkpoint(id) != info or b"".join(log.read_checkpoint(id)) != data:
                    wrong.append(f"checkpoint {id}")
            except CheckpointDamaged:
                refused.append(f"checkpoint {id}")
            except HeadraceError:
                missing.append(f"checkpoint {id}")
        for stream, options in self._truth.options.items():
            if log.has_stream(stream) and log.stream(stream).options != options:
                missing.append(f"options of {stream}")
        return wrong, missing, refused

    def _look_at_records(
        self, log: Log, place: tuple[str, int], expected: ops.Bounds,
        wrong: list[str], missing: list[str], refused: list[str],
    ) -> None:  # fmt: skip
        name, number = place
        if place not in places(log):
            missing.append(f"{name}/{number}")
            return
        bounds = log.bounds(name, number)
        if bounds.next < expected.next:
            missing.append(f"the end of {name}/{number}")
        if bounds.first < expected.first:
            missing.append(f"the trim of {name}/{number}")
        held = self._truth.records[place]
        at = bounds.first
        while at < bounds.next:
            try:
                records = log.read(name, at, number)
            except Damaged as damage:
                refused.append(f"{name}/{number} {at} to {damage.last}")
                at = damage.last + 1
                continue
            for index, payload in zip(
                records.column("index").to_pylist(), records.column("payload").to_pylist(), strict=True
            ):
                if index != at or (index >= expected.first and held.get(index) != payload):
                    wrong.append(f"{name}/{number} at {index}")
                at = index + 1

    @staticmethod
    def _look_at_table(log: Log, table: str, values: dict[bytes, bytes], wrong: list[str], refused: list[str]) -> None:
        for key in (*values, b"key 1", b"x", b"never there"):
            try:
                if log.table_get(table, key) != values.get(key):
                    wrong.append(f"{table}[{key!r}]")
            except Damaged:
                refused.append(f"{table}[{key!r}]")
        try:
            if dict(log.table_items(table)) != values:
                wrong.append(f"all of {table}")
        except Damaged:
            refused.append(f"all of {table}")

    def _go_on(self, log: Log, disk: MemoryDisk) -> str | None:
        """Nothing that was used is used again, and what is written now is found again."""
        stored: dict[tuple[str, int], int] = {}
        for place, expected in self._truth.bounds.items():
            if place not in places(log) or place[0] in self._truth.tables:
                continue
            first = do(log, ops.Append(place[0], Batch.one(b"after"), place[1])).first
            if first < expected.next and not self._may_lose_the_end:
                return f"index {first} of {place} is used again"
            stored[place] = first
        maintain(log)
        log.close()
        try:
            again = open_log(disk, FakeClock(), **SETTINGS)
        except Exception as error:
            return f"the second start failed: {error!r}"
        later = {
            place: held | ({stored[place]: b"after"} if place in stored else {})
            for place, held in self._truth.records.items()
        }
        wrong, _, _ = Judge(self._truth._replace(records=later), self._ending)._look(again)
        if wrong:
            return f"wrong at the second start: {wrong[0]}"
        for (name, number), index in stored.items():
            try:
                found = again.read(name, index, number, limit=1).column("payload").to_pylist()
            except HeadraceError as error:
                return f"what was written after the damage is lost: {error}"
            if found != [b"after"]:
                return f"{name}/{number} has {found} at {index}"
        return None


def damaged(disk: MemoryDisk, damage: Damage) -> MemoryDisk:
    """A copy of a disk, with the damage."""
    left = disk.after_kill()
    if damage.how == "remove folder":
        for path in left.paths():
            if path.startswith(damage.path.partition("/")[0]):
                left.unlink(path)
        return left
    harmed = damage.apply(left.read(damage.path))
    if harmed is None:
        left.unlink(damage.path)
    else:
        left.put(damage.path, harmed)
    return left


Counts = dict[tuple[str, str], Counter[str]]
CASES_AT_ONCE = 500


class Case(NamedTuple):
    """One damage to a log that has ended in one way."""

    ending: str
    damage: Damage
    goes_on: bool


class Bench:
    """The three logs, and all that is done to them. Made once: processes that are forked from here see the same."""

    def __init__(self, sample: float, seed: int, goes_on: float) -> None:
        self._disks: dict[str, MemoryDisk] = {}
        self._judges: dict[str, Judge] = {}
        self.cases: list[Case] = []
        for ending in ENDINGS:
            disk, truth = ended(ending)
            self._disks[ending], self._judges[ending] = disk, Judge(truth, ending)
            assert self._judges[ending].verdict(disk.after_kill(), goes_on=True) == ("truth", ""), ending
            chance = random.Random(f"{seed} {ending}")
            for path in disk.paths():
                for damage in damages(path, disk.read(path)):
                    if damage.how not in ("flip", "cut") or chance.random() < sample:
                        self.cases.append(Case(ending, damage, chance.random() < goes_on))

    def judge(self, start: int) -> tuple[Counts, list[str]]:
        """Some of the cases: counts by ending and kind of file, and what was silent."""
        counts: Counts = {}
        silences: list[str] = []
        for ending, damage, goes_on in self.cases[start : start + CASES_AT_ONCE]:
            left = damaged(self._disks[ending], damage)
            answer, word = self._judges[ending].verdict(left, goes_on=goes_on)
            counts.setdefault((ending, kind_of(damage.path)), Counter())[answer] += 1
            if answer == "silence":
                silences.append(f"{ending}: {damage}: {word}")
        return counts, silences


def run(
    sample: float,
    seed: int,
    *,
    goes_on: float = 0.1,
    processes: int = 1,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Counts, list[str]]:
    """Counts by ending and kind of file, and what was silent."""
    bench = Bench(sample, seed, goes_on)
    counts: Counts = {}
    silences: list[str] = []
    began, done, told_s = time.monotonic(), 0, 0.0
    with ExitStack() as opened:
        apart = opened.enter_context(multiprocessing.get_context("fork").Pool(processes)) if processes > 1 else None
        order = list(range(0, len(bench.cases), CASES_AT_ONCE))
        random.Random(seed).shuffle(order)  # a run that is cut short has seen some of everything
        for some, silent in map(bench.judge, order) if apart is None else apart.imap_unordered(bench.judge, order):
            for place, counted in some.items():
                counts.setdefault(place, Counter()).update(counted)
                done += counted.total()
            silences += silent
            for line in silent:
                say(line)
            if time.monotonic() - told_s > TELL_S:
                told_s = time.monotonic()
                answers = sum(counts.values(), Counter[str]())
                say(f"{done} of {len(bench.cases)} damages in {told_s - began:.0f} s: {dict(answers)}")
    return dict(sorted(counts.items())), silences


def table(counts: Counts) -> str:
    answers = ("truth", "error", "gap", "silence")
    lines = [f"{'ending':<16}{'file':<13}" + "".join(f"{answer:>10}" for answer in answers)]
    total: Counter[str] = Counter()
    for (ending, kind), counted in counts.items():
        total += counted
        lines.append(f"{ending:<16}{kind:<13}" + "".join(f"{counted[answer]:>10}" for answer in answers))
    lines.append(f"{'all':<29}" + "".join(f"{total[answer]:>10}" for answer in answers))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=float, default=1.0, help="share of bits and lengths; all else is always done")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--show", type=int, default=20, help="silences to print")
    arguments = parser.parse_args()
    began = time.monotonic()
    counts, silences = run(
        arguments.sample,
        arguments.seed,
        processes=arguments.processes,
        say=lambda line: print(line, flush=True),
    )
    print(table(counts))
    verdict = "BAD" if silences else "GOOD"
    print(
        f"{verdict}: {sum(counted.total() for counted in counts.values())} damages in {time.monotonic() - began:.0f} s"
    )
    for line in silences[: arguments.show]:
        print(line)
    return 1 if silences else 0


if __name__ == "__main__":
    sys.exit(main())
