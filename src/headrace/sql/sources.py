"""What the names in a statement stand for, at the hub: streams and tables that the caller may read.

`stream('orders', 'returns', start => '2026-11-15T08:00:00Z')` may name several, or patterns, and say where to begin and
end. What a query sees of a stream is fixed when it begins: a stream that is named twice is the same twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

import pyarrow as pa

from headrace.errors import BadSql, Forbidden, Trimmed
from headrace.log.columns import SCHEMA
from headrace.security import is_listed
from headrace.sql.wire import Bounds, Dialect, Wanted
from headrace.units import microseconds, natural

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.log.ops import StreamInfo
    from headrace.security import Principal

VERB = "sql.query"
TABLE_SCHEMA = pa.schema([pa.field("key", pa.binary(), False), pa.field("payload", pa.binary(), False)])
TABLE_ROWS = 10_000
OPTIONS = ("start", "end", "partitions", "decode", "schema")
_GLOB = frozenset("*?[")


class Place(NamedTuple):
    """A partition, and what of it there is for the query."""

    stream: str
    partition: int
    first: int
    next: int


class Source(Protocol):
    """Something that a query reads."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema:
        """Of what is sent."""
        ...

    @property
    def places(self) -> Sequence[Place]: ...

    @property
    def opened(self) -> str | None:
        """The column whose JSON `value` opens."""
        ...

    @property
    def is_stream(self) -> bool:
        """Whether it has the columns of records, and bounds are obeyed."""
        ...

    def scan(self, columns: list[str], bounds: Bounds) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Rows with the number of their place. Blocks on the disk."""
        ...


class Scope(Protocol):
    """All that a query may see. Its threads are not the hub's."""

    @property
    def dialect(self) -> Dialect:
        """What names may be in the statement."""
        ...

    def find(self, wanted: Wanted) -> Source | None:
        """What a name stands for; raises for what the caller may not read."""
        ...

    def check(self) -> None:
        """Raise when what was found may not be read any more."""
        ...


class HubScope:
    """The streams and tables of a hub that someone may read."""

    dialect = Dialect()

    def __init__(self, hub: Hub, principal: Principal, loop: asyncio.AbstractEventLoop) -> None:
        self.hub = hub
        self._principal = principal
        self._loop = loop
        self._used: set[str] = set()

    def find(self, wanted: Wanted) -> Source | None:
        unknown = [option for option in wanted.options if option not in OPTIONS]
        if unknown:
            raise BadSql(f"stream(): there is no option {unknown[0]!r} here, only {', '.join(OPTIONS)}; Spark has more")
        infos = [info for name in wanted.names for info in self._named(name)]
        if not infos:
            return None
        if len(infos) == 1 and infos[0].kind == "table":
            return TableSource(self.hub, infos[0].name)
        if any(info.kind == "table" for info in infos):
            raise BadSql("stream(): a table is read by itself, by its name")
        return StreamSource(self, infos, wanted.options)

    def _named(self, name: str) -> Iterable[StreamInfo]:
        """The stream or table, or all that fit a pattern."""
        if _GLOB & set(name) and not self.hub.has_stream(name):
            fitting = self.hub.streams(name)
            infos = [info for info in fitting if self._may(info.name) and is_listed(info.name, name, False)]
        else:
            if not self._may(name):
                raise Forbidden(f"{self._principal.name!r} may not read {name!r}")
            infos = [self.hub.stream(name)] if self.hub.has_stream(name) else []
        self._used |= {info.name for info in infos}
        return infos

    def _may(self, name: str) -> bool:
        return self._principal.may("read", name, verb=VERB)

    def check(self) -> None:
        if self._principal.refusal is not None:
            raise self._principal.refusal
        for name in self._used:
            if not self._may(name):
                raise Forbidden(f"{self._principal.name!r} may not read {name!r} any more")

    def index_at_time(self, stream: str, time_us: int, partition: int) -> int:
        asked = self.hub.index_at_time(stream, time_us, partition)
        return asyncio.run_coroutine_threadsafe(asked, self._loop).result()


class StreamSource:
    """Streams, as they were when the query began."""

    schema = SCHEMA
    opened = "payload"
    is_stream = True

    def __init__(self, scope: HubScope, infos: Sequence[StreamInfo], options: dict[str, str]) -> None:
        self.name = infos[0].name
        self._scope = scope
        only = _numbers(options.get("partitions"))
        self.places = [
            self._place(info.name, number, options)
            for info in infos
            for number in range(info.partitions)
            if only is None or number in only
        ]

    def _place(self, stream: str, partition: int, options: dict[str, str]) -> Place:
        bounds = self._scope.hub.bounds(stream, partition)
        first = self._index("start", options.get("start", "earliest"), stream, partition)
        end = self._index("end", options.get("end", "latest"), stream, partition)
        first = min(max(first, bounds.first), bounds.next)
        return Place(stream, partition, first, max(first, min(end, bounds.next)))

    def _index(self, option: str, text: str, stream: str, partition: int) -> int:
        bounds = self._scope.hub.bounds(stream, partition)
        if text in ("earliest", "latest"):
            return bounds.first if text == "earliest" else bounds.next
        if (index := natural(text, 19)) is not None:
            return index
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            expected = "earliest, latest, an index or a time such as 2026-11-15T08:00:00Z"
            raise BadSql(f"stream(): {option} => {text!r} is not {expected}") from None
        return self._scope.index_at_time(stream, microseconds(moment), partition)

    def scan(self, columns: list[str], bounds: Bounds) -> Iterator[tuple[int, pa.RecordBatch]]:
        for number, place in enumerate(self.places):
            if bounds.places is None or number in bounds.places:
                for batch in self._records(self._narrowed(place, bounds), columns):
                    yield number, batch

    def _narrowed(self, place: Place, bounds: Bounds) -> Place:
        first, end = place.first, place.next
        if bounds.index_min is not None:
            first = max(first, bounds.index_min)
        if bounds.index_max is not None:
            end = min(end, bounds.index_max + 1)
        if bounds.time_min_us is not None and first < end:
            first = max(first, self._scope.index_at_time(place.stream, bounds.time_min_us, place.partition))
        if bounds.time_max_us is not None and first < end:
            end = min(end, self._scope.index_at_time(place.stream, bounds.time_max_us + 1, place.partition))
        return place._replace(first=first, next=end)

    def _records(self, place: Place, columns: list[str]) -> Iterator[pa.RecordBatch]:
        at = place.first
        hub = self._scope.hub
        while at < place.next:
            try:
                for batch in hub.scan(place.stream, at, place.next, partition=place.partition):
                    at += batch.num_rows
                    yield batch.select(columns)
            except Trimmed as trimmed:  # by retention, since the query began: what is gone is not in the answer
                at = max(trimmed.first, at + 1)


class TableSource:
    """A table: `key`, and as `payload` the value."""

    schema = TABLE_SCHEMA
    opened = "payload"
    is_stream = False

    def __init__(self, hub: Hub, name: str) -> None:
        self.name = name
        self.places = [Place(name, 0, 0, 0)]
        self._hub = hub

    def scan(self, columns: list[str], bounds: Bounds) -> Iterator[tuple[int, pa.RecordBatch]]:
        items = self._hub.items(self.name)
        while True:
            keys, values = [], []
            for key, value in items:
                keys.append(key)
                values.append(value)
                if len(keys) == TABLE_ROWS:
                    break
            if not keys:
                return
            arrays = {"key": keys, "payload": values}
            yield 0, pa.record_batch([pa.array(arrays[name], pa.binary()) for name in columns], names=columns)


def _numbers(text: str | None) -> set[int] | None:
    if text is None:
        return None
    numbers = {natural(word.strip()) for word in text.split(",")}
    if None in numbers:
        raise BadSql(f"stream(): partitions => {text!r} is not numbers such as '0,2'")
    return {number for number in numbers if number is not None}
