"""Where metrics and traces hear what a hub does. The hub and its log go the same way whether anybody listens or not.

Listeners are called one after the other where it happened, so they are quick and raise nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from headrace.log.ops import NewSegment, Op
from headrace.log.pending import Pending

Token = tuple[asyncio.Future[Any], bool, float]
"""A request of the hub to its log: who waits for it, whether it is one operation by itself, and since when
(`time.perf_counter`)."""


class Read(msgspec.Struct):
    """One batch or one range that is being read: a context manager, which tells the listeners when it ends."""

    hooks: Hooks
    protocol: str
    verb: Literal["read", "scan"]
    stream: str
    partition: int
    start: int
    records: int = 0
    error: BaseException | None = None
    """Why it ended, for those who are told so; it is not kept."""
    began_s: float = msgspec.field(default_factory=lambda: time.perf_counter())
    context: contextvars.Context = msgspec.field(default_factory=contextvars.copy_context)
    """Where it began: a range may be given up elsewhere."""

    def __enter__(self) -> Read:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.error = error
        for hook in self.hooks.read:
            hook(self)
        self.error = None  # its traceback knows who reads, and all that was read


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
