"""kill -9, again and again, of one hub with all six protocols at work; then a judge counts.

    PYTHONPATH=src:tests python tests/faults/kills.py [--kills 1000] [--minutes 600] [--forked] [--seed 1]

Prints a line after every ten kills, each crash as it comes, and in the end a table and GOOD or BAD. The exit code is 1
unless nothing was lost, doubled or out of order, and the hub never ended by itself. `test_kills.py` is the short form.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from faults.kill_workers import WORKERS, Verdict, Worker
from support.forked_hub import ForkedHub
from support.hub_process import STOP_S, HubProcess
from support.until import until

from headrace.log.doctor import examine

SETTINGS = (
    "futoin.insecure=true",
    "wallaroo.window_credits=100",
    "log.commit_bytes_max=16384",  # so that there are large transactions, which small ones overtake
    "log.journal_file_bytes=262144",
    "log.journal_bytes_max=1048576",
    "log.segment_bytes=131072",
    "log.seal_apart_bytes=65536",
    "log.maintenance_interval_s=0.2",
    "ambrosia.immortals.ping.receive=127.0.0.1:0",
    "ambrosia.immortals.pong.receive=127.0.0.1:0",
    "ambrosia.immortals.ping.checkpoint_log_bytes=131072",
    "ambrosia.immortals.pong.checkpoint_log_bytes=131072",
)
"""Small files: sealing, snapshots, new journal files and checkpoints are always under way somewhere."""
MOMENTS = {"work": 70, "all six at work": 10, "start": 10, "stop": 10}
"""When the hub is killed, and how often of a hundred times."""
ACKNOWLEDGED_MAX = 150
"""So many acknowledgements at most come between a start and a kill at work."""
DEADLINE_S = 300.0


class Outcome:
    """What came of it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.kills: Counter[str] = Counter()
        self.clean_stops = 0
        self.crashes: list[str] = []
        self.tracebacks = 0
        self.verdicts: dict[str, Verdict] = {}
        self.damage: list[str] = []

    def crashed(self, how: str) -> None:
        self.crashes.append(how)
        self.say(f"CRASH: {how}")

    @property
    def is_good(self) -> bool:
        wrong = any(verdict[1:] != (0, 0, 0) for verdict in self.verdicts.values())
        silent = [name for name, verdict in self.verdicts.items() if not verdict.acknowledged]
        return not (wrong or silent or self.crashes or self.tracebacks or self.damage) and bool(self.verdicts)

    def table(self) -> str:
        lines = [f"{'protocol':<10}{'acknowledged':>14}{'lost':>8}{'doubled':>9}{'reordered':>11}"]
        lines += [
            f"{name:<10}{acknowledged:>14}{lost:>8}{doubled:>9}{reordered:>11}"
            for name, (acknowledged, lost, doubled, reordered) in self.verdicts.items()
        ]
        moments = ", ".join(f"{count} ({moment})" for moment, count in sorted(self.kills.items()))
        lines.append(f"kills: {self.kills.total()}: {moments}; clean stops between them: {self.clean_stops}")
        lines.append(f"crashes: {len(self.crashes)}; tracebacks: {self.tracebacks}; damage: {len(self.damage)}")
        return "\n".join([*lines, *self.crashes, *self.damage])


class Fire:
    """The hub, its clients, and who kills it."""

    def __init__(
        self, folder: Path, kills: int, seed: int, say: Callable[[str], None], *, forked: bool = False
    ) -> None:
        self.hub: HubProcess = (ForkedHub if forked else HubProcess)(folder, *SETTINGS)
        self.kills = kills
        self.chance = random.Random(seed)
        self.say = say
        self.outcome = Outcome(say)
        self.start_s = 1.0
        self.last_s = float("inf")
        self.workers: list[Worker] = []
        self.working: list[asyncio.Task[None]] = []

    async def run(self) -> Outcome:
        await asyncio.to_thread(self.hub.start)
        self.workers = [kind(self.hub) for kind in WORKERS]
        self.working = working = [asyncio.create_task(worker.run(), name=worker.name) for worker in self.workers]
        try:
            began = time.monotonic()
            while self.outcome.kills.total() < self.kills and time.monotonic() - began < self.last_s:
                await self._kill_once()
                done = self.outcome.kills.total()
                if done % 10 == 0:
                    acknowledged = {worker.name: worker.acknowledged for worker in self.workers}
                    crashes = len(self.outcome.crashes)
                    took_s = time.monotonic() - began
                    self.say(f"{done} kills in {took_s:.0f} s, {crashes} crashes, acknowledged {acknowledged}")
            await self._start()
            for worker in self.workers:
                worker.stopping.set()
            await asyncio.wait_for(asyncio.gather(*working), DEADLINE_S)
            for worker in self.workers:
                self.outcome.verdicts[worker.name] = await asyncio.wait_for(worker.judge(), DEADLINE_S)
            await self._stop()
        finally:
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            self.hub.kill()
        self.outcome.tracebacks = self.hub.log.read_text(errors="replace").count("Traceback (most recent call last)")
        report = await asyncio.to_thread(examine, self.hub.data)
        self.outcome.damage = [found.text for found in report.findings if found.is_damage]
        return self.outcome

    def _check_workers(self) -> None:
        """Nobody is ever done before the end."""
        for task in self.working:
            if task.done():
                task.result()
                raise AssertionError(f"{task.get_name()} has stopped working")

    async def _kill_once(self) -> None:
        (moment,) = self.chance.choices(list(MOMENTS), list(MOMENTS.values()))
        if moment == "start" or not self._is_up():
            if self._is_up():
                self._kill("work")
            self.hub.launch()
            if moment == "start":
                await asyncio.sleep(self.chance.uniform(0, self.start_s))  # the moment of the kill, not a wait for luck
                self._kill(moment)
                return
            await self._start(launched=True)
        if moment == "stop":
            await self._kill_while_it_stops()
            return
        before = {worker.name: worker.acknowledged for worker in self.workers}
        more = self.chance.randrange(1, ACKNOWLEDGED_MAX)
        await self._until(lambda: sum(worker.acknowledged - before[worker.name] for worker in self.workers) >= more)
        if moment == "all six at work":
            await self._until(lambda: all(worker.acknowledged > before[worker.name] for worker in self.workers))
        self._kill(moment)

    async def _until(self, condition: Callable[[], bool]) -> None:
        await until(
            lambda: self._check_workers() or condition() or not self._is_up(),
            f"work goes on: {[(worker.name, worker.acknowledged) for worker in self.workers]}",
            DEADLINE_S,
        )

    def _is_up(self) -> bool:
        return self.hub.process is not None and self.hub.process.poll() is None

    def _kill(self, moment: str) -> None:
        """Unless it has ended by itself, which it must not."""
        process = self.hub.process
        assert process is not None
        code = process.poll()
        if code is not None:
            self.outcome.crashed(f"ended by itself with {code} ({moment})")
        self.hub.kill()
        self.outcome.kills[moment] += 1

    async def _start(self, launched: bool = False) -> None:
        if not launched:
            if self._is_up():
                return
            self.hub.launch()
        began = time.monotonic()
        process = self.hub.process
        assert process is not None
        await until(lambda: self.hub.ready.exists() or process.poll() is not None, "the hub is ready", DEADLINE_S)
        self.start_s = 0.8 * self.start_s + 0.2 * (time.monotonic() - began)

    async def _kill_while_it_stops(self) -> None:
        process = self.hub.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        end = time.monotonic() + self.chance.uniform(0, 0.5)
        while process.poll() is None and time.monotonic() < end:
            await asyncio.sleep(0.002)
        if process.poll() is None:
            self._kill("stop")
            return
        self._note_stop(process.returncode)

    def _note_stop(self, code: int) -> None:
        self.hub.process = None
        self.outcome.clean_stops += 1
        if code != 0:
            self.outcome.crashed(f"stopped with {code}")

    async def _stop(self) -> None:
        process = self.hub.process
        assert process is not None
        process.send_signal(signal.SIGTERM)
        self._note_stop(await asyncio.to_thread(process.wait, STOP_S))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=600.0, help="judge after so long, with fewer kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forked", action="store_true", help="hubs that start quickly, forked from one process")
    parser.add_argument("--folder", type=Path, help="kept afterwards; a temporary one is not")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-kills-") as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fire = Fire(
            folder,
            arguments.kills,
            arguments.seed,
            lambda line: print(line, flush=True),
            forked=arguments.forked,
        )
        fire.last_s = 60 * arguments.minutes
        outcome = asyncio.run(fire.run())
    print(outcome.table())
    kills = outcome.kills.total()
    print(f"{'GOOD' if outcome.is_good and kills else 'BAD'}: {kills} of {arguments.kills} kills")
    return 0 if outcome.is_good else 1


if __name__ == "__main__":
    sys.exit(main())
