"""Transactions of thin clients: optimistic, and one durable step at commit.

Inside of a transaction, writes are kept in memory and reads see them. What a read saw is remembered. At commit
everything goes to the log as one transaction that holds only if what was seen is still there; otherwise nothing is
applied and the client is told to try again. There are no locks, so there is no deadlock, and a client that vanishes
leaves nothing behind.

==================  ==============================================================================================
isolation           what must be unchanged at commit
==================  ==============================================================================================
read committed      the keys that were written after their value had been looked at
repeatable read     the same; and a second read gives what the first one gave
serializable        every key that was read or written
==================  ==============================================================================================

A pessimistic transaction is treated as an optimistic serializable one: it cannot wait for another's locks, but it
never commits over another's change either.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Iterable
from enum import IntEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConditionFailed
from headrace.log.ops import ABSENT, ANY, PRESENT, Delete, Put
from headrace.protocols.perper.errors import PeerError, Refused, Status
from headrace.protocols.perper.ignite.binary import NULL
from headrace.protocols.perper.tables import Outcome, TableCache, chain, meets

if TYPE_CHECKING:
    from headrace.hub import Hub

# The real server's default.
DEFAULT_TRANSACTIONS_MAX: Final = 100
PESSIMISTIC: Final = 1

Place = tuple[str, bytes]  # table, key


class Isolation(IntEnum):
    """What a transaction wants to be shielded from."""

    READ_COMMITTED = 0
    REPEATABLE_READ = 1
    SERIALIZABLE = 2


class Transaction:
    """One transaction of one connection."""

    def __init__(self, isolation: int, concurrency: int) -> None:
        self._serializable = isolation == Isolation.SERIALIZABLE or concurrency == PESSIMISTIC
        self._repeatable = isolation != Isolation.READ_COMMITTED or self._serializable
        self._seen: dict[Place, bytes | None] = {}
        self._writes: dict[Place, bytes | None] = {}
        self._must_hold: dict[Place, None] = {}
        self._caches: dict[str, TableCache] = {}
        self.timer: asyncio.TimerHandle | None = None

    def get(self, cache: TableCache, key: bytes) -> bytes | None:
        """A value as this transaction sees it."""
        place = (cache.name, key)
        if place in self._writes:
            return self._writes[place]
        if self._repeatable and place in self._seen:
            return self._seen[place]
        value = self._seen[place] = cache.get(key)
        if self._serializable:
            self._must_hold[place] = None
        return value

    def change(self, cache: TableCache, key: bytes, value: bytes | None, expect: Any = ANY) -> Outcome:
        """A put, or a removal (no value), kept until commit."""
        place = (cache.name, key)
        previous = self.get(cache, key)
        if place in self._seen:
            self._must_hold[place] = None
        holds = meets(expect, previous)
        if holds:
            self._caches[cache.name] = cache
            self._writes[place] = value
        return Outcome(holds and (value is not None or previous is not None), previous)

    def put_blindly(self, cache: TableCache, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        """Puts whose client does not learn what was there: they conflict only where it has looked before."""
        self._caches[cache.name] = cache
        for key, value in pairs:
            place = (cache.name, key)
            if place in self._seen:
                self._must_hold[place] = None
            self._writes[place] = value

    def delete_many(self, cache: TableCache, keys: Iterable[bytes]) -> None:
        """Removals whose client does not learn whether there was anything."""
        for key in keys:
            self.change(cache, key, None)

    @property
    def written(self) -> set[str]:
        """The tables that a commit changes."""
        return {name for name, _ in self._writes}

    def commit(self, hub: Hub) -> Future[Any] | None:
        """Do all of it, or nothing. None when there is nothing to do."""
        operations: list[Put | Delete] = []
        for (name, key), value in self._writes.items():
            expect = self._expectation((name, key))
            operations.append(Delete(name, key, expect) if value is None else Put(name, key, value, expect))
        for place in self._must_hold:
            if place in self._writes:
                continue
            seen = self._seen[place]  # written as it is, or removed where nothing is: a check that changes nothing
            operations.append(Delete(*place, ABSENT) if seen is None else Put(*place, seen, seen))
        if not operations:
            return None
        return chain(hub.transact(operations), self._committed, _conflict)

    def _expectation(self, place: Place) -> Any:
        if place not in self._must_hold:
            return ANY
        seen = self._seen[place]
        return ABSENT if seen is None else seen

    def _committed(self, results: list[Any]) -> None:
        if not all(result.applied for result in results):
            raise _rolled_back()  # a transaction of one operation says so in its result
        for (name, key), value in self._writes.items():
            self._caches[name].committed(key, value)


def _rolled_back() -> PeerError:
    text = "transaction has been rolled back: another client changed what it had read; try again"
    return Refused(text)


def _conflict(error: Exception) -> None:
    raise _rolled_back() if isinstance(error, ConditionFailed) else error


class Transactions:
    """The open transactions of one connection."""

    def __init__(self, count_max: int = DEFAULT_TRANSACTIONS_MAX) -> None:
        self._count_max = count_max
        self._open: dict[int, Transaction] = {}
        self._next = 1

    def start(self, concurrency: int, isolation: int, timeout_ms: int) -> int:
        """A new transaction; its number. It is rolled back when its time is over."""
        if concurrency not in (0, 1) or isolation not in tuple(Isolation):
            raise Refused(f"unknown concurrency {concurrency} or isolation {isolation}")
        if len(self._open) >= self._count_max:
            raise PeerError(
                Status.TX_LIMIT_EXCEEDED, f"Active transactions per connection limit ({self._count_max}) exceeded"
            )
        number, self._next = self._next, self._next + 1
        transaction = self._open[number] = Transaction(isolation, concurrency)
        if timeout_ms > 0:
            loop = asyncio.get_running_loop()
            transaction.timer = loop.call_later(timeout_ms / 1000, self._open.pop, number, None)
        return number

    def get(self, number: int) -> Transaction:
        """An open transaction."""
        transaction = self._open.get(number)
        if transaction is None:
            raise PeerError(
                Status.TX_NOT_FOUND, f"Transaction with id {number} not found: it has ended, or its time is over"
            )
        return transaction

    def end(self, number: int) -> Transaction:
        """Take a transaction out: it is committed or forgotten now."""
        transaction = self.get(number)
        del self._open[number]
        if transaction.timer is not None:
            transaction.timer.cancel()
        return transaction

    def close(self) -> None:
        """The client is gone: nothing of its transactions happens."""
        for number in list(self._open):
            self.end(number)


class Change(NamedTuple):
    """An operation that puts or removes one key: its arguments, what its client is told, what must be there."""

    arguments: tuple[str, ...]
    answer: Callable[[Outcome], Any]
    expect: Any = ANY

    def of(self, arguments: tuple[bytes, ...]) -> tuple[bytes, bytes | None, Any]:
        """The key, its value (None: it is removed), and what must be there."""
        given = dict(zip(self.arguments, arguments, strict=True))
        check_not_null(**given)
        return given["key"], given.get("value"), given.get("expected", self.expect)


def check_not_null(**arguments: bytes) -> None:
    """Keys and values may not be null."""
    for name, value in arguments.items():
        if value[0] == NULL:
            raise Refused(f"Argument may not be null: {name}")


def nothing(_: Any) -> None:
    """The client is told that it is done, and no more."""


_PUT: Final = ("key", "value")
_REMOVAL: Final = ("key",)
_applied = attrgetter("applied")
previous = attrgetter("previous")

CHANGES: Final = {
    1001: Change(_PUT, nothing),
    1002: Change(_PUT, _applied, ABSENT),
    1005: Change(_PUT, previous),
    1006: Change(_PUT, previous, PRESENT),
    1007: Change(_REMOVAL, previous),
    1008: Change(_PUT, previous, ABSENT),
    1009: Change(_PUT, _applied, PRESENT),
    1010: Change(("key", "expected", "value"), _applied),
    1016: Change(_REMOVAL, _applied, PRESENT),
    1017: Change(("key", "expected"), _applied),
}


# What operations that are no such change do inside of a transaction; those that are in neither table are done outside.
TRANSACTED: Final[dict[int, Callable[[Transaction, TableCache, tuple[Any, ...]], Any]]] = {
    1000: lambda tx, cache, a: tx.get(cache, a[0]),
    1001: lambda tx, cache, a: tx.put_blindly(cache, [a]),
    1003: lambda tx, cache, a: [(k, v) for k in dict.fromkeys(a[0]) if (v := tx.get(cache, k)) is not None],
    1004: lambda tx, cache, a: tx.put_blindly(cache, a[0]),
    1011: lambda tx, cache, a: tx.get(cache, a[0]) is not None,
    1012: lambda tx, cache, a: all(tx.get(cache, key) is not None for key in a[0]),
    1014: lambda tx, cache, a: tx.delete_many(cache, a),
    1015: lambda tx, cache, a: tx.delete_many(cache, a[0]),
    1018: lambda tx, cache, a: tx.delete_many(cache, a[0]),
}
