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

from headrace.errors import BadRequest, HeadraceError, LimitExceeded, UnknownStream
from headrace.hub import Hub
from headrace.log.ops import ABSENT
from headrace.protocols.ockam.session import Worker

TABLE: Final = "ockam.addresses"
KEY: Final = b"key"
PREFIX: Final = b"ST_S_"
_KEY_BYTES: Final = 32
# Looking for deleted streams takes a third of a second at 100,000 addresses: not for every create that is refused.
_LOOK_AGAIN_AFTER_S: Final = 10.0


_decoder: Final = msgspec.msgpack.Decoder(tuple[str, int])
_encode: Final = msgspec.msgpack.Encoder().encode


def read_address(key: bytes, value: bytes) -> tuple[str, int] | None:
    """A row of the table; None for the key of all addresses."""
    if key == KEY and len(value) == _KEY_BYTES:
        return None
    if not key.startswith(PREFIX):
        raise BadRequest(f"{key!r} is neither an address nor the key of all addresses")
    return _decoder.decode(value)


class AddressBook:
    """Which stream partition stands behind which address."""

    def __init__(self, hub: Hub, key: bytes, addresses_max: int) -> None:
        self._hub = hub
        self._key = key
        self._addresses_max = addresses_max
        self._known: dict[bytes, Worker] = {}
        self._leaving: set[bytes] = set()
        """Addresses of deleted streams on their way out of the table."""
        self._look_again_s = 0.0

    @classmethod
    async def open(cls, hub: Hub, addresses_max: int) -> AddressBook:
        await hub.create_table(TABLE)
        hub.set_aside.read(TABLE, hub.items(TABLE), read_address)
        key = hub.get(TABLE, KEY)
        if key is None or len(key) != _KEY_BYTES:  # no address could be made with another
            await hub.put(TABLE, KEY, secrets.token_bytes(_KEY_BYTES), expect=ABSENT if key is None else key)
            key = hub.get(TABLE, KEY)
            assert key is not None
        book = cls(hub, key, addresses_max)
        await book._forget_deleted()
        return book

    async def _forget_deleted(self) -> None:
        """Take the addresses of deleted streams out of the table."""
        known = (address for address, _ in self._hub.items(TABLE) if self._stored(address) is not None)
        gone = [address for address in known if self.resolve(address) is None]
        self._leaving.update(gone)
        try:
            await asyncio.gather(*(self._hub.delete(TABLE, address) for address in gone))
        finally:
            self._leaving.difference_update(gone)
            for address in gone:
                self._known.pop(address, None)

    def resolve(self, address: bytes) -> Worker | None:
        """The stream partition behind an address; None if there is none, or not any more."""
        worker = self._known.get(address)
        if worker is None:
            stored = self._stored(address)
            if stored is None:
                return None
            worker = self._known[address] = Worker(address, *stored)
        try:
            info = self._hub.stream(worker.stream)
        except UnknownStream:
            return None
        return worker if info.kind == "stream" else None  # a table may have taken the name of a deleted stream

    def _stored(self, address: bytes) -> tuple[str, int] | None:
        """What the table holds for an address; None also for what nobody can read."""
        value = self._hub.get(TABLE, address) if address.startswith(PREFIX) else None
        try:
            return None if value is None else _decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    async def make_room(self, stream: str, partitions: int) -> None:
        """Refuse a stream for whose addresses there is no room, before it is created."""
        fresh = len(self._fresh(self._workers(stream, partitions)))
        now_s = asyncio.get_running_loop().time()
        if not self._has_room(fresh) and now_s >= self._look_again_s:
            await self._forget_deleted()
            if not self._has_room(fresh):
                self._look_again_s = now_s + _LOOK_AGAIN_AFTER_S
        self._check_room(fresh)

    async def register(self, stream: str, partitions: int) -> Sequence[Worker]:
        """The addresses of the first `partitions` partitions, durable before they are told to anyone."""
        workers = self._workers(stream, partitions)
        fresh = self._fresh(workers)
        self._check_room(len(fresh))
        writes = [self._hub.put(TABLE, w.address, _encode((w.stream, w.partition))) for w in fresh]
        await asyncio.gather(*writes)
        for worker in workers:
            if self.resolve(worker.address) != worker:
                raise AddressTaken(worker)
        return workers

    def _workers(self, stream: str, partitions: int) -> list[Worker]:
        return [Worker(self.address(stream, number), stream, number) for number in range(partitions)]

    def _fresh(self, workers: Sequence[Worker]) -> list[Worker]:
        """Those that the table does not hold, or not for long."""
        return [worker for worker in workers if worker.address in self._leaving or self._stored(worker.address) is None]

    def _has_room(self, fresh: int) -> bool:
        return not fresh or self._size_with(fresh) <= self._addresses_max

    def _size_with(self, fresh: int) -> int:
        return self._hub.table_size(TABLE) - len(self._leaving) + fresh

    def _check_room(self, fresh: int) -> None:
        if not self._has_room(fresh):
            raise LimitExceeded("stream addresses", self._size_with(fresh), self._addresses_max, "ockam.addresses_max")

    def address(self, stream: str, partition: int) -> bytes:
        text = partition.to_bytes(8, "little") + stream.encode()
        digest = hashlib.blake2b(text, digest_size=8, key=self._key).hexdigest()
        return PREFIX + digest.encode()


class AddressTaken(HeadraceError):
    """Two streams have the same 64-bit address: once in four billion streams, by chance."""

    code = "address-taken"

    def __init__(self, worker: Worker) -> None:
        super().__init__(f"the address of stream {worker.stream!r} is taken; create it under another name")
