"""The Python language binding: write an `Immortal`, and `run` it next to a hub.

    from headrace.protocols.ambrosia.client import Immortal, call, fork, run

    class Counter(Immortal):
        total: int = 0

        @fork
        def add(self, amount: int) -> None:
            self.total += amount

    run(Counter, name="counter", receive="127.0.0.1:1500", send="127.0.0.1:1501")

The process may be killed at any moment, and so may the hub: whoever comes back first waits for the other, the state is
recovered, and no call is lost or repeated. The sockets are here; everything replayable is in `binding/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from headrace.config.address import split_address
from headrace.errors import Unreachable
from headrace.protocols.ambrosia.binding.cell import Effect
from headrace.protocols.ambrosia.binding.engine import Engine, ImpulseRefused, NotInMethod, Watcher
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError, UpgradeRefused
from headrace.protocols.ambrosia.binding.methods import DeclarationError, call, fork, impulse
from headrace.protocols.ambrosia.binding.proxies import Proxy, generate_proxy, proxy_of, proxy_to_self
from headrace.protocols.ambrosia.binding.results import NotDeterministic, RemoteError, Result, gather
from headrace.protocols.ambrosia.codec import Message
from headrace.protocols.ambrosia.pairing import mark_of
from headrace.protocols.ambrosia.record_reader import RecordReader
from headrace.protocols.errors import RemoteProtocolError

__all__ = [
    "DeclarationError",
    "Host",
    "Immortal",
    "ImpulseRefused",
    "NotDeterministic",
    "NotInMethod",
    "Proxy",
    "RemoteError",
    "Result",
    "StateError",
    "UpgradeRefused",
    "call",
    "fork",
    "gather",
    "generate_proxy",
    "impulse",
    "proxy_of",
    "run",
    "serve",
]

logger = logging.getLogger("headrace.immortal")
RETRY_S: Final = 0.05
RETRY_S_MAX: Final = 1.0
TIMER_S_MAX: Final = 60.0  # the clock may be set meanwhile


class _Socket(asyncio.Protocol):
    """Either socket: one carries our messages, the other one the hub's records."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def data_received(self, data: bytes) -> None:
        self._host.received(data)

    def pause_writing(self) -> None:
        self._host.pause(True)

    def resume_writing(self) -> None:
        self._host.pause(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._host.lost()


class Host:
    """Keeps one immortal linked to its hub: connects, recovers, and does so again whenever the link is lost."""

    def __init__(
        self,
        factory: Callable[[], Immortal],
        *,
        name: str,
        receive: str,
        send: str,
        addresses: Callable[[], tuple[str, str] | Awaitable[tuple[str, str]]] | None = None,
        clock: Callable[[], float] = lambda: time.time(),
        watcher: Watcher | None = None,
        takes_checkpoints: bool = False,
    ) -> None:
        """`receive` and `send` are the hub's ports; `addresses`, if given, is asked for them at every attempt. `clock`
        says when it is, in seconds since 1970: deadlines outlive the process. `watcher` is told what is called. With
        `takes_checkpoints` it only follows and takes checkpoints."""
        self._factory = factory
        self._name = name
        self._addresses = addresses or (lambda: (receive, send))
        self._watcher = watcher
        self._timer: asyncio.TimerHandle | None = None
        self._timer_us = 0
        self._clock = clock
        self._to_hub: asyncio.Transport | None = None
        self._from_hub: asyncio.Transport | None = None
        self._lost = asyncio.Event()
        self._became_primary = asyncio.Event()
        self._replayed = asyncio.Event()
        self._following = asyncio.Event()
        self._error: Exception | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._reader = RecordReader()
        self.engine: Engine
        self.recoveries = 0
        self.observer: Callable[[Engine, Message, list[bytes]], None] | None = None
        self.says_cause = False
        """Whether the hub wants to know what each message led to (`lineage.py`)."""
        self.says_pair = False
        """Whether the hub wants to know which two sockets are ours (`pairing.py`)."""
        self.takes_checkpoints = takes_checkpoints
        self.on_away: Callable[[Exception], None] = lambda error: None
        """Told whenever the hub cannot be reached."""
        self.on_primary: Callable[[], None] = lambda: None
        """Told whenever the immortal has started, recovered or taken over."""

    @property
    def immortal(self) -> Immortal:
        """The object itself. Look, but change nothing: state changes only through messages."""
        return self.engine.immortal

    @property
    def itself(self) -> Any:
        """A proxy for impulses to the immortal from this process."""
        return _Outside(self)

    @property
    def is_primary(self) -> bool:
        """Whether it has started or recovered, and is linked."""
        return self._became_primary.is_set()

    async def wait_primary(self) -> None:
        """Until the immortal has started or recovered, and impulses may be sent."""
        await self._became_primary.wait()

    async def wait_replayed(self) -> None:
        """In a debugging session that was opened with `tell_end`: until the logged messages have been processed, and
        the immortal is as it was behind the last of them."""
        await self._replayed.wait()

    async def wait_following(self) -> None:
        """Until it has its state, be it to serve or to follow."""
        await self._following.wait()

    async def run(self) -> None:
        """Serve for ever. Ends with the error if the immortal itself cannot go on."""
        pause_s = RETRY_S
        try:
            while True:
                served = await self._serve_once()
                if self._error is not None:
                    raise self._error
                pause_s = RETRY_S if served else pause_s
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 1.5, RETRY_S_MAX)
        finally:
            await self._unlink()

    async def _serve_once(self) -> bool:
        """Connect, and serve until the link is lost; whether the immortal became primary."""
        loop = asyncio.get_running_loop()
        self._lost = asyncio.Event()
        self._reader = RecordReader()
        self.engine = Engine(self._factory, self._name)
        self.engine.watcher = self._watcher
        try:
            found = self._addresses()
            receive, send = await found if inspect.isawaitable(found) else found
            self.engine.marks, self.engine.observer = self.says_cause, self.observer
            self._from_hub, _ = await loop.create_connection(lambda: _Socket(self), *split_address(send))
            self._to_hub, _ = await loop.create_connection(lambda: _Socket(self), *split_address(receive))
            if self.says_pair or self.takes_checkpoints:
                self._to_hub.write(mark_of(self._from_hub.get_extra_info("sockname")[1], self.takes_checkpoints))
            self.flush()
        except (OSError, ValueError, KeyError, Unreachable) as error:
            await self._unlink()
            self.on_away(error)
            return False
        self.recoveries += 1
        await self._lost.wait()
        served = self._became_primary.is_set() or (self.takes_checkpoints and self.engine.restored)
        await self._unlink()
        if self._error is None:
            logger.info("%s: link to the hub lost; recovering", self._name)
        return served

    async def _unlink(self) -> None:
        self._became_primary.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for transport in (self._to_hub, self._from_hub):
            if transport is not None:
                transport.abort()
        self._to_hub = self._from_hub = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what the sockets say -----------------------------------------------------------------------------------

    def lost(self) -> None:
        """One of the sockets is gone."""
        self._lost.set()

    def pause(self, full: bool) -> None:
        """Do not read while our own messages cannot be written: a replay must not fill the memory with answers."""
        if self._from_hub is not None and not self._from_hub.is_closing():
            (self._from_hub.pause_reading if full else self._from_hub.resume_reading)()

    def received(self, data: bytes) -> None:
        """Bytes from the hub."""
        try:
            for item in self._reader.feed(data):
                self.engine.receive(item)
                if self.engine.spoilt:
                    break
        except RemoteProtocolError as error:
            logger.error("%s: the hub broke the protocol: %s", self._name, error)
            self.lost()
            return
        except Exception as error:  # the user's own save, load or upgrade failed: no replay would help
            self._error = error
            self.lost()
            return
        self.flush()
        if self.engine.spoilt:
            logger.error("%s: a query changed the state; recovering it from the log", self._name)
            self.lost()
            return
        if self.engine.replayed:
            self._replayed.set()
        if self.engine.restored:
            self._following.set()
        if self.engine.primary:
            if not self._became_primary.is_set():
                self._became_primary.set()
                self.on_primary()
                self._spawn(self.immortal.on_primary(self.itself))
            self._start_effects()

    def flush(self) -> None:
        """Write what the immortal has to say. The hub may be the first to know that both sockets are there: what it
        asks before we know it is answered when we do."""
        if self._to_hub is not None and (data := self.engine.take_output()):
            self._to_hub.write(data)

    # --- outside ------------------------------------------------------------------------------------------------

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("%s: on_primary failed", self._name, exc_info=error)
            self._error = error if isinstance(error, Exception) else None
            self.lost()

    def _start_effects(self) -> None:
        engine = self.engine
        to_start, engine.to_start = engine.to_start, {}
        for (key, number), effect in to_start.items():
            self._spawn(self._do(key, number, effect))
        self._watch_timers()

    def _watch_timers(self) -> None:
        """Wake up when the next timer is due."""
        due_us = self.engine.next_deadline_us
        if due_us is None or (self._timer is not None and self._timer_us <= due_us):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_us = due_us
        delay_s = max(0.0, due_us / 1e6 - self._clock())
        self._timer = asyncio.get_running_loop().call_later(min(delay_s, TIMER_S_MAX), self._timers_due)

    def _timers_due(self) -> None:
        self._timer = None
        self.engine.report_due(int(self._clock() * 1e6))
        self.flush()
        self._watch_timers()

    async def _do(self, key: str | None, number: int, effect: Effect) -> None:
        """Do something outside, as often as it takes."""
        engine = self.engine
        value, error = None, None
        while True:
            try:
                await asyncio.sleep(max(0.0, effect.not_before - self._clock()))
                value = await self._attempt(number, effect)
                break
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
                effect.attempts += 1
                pause_s = effect.retry.pause_s(effect.attempts, failure)
                if pause_s is None:
                    break
                logger.warning("%s: attempt %d failed, next in %g s: %s", self._name, effect.attempts, pause_s, error)
                effect.not_before, effect.last_error = self._clock() + pause_s, error
                if engine is self.engine:
                    engine.report_attempt(number, effect.attempts, effect.not_before, error, key)
                    self.flush()
                error = None
        if engine is self.engine and not effect.result.done:
            engine.report_effect(number, value, error, key)
            self.flush()

    async def _attempt(self, number: int, effect: Effect) -> Any:
        assert effect.function is not None
        if effect.is_sleep:
            return await asyncio.sleep(self._left_s(number, effect))
        async with asyncio.timeout(effect.timeout_s):
            if inspect.iscoroutinefunction(effect.function):
                return await effect.function(*effect.args)
            value = await asyncio.to_thread(effect.function, *effect.args)
            return await value if inspect.isawaitable(value) else value

    def _left_s(self, number: int, effect: Effect) -> float:
        """How long to sleep: what a sleep before a crash has left. Never longer than was asked for, however the clock
        was set meanwhile."""
        (seconds,), now = effect.args, self._clock()
        if effect.deadline is None:
            effect.deadline = now + seconds
            self.engine.report_deadline(number, effect.deadline)
            self.flush()
        left_s: float = min(seconds, max(0.0, effect.deadline - now))
        return left_s


class _Outside:
    """Impulses to the immortal: `host.itself.tick(5)`."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def __getattr__(self, name: str) -> Any:
        send = getattr(proxy_to_self(self._host.engine.cell), name)

        def impulse(*args: Any, **kwargs: Any) -> None:
            send(*args, **kwargs)
            self._host.flush()

        return impulse


@asynccontextmanager
async def serve(factory: Callable[[], Immortal], *, name: str, receive: str, send: str) -> AsyncIterator[Host]:
    """Serve an immortal in this event loop for as long as the block lasts."""
    host = Host(factory, name=name, receive=receive, send=send)
    task = asyncio.ensure_future(host.run())
    waiting = asyncio.ensure_future(host.wait_primary())
    try:
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield host
    finally:
        waiting.cancel()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def run(factory: Callable[[], Immortal], *, name: str, receive: str, send: str) -> None:
    """Serve an immortal until the process is ended."""
    asyncio.run(Host(factory, name=name, receive=receive, send=send).run())
