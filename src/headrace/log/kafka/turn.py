"""When a hub that follows a cell may claim it, and how far it has followed. Threads share it."""

from __future__ import annotations

import threading
import time

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

    def lag_bytes(self, end: int) -> int:
        """About how much is yet to be read of a cell that ends at an offset."""
        behind = max(0, end - self.offset)
        return behind * (self.bytes // self.messages if self.messages else 1)
