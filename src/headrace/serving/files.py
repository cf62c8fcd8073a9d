"""File descriptors: as many as the system gives, some of them kept for the log, and one line when they run out."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from collections.abc import Callable
from typing import Any, Final

from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.server")

FILES_MAX: Final = 65_536
"""More are never asked for: some systems allow a billion, and tables are made for as many."""
TELL_S: Final = 10.0
OUT_OF_FILES: Final = "socket.accept() out of system resource"  # asyncio's words; it tries again after a second


def raise_limit() -> int:
    """Ask for as many descriptors as this process may have; how many it has now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    return wanted if soft == resource.RLIM_INFINITY else soft


def for_connections(allowed: int, reserved: int) -> int:
    """How many of the allowed descriptors connections may have: where there are few, half."""
    return max(allowed - reserved, allowed // 2)


def tell_once(loop: asyncio.AbstractEventLoop, clock_s: Callable[[], float] = lambda: time.monotonic()) -> None:
    """Have the loop say in one line, now and then, that it cannot accept: by itself it shows a traceback for each of
    the connections that it could have accepted."""
    before = loop.get_exception_handler()
    told_s = -TELL_S

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told_s
        if context.get("message") != OUT_OF_FILES:
            (before or (lambda loop, context: loop.default_exception_handler(context)))(loop, context)
        elif clock_s() - told_s >= TELL_S:
            told_s = clock_s()
            error = context.get("exception")
            logger.error("cannot accept connections at the moment", extra=fields(error=str(error)))

    loop.set_exception_handler(handle)
