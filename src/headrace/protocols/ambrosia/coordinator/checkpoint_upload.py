"""A checkpoint on its way from a binding to the disk, in bounded memory."""

from __future__ import annotations

import asyncio
from typing import Final

from headrace.hub import Hub
from headrace.hub.checkpoints import CheckpointWriter
from headrace.log.ops import CheckpointInfo

QUEUE_BYTES_MAX: Final = 4 << 20  # the binding is not read while this much waits for the disk


class CheckpointUpload:
    """Takes pieces as they come and writes them in order. `sent` is what the binding had sent when it began."""

    def __init__(self, hub: Hub, stream: str, sent: dict[str, int]) -> None:
        self.sent = sent
        self.size = 0
        self._pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._writer: CheckpointWriter | None = None  # until it is committed
        self._task = asyncio.ensure_future(self._write(hub, stream))

    def add(self, data: bytes, last: bool) -> None:
        """One more piece."""
        self.size += len(data)
        self._queued_bytes += len(data)
        self._pieces.put_nowait((data, last))

    @property
    def full(self) -> bool:
        """Whether the binding has to wait."""
        return self._queued_bytes > QUEUE_BYTES_MAX

    async def wait_for_room(self) -> None:
        """Until more may be added."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def _write(self, hub: Hub, stream: str) -> CheckpointWriter:
        self._writer = writer = await hub.begin_checkpoint(stream)
        last = False
        while not last:
            piece, last = await self._pieces.get()
            await writer.write(piece)
            self._queued_bytes -= len(piece)
            self._room.set()
        return writer

    async def complete(self) -> None:
        """Until the last piece is written."""
        await self._task

    async def commit(self, position: int, meta: dict[str, str]) -> CheckpointInfo:
        """Make the checkpoint count. Before this the previous one does."""
        writer = await self._task
        self._writer = None
        return await writer.commit(position, meta)

    async def abort(self) -> None:
        """Forget it all: the binding was lost half way."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._writer is not None:
            await self._writer.abort()
