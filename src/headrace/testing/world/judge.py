"""Compares what clients were promised with what the hub has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa

from headrace.errors import Damaged, HeadraceError
from headrace.hub import Hub
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.binary import encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.testing.world.actors.actor import plain, soon
from headrace.testing.world.actors.caches import ACCOUNTS, GET, MONEY, NAMES, NULL, account_key, encode_key, number_of
from headrace.testing.world.book import Book, Register, Written, place_of, told

READ = 10_000


class Stored(NamedTuple):
    """What a stream holds."""

    records: dict[int, str]
    damaged: set[int]
    """Indexes that the hub says are damaged."""
    times: list[int]
    first: int
    next: int


class Judge:
    """Of one hub, at one moment. Nothing may be damaged, unless somebody has damaged the disk."""

    def __init__(self, hub: Hub, book: Book, *, is_damaged: bool = False) -> None:
        self._hub = hub
        self._book = book
        self._is_damaged = is_damaged
        self._lost_frames = _lost_frames(hub)

    async def verdict(self) -> list[str]:
        """What is wrong, in words; nothing when every promise was kept."""
        book, hub = self._book, self._hub
        wrong = list(book.wrong)
        if not self._is_damaged:
            wrong += [f"damage where nobody did any: {finding.text}" for finding in hub._log.damage()]
        names = {name for each in book.written for name in (each.stream, *each.elsewhere)}
        stored = {name: await self._read(name) for name in sorted(names) if exists(hub, name)}
        for name, each in stored.items():
            wrong += self._stream(name, each)
        for written in book.written:
            wrong += self._written(written, stored)
        wrong += self._met(stored)
        wrong += self._rows()
        wrong += self._cursors()
        wrong += [said for check in book.checks if (said := check())]
        return wrong

    async def _read(self, stream: str) -> Stored:
        name, partition = place_of(stream)
        bounds = self._hub.bounds(name, partition)
        found = Stored({}, set(), [], bounds.first, bounds.next)
        at = bounds.first
        while at < bounds.next:
            try:
                records = await self._hub.read(name, at, partition=partition, limit=READ)
            except Damaged as damage:
                found.damaged.update(range(damage.first, damage.last + 1))
                at = damage.last + 1
                continue
            indexes, payloads = records.column("index").to_pylist(), records.column("payload").to_pylist()
            found.records.update(zip(indexes, map(plain, payloads), strict=True))
            found.times.extend(records.column("time").cast(pa.int64()).to_pylist())
            at = indexes[-1] + 1
        return found._replace(first=self._hub.bounds(name, partition).first)  # it may have been trimmed meanwhile

    # -- streams ---------------------------------------------------------------------------------------------------

    def _stream(self, stream: str, stored: Stored) -> Iterator[str]:
        book = self._book
        if stored.times != sorted(stored.times):
            yield f"{stream}: the time of its records goes back"
        if stored.first > book.trimmed.get(stream, 0) and stream not in book.retained:
            yield f"{stream}: begins at {stored.first}, and nobody trimmed it above {book.trimmed.get(stream, 0)}"
        whole = range(stored.first, stored.next)
        missing = [index for index in whole if index not in stored.records and index not in stored.damaged]
        if missing:
            yield f"{stream}: no record at {missing[:5]}"
        for (seen_in, index), record in book.seen.items():
            is_kept = index >= stored.first and index not in stored.damaged
            if seen_in == stream and is_kept and stored.records.get(index) != record:
                yield f"{stream}/{index}: a consumer saw {record!r}, the log has {stored.records.get(index)!r}"
        writers = {each.producer for each in book.written if stream in (each.stream, *each.elsewhere)}
        for index, record in stored.records.items():
            name, _, number = record.rpartition(":")
            if name not in writers or not number.isdecimal():
                yield f"{stream}/{index}: {record!r} was never written there"
                break

    def _written(self, written: Written, streams: dict[str, Stored]) -> Iterator[str]:
        """What one producer was promised."""
        name = f"{written.stream} by {written.producer}"
        names = [each for each in (written.stream, *written.elsewhere) if each in streams]
        holding = {each: _places(streams[each], written) for each in names}
        used = [each for each, places in holding.items() if places]
        if len(used) > 1:
            yield f"{name}: its records are in {used}"
        if not used:
            kept = [streams[each] for each in names if not streams[each].first]
            asked: list[Stored | None] = [*kept] or [None]
            is_told = any(self._may_miss(each, len(written.acked)) for each in asked)
            if (kept or not names) and written.acked and not is_told:
                yield f"{name}: gone, with {len(written.acked)} acknowledged records"
            return
        yield from self._producer(name, written, holding[used[0]], streams[used[0]])

    def _met(self, streams: dict[str, Stored]) -> Iterator[str]:
        """Streams with names of their own, of which two have become one."""
        owners: dict[str, str] = {}
        for written in self._book.written:
            for name in (written.stream, *written.elsewhere) if written.elsewhere else ():
                if name in streams and _places(streams[name], written):
                    other = owners.setdefault(name, written.producer)
                    if other != written.producer:
                        yield f"{name} has the records of {other} and {written.producer}, whose streams differ"

    def _producer(self, name: str, written: Written, places: dict[int, list[int]], stored: Stored) -> Iterator[str]:
        unsent = places.keys() - written.sent
        if unsent:
            yield f"{name}: stored {sorted(unsent)[:5]}, which were never sent"
        for number, index in written.acked.items():
            is_kept = index is not None and index >= stored.first and index not in stored.damaged
            if is_kept and index not in places.get(number, []):
                yield f"{name}: {number} was acknowledged at {index} and is at {places.get(number, [])}"
        lost = [number for number in written.acked if number not in places]
        if stored.first == 0 and lost and not self._may_miss(stored, len(lost)):
            yield f"{name}: lost {lost[:5]} of {len(written.acked)} acknowledged"
        twice = [number for number, found in places.items() if len(found) > 1]
        if written.once and twice:
            yield f"{name}: stored twice: {twice[:5]}"
        order = [min(places[number]) for number in sorted(places)]
        if stored.first == 0 and order != sorted(order) and not stored.damaged:
            yield f"{name}: out of order"

    def _may_miss(self, stored: Stored | None, count: int) -> bool:
        """Whether the hub says itself that so many records of a stream are lost."""
        return self._lost_frames if stored is None else len(stored.damaged) >= count or not count

    # -- tables and cursors ----------------------------------------------------------------------------------------

    def _rows(self) -> Iterator[str]:
        for row in self._book.rows:
            try:
                found = self._hub.get(row.cache, str(row.key).encode()) if self._hub.has_stream(row.cache) else None
            except Damaged:
                if not self._is_damaged:
                    yield f"{row.key} is damaged"
                continue
            except HeadraceError as error:
                yield f"{row.key} cannot be read: {error}"
                continue
            if found not in row.may_hold and not (self._lost_frames and not self._hub.has_stream(row.cache)):
                yield f"{row.cache}/{row.key} holds {found!r}, and may hold {told(row)}"

    def _cursors(self) -> Iterator[str]:
        for (cursor, stream), least in self._book.cursors.items():
            name, partition = place_of(stream)
            found = self._hub.cursor(cursor, name, partition) if exists(self._hub, stream) else None
            if (found is None or found < least) and not self._lost_frames:
                yield f"cursor {cursor} in {stream} was at {least} and is at {found}"
            elif found is not None and self._hub.bounds(name, partition).first > max(
                found, self._book.trimmed.get(stream, 0)
            ):
                yield f"{stream} begins behind cursor {cursor}, which still needs {found}"


def exists(hub: Hub, name: str) -> bool:
    """A stream, or a partition of one."""
    stream, partition = place_of(name)
    return hub.has_stream(stream) and partition < hub.stream(stream).partitions


def _lost_frames(hub: Hub) -> bool:
    """Whether the hub says that it has lost things of which it cannot tell whose they were."""
    return any(not finding.stream for finding in hub._log.damage())


def _places(stored: Stored, written: Written) -> dict[int, list[int]]:
    """Number → indexes, of one producer's records."""
    places: dict[int, list[int]] = defaultdict(list)
    for index, record in stored.records.items():
        name, _, number = record.rpartition(":")
        if name == written.producer and number.isdecimal():
            places[int(number)].append(index)
    return places


# -- caches ------------------------------------------------------------------------------------------------------------


async def judge_caches(book: Book, port: int, hub: Hub, *, is_damaged: bool) -> list[str]:
    """The same of what Ignite's clients were promised, as one of them sees it."""
    lost_frames = _lost_frames(hub)
    if not (book.registers or book.counters or book.banks):
        return []
    wrong: list[str] = []
    try:
        client = await soon(IgniteClient.connect("127.0.0.1", port))
    except ConnectionRefusedError:  # a part whose own tables are damaged is not served
        return [] if is_damaged else ["nobody serves Ignite's clients"]
    names = await soon(client.request(NAMES))

    async def get(cache: str, key: bytes) -> bytes | None:
        if cache not in names:
            return None if lost_frames else NULL
        try:
            found: bytes = await soon(client.request(GET, key, cache=cache))
        except PeerError as error:
            if not is_damaged or "damaged" not in str(error):
                wrong.append(f"{cache} cannot be read: {error}")
            return None
        return found

    for register in book.registers:
        found = await get(register.cache, encode_key(register.key))
        if found is not None:
            wrong += _register(register, found)
    for bank in sorted(book.banks):
        held = [await get(bank, account_key(account)) for account in range(ACCOUNTS)]
        money = [number_of(each) for each in held if each is not None]
        if len(money) == ACCOUNTS and any(money) and sum(money) != ACCOUNTS * MONEY:
            wrong.append(f"the accounts of {bank} hold {money}, together {sum(money)}")
    if book.counters:
        found = await get(book.counters[0].cache, encode_string(book.counters[0].key))
        wrong += [] if found is None else _counter(book, number_of(found))
    await client.close()
    return wrong


def _register(register: Register, found: bytes) -> Iterator[str]:
    if found not in register.may_hold:
        yield f"{register.cache}/{register.key} holds {found!r}, and may hold {told(register)}"


def _counter(book: Book, value: int) -> Iterator[str]:
    least = sum(each.raised[0] for each in book.counters)
    most = least + sum(each.raised[1] for each in book.counters)
    if not least <= value <= most:
        yield f"the counter is {value}; {least} times it was raised for sure, at most {most}"
