"""What every cache does for those who read it and for those who listen to it."""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.errors import UnknownStream
from headrace.hub.turns import Pace
from headrace.log.ops import ANY

if TYPE_CHECKING:
    from headrace.hub import Hub


class Cache:
    """One cache of a hub. Calls its watchers when there may be new keys."""

    def __init__(self, hub: Hub, name: str, stream: str | None = None) -> None:
        """`stream` is the stream or table it lies in; none for the one of the same name."""
        self.name = name
        self.stream = stream or name
        self.stream_id = hub.stream(self.stream).id
        self.watchers: dict[Callable[[], None], None] = {}
        self._hub = hub

    @property
    def exists(self) -> bool:
        """Whether what the cache lies in is there. Another stream or table of the same name is not that."""
        hub = self._hub
        return hub.has_stream(self.stream) and hub.stream(self.stream).id == self.stream_id

    def get(self, key: bytes) -> bytes | Future[Any] | None:
        """The value of `key`, or a future of it when it must be read from the log."""
        raise NotImplementedError

    def has(self, key: bytes) -> bool:
        """Whether there is an entry of that key."""
        return self.get(key) is not None

    async def page(self, keys: list[bytes]) -> list[tuple[bytes, bytes]]:
        """The entries of `keys` that are there. Others have their turn meanwhile."""
        rows: list[tuple[bytes, bytes]] = []
        pace = Pace(self._hub.intake.turns)
        for key in keys:
            await pace.keep()
            value = self.get(key)
            if isinstance(value, Future):
                value = await value
            if value is not None:
                rows.append((key, value))
        return rows

    def delete(self, key: bytes, expect: Any = ANY) -> Future[Any]:
        """Remove `key`; the future has an outcome with `applied` (it was there) and `previous`."""
        raise NotImplementedError

    def delete_many(self, keys: list[bytes]) -> Future[Any]:
        """Remove many keys."""
        return asyncio.gather(*[self.delete(key) for key in keys])

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever there may be new keys."""
        self.watchers[wake] = None

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Stop calling."""
        self.watchers.pop(wake, None)

    def _wake(self) -> None:
        for wake in tuple(self.watchers):
            wake()

    def close(self) -> None:
        """Stop what runs in the background."""


class FollowedCache(Cache):
    """A cache on a partition of a stream of the hub: it follows the stream while there are watchers."""

    def __init__(self, hub: Hub, name: str, stream: str, partition: int = 0) -> None:
        super().__init__(hub, name, stream)
        self.partition = partition
        self._follower: asyncio.Task[None] | None = None

    async def _record(self, index: int) -> tuple[bytes, str | None] | None:
        """Payload and type of the record at an index."""
        batch = await self._hub.read(self.stream, index, partition=self.partition, limit=1)
        if batch.num_rows == 0 or batch.column("index")[0].as_py() != index:
            return None
        return batch.column("payload")[0].as_py(), batch.column("type")[0].as_py()

    def watch(self, wake: Callable[[], None]) -> None:
        super().watch(wake)
        if self._follower is None:
            self._follower = asyncio.ensure_future(self._follow())

    def unwatch(self, wake: Callable[[], None]) -> None:
        super().unwatch(wake)
        if not self.watchers:
            self.close()

    async def _follow(self) -> None:
        with contextlib.suppress(UnknownStream):
            while True:
                await self._next_records()
        self._wake()  # the stream is gone: let the listeners find out

    async def _next_records(self) -> None:
        """Wait for records that have not been seen; wake the watchers before or after, so that they miss none."""
        raise NotImplementedError

    def close(self) -> None:
        if self._follower is not None:
            self._follower.cancel()
            self._follower = None
