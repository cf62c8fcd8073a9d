"""The batches of a put that wait to be acknowledged, in order. A client that does not read costs little memory.

The thread that writes acknowledgements may be held up by a client that sends and sends and reads nothing back. What has
become durable meanwhile is folded together: one acknowledgement then stands for many batches.
"""

from __future__ import annotations

import concurrent.futures
import threading
from collections import deque
from typing import NamedTuple

from headrace.log.ops import Appended

Settled = concurrent.futures.Future[Appended]


class Waiting(NamedTuple):
    """Batches up to `number`: `batches` of them, which is one unless they were folded together."""

    number: int
    settled: Settled
    batches: int = 1
    index_next: int | None = None


class Settling:
    """A queue from the thread that reads batches to the one that writes acknowledgements, which wakes when the next
    one is due, and not before."""

    def __init__(self, entries_max: int) -> None:
        self._entries_max = entries_max
        self._entries: deque[Waiting] = deque()
        self._closed = False
        self._changed = threading.Condition()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, number: int, settled: Settled) -> None:
        """A batch was received; `settled` is done when it is durable or refused."""
        with self._changed:
            self._entries.append(Waiting(number, settled))
            if len(self._entries) > self._entries_max:
                self._fold()
        settled.add_done_callback(self._wake)

    def _wake(self, settled: Settled) -> None:
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Nothing more comes."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def get(self) -> Waiting | None:
        """The next one, once it is settled; None at the end."""
        with self._changed:
            while not (self._entries[0].settled.done() if self._entries else self._closed):
                self._changed.wait()
            return self._entries.popleft() if self._entries else None

    def _fold(self) -> None:
        """Make one of all that are durable and come before any other."""
        folded: Waiting | None = None
        while self._entries and _is_durable(self._entries[0].settled):
            entry = self._entries.popleft()
            folded = entry if folded is None else _joined(folded, entry)
        if folded is not None:
            self._entries.appendleft(folded)


def _is_durable(settled: Settled) -> bool:
    return settled.done() and not settled.cancelled() and settled.exception() is None


def _joined(earlier: Waiting, later: Waiting) -> Waiting:
    first, second = earlier.settled.result(), later.settled.result()
    joined: Settled = concurrent.futures.Future()
    start = first.first if first.count else second.first
    joined.set_result(Appended(start, first.count + second.count, first.duplicate and second.duplicate))
    return Waiting(later.number, joined, earlier.batches + later.batches, second.first + second.count)
