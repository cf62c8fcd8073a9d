"""Calls from outside, timers, effects and keyed instances while hub and programs are killed: exactly once, as seen from
outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from support.hub_process import HubProcess

import headrace

CALLS = 60
VICTIMS = ["shop", "hub", "carts", "hub", "shop", "hub", "carts", "shop"]
"""Killed one after the other, while calls are under way."""
SHOP = Path(__file__).with_name("immortal_shop.py")


def start(name: str, hub: str, folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "EFFECTS": str(folder / "effects")}
    with (folder / f"{name}.log").open("ab") as log:
        command = [sys.executable, str(SHOP), hub, name]
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log)


@pytest.mark.slow
def test_every_call_is_made_once_whatever_is_killed(tmp_path: Path) -> None:
    victims = iter(VICTIMS)
    answers: dict[int, str] = {}
    with HubProcess(tmp_path, only=("flight",)) as hub:
        at = hub.addresses["flight"]
        programs = {name: start(name, at, tmp_path) for name in ("shop", "carts")}
        try:
            with headrace.connect(at) as client:
                client.call("immortal.register", {"name": "shop", "options": {"clock": True}})
                client.call("immortal.register", {"name": "carts", "options": {"clock": True}})

                def order(number: int) -> None:
                    answers[number] = client.immortal("shop").order(number=number, idempotency_key=f"k{number}")

                callers = [threading.Thread(target=order, args=(number,)) for number in range(CALLS)]
                for number, caller in enumerate(callers):
                    caller.start()
                    time.sleep(0.02)
                    if number % (CALLS // len(VICTIMS)) == 0 and (victim := next(victims, "")):
                        if victim == "hub":
                            hub.kill()
                            hub.start()
                        else:
                            programs[victim].kill()
                            programs[victim].wait()
                            programs[victim] = start(victim, at, tmp_path)
                for caller in callers:
                    caller.join(120)
                assert sorted(answers) == list(range(CALLS))
                deadline = time.monotonic() + 60
                while len((books := client.immortal("shop").books())["reminded"]) < CALLS:
                    assert time.monotonic() < deadline, books
                carts = [client.immortal("carts", key=f"customer-{each}").content() for each in range(7)]
        finally:
            for program in programs.values():
                program.kill()
                program.wait()
    assert sorted(books["orders"]) == sorted(books["reminded"]) == sorted(books["receipts"]) == list(range(CALLS))
    assert sorted(number for cart in carts for number in cart) == list(range(CALLS))
    assert all(answer.startswith(f"paid-{number} ") for number, answer in answers.items())
    assert {int(line) for line in (tmp_path / "effects").read_text().split()} == set(range(CALLS))
