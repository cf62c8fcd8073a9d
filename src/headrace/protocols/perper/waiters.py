"""Who waits for something that has a name: an execution to end, a stream to get a listener, a cache to be there."""

from __future__ import annotations

import asyncio
from asyncio import Future


class NamedWaiters:
    """Futures by name. One that is cancelled is forgotten."""

    def __init__(self) -> None:
        self._waiting: dict[str, set[Future[None]]] = {}

    def count(self, name: str) -> int:
        """How many wait for `name`."""
        return len(self._waiting.get(name, ()))

    def wait(self, name: str) -> Future[None]:
        """Done when somebody tells of `name`."""
        waiter: Future[None] = asyncio.get_running_loop().create_future()
        waiters = self._waiting.setdefault(name, set())
        waiters.add(waiter)

        def forget(_: Future[None]) -> None:
            waiters.discard(waiter)
            if not waiters and self._waiting.get(name) is waiters:
                del self._waiting[name]

        waiter.add_done_callback(forget)
        return waiter

    def tell(self, name: str) -> None:
        """What they wait for has come."""
        for waiter in self._waiting.pop(name, ()):
            if not waiter.done():
                waiter.set_result(None)
