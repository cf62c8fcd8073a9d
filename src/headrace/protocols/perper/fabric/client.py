"""A small asyncio client of the fabric, on the same codec: what `headrace agents run` and the tests use."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Sequence
from typing import cast

from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import Fields, Message, decode, encode, prefixed
from headrace.protocols.perper.fabric.descriptors import METHODS


class RpcError(Exception):
    """The server ended the call with another status than OK."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(f"status {status}: {message}")


class ClientCall:
    """One call: `send` requests, iterate over the responses."""

    def __init__(self, client: FabricClient, path: str, stream: int) -> None:
        self._client = client
        self._method = METHODS[path]
        self._stream = stream
        self._received: asyncio.Queue[bytes | RpcError | None] = asyncio.Queue()
        self.headers: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    def send(self, message: Fields) -> None:
        """One request; nothing where the connection has ended, which the next response says."""
        if self._client.has_ended:
            return
        self._client.grpc.send(self._stream, prefixed(encode(self._method.request, message)))
        self._client.flush()

    def end_requests(self) -> None:
        """No more requests."""
        if self._client.has_ended:
            return
        self._client.grpc.end_requests(self._stream)
        self._client.flush()

    def cancel(self) -> None:
        """Give the call up."""
        if not self._client.has_ended:
            self._client.grpc.reset(self._stream)
            self._client.flush()
        self.take(http2.CallEnded(self._stream, http2.CANCELLED, "cancelled here"))

    def take(self, event: http2.Event) -> None:
        """Something of this call came."""
        if isinstance(event, http2.MessageReceived):
            self._received.put_nowait(event.data)
            return
        if isinstance(event, http2.Headers):
            if not self.headers.done():
                self.headers.set_result(event.headers)
            return
        if isinstance(event, http2.CallEnded) and event.status == http2.OK:
            self._received.put_nowait(None)
        elif isinstance(event, http2.CallEnded):
            self._received.put_nowait(RpcError(event.status, event.message))
        elif isinstance(event, http2.CallReset | http2.ConnectionEnded):
            self._received.put_nowait(RpcError(http2.UNAVAILABLE, "the connection ended"))
        if not self.headers.done() and not isinstance(event, http2.Room):
            self.headers.cancel()

    async def next(self) -> Message | None:
        """The next response; None after the last."""
        item = await self._received.get()
        if isinstance(item, RpcError):
            self._received.put_nowait(item)
            raise item
        return None if item is None else decode(self._method.response, item)

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.next()) is not None:
            yield message


class FabricClient(asyncio.Protocol):
    """One connection."""

    def __init__(self, authority: str, metadata: Sequence[tuple[str, str]] = (), scheme: str = "http") -> None:
        self.grpc = http2.GrpcConnection(client=True)
        self._authority = authority
        self._metadata = metadata
        self._scheme = scheme
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._calls: dict[int, ClientCall] = {}
        self.has_ended = False
        """No call can begin or go on here any more."""
        self.lost = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(
        cls, host: str, port: int, metadata: Sequence[tuple[str, str]] = (), tls: ssl.SSLContext | None = None
    ) -> FabricClient:
        """Open a connection."""
        if tls is not None:
            tls.set_alpn_protocols(["h2"])
        loop = asyncio.get_running_loop()
        scheme = "http" if tls is None else "https"
        _, client = await loop.create_connection(lambda: cls(f"{host}:{port}", metadata, scheme), host, port, ssl=tls)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast(asyncio.Transport, transport)
        self.flush()

    def connection_lost(self, error: Exception | None) -> None:
        """The server is gone."""
        self.has_ended = True
        self.grpc.release()
        ended = http2.ConnectionEnded("lost")
        for call in self._calls.values():
            call.take(ended)
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        for event in self.grpc.receive(data):
            if isinstance(event, http2.ConnectionEnded):
                self.has_ended = True
                self._transport.close()
                continue
            call = self._calls.get(event.stream)
            if call is not None:
                call.take(event)
                if isinstance(event, http2.CallEnded | http2.CallReset):
                    del self._calls[event.stream]
        self.flush()

    def flush(self) -> None:
        """Send what waits."""
        data = self.grpc.data_to_send()
        if data and not self._transport.is_closing():
            self._transport.write(data)

    def start(
        self, path: str, *requests: Fields, end: bool = True, metadata: Sequence[tuple[str, str]] = ()
    ) -> ClientCall:
        """Begin a call; with `end`, no requests follow."""
        if self.has_ended:
            call = ClientCall(self, path, 0)
            call.take(http2.ConnectionEnded("lost"))
            return call
        stream = self.grpc.start_call(self._authority, path, [*self._metadata, *metadata], self._scheme)
        call = self._calls[stream] = ClientCall(self, path, stream)
        for request in requests:
            call.send(request)
        if end:
            call.end_requests()
        self.flush()
        return call

    async def call(self, path: str, request: Fields) -> Message:
        """One request, one response."""
        call = self.start(path, request)
        answer = await call.next()
        if answer is None:
            raise RpcError(http2.INTERNAL, "the call ended without a response")
        await call.next()
        return answer

    async def close(self) -> None:
        """Hang up."""
        self._transport.close()
        await self.lost
