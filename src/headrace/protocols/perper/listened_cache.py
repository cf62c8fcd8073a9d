"""What every cache on a stream of the hub does for those who listen to it."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable
from typing import Any

from headrace.errors import UnknownStream


class ListenedCache:
    """Calls its watchers when there may be new keys; follows the stream while there are any."""

    def __init__(self) -> None:
        self.watchers: set[Callable[[], None]] = set()
        self._follower: asyncio.Task[None] | None = None

    def get(self, key: bytes) -> bytes | Future[Any] | None:
        """The value of `key`, or a future of it when it must be read from the log."""
        raise NotImplementedError

    async def page(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """The items of `keys` that are there."""
        rows: list[tuple[bytes, bytes]] = []
        for key in keys:
            value = self.get(key)
            found = await value if isinstance(value, Future) else value
            if found is not None:
                rows.append((key, found))
        return rows

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there may be new keys."""
        self.watchers.add(wake)
        if self._follower is None:
            self._follower = asyncio.ensure_future(self._follow())

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling."""
        self.watchers.discard(wake)
        if not self.watchers:
            self.close()

    def _wake(self) -> None:
        for wake in tuple(self.watchers):
            wake()

    async def _follow(self) -> None:
        with contextlib.suppress(UnknownStream):
            while True:
                await self._next_records()
        self._wake()  # the stream is gone: let the listeners find out

    async def _next_records(self) -> None:
        """Wait for records that have not been seen; wake the watchers before or after, so that they miss none."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None
