"""A bank of two services that is killed at random and never loses or repeats a transfer.

    python examples/bank/bank.py              # watch it in the terminal until Ctrl-C
    python examples/bank/bank.py --seconds 20 # the same, then check the books and exit

Three processes: a hub, the service `accounts` with the money, and the service `transfers` that moves it. A fourth, the
one you start, kills one of the three every second or so, starts it again, and reads the books from the services. The
money in the accounts and on the way is always the same, and every transfer that was ordered is booked exactly once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from headrace.protocols.ambrosia.client import Host, Immortal, RemoteError, call, fork, impulse, proxy_of

ACCOUNTS = 20
OPENING_BALANCE = 1_000


class Accounts(Immortal):
    """The books. All state is in annotated attributes: that is what checkpoints keep."""

    balances: dict[int, int]
    on_the_way: int = 0
    booked: int = 0

    def __init__(self) -> None:
        self.balances = dict.fromkeys(range(ACCOUNTS), OPENING_BALANCE)

    @call
    def withdraw(self, account: int, amount: int) -> None:
        if self.balances[account] < amount:
            raise ValueError(f"account {account} has only {self.balances[account]}")
        self.balances[account] -= amount
        self.on_the_way += amount

    @fork
    def deposit(self, account: int, amount: int) -> None:
        self.balances[account] += amount
        self.on_the_way -= amount
        self.booked += 1

    async def on_primary(self, itself: Any) -> None:
        await report(
            lambda: {"held": sum(self.balances.values()), "on_the_way": self.on_the_way, "booked": self.booked}
        )


class Transfers(Immortal):
    """Takes orders from outside and carries them out. A transfer that is under way when this dies is finished later."""

    ordered: int = 0
    done: int = 0
    refused: int = 0

    @impulse
    async def order(self, source: int, target: int, amount: int) -> None:
        accounts = self.peer(proxy_of(Accounts), "accounts")
        self.ordered += 1
        try:
            await accounts.withdraw(source, amount)
        except RemoteError:
            self.refused += 1
            return
        accounts.deposit(target, amount)
        self.done += 1

    async def on_primary(self, itself: Any) -> None:
        reporting = asyncio.ensure_future(
            report(lambda: {"ordered": self.ordered, "done": self.done, "refused": self.refused})
        )
        try:
            while not STOP.exists():  # the outside world: orders come whenever they like
                for _ in range(20):
                    source, target = random.sample(range(ACCOUNTS), 2)
                    itself.order(source, target, random.randint(1, 400))
                await asyncio.sleep(0.02)
            await reporting
        finally:
            reporting.cancel()


# --- everything below is the stage: processes, kills and a screen -------------------------------------------------

NAME, DIRECTORY = os.environ.get("BANK_SERVICE", ""), Path(os.environ.get("BANK_DIRECTORY", "."))
READY, STOP = DIRECTORY / "ready.json", DIRECTORY / "stop"


async def report(books: Any) -> None:
    """Write what the service knows to a file, a few times a second."""
    while True:
        beside = DIRECTORY / f"{NAME}.new"
        beside.write_text(json.dumps(books()))
        os.replace(beside, DIRECTORY / f"{NAME}.json")
        await asyncio.sleep(0.1)


def ports() -> tuple[str, str]:
    ready = json.loads(READY.read_text())
    return ready[f"ambrosia.{NAME}.receive"], ready[f"ambrosia.{NAME}.send"]


def start(name: str, directory: Path) -> subprocess.Popen[bytes]:
    """Start the hub or a service."""
    environment = dict(os.environ, BANK_SERVICE=name, BANK_DIRECTORY=str(directory))
    if name == "hub":
        (directory / "ready.json").unlink(missing_ok=True)
        listeners = ("flight", "http", "wallaroo", "ockam", "ignite", "fabric")
        command = ["-m", "headrace", "up", "--data", str(directory / "data")]
        command += ["--ready-file", str(directory / "ready.json")]
        command += [f"--set=listen.{each}=off" for each in listeners]
        command += [f"--set=ambrosia.immortals.{each}.checkpoint_log_bytes=1MB" for each in ("accounts", "transfers")]
    else:
        command = [__file__]
    with (directory / f"{name}.log").open("ab") as output:
        return subprocess.Popen([sys.executable, *command], env=environment, stdout=output, stderr=output)


def read(directory: Path, name: str) -> dict[str, int]:
    try:
        found: dict[str, int] = json.loads((directory / f"{name}.json").read_text())
        return found
    except OSError:
        return {}


def at_work(directory: Path, name: str) -> bool:
    """Whether a process does its work now: the hub has said that it is ready, a service has just written its books."""
    path = directory / ("ready.json" if name == "hub" else f"{name}.json")
    try:
        age_s = time.time() - path.stat().st_mtime
        return name == "hub" or age_s < 1
    except OSError:
        return False


def books_balance(directory: Path) -> bool:
    """Nothing is under way, every order is accounted for, and no money was made or lost."""
    accounts, transfers = read(directory, "accounts"), read(directory, "transfers")
    return bool(accounts) and (
        accounts["held"] == ACCOUNTS * OPENING_BALANCE
        and accounts["on_the_way"] == 0
        and accounts["booked"] == transfers["done"]
        and transfers["done"] + transfers["refused"] == transfers["ordered"]
    )


def settle(directory: Path, seconds: float) -> bool:
    """Wait until both services are at work and the books have balanced for two seconds."""
    deadline = time.monotonic() + seconds
    balanced_since = time.monotonic()
    while time.monotonic() < deadline:
        if not (at_work(directory, "accounts") and at_work(directory, "transfers") and books_balance(directory)):
            balanced_since = time.monotonic()
        elif time.monotonic() - balanced_since > 2:
            return True
        time.sleep(0.1)
    return False


def show(directory: Path, kills: dict[str, int], text: str) -> None:
    accounts, transfers = read(directory, "accounts"), read(directory, "transfers")
    line = (
        f"money {accounts.get('held', 0) + accounts.get('on_the_way', 0):>6} "
        f"({accounts.get('on_the_way', 0):>5} on the way)  booked {accounts.get('booked', 0):>6}  "
        f"ordered {transfers.get('ordered', 0):>6}  refused {transfers.get('refused', 0):>5}  "
        f"killed: {', '.join(f'{name} {count}' for name, count in kills.items())}  {text}"
    )
    print(line, end="\r" if sys.stdout.isatty() else "\n", flush=True)


def watch(seconds: float, directory: Path) -> int:
    """Start all, kill at random, and check the books at the end."""
    processes = {name: start(name, directory) for name in ("hub", "accounts", "transfers")}
    kills = dict.fromkeys(processes, 0)
    try:
        while not all(at_work(directory, name) for name in processes):
            for name, process in processes.items():
                if process.poll() is not None:
                    raise SystemExit(f"{name} did not start: {(directory / f'{name}.log').read_text()}")
            time.sleep(0.1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(random.uniform(0.3, 1.5))
            name = random.choice(list(processes))
            if at_work(directory, name):
                processes[name].send_signal(signal.SIGKILL)
                processes[name].wait()
                kills[name] += 1
                processes[name] = start(name, directory)
                show(directory, kills, f"({name} was killed)")
    except KeyboardInterrupt:
        pass
    try:
        (directory / "stop").touch()  # no new orders; let those under way come to their end
        good = settle(directory, 60)
        show(directory, kills, "")
        print("\nthe books balance" if good else "\nTHE BOOKS DO NOT BALANCE", flush=True)
        return 0 if good else 1
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


def main() -> int:
    if NAME:
        service = {"accounts": Accounts, "transfers": Transfers}[NAME]
        asyncio.run(Host(service, name=NAME, receive="", send="", addresses=ports).run())
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1e9, help="how long to go on killing; without it until Ctrl-C")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bank-") as directory:
        return watch(arguments.seconds, Path(directory))


if __name__ == "__main__":
    sys.exit(main())
