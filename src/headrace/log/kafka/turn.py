"""When a hub that follows a cell may claim it, and how far it has followed. Threads share it."""

from __future__ import annotations

import threading
import time
from itertools import pairwise

from headrace.log.kafka.messages import Claim


def steady_s() -> float:
    """For leases: a clock that goes on while the process is stopped, and where the system can while the machine
    sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Turn:
    """It begins with waiting. Whoever knows that the cell should be this hub's says so, and may take it back until the
    cell is claimed."""

    def __init__(self) -> None:
        self.offset = 0
        """Of the next message to be read."""
        self.epoch = 0
        self.owner: Claim | None = None
        """As the journal says; None as well when reading began behind its claim."""
        self.has_left = True
        """Nobody owns the cell: its last owner said so, or there was none."""
        self.bytes = 0
        self.messages = 0
        """Read so far: how large a message is, about."""
        self.steps: dict[str, float] = {}
        """What of the takeover was done when, by the monotonic clock; the first step is to be chosen."""
        self._mine = threading.Event()
        self._stopped = False

    @property
    def is_mine(self) -> bool:
        return self._mine.is_set() and not self._stopped

    @property
    def is_stopped(self) -> bool:
        return self._stopped

    def give(self) -> None:
        """Claim the cell."""
        self._mine.set()

    def take_back(self) -> None:
        """Another hub should have it: go on following."""
        self._mine.clear()

    def stop(self) -> None:
        """Claim nothing any more, and stop following."""
        self._stopped = True

    def chosen(self) -> None:
        """The takeover begins: this hub should have the cell."""
        self.steps.clear()
        self.reached("chosen")

    def reached(self, step: str) -> None:
        """A step of the takeover is done. The last time counts: a claim may have to be repeated."""
        self.steps.pop(step, None)
        self.steps[step] = time.monotonic()

    def step_seconds(self) -> dict[str, float]:
        """How long each step took, but for the first, with which the takeover began."""
        times = list(self.steps.values())
        lasted = (after - before for before, after in pairwise(times))
        return {step: round(seconds, 3) for step, seconds in zip(list(self.steps)[1:], lasted, strict=True)}

    def lag_bytes(self, end: int) -> int:
        """About how much is yet to be read of a cell that ends at an offset."""
        behind = max(0, end - self.offset)
        return behind * (self.bytes // self.messages if self.messages else 1)
