"""The streams of the demo, and what is counted about each.

name      comes in by   is read by
orders    Wallaroo      FutoIn
readings  Ockam         Perper
clicks    FutoIn        Ockam
prices    Perper        Arrow Flight
calls     AMBROSIA      Ockam
counts    Spark         FutoIn
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

logger = logging.getLogger("headrace.demo")

TILL, LEDGER = "demo-till", "demo-ledger"
COUNTS = "counts"
SOURCES = "*demo*"
"""Fits every stream that the pipeline counts, and not its results."""
RETRY_S = 1.0
ACK_WEIGHT = 0.1


@dataclass
class Flow:
    """One stream: who writes it, who reads it, and how that goes. Counts are of this run."""

    name: str
    stream: str
    writer: str
    reader: str
    sent: int = 0
    read: int = 0
    first_read: int | None = None
    position: int = 0
    """Index that the reader wants next."""
    ack_ms: float | None = None
    last: str = ""
    """What the reader saw last, in words."""
    errors: int = 0
    error: str = ""

    @contextlib.contextmanager
    def sending(self, count: int = 1) -> Iterator[None]:
        """Around sending and the wait for the acknowledgement."""
        started = time.perf_counter()
        yield
        taken_ms = (time.perf_counter() - started) * 1000
        self.ack_ms = taken_ms if self.ack_ms is None else self.ack_ms + ACK_WEIGHT * (taken_ms - self.ack_ms)
        self.sent += count

    def seen(self, index: int, text: str) -> None:
        """The reader has one record more."""
        if self.first_read is None:
            self.first_read = index
        self.read += 1
        self.position = index + 1
        self.last = text


def make_flows() -> dict[str, Flow]:
    """All of them, by name."""
    flows = [
        Flow("orders", "demo.orders", "Wallaroo", "FutoIn"),
        Flow("readings", "demo.readings", "Ockam", "Perper"),
        Flow("clicks", "demo.clicks", "FutoIn", "Ockam"),
        Flow("prices", "demo.prices", "Perper", "Flight"),
        Flow("calls", f"immortal/{LEDGER}/log", "AMBROSIA", "Ockam"),
        Flow("counts", COUNTS, "Spark", "FutoIn"),
    ]
    return {flow.name: flow for flow in flows}


Addresses = Mapping[str, str]
Part = Callable[[Flow, Addresses], Awaitable[None]]


async def keep_going(part: Part, flow: Flow, addresses: Addresses) -> None:
    """Run a producer or consumer for ever: what goes wrong is shown, and tried again."""
    while True:
        try:
            await part(flow, addresses)
        except Exception as error:
            flow.errors += 1
            flow.error = f"{type(error).__name__}: {error}"
            logger.warning("%s: %s", flow.name, flow.error)
        await asyncio.sleep(RETRY_S)
