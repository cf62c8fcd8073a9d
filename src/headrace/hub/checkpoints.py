"""Checkpoints on their way into the log."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.log import ops
from headrace.log.port import Blob

if TYPE_CHECKING:
    from headrace.hub.hub import Hub


class CheckpointWriter:
    """A checkpoint on its way. Bounded memory: `write` returns when the chunk has been taken."""

    def __init__(self, hub: Hub, stream: str, blob: Blob) -> None:
        self._hub = hub
        self._stream = stream
        self._blob = blob

    async def write(self, chunk: bytes) -> None:
        await asyncio.to_thread(self._blob.write, chunk)

    async def commit(self, position: int, meta: dict[str, str] | None = None) -> ops.CheckpointInfo:
        """Make it durable: it stands for the stream's state before `position`."""
        await asyncio.to_thread(self._blob.finish)
        register = ops.RegisterCheckpoint(self._blob.id, self._stream, position, self._blob.size, meta or {})
        result = await self._hub.transact([register])
        info: ops.CheckpointInfo = result[0]
        self._hub.metrics.nouns.checkpoint_bytes.inc(info.size)
        return info

    async def abort(self) -> None:
        await asyncio.to_thread(self._blob.abort)
