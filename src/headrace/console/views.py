"""Verbs that only the console needs: pages of streams with their rates, one stream, one record in every protocol."""

from __future__ import annotations

import asyncio
import contextlib
import fnmatch
import itertools
import threading
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.admin.requests import StreamName, is_shown
from headrace.console.alarms import is_stuck
from headrace.console.rates import Rates
from headrace.console.wire_forms import ProtocolFrame, record_frames
from headrace.errors import BadRequest, UnknownStream
from headrace.log.columns import plain_rows
from headrace.log.limits import check_pattern
from headrace.log.ops import Bounds, CursorInfo, StreamInfo, StreamOptions
from headrace.protocols.descriptor import SeenRecord, is_holding_cursor
from headrace.security import current
from headrace.units import format_bytes

if TYPE_CHECKING:
    from headrace.hub import Hub

ROWS_MAX = 500
RATE_AGE_MIN_S = 0.9
HISTORY_LOOKS = 300
HISTORY_KEPT_S = 10.0
HISTORIES_MAX = 100

Order = Literal["name", "records", "bytes", "rate", "cursors"]


class StreamsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A page of the list: names that contain `text` or fit it as a pattern; with `all` also what the hub keeps for
    itself."""

    text: str = ""
    kind: Literal["stream", "table"] = "stream"
    order: Order = "name"
    descending: bool = False
    offset: int = 0
    limit: int = 100
    all: bool = False


class StreamRow(msgspec.Struct, frozen=True):
    """One line of the list. `rate` is records per second since the last look."""

    name: str
    partitions: int
    first: int
    next: int
    records: int
    bytes: int
    rate: float
    writers: int
    readers: int
    cursors: int
    lag: int
    retention: str
    ack: str


class StreamsPage(msgspec.Struct, frozen=True):
    """`total` counts all that match."""

    total: int
    rows: list[StreamRow]


class CursorRow(msgspec.Struct, frozen=True):
    """A cursor, and whether it is stuck: it has records to read, and has not moved for a minute. One that `holds` keeps
    records and reads none. `readers` counts the open sessions that read its stream."""

    name: str
    stream: str
    partition: int
    index: int
    lag: int
    age_s: float
    stuck: bool
    holds: bool
    readers: int


class Producer(msgspec.Struct, frozen=True):
    """Someone who numbers what it sends, and how far it has come."""

    name: str
    partition: int
    sequence: int


class Peer(msgspec.Struct, frozen=True):
    """An open session that has used the stream."""

    session: int
    protocol: str
    peer: str


class StreamView(msgspec.Struct, frozen=True):
    """One stream: what it holds, who writes and who reads."""

    row: StreamRow
    kind: str
    created_us: int
    bounds: list[Bounds]
    producers: list[Producer]
    writers: list[Peer]
    readers: list[Peer]
    cursors: list[CursorRow]
    rates: list[float]
    options: StreamOptions


class FramesRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names one record."""

    stream: str
    index: int
    partition: int = 0


class CursorsRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cursors whose name or stream contains `text`."""

    text: str = ""


class RateHistory:
    """How many records came in each second, for a stream that somebody looks at."""

    def __init__(self) -> None:
        self.seen_s = 0.0
        self._next: int | None = None
        self._rates: deque[float] = deque(maxlen=HISTORY_LOOKS)

    def look(self, now_s: float, next_index: int) -> list[float]:
        """Look again; looks that come too soon after another add nothing."""
        if self._next is None:
            self.seen_s, self._next = now_s, next_index
        elif now_s - self.seen_s >= RATE_AGE_MIN_S:
            self._rates.append(round((next_index - self._next) / (now_s - self.seen_s), 1))
            self.seen_s, self._next = now_s, next_index
        return list(self._rates)


class Views:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rates = Rates()
        self._measuring = threading.Lock()
        self._histories: dict[str, RateHistory] = {}

    def register(self) -> None:
        add = self._hub.verbs.register
        add("console.streams", StreamsRequest, self.streams, right="read", summary="A page of streams", filters=True)
        add("console.stream", StreamName, self.stream, right="read", summary="One stream: who writes, who reads")
        add("console.cursors", CursorsRequest, self.cursors, right="read", summary="Cursors and why", filters=True)
        add("record.frames", FramesRequest, self.frames, right="read", summary="A record as each protocol sends it")

    async def streams(self, asked: StreamsRequest) -> StreamsPage:
        """The page, sorted by the server so that ten thousand streams stay quick."""
        if asked.offset < 0 or not 1 <= asked.limit <= ROWS_MAX:
            raise BadRequest(f"offset is at least 0 and limit from 1 to {ROWS_MAX}")
        # In a thread: a hub may have very many streams, and its other clients do not wait for whoever looks at them.
        users = self._users()
        while True:
            with contextlib.suppress(UnknownStream):  # one was deleted meanwhile
                return await asyncio.to_thread(self._streams_page, asked, users)

    def _streams_page(self, asked: StreamsRequest, users: dict[str, dict[str, list[Peer]]]) -> StreamsPage:
        self.measure_rates()
        streams = self._hub.streams("*", asked.kind)
        infos = [info for info in streams if fits(info.name, asked.text) and is_shown(info.name, asked.text, asked.all)]
        cursors: dict[str, list[CursorInfo]] = {}
        for cursor in self._hub.cursors():
            cursors.setdefault(cursor.stream, []).append(cursor)
        keys = {
            "name": lambda info: info.name,
            "records": lambda info: -_count(self._bounds(info)),
            "bytes": lambda info: -self._hub.stored_bytes(info.name),
            "rate": lambda info: -self._rates.of(info.name),
            "cursors": lambda info: -len(cursors.get(info.name, ())),
        }
        infos.sort(key=keys[asked.order], reverse=asked.descending)
        page = infos[asked.offset : asked.offset + asked.limit]
        return StreamsPage(len(infos), [self._row(info, cursors.get(info.name, []), users) for info in page])

    async def stream(self, asked: StreamName) -> StreamView:
        """Everything about one stream that changes while one looks."""
        self.measure_rates()
        info = self._hub.stream(asked.stream)
        users = self._users()
        cursors = self._hub.cursors(stream=info.name)
        now_us = self._hub.clock.now_us()
        producers = [
            Producer(name, partition, sequence)
            for partition in range(info.partitions)
            for name, sequence in itertools.islice(self._hub.producers(info.name, partition).items(), ROWS_MAX)
        ]
        return StreamView(
            row=self._row(info, cursors, users),
            kind=info.kind,
            created_us=info.created_us,
            bounds=self._bounds(info),
            producers=producers[:ROWS_MAX],
            writers=users["write"].get(info.name, [])[:ROWS_MAX],
            readers=users["read"].get(info.name, [])[:ROWS_MAX],
            cursors=self._cursor_rows(cursors, now_us, users),
            rates=self._history(info),
            options=info.options,
        )

    def _history(self, info: StreamInfo) -> list[float]:
        """Rates of a stream that somebody looks at, a second each, as long as somebody does."""
        now = time.monotonic()
        self._histories = {
            name: history for name, history in self._histories.items() if now - history.seen_s < HISTORY_KEPT_S
        }
        if info.name not in self._histories and len(self._histories) >= HISTORIES_MAX:
            return []
        return self._histories.setdefault(info.name, RateHistory()).look(now, self._next(info))

    def _users(self) -> dict[str, dict[str, list[Peer]]]:
        """Open sessions by what they do and by stream."""
        users: dict[str, dict[str, list[Peer]]] = {"read": {}, "write": {}}
        for session in self._hub.sessions.list():
            for right, names in (("read", session.reads), ("write", session.writes)):
                for name in names:
                    users[right].setdefault(name, []).append(Peer(session.id, session.protocol, session.peer))
        return users

    def measure_rates(self, nexts: Mapping[str, int] | None = None) -> None:
        """Rates since the last look, if that is long enough ago to say anything; `nexts`, for who has them already."""
        with self._measuring:
            if self._rates.age_s() >= RATE_AGE_MIN_S:
                self._rates.measure(self.nexts() if nexts is None else nexts)

    def nexts(self) -> dict[str, int]:
        """How far each stream and table has come, all partitions together."""
        return {info.name: self._next(info) for info in self._hub.streams("*", None)}

    def rate(self, stream: str) -> float:
        """Records per second, at the last look."""
        return self._rates.of(stream)

    def _bounds(self, info: StreamInfo) -> list[Bounds]:
        return [self._hub.bounds(info.name, number) for number in range(info.partitions)]

    def _next(self, info: StreamInfo) -> int:
        return sum(bounds.next for bounds in self._bounds(info))

    def _row(self, info: StreamInfo, cursors: list[CursorInfo], users: dict[str, dict[str, list[Peer]]]) -> StreamRow:
        bounds = self._bounds(info)
        return StreamRow(
            name=info.name,
            partitions=info.partitions,
            first=min(first for first, _ in bounds),
            next=max(following for _, following in bounds),
            records=_count(bounds),
            bytes=self._hub.stored_bytes(info.name),
            rate=round(self._rates.of(info.name), 1),
            writers=len(users["write"].get(info.name, ())),
            readers=len(users["read"].get(info.name, ())),
            cursors=len(cursors),
            lag=max((each.lag for each in cursors if not is_holding_cursor(each.name, each.stream)), default=0),
            retention=retention_text(info),
            ack=info.options.ack,
        )

    async def cursors(self, asked: CursorsRequest) -> list[CursorRow]:
        """Furthest behind first."""
        may = current().may
        now_us = self._hub.clock.now_us()
        cursors = [
            cursor
            for cursor in self._hub.cursors()
            if (fits(cursor.name, asked.text) or fits(cursor.stream, asked.text)) and may("read", cursor.stream)
        ]
        return self._cursor_rows(cursors, now_us, self._users())

    def _cursor_rows(
        self, cursors: list[CursorInfo], now_us: int, users: dict[str, dict[str, list[Peer]]]
    ) -> list[CursorRow]:
        rows = [_cursor_row(each, now_us, len(users["read"].get(each.stream, ()))) for each in cursors]
        return sorted(rows, key=lambda row: -row.lag)[:ROWS_MAX]

    async def frames(self, asked: FramesRequest) -> list[ProtocolFrame]:
        """The bytes of one record in every protocol."""
        return record_frames(await one_record(self._hub, asked))


def _count(bounds: list[Bounds]) -> int:
    return sum(following - first for first, following in bounds)


def _cursor_row(cursor: CursorInfo, now_us: int, readers: int) -> CursorRow:
    age_s = round((now_us - cursor.updated_us) / 1_000_000, 1)
    holds = is_holding_cursor(cursor.name, cursor.stream)
    return CursorRow(
        cursor.name,
        cursor.stream,
        cursor.partition,
        cursor.index,
        0 if holds else cursor.lag,
        age_s,
        is_stuck(cursor, now_us),
        holds,
        readers,
    )


def fits(name: str, text: str) -> bool:
    if any(character in text for character in "*?["):
        check_pattern(text)
        return fnmatch.fnmatchcase(name, text)
    return text.lower() in name.lower()


def retention_text(info: StreamInfo) -> str:
    """How long records stay, for people."""
    options = info.options
    parts = []
    if options.retention_age_s is not None:
        parts.append(_lasting(options.retention_age_s))
    if options.retention_bytes is not None:
        parts.append(format_bytes(options.retention_bytes))
    if options.retention_cursors:
        parts.append("until all cursors have read them")
    if options.max_hold_s is not None:
        parts.append(f"at most {_lasting(options.max_hold_s)}")
    return ", ".join(parts) or "for ever"


def _lasting(seconds: float) -> str:
    """In the largest unit of which there is a whole number."""
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


async def one_record(hub: Hub, asked: FramesRequest) -> SeenRecord:
    """The record that is named."""
    records = await hub.read(asked.stream, asked.index, partition=asked.partition, limit=1)
    if not records.num_rows or records.column("index")[0].as_py() != asked.index:
        raise BadRequest(f"stream {asked.stream!r} partition {asked.partition} has no record {asked.index}")
    [row] = plain_rows(records)
    return msgspec.convert(row, SeenRecord)
