"""What real code takes from the machine, taken from the world instead while one is open: clocks, chance, threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from headrace.serving import memory, runtime, sockets
from headrace.testing.world.network import HOST, Network, Socket, Transport
from headrace.testing.world.scheduler import Scheduler
from headrace.testing.world.threads import Threads

EPOCH_S = 1_700_000_000
"""When worlds begin."""
STATM = "50000 25000 5000 1 0 40000 0"
PROCESS_ID = 1000
"""The same in every process: answers that tell them are as long as in any other, and arrive in the same pieces."""


@contextlib.contextmanager
def substituted(scheduler: Scheduler, network: Network, threads: Threads) -> Iterator[None]:
    """Nothing in this thread may read a real clock or throw real dice inside. Older threads go on as before."""
    chance = random.Random(scheduler.random.random())

    def monotonic_s() -> float:
        return scheduler.now_s

    def wall_s() -> float:
        return EPOCH_S + scheduler.now_s + threads.machine().clock_ahead_s

    replaced: list[tuple[Any, str, Callable[..., Any]]] = [
        (time, "monotonic", monotonic_s),
        (time, "perf_counter", monotonic_s),
        (time, "thread_time", monotonic_s),
        (time, "process_time", monotonic_s),
        (time, "monotonic_ns", lambda: int(monotonic_s() * 1e9)),
        (time, "perf_counter_ns", lambda: int(monotonic_s() * 1e9)),
        (time, "time", wall_s),
        (time, "time_ns", lambda: int(wall_s() * 1e9)),
        (time, "clock_gettime", lambda which: monotonic_s()),
        (time, "sleep", scheduler.pause),
        (os, "urandom", chance.randbytes),
        (random, "_urandom", chance.randbytes),
        (threading, "Thread", threads.Thread),
        (threading, "Lock", threads.Lock),
        (threading, "RLock", threads.RLock),
        (threading, "Event", threads.Event),
        (threading, "Condition", threads.Condition),
        (asyncio.BaseProtocol, "__hash__", _numbered(scheduler)),
        *((module, "find_trim", lambda: None) for module in (runtime, memory)),
        (memory, "read_statm", lambda: STATM),
        (os, "getpid", lambda: PROCESS_ID),
        (os, "fsync", lambda descriptor: None),
        (sockets, "bound", lambda host, port: Socket((HOST, port or network.free_port()), ("", 0))),
        (sockets, "deepen_backlog", lambda server: None),
        (sockets, "accept_no_more", lambda server: None),
        (sockets, "has_news", _has_news),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    state = random.getstate()
    collects = gc.isenabled()
    gc.disable()  # what is collected when depends on more than the seed
    random.seed(scheduler.random.random())
    try:
        for owner, name, value in replaced:
            is_whole = isinstance(value, type) or isinstance(owner, type)
            setattr(owner, name, value if is_whole else _here_only(value, getattr(owner, name)))
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)
        random.setstate(state)
        if collects:
            gc.enable()


def _here_only(ours: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Ours in this thread, the real one in those that were there before the world: they belong to no strand."""
    here, this_thread = threading.get_ident(), threading.get_ident

    def choose(*args: Any, **kwargs: Any) -> Any:
        return (ours if this_thread() == here else real)(*args, **kwargs)

    return choose


def _numbered(scheduler: Scheduler) -> Callable[..., Any]:
    """A hash that follows from the seed: sets of connections are gone through in its order."""

    def number(protocol: Any) -> int:
        found: int | None = protocol.__dict__.get("_world_number")
        if found is None:
            found = protocol.__dict__["_world_number"] = scheduler.number()
        return found

    return number


def _has_news(transport: Transport, events: int = 0) -> bool:
    return transport.has_news(bool(events))
