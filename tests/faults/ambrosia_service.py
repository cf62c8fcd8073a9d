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

from headrace.protocols.ambrosia.client import Host
from headrace.testing.ping_pong import Counting, players

NAME, READY, RESULT, CALLS, WINDOW = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:6])


class Watched(Counting):
    """Writes what it has seen when all have come."""

    total: int = 0

    def count(self, number: int) -> None:
        super().count(number)
        self.total += number

    async def on_primary(self, itself: Any) -> None:
        RESULT.with_suffix(".linked").touch()
        while self.last < CALLS:
            await asyncio.sleep(0.02)
        beside = RESULT.with_suffix(".new")
        beside.write_text(json.dumps({"last": self.last, "total": self.total, "wrong": self.wrong}))
        os.replace(beside, RESULT)


def addresses() -> tuple[str, str]:
    try:
        ready = json.loads(READY.read_text())
    except OSError as error:
        raise OSError("no hub yet") from error
    return ready[f"ambrosia.{NAME}.receive"], ready[f"ambrosia.{NAME}.send"]


if __name__ == "__main__":
    ping, pong = players(CALLS, WINDOW, Watched)
    host = Host({"ping": ping, "pong": pong}[NAME], name=NAME, receive="", send="", addresses=addresses)
    asyncio.run(host.run())
