"""A small asyncio client of the thin protocol, on the same codec: for tests, benchmarks and scripts beside the hub.

Requests are pipelined: `request` sends at once and returns a future.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio import Future
from typing import Any, cast

from headrace.protocols.perper.errors import FrameError, PeerError
from headrace.protocols.perper.ignite import codec
from headrace.protocols.perper.ignite.binary import java_hash
from headrace.protocols.perper.ignite.reader import Reader


class IgniteClient(asyncio.Protocol):
    """One connection."""

    def __init__(self, version: codec.Version = codec.NEWEST) -> None:
        self.version = version
        self._buffer = codec.FrameBuffer(codec.DEFAULT_FRAME_BYTES_MAX)
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._next_id = 1
        self._waiting: dict[int, tuple[int, Future[Any]]] = {}
        self._greeted: Future[None] = asyncio.get_running_loop().create_future()
        self.lost: Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        user: str | None = None,
        password: str | None = None,
        version: codec.Version = codec.NEWEST,
        tls: ssl.SSLContext | None = None,
    ) -> IgniteClient:
        """Open a connection and shake hands."""
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(lambda: cls(version), host, port, ssl=tls)
        features = codec.FEATURES if version >= (1, 7, 0) else b""
        client.send_raw(codec.encode_handshake(codec.Handshake(version, codec.THIN_CLIENT, features, user, password)))
        try:
            await client._greeted
        except BaseException:  # whoever waited no longer would leave the connection open, and a late answer to nobody
            client._transport.abort()
            raise
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """The server is gone."""
        ended = error or ConnectionResetError("the server closed the connection")
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(ended)
        if not self._greeted.done():
            self._greeted.set_exception(ended)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        try:
            buffer, spans = self._buffer.feed(data)
        except FrameError:
            self._transport.abort()
            return
        for start, end in spans:
            payload = buffer[start:end]
            if self._greeted.done():
                self._answer(codec.decode_response(payload, self.version))
            else:
                self._greet(payload)

    def _greet(self, payload: bytes) -> None:
        if payload[0] == 1:
            self._greeted.set_result(None)
            return
        reader = Reader(payload, 7)
        message = reader.text()
        self._greeted.set_exception(PeerError(reader.int(), message))

    def _answer(self, response: codec.Response) -> None:
        op, future = self._waiting.pop(response.request_id)
        if future.done():
            return
        if response.status:
            future.set_exception(PeerError(response.status, response.message or ""))
        else:
            future.set_result(codec.decode_answer(op, response.body))

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are."""
        self._transport.write(data)

    def request(self, op: int, *arguments: Any, cache: str | int = 0, **more: Any) -> Future[Any]:
        """Send a request; the future has the answer's value or a `PeerError`."""
        number, self._next_id = self._next_id, self._next_id + 1
        future: Future[Any] = asyncio.get_running_loop().create_future()
        if self.lost.done():
            future.set_exception(ConnectionResetError("the server closed the connection"))
            return future
        self._waiting[number] = (op, future)
        cache_id = java_hash(cache) if isinstance(cache, str) else cache
        self._transport.write(codec.encode_request(codec.Request(op, number, arguments, cache_id, **more)))
        return future

    async def close(self) -> None:
        """Hang up."""
        self._transport.close()
        await self.lost
