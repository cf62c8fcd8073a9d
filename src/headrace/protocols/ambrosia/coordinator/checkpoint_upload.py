"""A checkpoint on its way from a binding to the disk, in bounded memory."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from headrace.hub import Hub

if TYPE_CHECKING:
    from headrace.log.ops import CheckpointInfo

QUEUE_BYTES_MAX: Final = 4 << 20  # the binding is not read while this much waits for the disk


class BlobSink:
    """Takes pieces as they come and writes them in order. `sent` is what the binding had sent when it began."""

    def __init__(self, hub: Hub, stream: str, sent: dict[str, int]) -> None:
        self.sent = sent
        self.size = 0
        self._hub = hub
        self._stream = stream
        self._pieces: list[bytes] = []
        self._queued_bytes = 0
        self._ended = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._task = asyncio.ensure_future(self._write())
        self._committed = False

    def add(self, data: bytes, last: bool) -> None:
        """One more piece."""
        self._pieces.append(data)
        self.size += len(data)
        self._queued_bytes += len(data)
        self._ended = last
        if self.full:
            self._room.clear()
        self._changed.set()

    @property
    def full(self) -> bool:
        """Whether the binding has to wait."""
        return self._queued_bytes > QUEUE_BYTES_MAX

    async def wait_for_room(self) -> None:
        """Until more may be added."""
        await self._room.wait()

    async def _write(self) -> None:
        self._writer = await self._hub.begin_checkpoint(self._stream)
        while not (self._ended and not self._pieces):
            await self._changed.wait()
            self._changed.clear()
            pieces, self._pieces = self._pieces, []
            for piece in pieces:
                await self._writer.write(piece)
                self._queued_bytes -= len(piece)
            self._room.set()

    async def complete(self) -> None:
        """Until the last piece is written."""
        await self._task

    async def commit(self, position: int, meta: dict[str, str]) -> CheckpointInfo:
        """Make the checkpoint count. Before this the previous one does."""
        await self._task
        self._committed = True
        return await self._writer.commit(position, meta)

    async def abort(self) -> None:
        """Forget it all: the binding was lost half way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        writer = getattr(self, "_writer", None)
        if writer is not None and not self._committed:
            await writer.abort()
