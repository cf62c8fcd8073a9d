"""Compares what clients were promised with what the hub has."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pyarrow as pa

from headrace.hub import Hub
from headrace.testing.world.actors import NULL, plain
from headrace.testing.world.book import Book, Written

READ = 10_000


async def judge(hub: Hub, book: Book) -> list[str]:
    """What is wrong, in words; nothing when every promise was kept."""
    wrong = list(book.wrong)
    streams = sorted({written.stream for written in book.written})
    for stream in streams:
        producers = [written for written in book.written if written.stream == stream]
        if not hub.has_stream(stream):
            lost = sum(len(written.acked) for written in producers)
            if lost:
                wrong.append(f"{stream}: gone, with {lost} acknowledged records")
            continue
        stored, times = await _read(hub, stream)
        if times != sorted(times):
            wrong.append(f"{stream}: the time of its records goes back")
        wrong += _stream(stream, stored, hub.bounds(stream), producers, book)
    wrong += [found for check in book.checks if (found := check())]
    return wrong


async def _read(hub: Hub, stream: str) -> tuple[dict[int, str], list[int]]:
    """Records by their index, and the time of each."""
    bounds = hub.bounds(stream)
    stored: dict[int, str] = {}
    times: list[int] = []
    at = bounds.first
    while at < bounds.next:
        records = await hub.read(stream, at, limit=READ)
        indexes, payloads = records.column("index").to_pylist(), records.column("payload").to_pylist()
        stored.update(zip(indexes, map(plain, payloads), strict=True))
        times += records.column("time").cast(pa.int64()).to_pylist()
        at = indexes[-1] + 1
    return stored, times


def _stream(
    stream: str, stored: dict[int, str], bounds: tuple[int, int], producers: list[Written], book: Book
) -> Iterator[str]:
    first, end = bounds
    if first > book.trimmed.get(stream, 0):
        yield f"{stream}: begins at {first}, and nobody trimmed it above {book.trimmed.get(stream, 0)}"
    missing = [index for index in range(first, end) if index not in stored]
    if missing:
        yield f"{stream}: no record at {missing[:5]}"
    for (seen_in, index), record in book.seen.items():
        if seen_in == stream and index >= first and stored.get(index) != record:
            yield f"{stream}/{index}: a consumer saw {record!r}, the log has {stored.get(index)!r}"
    places: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for index, record in stored.items():
        name, _, number = record.rpartition(":")
        places[name][int(number)].append(index)
    for name in places.keys() - {written.producer for written in producers}:
        yield f"{stream}: records of {name!r}, who never wrote there"
    for written in producers:
        yield from _producer(written, places[written.producer], first)


def _producer(written: Written, places: dict[int, list[int]], first: int) -> Iterator[str]:
    name = f"{written.stream} by {written.producer}"
    unsent = places.keys() - written.sent
    if unsent:
        yield f"{name}: stored {sorted(unsent)[:5]}, which were never sent"
    for number, index in written.acked.items():
        if index is not None and index >= first and index not in places.get(number, []):
            yield f"{name}: {number} was acknowledged at {index} and is at {places.get(number, [])}"
    if first == 0:
        lost = [number for number in written.acked if number not in places]
        if lost:
            yield f"{name}: lost {lost[:5]} of {len(written.acked)} acknowledged"
    twice = [number for number, found in places.items() if len(found) > 1]
    if written.once and twice:
        yield f"{name}: stored twice: {twice[:5]}"
    order = [min(places[number]) for number in sorted(places)]
    if first == 0 and order != sorted(order):
        yield f"{name}: out of order"


def judge_caches(book: Book, get: dict[tuple[str, str], bytes]) -> Iterator[str]:
    """The same of registers and counters, given what they hold now."""
    for register in book.registers:
        found = get[register.cache, register.key]
        if found not in register.may_hold:
            yield f"{register.cache}/{register.key} holds {found!r}, and may hold {sorted(register.may_hold)}"
    if book.counters:
        counter = book.counters[0]
        found = get[counter.cache, counter.key]
        value = 0 if found == NULL else int.from_bytes(found[1:], "little", signed=True)
        least = sum(each.raised[0] for each in book.counters)
        most = least + sum(each.raised[1] for each in book.counters)
        if not least <= value <= most:
            yield f"the counter is {value}; {least} times it was raised for sure, at most {most}"
