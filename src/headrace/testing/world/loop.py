"""The event loop of a machine in a simulated world: asyncio's own, with the world's time, network and threads."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any

from headrace.testing.world.network import Network, Server
from headrace.testing.world.scheduler import Machine, Scheduler, Strand
from headrace.testing.world.threads import Threads, WorldLock

INTERRUPTED = 0.3
"""How often a loop that has more to do lets others have their turn first."""


class WorldFuture(asyncio.Future[Any]):
    """One that stands in sets where the seed says, and not where the memory had room for it."""

    def __init__(self, number: int, loop: WorldLoop) -> None:
        super().__init__(loop=loop)
        self._number = number

    def __hash__(self) -> int:
        return self._number


class WorldTask(asyncio.Task[Any]):
    """The same of tasks."""

    def __init__(self, number: int, coroutine: Coroutine[Any, Any, Any], loop: WorldLoop, **more: Any) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, **more)

    def __hash__(self) -> int:
        return self._number


class _Selector:
    """Where asyncio waits for sockets and time, the strand waits for its turn."""

    def __init__(self, loop: WorldLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        self._loop.wait(timeout)
        return []

    def close(self) -> None:
        """There is nothing to free."""


class WorldLoop(asyncio.BaseEventLoop):
    """One machine's loop. Everything else on the machine runs in strands beside it."""

    def __init__(self, scheduler: Scheduler, machine: Machine, network: Network, threads: Threads) -> None:
        super().__init__()
        self.machine = machine
        self._scheduler = scheduler
        self._network = network
        self._threads = threads
        self._strand: Strand | None = None
        self._selector = _Selector(self)
        self._turns: dict[Executor, WorldLock] = {}
        self._signals: dict[int, Callable[[], object]] = {}
        self.set_exception_handler(self._unexpected)
        self.set_task_factory(lambda loop, work, **more: WorldTask(scheduler.number(), work, self, **more))

    def start(self, main: Callable[[], Any]) -> Strand:
        """Run `main()`, a coroutine function, in a strand of its own."""

        def run() -> None:
            asyncio.set_event_loop(self)
            self.run_until_complete(main())

        self._strand = self._scheduler.spawn(self.machine, f"{self.machine.name} loop", run)
        return self._strand

    def _unexpected(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self.machine.errors.append(error if error is not None else RuntimeError(str(context.get("message"))))

    def create_future(self) -> asyncio.Future[Any]:
        return WorldFuture(self._scheduler.number(), self)

    # -- time ------------------------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._scheduler.now_s

    def wait(self, timeout_s: float | None) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            self._scheduler.park(timeout_s)
        elif self._scheduler.random.random() < INTERRUPTED:
            self._scheduler.pause()

    def _process_events(self, events: list[Any]) -> None:
        """Sockets wake the loop by calls."""

    def _write_to_self(self) -> None:
        if self._strand is not None:
            self._scheduler.wake(self._strand)

    # -- threads ---------------------------------------------------------------------------------------------------

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, function: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        """In a strand; those of one executor take turns, as if it had one thread."""
        future: asyncio.Future[Any] = self.create_future()
        turn = None if executor is None else self._turns.setdefault(executor, self._threads.Lock())
        context = contextvars.copy_context()

        def work() -> None:
            try:
                if turn is None:
                    result = context.run(function, *arguments)
                else:
                    with turn:
                        result = context.run(function, *arguments)
            except BaseException as error:
                self.call_soon_threadsafe(_settle, future, None, error)
            else:
                self.call_soon_threadsafe(_settle, future, result, None)

        self._scheduler.spawn(self.machine, "pool", work)
        return future

    # -- signals ---------------------------------------------------------------------------------------------------

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        self._signals[sig] = lambda: callback(*args)

    def remove_signal_handler(self, sig: int) -> bool:
        return self._signals.pop(sig, None) is not None

    def send_signal(self, sig: int) -> None:
        """From any strand, or none; nothing for a process that does not listen."""
        if sig in self._signals:
            self.call_soon_threadsafe(self._signals[sig])

    # -- network ---------------------------------------------------------------------------------------------------

    async def create_server(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None = None, port: int = 0, **options: Any
    ) -> Server:
        sock = options.get("sock")
        return self._network.listen(self, factory, port if sock is None else sock.getsockname()[1])

    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], asyncio.BaseProtocol], host: str | None = None, port: int = 0, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        return await self._network.connect(self, factory, port)

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> list[Any]:
        return [(2, 1, 6, "", (host, port))]


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
