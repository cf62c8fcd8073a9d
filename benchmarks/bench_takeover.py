"""How long it takes until another hub serves when the owner is killed, step by step, and how long a client waits.

    python benchmarks/bench_takeover.py [--rounds 5] [--hubs 2] [--session 6] [--listeners all] [--servers HOST:PORT,…]

Three brokers are started on this machine unless some are named; they share its cores with the hubs and the load. A
client appends one record after the other through a hub that does not own the log. Each round kills the owner with
SIGKILL. The brokers' group notices after `--session` seconds at most; from then on the time is the next owner's, whose
steps are in its log line `owns the cell`.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from brokers import options, progress, workplace

import headrace
from headrace.config import Kafka
from headrace.errors import HeadraceError
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing

LISTENERS = ("flight", "http", "wallaroo", "ockam", "ignite", "fabric")
WAIT_S = 180.0


class HubProgram:
    """One hub, in a process of its own. Its log lines are JSON."""

    def __init__(self, folder: Path, name: str, settings: list[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._ready = folder / f"{name}.ready"
        options = [*settings, f"cluster.hub={name}", f"log.data={folder / name}"]
        self._command = [sys.executable, "-m", "headrace", "up", "--ready-file", str(self._ready)]
        for option in options:
            self._command += ["--set", option]
        self.process: subprocess.Popen[bytes] | None = None
        self.addresses: dict[str, str] = {}

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=os.environ)
        until(lambda: self._ready.exists(), f"{self.name} stands by")
        self.addresses = json.loads(self._ready.read_text())

    def kill(self) -> float:
        """When, by the wall clock."""
        assert self.process is not None
        self.process.kill()
        killed_at = time.time()
        self.process.wait()
        self._ready.unlink(missing_ok=True)
        return killed_at

    def owned(self) -> list[dict[str, Any]]:
        """The log lines of its takeovers."""
        lines = (line for line in self.log.read_text().splitlines() if line.startswith("{"))
        return [entry for entry in map(json.loads, lines) if entry.get("message") == "owns the cell"]


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.02)


class Load(threading.Thread):
    """Appends until it is stopped, and knows its longest pause."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self.address = address
        self.longest_s = 0.0
        self.acknowledged = 0
        self.stopping = False

    def run(self) -> None:
        last = time.monotonic()
        while not self.stopping:
            with contextlib.suppress(HeadraceError), headrace.connect(self.address, timeout_s=5) as client:
                while not self.stopping:
                    client.append("load", [b"x" * 100], producer="p", sequence=self.acknowledged)
                    self.acknowledged += 1
                    now = time.monotonic()
                    self.longest_s, last = max(self.longest_s, now - last), now


@contextlib.contextmanager
def hubs_of(folder: Path, count: int, settings: list[str]) -> Iterator[list[HubProgram]]:
    hubs = [HubProgram(folder, f"hub-{number}", settings) for number in range(1, count + 1)]
    try:
        for hub in hubs:
            hub.start()
        yield hubs
    finally:
        for hub in hubs:
            if hub.process is not None and hub.process.poll() is None:
                hub.kill()


def find_owner(hubs: list[HubProgram]) -> HubProgram | None:
    """The one with the highest epoch in its log, if it runs."""
    last = {hub.name: hub.owned()[-1]["epoch"] for hub in hubs if hub.owned()}
    named = max(last, key=lambda name: last[name]) if last else None
    return next((hub for hub in hubs if hub.name == named), None)


def seconds_of(entry: dict[str, Any]) -> float:
    return datetime.fromisoformat(entry["time"]).timestamp()


def measure(folder: Path, servers: str, rounds: int, count: int, session_s: float, listeners: tuple[str, ...]) -> None:
    chosen = Kafka(servers=servers, prefix=f"bench-{uuid.uuid4().hex[:8]}")
    create_missing(connect(chosen), chosen)
    settings = [
        *("log.backend=kafka", f"log.kafka.servers={servers}", f"log.kafka.prefix={chosen.prefix}"),
        *(f"cluster.session_timeout_s={session_s}", f"cluster.standbys={count - 1}"),
        *(f"listen.{name}={'127.0.0.1:0' if name in listeners else 'off'}" for name in LISTENERS),
    ]
    noticed, took, pauses = [], [], []
    steps: dict[str, list[float]] = {}
    with hubs_of(folder, count, settings) as hubs:
        until(lambda: find_owner(hubs) is not None, "a hub owns the log")
        with headrace.connect(hubs[-1].addresses["flight"], timeout_s=60) as client:
            client.create("load")
        for round in range(rounds):
            owner = find_owner(hubs)
            assert owner is not None
            others = [hub for hub in hubs if hub is not owner]
            known = sum(len(hub.owned()) for hub in others)
            load = Load(others[0].addresses["flight"])
            with headrace.connect(others[0].addresses["flight"], timeout_s=60) as client:
                load.acknowledged = client.bounds("load").next
            load.start()
            time.sleep(3)  # all have read what there is
            load.longest_s = 0.0
            killed_at = owner.kill()
            until(lambda others=others, known=known: sum(len(hub.owned()) for hub in others) > known, "a takeover")
            reached = load.acknowledged
            until(lambda load=load, reached=reached: load.acknowledged > reached + 5, "records are taken again")
            load.stopping = True
            load.join(30)
            entry = max((hub.owned()[-1] for hub in others if hub.owned()), key=lambda each: each["epoch"])
            took.append(entry["seconds"])
            noticed.append(seconds_of(entry) - entry["seconds"] - killed_at)
            pauses.append(load.longest_s)
            for step, seconds in entry["steps"].items():
                steps.setdefault(step, []).append(seconds)
            progress(
                f"round {round + 1} of {rounds}: noticed {noticed[-1]:.2f} s, then {took[-1]:.2f} s {entry['steps']}"
            )
            owner.start()
    print(f"noticed by the group: {spread(noticed)} (session {session_s:g} s)")
    print(f"from then until it serves: {spread(took)}")
    for step, values in steps.items():
        print(f"    {step:>10}: {spread(values)}")
    print(f"a client waits: {spread(pauses)}, which is {max(pauses) - session_s:+.1f} s beside the session")


def spread(values: list[float]) -> str:
    return f"median {statistics.median(values):.2f} s, {min(values):.2f} to {max(values):.2f} s"


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--hubs", type=int, default=2)
    parser.add_argument("--session", type=float, default=6, help="cluster.session_timeout_s")
    parser.add_argument("--listeners", default="all", help="`all`, or names with commas between them")
    arguments = parser.parse_args()
    listeners = LISTENERS if arguments.listeners == "all" else tuple(arguments.listeners.split(","))
    with workplace(arguments) as (directory, servers, _):
        measure(directory, servers, arguments.rounds, arguments.hubs, arguments.session, listeners)


if __name__ == "__main__":
    main()
