"""A cache that is a table of the hub: executions, listeners, states, and every cache that is not a stream of items.

Key and value are Ignite data objects and stay opaque bytes; two keys are equal when their bytes are, type code
included.

Entries may have a time to live. Deadlines lie in a table of their own, written in the same transaction as the entry,
so the entry's value stays what the client sent. An entry past its deadline is gone for readers at once and deleted
soon after.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConditionFailed
from headrace.log.ops import ABSENT, ANY, PRESENT, ClearTable, Delete, DeleteMany, Op, Put, PutMany
from headrace.protocols.perper.bulk import Entries, Keys
from headrace.protocols.perper.cache import Cache
from headrace.protocols.perper.ignite.binary import LONG
from headrace.protocols.perper.ignite.reader import I64
from headrace.protocols.perper.keys import KeyIndex

if TYPE_CHECKING:
    from headrace.hub import Hub

EXPIRY_TABLE: Final = "perper.expiry"
ETERNAL: Final = -1
UNCHANGED: Final = -2

# Readers do not see what is past its time, so it may be removed a little later; what the disk refuses is tried again.
SWEEP_S_MIN: Final = 0.05
SWEEP_S_MAX: Final = 1.0

NOTED_AT_ONCE: Final = 256

Expiry = tuple[int, int, int]  # milliseconds to live after creation, update, access


class Outcome(NamedTuple):
    """What a put or delete did."""

    applied: bool
    previous: bytes | None = None


def meets(expect: Any, previous: bytes | None) -> bool:
    """Whether what is there is what must be there."""
    if expect is ABSENT:
        return previous is None
    if expect is PRESENT:
        return previous is not None
    return expect is ANY or previous == expect


def succeeded(finished: Future[Any]) -> bool:
    """Whether a future that is done has a result."""
    return not finished.cancelled() and finished.exception() is None


def chain(
    source: Future[Any], convert: Callable[[Any], Any], failed: Callable[[Exception], Any] | None = None
) -> Future[Any]:
    """A future with the converted result of another. `failed` may turn an exception into a result."""
    target: Future[Any] = asyncio.get_running_loop().create_future()

    def finish(finished: Future[Any]) -> None:
        if target.done():
            return
        error = finished.exception() if not finished.cancelled() else asyncio.CancelledError()
        try:
            if error is None:
                target.set_result(convert(finished.result()))
            elif failed is not None and isinstance(error, Exception):
                target.set_result(failed(error))
            else:
                target.set_exception(error)
        except Exception as problem:
            target.set_exception(problem)

    source.add_done_callback(finish)
    return target


def transact(hub: Hub, operations: list[Op], undo: Callable[[], None] = lambda: None) -> Future[Any]:
    """Do it all or nothing: the outcome of the first operation. `undo` is called when nothing was done."""

    def refused(error: Exception) -> Outcome:
        undo()
        if isinstance(error, ConditionFailed):
            return Outcome(False, error.previous)
        raise error

    return chain(hub.transact(operations), lambda results: Outcome(results[0].applied, results[0].previous), refused)


def read_deadline(key: bytes, value: bytes) -> tuple[bytes, int]:
    """A row of the table of deadlines."""
    key[: key.index(b"\0")].decode()
    return key, I64.unpack(value)[0]


class Expiries:
    """The deadlines of all entries that have one, and the clock that removes them."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._deadlines_ms: dict[bytes, int] = {}
        self._removing: set[bytes] = set()  # entries whose removal is on its way to the disk
        self._timer: asyncio.TimerHandle | None = None
        self._remove: Callable[[str, bytes], Awaitable[Any] | None] = lambda cache, key: None

    async def load(self, remove: Callable[[str, bytes], Awaitable[Any] | None]) -> None:
        """Read the deadlines; `remove(cache, key)` is called for each entry that has passed its own."""
        self._remove = remove
        await self._hub.create_table(EXPIRY_TABLE)
        self._deadlines_ms.update(self._hub.set_aside.read(EXPIRY_TABLE, self._hub.items(EXPIRY_TABLE), read_deadline))
        self._arm()

    def now_ms(self) -> int:
        """Milliseconds since 1970."""
        return self._hub.clock.now_us() // 1000

    @staticmethod
    def entry(cache: str, key: bytes) -> bytes:
        """The key of a deadline."""
        return cache.encode() + b"\0" + key

    def has(self, cache: str, key: bytes) -> bool:
        """Whether an entry has a deadline."""
        return bool(self._deadlines_ms) and self.entry(cache, key) in self._deadlines_ms

    def expired(self, cache: str, key: bytes) -> bool:
        """Whether an entry has passed its deadline."""
        if not self._deadlines_ms:
            return False
        deadline = self._deadlines_ms.get(self.entry(cache, key))
        return deadline is not None and deadline <= self.now_ms()

    def due(self, cache: str, key: bytes) -> bool:
        """Whether an entry has passed its deadline and nothing has been done about it."""
        return self.expired(cache, key) and self.entry(cache, key) not in self._removing

    def removal(self, cache: str, key: bytes) -> tuple[Delete, Callable[[Future[Any]], None]]:
        """What removes a deadline together with its entry, and whom to tell how that went. Until it is on disk the
        deadline stays: an entry that could not be removed is still past its time."""
        entry = self.entry(cache, key)
        deadline = self._deadlines_ms.get(entry)
        self._removing.add(entry)

        def removed(finished: Future[Any]) -> None:
            self._removing.discard(entry)
            if succeeded(finished) and self._deadlines_ms.get(entry) == deadline:
                self._deadlines_ms.pop(entry, None)

        return Delete(EXPIRY_TABLE, entry), removed

    def deadline(self, cache: str, key: bytes) -> int | None:
        """When an entry goes."""
        return self._deadlines_ms.get(self.entry(cache, key))

    def restore(self, cache: str, key: bytes, deadline: int | None) -> None:
        """The entry was not changed after all: its deadline is what it was."""
        if deadline is None:
            self._deadlines_ms.pop(self.entry(cache, key), None)
        else:
            self._deadlines_ms[self.entry(cache, key)] = deadline
            self._arm()

    def operation(self, cache: str, key: bytes, to_live_ms: int) -> Put | Delete | None:
        """Set or clear a deadline in memory, and the operation that makes it durable with the entry itself."""
        entry = self.entry(cache, key)
        if to_live_ms == UNCHANGED or (to_live_ms == ETERNAL and entry not in self._deadlines_ms):
            return None
        if to_live_ms == ETERNAL:
            del self._deadlines_ms[entry]
            return Delete(EXPIRY_TABLE, entry)
        self._deadlines_ms[entry] = deadline = self.now_ms() + to_live_ms
        self._arm()
        return Put(EXPIRY_TABLE, entry, I64.pack(deadline))

    def deadlines(self, cache: str, keys: list[bytes] | None = None) -> dict[bytes, int]:
        """The deadlines of those keys that have one, or of all keys of a cache."""
        if not self._deadlines_ms:
            return {}
        prefix, known = self.entry(cache, b""), self._deadlines_ms
        if keys is None:
            return {entry: deadline for entry, deadline in known.items() if entry.startswith(prefix)}
        return {entry: known[entry] for key in keys if (entry := prefix + key) in known}

    def forget(self, deadlines: dict[bytes, int]) -> list[DeleteMany]:
        """Forget deadlines in memory, and the operations that forget them for good."""
        for entry in deadlines:
            self._deadlines_ms.pop(entry, None)
        return [DeleteMany(EXPIRY_TABLE, list(deadlines))] if deadlines else []

    def forget_for_good(self, cache: str, *also: Op) -> Future[Any]:
        """Forget all deadlines of a cache that is gone, together with something else. Until that is on disk they stay:
        one that a later start still finds has to be known, so that whatever is put there takes it away."""
        gone = self.deadlines(cache)
        rows = [DeleteMany(EXPIRY_TABLE, list(gone))] if gone else []

        def forgotten(finished: Future[Any]) -> None:
            if succeeded(finished):
                for entry, deadline in gone.items():
                    if self._deadlines_ms.get(entry) == deadline:
                        del self._deadlines_ms[entry]

        future = self._hub.transact([*rows, *also])
        future.add_done_callback(forgotten)
        return future

    def restore_all(self, entries: Iterable[bytes], before: dict[bytes, int]) -> None:
        """The entries were not changed after all: their deadlines are what they were."""
        for entry in entries:
            self._deadlines_ms.pop(entry, None)
        self._deadlines_ms.update(before)
        self._arm()

    def _arm(self) -> None:
        if self._timer is None and self._deadlines_ms:
            delay_ms = max(min(self._deadlines_ms.values()) - self.now_ms(), 0)
            delay_s = min(max(delay_ms / 1000, SWEEP_S_MIN), SWEEP_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._sweep)

    def _sweep(self) -> None:
        self._timer = None
        now_ms = self.now_ms()
        due = [entry for entry, deadline in self._deadlines_ms.items() if deadline <= now_ms]
        for entry in due:
            if entry in self._removing:
                continue
            cache, _, key = entry.partition(b"\0")
            self._remove(cache.decode(), key)
        self._arm()

    def close(self) -> None:
        """Stop the clock."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class TableCache(Cache):
    """One cache on one table of the hub."""

    kind: Final = "table"

    def __init__(self, hub: Hub, name: str, expiries: Expiries) -> None:
        super().__init__(hub, name)
        self._expiries = expiries
        self._keys: KeyIndex | None = None
        self.arrivals = 0  # where the next new item will stand in the order of arrival

    @property
    def ready(self) -> bool:
        """Whether operations can be done at once."""
        return True

    def forget_all(self) -> None:
        """The table was deleted with everything in it."""
        self._keys = None

    # reading

    def get(self, key: bytes) -> bytes | None:
        """The value of `key`."""
        if self._expiries.expired(self.name, key):
            return None
        return self._hub.get(self.name, key)

    def size(self) -> int:
        """How many entries there are."""
        return self._hub.table_size(self.name)

    def all_keys(self) -> list[bytes]:
        """The keys of all entries, as they are now."""
        return self._hub.keys(self.name)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, as they are now. In any thread."""
        expired = self._expiries.expired
        return ((key, value) for key, value in self._hub.items(self.name) if not expired(self.name, key))

    def touch(self, key: bytes, access_ms: int) -> None:
        """Move the deadline of an entry that was read."""
        operation = self._expiries.operation(self.name, key, access_ms)
        if operation is not None:
            self._hub.transact([operation])

    # writing

    def committed(self, key: bytes, value: bytes | None) -> None:
        """A transaction has changed an entry (None: removed it) behind this object's back."""
        self._note(key)

    def put(self, key: bytes, value: bytes, expect: Any = ANY, expiry: Expiry | None = None) -> Future[Any]:
        """Set `key`; the future has an outcome with `applied` and `previous`, once it is on disk."""
        self._remove_if_expired(key)
        before = self._expiries.deadline(self.name, key)
        operation = None
        if expiry is not None:
            present = self.get(key) is not None
            if expect is not ABSENT or not present:
                operation = self._expiries.operation(self.name, key, expiry[1 if present else 0])
        elif self._expiries.has(self.name, key) and expect is not ABSENT:
            operation = self._expiries.operation(self.name, key, ETERNAL)
        if operation is None:
            future = self._hub.put(self.name, key, value, expect=expect)
        else:
            future = self._with_deadline(Put(self.name, key, value, expect=expect), operation, before)
        if key[0] == LONG:
            future.add_done_callback(lambda finished: self._note_if_applied(finished, key))
        return future

    def put_many(self, pairs: Sequence[tuple[bytes, bytes]], expiry: Expiry | None = None) -> Future[Any]:
        """Set many keys in one transaction."""
        if isinstance(pairs, Entries):
            put = PutMany(self.name, pairs.all_keys, pairs.all_values, pairs.measured)
        else:
            put = PutMany(self.name, [key for key, _ in pairs], [value for _, value in pairs])
        keys = list(put.keys)
        operations, undo = self._deadlines_of_many(keys, expiry)
        return self._change_many([put, *operations], undo, lambda: self._note_all(keys))

    def _deadlines_of_many(
        self, keys: list[bytes], expiry: Expiry | None
    ) -> tuple[list[PutMany | DeleteMany], Callable[[], None]]:
        """What changes the deadlines of keys that are put, and what takes that back."""
        before = self._expiries.deadlines(self.name, keys)
        if expiry is None and not before:
            return [], lambda: None
        puts: dict[bytes, bytes] = {}
        deletes: dict[bytes, None] = {}
        for key in dict.fromkeys(keys):
            present = expiry is not None and self.get(key) is not None
            change = self._expiries.operation(
                self.name, key, ETERNAL if expiry is None else expiry[1 if present else 0]
            )
            if isinstance(change, Put):
                puts[change.key] = change.value
            elif change is not None:
                deletes[change.key] = None
        operations: list[PutMany | DeleteMany] = []
        if puts:
            operations.append(PutMany(EXPIRY_TABLE, list(puts), list(puts.values())))
        if deletes:
            operations.append(DeleteMany(EXPIRY_TABLE, list(deletes)))
        return operations, lambda: self._expiries.restore_all([*puts, *deletes], before)

    def delete(self, key: bytes, expect: Any = ANY) -> Future[Any]:
        """Remove `key`; the future has an outcome with `applied` (it was there) and `previous`."""
        self._remove_if_expired(key)
        before = self._expiries.deadline(self.name, key)
        operation = None if before is None else self._expiries.operation(self.name, key, ETERNAL)
        if operation is None:
            future = self._hub.delete(self.name, key, expect=expect)
        else:
            future = self._with_deadline(Delete(self.name, key, expect=expect), operation, before)
        if key[0] == LONG:
            future.add_done_callback(lambda finished: self._note_if_applied(finished, key))
        return future

    def delete_many(self, keys: list[bytes]) -> Future[Any]:
        """Remove many keys in one transaction."""
        deadlines = self._expiries.deadlines(self.name, keys)
        measured = keys.measured if isinstance(keys, Keys) else None
        return self._remove_many(DeleteMany(self.name, keys, measured), deadlines, lambda: self._note_all(keys))

    def change_many(self, changes: dict[bytes, tuple[bytes | None, Any]], expiry: Expiry | None = None) -> Future[Any]:
        """Put and remove (no value) many keys in one transaction. It fails with `ConditionFailed` unless of each key is
        there what its change expects."""
        for key in changes:
            self._remove_if_expired(key)
        deadlines, undo = self._deadlines_of_many([key for key in changes if changes[key][0] is not None], expiry)
        gone = self._expiries.deadlines(self.name, [key for key in changes if changes[key][0] is None])
        operations: list[Op] = [
            Delete(self.name, key, expect) if value is None else Put(self.name, key, value, expect)
            for key, (value, expect) in changes.items()
        ]
        operations += [*deadlines, *self._expiries.forget(gone)]

        def applied(results: list[Any]) -> None:
            if not results[0].applied:  # a transaction of one operation says so in its result
                raise ConditionFailed(0, "the entry is not what was expected", results[0].previous)

        def undo_all() -> None:
            undo()
            self._expiries.restore_all((), gone)

        future = chain(self._hub.transact(operations), applied)
        keys = list(changes)
        future.add_done_callback(lambda done: self._note_all(keys) if succeeded(done) else undo_all())
        return future

    def clear(self) -> Future[Any]:
        """Remove everything in one transaction."""
        return self._remove_many(ClearTable(self.name), self._expiries.deadlines(self.name), self._note_clear)

    def _remove_many(
        self, change: DeleteMany | ClearTable, deadlines: dict[bytes, int], note: Callable[[], None]
    ) -> Future[Any]:
        operations = [change, *self._expiries.forget(deadlines)]
        return self._change_many(operations, lambda: self._expiries.restore_all((), deadlines), note)

    def _change_many(self, operations: list[Any], undo: Callable[[], None], note: Callable[[], None]) -> Future[Any]:
        """All of it or nothing; `undo` is called when nothing was done, `note` otherwise."""
        future = self._hub.transact(operations)
        future.add_done_callback(lambda finished: note() if succeeded(finished) else undo())
        return future

    def _with_deadline(self, change: Put | Delete, deadline: Put | Delete, before: int | None) -> Future[Any]:
        """A change and its deadline, both or none; `before` is the deadline the entry had."""
        return transact(self._hub, [change, deadline], lambda: self._expiries.restore(self.name, change.key, before))

    def _remove_if_expired(self, key: bytes) -> None:
        if self._expiries.due(self.name, key):
            self.remove_expired(key)

    def remove_expired(self, key: bytes) -> Future[Any]:
        """Delete an entry whose time has come."""
        deadline, removed = self._expiries.removal(self.name, key)
        future = self._hub.transact([Delete(self.name, key), deadline])
        future.add_done_callback(removed)
        if self._keys is not None and key[0] == LONG:
            self._keys.remove(I64.unpack_from(key, 1)[0])
        return future

    # listening: a table with long keys can be listened to like a stream

    @property
    def keys(self) -> KeyIndex:
        """The long keys in order; built when somebody listens for the first time, and kept up to date from then on."""
        if self._keys is None:
            self._keys = KeyIndex()
            for key in self._hub.keys(self.name):
                if key[0] == LONG:
                    self._keys.put(I64.unpack_from(key, 1)[0], self.arrivals)
                    self.arrivals += 1
        return self._keys

    def _note_if_applied(self, finished: Future[Any], key: bytes) -> None:
        if succeeded(finished) and finished.result().applied:
            self._note(key)

    def _note_all(self, keys: list[bytes], start: int = 0) -> None:
        """The first of them at once; the others a few at a time, so that everybody else has a turn."""
        if self._keys is None:
            return
        end = start + NOTED_AT_ONCE
        for key in keys[start:end]:
            self._note(key)
        if end < len(keys):
            self._hub.intake.turns.soon(lambda: self._note_all(keys, end))

    def _note_clear(self) -> None:
        if self._keys is not None:
            self._keys.clear()  # what was put behind the clear is noted after it

    def _note(self, key: bytes) -> None:
        """An entry has changed. What is there now counts, and not what was done: of changes that became durable
        together the later one may have been heard of first."""
        # Nobody listened when it was asked for; whether somebody does now counts.
        if self._keys is None or key[0] != LONG:
            return
        number = I64.unpack_from(key, 1)[0]
        if self._hub.get(self.name, key) is None:
            self._keys.remove(number)
        elif number not in self._keys:
            self._keys.put(number, self.arrivals)
            self.arrivals += 1
            self._wake()
