"""Where metrics and traces hear what a hub does. The hub and its log go the same way whether anybody listens or not.

Listeners are called one after the other where it happened, so they are quick and raise nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from headrace.log.commit import Pending
from headrace.log.ops import NewSegment, Op

Token = tuple[asyncio.Future[Any], bool, float]
"""A request of the hub to its log: who waits for it, whether it is one operation by itself, and since when
(`time.perf_counter`)."""


class Read:
    """One batch or one range that is being read: a context manager, which tells the listeners when it ends."""

    __slots__ = ("_hooks", "began_s", "context", "error", "partition", "protocol", "records", "start", "stream", "verb")

    def __init__(self, hooks: Hooks, protocol: str, verb: str, stream: str, partition: int, start: int) -> None:
        self._hooks = hooks
        self.protocol = protocol
        self.verb = verb
        self.stream = stream
        self.partition = partition
        self.start = start
        self.records = 0
        self.error: BaseException | None = None

    def __enter__(self) -> Read:
        self.began_s = time.perf_counter()
        self.context = contextvars.copy_context()  # a range may be given up in another
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.error = error
        for told in self._hooks.read:
            told(self)


class Hooks:
    """What one hub tells, and to whom: append a function to a list."""

    def __init__(self) -> None:
        self.submit: list[Callable[[str, Sequence[Op], Token], None]] = []
        """A protocol, what it asks for, and its token. In the event loop, before any outcome can arrive."""
        self.commit: list[Callable[[list[Pending]], None]] = []
        """What one commit settled. In the event loop; tokens of requests that are not the log's own are `Token`s."""
        self.seal: list[Callable[[NewSegment], None]] = []
        """A segment in its place, whichever process made it. In the log's maintenance thread."""
        self.read: list[Callable[[Read], None]] = []
        """A read that has ended, in the thread in which it did."""
        self.verb: list[Callable[[str, float, str], None]] = []
        """An admin verb, the seconds it took, and the error's code: empty if all went well."""
