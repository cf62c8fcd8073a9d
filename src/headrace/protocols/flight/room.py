"""Room for the batches of puts, in bytes: for those that are under way, and for those that wait to be.

gRPC has read a batch before anybody here knows how large it is, so a limit on what is under way bounds nothing by
itself: with very many puts, each could have one that waits. What waits is bounded too, and the large ones among it more
narrowly: some dozens of producers find room for the batches that producers send, and a crowd with the largest that
there can be does not. Where it is too much, the largest is refused, and its client may try again: whoever sends small
batches never pays for those of others.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from headrace.errors import Busy

LARGE_PART = 8
"""A batch is large when it takes more than this part of the room."""
PART_FOR_LARGE = 4
"""Large ones together have this part of it; one always fits."""


class Window:
    """How many bytes are under way; `enter` waits while there are too many. One batch always fits."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._changed = threading.Condition()

    @property
    def bytes(self) -> int:
        """How many there are now."""
        return self._bytes

    def enter(self, size: int, give_up: Callable[[], None], poll_s: float = 0.2) -> None:
        """Wait for room, then take it. `give_up` is called while waiting, and raises to end it."""
        with self._changed:
            while self._bytes and self._bytes + size > self._bytes_max:
                give_up()
                self._changed.wait(poll_s)
            self._bytes += size

    def leave(self, size: int) -> None:
        """The bytes are durable, or refused."""
        with self._changed:
            self._bytes -= size
            self._changed.notify_all()

    def wake(self) -> None:
        """Let those who wait look whether they should."""
        with self._changed:
            self._changed.notify_all()


class _Waiting:
    def __init__(self, size: int, windows: tuple[Window, ...]) -> None:
        self.size = size
        self.windows = windows
        self.is_refused = False


class WaitingRoom:
    """Batches that are whole, and wait for a window to let them in. One always fits."""

    def __init__(self, bytes_max: int, on_refused: Callable[[], object] = lambda: None) -> None:
        self._bytes_max = bytes_max
        self._on_refused = on_refused
        self._waiting: set[_Waiting] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def place(self, size: int, *windows: Window) -> Iterator[Callable[[], None]]:
        """For a batch until these windows have let it in. It must call what it is given while it waits: that raises
        `Busy` when the place is needed by smaller ones."""
        mine = _Waiting(size, windows)
        with self._lock:
            self._waiting.add(mine)
            refused = self._refuse()
        for each in refused:
            self._on_refused()
            for window in each.windows:
                window.wake()

        def check() -> None:
            if mine.is_refused:
                raise Busy(
                    f"too many bytes of batches wait for the disk, and this one, of {size} bytes, is the largest "
                    f"(flight.puts_waiting_bytes_max is {self._bytes_max}; a quarter of it is for batches above an "
                    "eighth); try again, or send smaller batches"
                )

        try:
            yield check
        finally:
            with self._lock:
                self._waiting.discard(mine)

    def _refuse(self) -> list[_Waiting]:
        """The largest, until the others have room."""
        refused = []
        large = [one for one in self._waiting if one.size > self._bytes_max // LARGE_PART]
        for crowd, bytes_max in ((large, self._bytes_max // PART_FOR_LARGE), (self._waiting, self._bytes_max)):
            by_size = sorted(crowd, key=lambda one: one.size)
            total = sum(one.size for one in by_size)
            while total > bytes_max and len(by_size) > 1:
                largest = by_size.pop()
                total -= largest.size
                largest.is_refused = True
                self._waiting.discard(largest)
                refused.append(largest)
        return refused
