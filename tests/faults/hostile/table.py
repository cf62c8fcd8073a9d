"""The table of hostile peers: what honest clients of every protocol see, idle, under each attack and after it.

    PYTHONPATH=src:tests python -m faults.hostile.table [--seconds 5] [ATTACK …]

The hub is a process of its own, so are the attackers. Those give way to the hub and the honest clients where the
processors do not suffice for all (`nice`): in life they are other machines. Bars: under attack no honest client's p99
above ten times its own when idle, memory at most 512 MiB above idle, nothing longer than 5 ms of the processor on the
event loop; afterwards, when what was put into a table is removed, both as they were. A cell that misses its bar has a
`!`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import httpx
from faults.hostile.attacks import ATTACKS
from faults.hostile.honest import CLIENTS, Honest
from support import loop_watch
from support.hub_process import HubProcess

MIB = 1 << 20
IMMORTALS = ("ambrosia.immortals.honest.receive=127.0.0.1:0", "ambrosia.immortals.hostile.receive=127.0.0.1:0")
# Tails are records in memory by design: kept small here, so that what is seen is what attackers hold.
SETTINGS = ("futoin.insecure=true", "log.tail_bytes_max=16MiB", *IMMORTALS)
RATIO_MAX = 10.0
GROWTH_MIB_MAX = 512
CALM_S = 30.0
"""How long memory may take to come back."""
CALM_MIB = 64
LOOP_MS_MAX = 5.0
GIVES_WAY = 10
"""How nice an attacker is to other processes of this machine."""
P99_FLOOR_S = 0.001
"""A p99 below it is not told from noise."""


class Seen(NamedTuple):
    """What honest clients and the machine saw in a while."""

    p99_s: dict[str, float]
    rss_mib: int
    steps: int


class Victim:
    """A hub with an honest client of each protocol."""

    def __init__(self, hub: HubProcess, honest: Honest) -> None:
        self._hub = hub
        self._honest = honest
        self._notes = notes_of(hub.folder)
        self._noted_bytes = 0

    def rss_mib(self) -> int:
        return int(Path(f"/proc/{self._hub.pid}/statm").read_text().split()[1]) * 4096 // MIB

    async def look(self, seconds: float) -> Seen:
        """For so long, and until each has done something."""
        self._honest.take()
        times_s: dict[str, list[float]] = {name: [] for name in CLIENTS}
        most = 0
        end = time.monotonic() + seconds
        while time.monotonic() < end or not all(times_s.values()):
            await asyncio.sleep(0.05)
            self._honest.check()
            most = max(most, self.rss_mib())
            for name, values in self._honest.take().items():
                times_s[name] += values
        p99_s = {
            name: max(statistics.quantiles(values, n=100)[-1] if len(values) > 1 else values[0], 0)
            for name, values in times_s.items()
        }
        return Seen(p99_s, most, sum(map(len, times_s.values())))

    async def remove_stored(self) -> None:
        """Remove what the attack has put into its table. That is memory by design, until somebody removes it."""
        async with httpx.AsyncClient(base_url=self._hub.page) as client:
            answer = await client.post("/api/v1/table.clear", json={"table": "hostile"})
            assert answer.status_code in (200, 404), answer.text

    async def calm(self, idle_mib: int) -> float:
        """Seconds until memory is back where it was, or `CALM_S`."""
        began = time.monotonic()
        while self.rss_mib() > idle_mib + CALM_MIB and time.monotonic() - began < CALM_S:
            await asyncio.sleep(0.1)
            self._honest.check()
        return time.monotonic() - began

    def longest(self) -> tuple[loop_watch.Long, int]:
        """What took longest on the event loop since the last call, and how many callbacks were too long."""
        since, self._noted_bytes = self._noted_bytes, self._notes.stat().st_size
        noted = loop_watch.read(self._notes, since)
        return max(noted, default=loop_watch.Long(0, "")), sum(each.cpu_ms > LOOP_MS_MAX for each in noted)

    def tracebacks(self) -> int:
        return self._hub.log.read_text().count("Traceback")

    def first_traceback(self) -> str:
        """With what stands around it."""
        before, mark, after = self._hub.log.read_text().partition("Traceback")
        return f"{before[-500:]}{mark}{after[:3000]}" if mark else ""


def notes_of(folder: Path) -> Path:
    """Where a watched hub notes what took long."""
    return folder / "loop.txt"


def watched_hub(folder: Path) -> HubProcess:
    """A hub that can be attacked, and notes what takes long on its event loop."""
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    program = ("support.loop_watch", str(notes_of(folder)))
    return HubProcess(folder, *SETTINGS, environment=environment, program=program)


class Attacker:
    """One attack, as a process of its own."""

    def __init__(self, name: str, addresses: dict[str, str]) -> None:
        command = [sys.executable, "-m", "faults.hostile.attacks", name, json.dumps(addresses)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
        )
        os.setpriority(os.PRIO_PROCESS, self._process.pid, GIVES_WAY)

    async def __aenter__(self) -> Attacker:
        assert self._process.stdout is not None
        line = await asyncio.to_thread(self._process.stdout.readline)
        assert line == b"under way\n", line
        return self

    async def __aexit__(self, *error: object) -> None:
        self._process.kill()
        await asyncio.to_thread(self._process.wait)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def lives(self) -> bool:
        return self._process.poll() is None


def worst(seen: Seen, idle: Seen) -> tuple[float, str]:
    """The largest p99 as a multiple of what it is idle, and whose it is."""
    ratios = {name: seen.p99_s[name] / max(idle.p99_s[name], P99_FLOOR_S) for name in CLIENTS}
    name = max(ratios, key=lambda each: ratios[each])
    return ratios[name], name


def _cell(value: float, bar: float, text: str) -> str:
    return f"{text}{' !' if value > bar else ''}"


async def measure(names: list[str], seconds: float, folder: Path) -> int:
    """Print the table; how many cells miss their bar."""
    missed = 0
    hub = watched_hub(folder)
    with hub:
        async with Honest(hub.addresses) as honest:
            victim = Victim(hub, honest)
            await victim.look(seconds)  # warm up
            idle = await victim.look(2 * seconds)
            told = ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in idle.p99_s.items())
            print(f"Idle: {idle.rss_mib} MiB; p99 {told}\n", flush=True)
            heads = ["attack", "worst p99 × idle", "memory + MiB", "longest on the loop, CPU ms"]
            heads += ["after: p99 × idle", "after: memory + MiB", "back in s"]
            print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}", flush=True)
            for name in names:
                victim.longest()
                async with Attacker(name, hub.addresses) as attacker:
                    seen = await victim.look(seconds)
                    assert attacker.lives, name
                longest, too_long = victim.longest()
                await victim.remove_stored()
                back_s = await victim.calm(idle.rss_mib)
                after = await victim.look(seconds / 2)
                ratio, whose = worst(seen, idle)
                ratio_after, whose_after = worst(after, idle)
                growth, growth_after = seen.rss_mib - idle.rss_mib, after.rss_mib - idle.rss_mib
                cells = [
                    _cell(ratio, RATIO_MAX, f"{ratio:.1f} {whose}"),
                    _cell(growth, GROWTH_MIB_MAX, str(growth)),
                    _cell(longest.cpu_ms, LOOP_MS_MAX, f"{longest.cpu_ms:.1f} {longest.what}, {too_long} too long"),
                    _cell(ratio_after, 2.0, f"{ratio_after:.1f} {whose_after}"),
                    _cell(growth_after, CALM_MIB, str(growth_after)),
                    f"{back_s:.0f}",
                ]
                missed += sum(cell.endswith("!") for cell in cells)
                print(f"| {name} | {' | '.join(cells)} |", flush=True)
            print(f"\n{missed} of {5 * len(names)} cells miss their bar; {victim.tracebacks()} tracebacks.")
            print(victim.first_traceback())
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each attack goes on")
    parser.add_argument("attacks", nargs="*", help=f"which; all without any: {', '.join(ATTACKS)}")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options.attacks or list(ATTACKS), options.seconds, Path(folder)))


if __name__ == "__main__":
    main()
