"""Stream addresses that outlive the process.

An address is `ST_S_` and 16 hexadecimal digits, as in the reference; but instead of being drawn at random at each start
it is a hash of the stream's name and partition under a key that is made once and kept. So a client that was away for a
restart, or for a year, can go on with the address it was given. Who does not know the key cannot tell an address from
the name.

Both the key and the addresses handed out live in one table of the hub:

    b"key"       → 32 random bytes
    b"ST_S_…"    → msgpack [stream, partition]
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.errors import HeadraceError, LimitExceeded, UnknownStream
from headrace.hub import Hub
from headrace.log.ops import ABSENT
from headrace.protocols.ockam.session import Worker

TABLE: Final = "ockam.addresses"
KEY: Final = b"key"
PREFIX: Final = b"ST_S_"
_KEY_BYTES: Final = 32


class _Place(msgspec.Struct, array_like=True, frozen=True):
    stream: str
    partition: int


_decoder: Final = msgspec.msgpack.Decoder(_Place)
_encode: Final = msgspec.msgpack.Encoder().encode


class AddressBook:
    """Which stream partition stands behind which address."""

    def __init__(self, hub: Hub, key: bytes, addresses_max: int) -> None:
        self._hub = hub
        self._key = key
        self._addresses_max = addresses_max
        self._known: dict[bytes, Worker] = {}

    @classmethod
    async def open(cls, hub: Hub, addresses_max: int) -> AddressBook:
        await hub.create_table(TABLE)
        key = hub.get(TABLE, KEY)
        if key is None:
            await hub.put(TABLE, KEY, secrets.token_bytes(_KEY_BYTES), expect=ABSENT)
            key = hub.get(TABLE, KEY)  # another hub on the same log may have been first
            assert key is not None
        book = cls(hub, key, addresses_max)
        gone = [address for address, _ in hub.items(TABLE) if address != KEY and book.resolve(address) is None]
        await asyncio.gather(*(hub.delete(TABLE, address) for address in gone))
        return book

    def resolve(self, address: bytes) -> Worker | None:
        """The stream partition behind an address; None if there is none, or not any more."""
        worker = self._known.get(address)
        if worker is None:
            stored = self._hub.get(TABLE, address) if address.startswith(PREFIX) else None
            if stored is None:
                return None
            place = _decoder.decode(stored)
            worker = self._known[address] = Worker(address, place.stream, place.partition)
        try:
            self._hub.stream(worker.stream)
        except UnknownStream:
            return None
        return worker

    async def register(self, stream: str, partitions: int) -> Sequence[Worker]:
        """The addresses of the first `partitions` partitions, durable before they are told to anyone."""
        workers = [Worker(self.address(stream, number), stream, number) for number in range(partitions)]
        fresh = [worker for worker in workers if self._hub.get(TABLE, worker.address) is None]
        size = self._hub.table_size(TABLE) + len(fresh)
        if fresh and size > self._addresses_max:
            raise LimitExceeded("stream addresses", size, self._addresses_max, "ockam.addresses_max")
        writes = [self._hub.put(TABLE, w.address, _encode(_Place(w.stream, w.partition))) for w in fresh]
        await asyncio.gather(*writes)
        for worker in workers:
            if self.resolve(worker.address) != worker:
                raise AddressTaken(worker)
        return workers

    def address(self, stream: str, partition: int) -> bytes:
        text = partition.to_bytes(8, "little") + stream.encode()
        digest = hashlib.blake2b(text, digest_size=8, key=self._key).hexdigest()
        return PREFIX + digest.encode()


class AddressTaken(HeadraceError):
    """Two streams have the same 64-bit address: once in four billion streams, by chance."""

    code = "address-taken"

    def __init__(self, worker: Worker) -> None:
        super().__init__(f"the address of stream {worker.stream!r} is taken; create it under another name")
