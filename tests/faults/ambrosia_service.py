"""A service for the kill tests: `python ambrosia_service.py NAME READY_FILE RESULT_FILE CALLS WINDOW`.

`ping` sends numbered calls to `pong`, which sends each number back; both check that every number comes exactly once and
in order, and write what they have seen to a file when all have come.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from headrace.protocols.ambrosia.client import Host, Immortal, fork, proxy_of

NAME, READY, RESULT, CALLS, WINDOW = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6])


class Counting(Immortal):
    """What both sides have in common."""

    last: int = 0
    total: int = 0
    wrong: list[str]

    def __init__(self) -> None:
        self.wrong = []

    def count(self, number: int) -> None:
        if number != self.last + 1:
            self.wrong.append(f"{number} after {self.last}")
        self.last = number
        self.total += number

    async def on_primary(self, itself: Any) -> None:
        RESULT.with_suffix(".linked").touch()
        while self.last < CALLS:
            await asyncio.sleep(0.02)
        beside = RESULT.with_suffix(".new")
        beside.write_text(json.dumps({"last": self.last, "total": self.total, "wrong": self.wrong}))
        os.replace(beside, RESULT)


class Pong(Counting):
    @fork
    def ping(self, number: int) -> None:
        self.count(number)
        self.peer(proxy_of(Ping), "ping").pong(number)


class Ping(Counting):
    def first_start(self) -> None:
        for number in range(1, WINDOW + 1):
            self.peer(proxy_of(Pong), "pong").ping(number)

    @fork
    def pong(self, number: int) -> None:
        self.count(number)
        if number + WINDOW <= CALLS:
            self.peer(proxy_of(Pong), "pong").ping(number + WINDOW)


def addresses() -> tuple[str, str]:
    try:
        ready = json.loads(READY.read_text())
    except OSError as error:
        raise OSError("no hub yet") from error
    return ready[f"ambrosia.{NAME}.receive"], ready[f"ambrosia.{NAME}.send"]


if __name__ == "__main__":
    host = Host({"ping": Ping, "pong": Pong}[NAME], name=NAME, receive="", send="", addresses=addresses)
    asyncio.run(host.run())
