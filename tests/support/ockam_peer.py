"""A raw peer for tests: sends exactly the bytes it is told to, and reads replies one by one."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
from support.until import DEADLINE_S

from headrace.config import Config
from headrace.hub import Hub
from headrace.log.disk import Disk
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import Address, Framing, LegacyFraming, Message, Route, local
from headrace.protocols.ockam.server import OckamListener, serve
from headrace.testing import memory_hub

BACK = (local("client"),)


def settings(**ockam: Any) -> Config:
    """The default settings with some of the section `ockam` changed; the newer framing listens too."""
    config = Config()
    section = msgspec.structs.replace(config.ockam, **({"cbor_listen": "127.0.0.1:0"} | ockam))
    return msgspec.structs.replace(config, ockam=section)


@asynccontextmanager
async def hub_and_listener(
    config: Config | None = None, disk: Disk | None = None
) -> AsyncIterator[tuple[Hub, OckamListener]]:
    async with memory_hub(config or settings(), disk=disk) as hub:
        listener = await serve(hub, "127.0.0.1:0")
        try:
            yield hub, listener
        finally:
            await listener.close()


class Peer:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, framing: Framing) -> None:
        self.reader = reader
        self.writer = writer
        self.framing = framing

    def raw(self, data: bytes) -> None:
        self.writer.write(data)

    def frame(self, to: Route | str | bytes, payload: bytes, back: Route = BACK) -> bytes:
        onward = to if isinstance(to, tuple) else (local(to),)
        return self.framing.encode(Message(onward, back, payload))

    def send(self, to: Route | str | bytes, request: codec.Request, back: Route = BACK) -> None:
        self.raw(self.frame(to, codec.encode_request(request), back))

    async def message(self) -> Message:
        async with asyncio.timeout(DEADLINE_S):
            header = await self.reader.readexactly(self.framing.header_bytes)
            return self.framing.decode(await self.reader.readexactly(self.framing.frame_size(header, 0)))

    async def response(self, *, partitioned: bool = False) -> codec.Response:
        return codec.decode_response((await self.message()).payload, partitioned=partitioned)

    async def ask(self, to: Route | str | bytes, request: codec.Request) -> codec.Response:
        self.send(to, request)
        partitioned = isinstance(request, codec.GetIndex) and request.partition is not None
        return await self.response(partitioned=partitioned)

    async def create(self, name: str | None = "orders") -> bytes:
        self.send("stream", codec.CreateRequest(codec.CREATE, name))
        message = await self.message()
        assert isinstance(codec.decode_response(message.payload), codec.Init)
        return message.returning[0].value

    async def push(self, address: bytes, *records: bytes) -> list[codec.Response]:
        for number, data in enumerate(records):
            self.send(address, codec.PushRequest(number, data))
        return [await self.response() for _ in records]

    async def pull(self, address: bytes, index: int = 0, limit: int = 1000) -> list[tuple[int, bytes]]:
        response = await self.ask(address, codec.PullRequest(7, index, limit))
        assert isinstance(response, codec.PullResponse)
        assert response.request_id == 7
        return [(message.index, message.data) for message in response.messages]

    async def pull_all(self, address: bytes) -> list[tuple[int, bytes]]:
        everything: list[tuple[int, bytes]] = []
        while batch := await self.pull(address, everything[-1][0] + 1 if everything else 0):
            everything += batch
        return everything

    async def get_index(self, client: str, stream: str, partition: int | None = None) -> int | None:
        protocol = codec.INDEX if partition is None else codec.INDEX_PARTITIONED
        response = await self.ask("stream_index", codec.GetIndex(protocol, client, stream, partition))
        assert isinstance(response, codec.Index)
        return response.index

    def save_index(self, client: str, stream: str, index: int, partition: int | None = None) -> None:
        protocol = codec.INDEX if partition is None else codec.INDEX_PARTITIONED
        self.send("stream_index", codec.SaveIndex(protocol, client, stream, index, partition))

    async def still_alive(self) -> None:
        """Nothing came back for what was sent before, and the connection works."""
        response = await self.ask("stream", codec.CreateRequest(codec.CREATE, ""))
        assert response == codec.Error(codec.INVALID_REQUEST)

    def has_received(self) -> bool:
        """Whether anything came that was not read yet."""
        return bool(self.reader._buffer)  # type: ignore[attr-defined]

    async def at_end(self) -> bool:
        async with asyncio.timeout(DEADLINE_S):
            return await self.reader.read() == b""

    def vanish(self) -> None:
        """Go without a goodbye. After a plain close the peer might still want its answers, as far as a hub can know."""
        own = self.writer.get_extra_info("socket")
        own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@asynccontextmanager
async def peer_of(listener: OckamListener, framing: str = "legacy") -> AsyncIterator[Peer]:
    address = listener.address if framing == "legacy" else listener.cbor_address
    assert address is not None
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    peer = Peer(reader, writer, LegacyFraming() if framing == "legacy" else CborFraming())
    if peer.framing.greeting:
        peer.raw(peer.framing.greeting)
        assert await reader.readexactly(1) == peer.framing.greeting
    try:
        yield peer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


def multi_hop() -> Route:
    return (Address(1, b"192.0.2.7:4000"), Address(2, b"\x00\xff\x80"), local("deep"), local(""))


def with_anonymous(role: str) -> Config:
    """Settings in which callers without a name have a role."""
    config = settings()
    return msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, anonymous=role))
