"""A binding made of bare sockets, for tests that want to see every byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from support.until import DEADLINE_S

from headrace.config import Ambrosia, Config, ImmortalSection
from headrace.config.address import split_address
from headrace.hub import Hub
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.methods import CLOCK_METHOD
from headrace.protocols.ambrosia.codec import Blob, Call, Checkpoint, Type
from headrace.protocols.ambrosia.record_reader import Record, RecordReader
from headrace.protocols.ambrosia.server import ImmortalPorts, start
from headrace.security import Principal


class RawBinding:
    """Reads bytes or records, writes whatever the test says."""

    def __init__(self) -> None:
        self.reader = RecordReader()
        self.found: list[Record | Blob] = []
        self.raw = b""

    @classmethod
    async def connect(cls, receive: str, send: str) -> RawBinding:
        self = cls()
        _, self.to_hub = await asyncio.open_connection(*split_address(receive))
        self.from_hub, self._from_writer = await asyncio.open_connection(*split_address(send))
        return self

    @classmethod
    async def to(cls, ports: ImmortalPorts, name: str) -> RawBinding:
        addresses = ports.addresses
        return await cls.connect(addresses[f"ambrosia.{name}.receive"], addresses[f"ambrosia.{name}.send"])

    def say(self, *data: bytes | codec.Message) -> None:
        self.to_hub.write(b"".join(each if isinstance(each, bytes) else codec.encode(each) for each in data))

    async def hear(self, size: int) -> bytes:
        """Exactly so many bytes."""
        async with asyncio.timeout(DEADLINE_S):
            return await self.from_hub.readexactly(size)

    async def next(self) -> Record | Blob:
        """The next record, or piece of a checkpoint."""
        async with asyncio.timeout(DEADLINE_S):
            while not self.found:
                data = await self.from_hub.read(1 << 16)
                if not data:
                    raise EOFError
                self.found = self.reader.feed(data)
        return self.found.pop(0)

    async def record(self) -> Record:
        found = await self.next()
        assert isinstance(found, Record), found
        return found

    async def signal(self) -> Type:
        record = await self.record()
        assert record.sequence == -1
        (message,) = codec.decode_messages(record.payload, addressed=False)
        assert isinstance(message, codec.Signal)
        return message.type

    async def checkpoint(self) -> bytes:
        """A checkpoint record with its blob."""
        record = await self.record()
        assert record.sequence == -2
        blob = b""
        while True:
            piece = await self.next()
            assert isinstance(piece, Blob)
            blob += piece.data
            if piece.last:
                return blob

    async def calls(self, count: int) -> list[Call]:
        """The next `count` calls, whatever records they come in."""
        found: list[Call] = []
        while len(found) < count:
            record = await self.record()
            assert record.sequence >= 0, record
            for message in codec.decode_messages(record.payload, addressed=False):
                each = message.calls if isinstance(message, codec.RpcBatch) else (message,)
                found += [call for call in each if isinstance(call, Call)]
        return found

    async def first_start(self, state: bytes = b"state-0", initial: bytes = b"hi", *, clock: bool = False) -> None:
        assert await self.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
        self.say(codec.InitialMessage(initial), codec.Checkpoint(len(state)), state)
        if clock:
            assert [call.method for call in await self.calls(1)] == [CLOCK_METHOD]
        record = await self.record()
        assert (record.sequence, record.payload) == (int(clock), codec.frame(Type.INITIAL_MESSAGE, initial))

    async def closed(self) -> None:
        """Wait until the hub has closed the link."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while await self.from_hub.read(1 << 16):
                    pass
            except ConnectionError:
                pass
        await self.close()

    async def close(self) -> None:
        for writer in (self.to_hub, self._from_writer):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def settings(**immortals: ImmortalSection) -> Config:
    return Config(ambrosia=Ambrosia(immortals=immortals))


@asynccontextmanager
async def coordinator(hub: Hub) -> AsyncIterator[ImmortalPorts]:
    ports = await start(hub)
    assert ports is not None
    try:
        yield ports
    finally:
        await ports.close()


def fork(arguments: bytes, destination: bytes = b"", method: int = 1) -> Call:
    return Call(method, 1, arguments, destination)


def impulse(arguments: bytes, destination: bytes = b"") -> Call:
    return Call(2, 2, arguments, destination)


async def recovered(binding: RawBinding, records: int, state: bytes = b"later") -> tuple[bytes, list[Record]]:
    """Go through a recovery; returns the checkpoint and the replayed records."""
    blob = await binding.checkpoint()
    found = [await binding.record() for _ in range(records)]
    assert await binding.signal() == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT
    binding.say(Checkpoint(len(state)), state)
    return blob, found


async def call_verb(hub: Hub, verb: str, **request: Any) -> Any:
    return await hub.verbs.call(verb, request, everyone(hub))


def everyone(hub: Hub) -> Principal:
    found = hub.security.anonymous()
    assert found is not None
    return found


async def info(hub: Hub, name: str) -> Any:
    return next(each for each in await call_verb(hub, "immortal.list") if each.name == name)
