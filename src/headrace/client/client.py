"""The client: every noun of the hub over one Flight connection."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, overload

import pyarrow as pa
from msgspec import structs

from headrace.admin.records import NewRecord, StreamAppend
from headrace.admin.records import Sequence as ProducerSequence
from headrace.admin.requests import Index
from headrace.admin.streams import PartitionBounds, StreamDescription, StreamSegments, StreamSummary
from headrace.admin.tables import TableSummary
from headrace.client.batches import SqlResult
from headrace.client.connection import CALL_TIMEOUT_S, Connection, NeverSent, Result, decode_result
from headrace.client.groups import BEAT_S, EXPIRE_S, Group
from headrace.client.handles import Cursor, Table
from headrace.client.immortals import ImmortalHandle, Owner
from headrace.client.partitions import Partitions, by_partition, partition_of
from headrace.client.puts import NotStored
from headrace.client.reader import EndAt, Reader, StartAt, read_ticket
from headrace.client.records import is_arrow, one_record, to_batch, to_microseconds
from headrace.client.writer import Writer
from headrace.errors import BadRequest, Closed, HeadraceError, NotHere, Unreachable
from headrace.log.ops import Appended, Bounds, CursorInfo, StreamOptions
from headrace.pages import Page
from headrace.protocols.flight.codec import Range, ReadTicket, SqlTicket, encode, split
from headrace.protocols.flight.requests import Request

# Open puts that `append` keeps, one for each stream partition lately appended to.
WRITERS_KEPT = 16
# Arrow data without a sequence is sent in parts of this size, many under way at once.
PART_BYTES = 4 << 20
RETRY_PAUSE_S = 0.1
# Entries of a list that are fetched at once.
PAGE_ENTRIES = 1_000


class Client:
    """A connection to a hub, for use by any number of threads. Made by `headrace.connect`."""

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls: bool | str | Path | bytes = False,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        self._connection = Connection(address, token=token, user=user, password=password, tls=tls, timeout_s=timeout_s)
        self._writers: OrderedDict[tuple[str, int], Writer] = OrderedDict()
        self._partitions = Partitions(lambda stream: self.describe(stream).partitions)
        self._lock = threading.Lock()
        self._closed = False

    def __repr__(self) -> str:
        return f"<Client of {self.address}{', closed' if self._closed else ''}>"

    @property
    def address(self) -> str:
        """Where the hub is."""
        return self._connection.address

    # Verbs -----------------------------------------------------------------------------------------------------------

    def call(self, verb: str, params: Any = None) -> Any:
        """Run any verb of the hub with JSON parameters; the result as plain values."""
        return self.request(verb, params, object)

    def request(self, verb: str, params: Any, kind: type[Result]) -> Result:
        """Run any verb; the result as `kind`."""
        if self._closed:
            raise Closed("this client has been closed")
        return decode_result(self._connection.call(verb, params), kind)

    def entries(self, verb: str, params: dict[str, Any], kind: type[Result]) -> Iterator[Result]:
        """All entries of a list, page after page, each as `kind`."""
        after: dict[str, Any] = {}
        while True:
            page = self.request(verb, {**params, "limit": PAGE_ENTRIES, **after}, Page[kind])  # type: ignore[valid-type]
            yield from page.items
            if page.next is None:
                return
            after = {"after": page.next}

    # Immortals -------------------------------------------------------------------------------------------------------

    @overload
    def immortal(self, name: str, kind: None = None, *, key: str | None = None) -> ImmortalHandle[Any]: ...
    @overload
    def immortal(self, name: str, kind: type[Owner], *, key: str | None = None) -> ImmortalHandle[Owner]: ...
    def immortal(self, name: str, kind: Any = None, *, key: str | None = None) -> ImmortalHandle[Any]:
        """An immortal, to call: `hub.immortal("shop").order(item="pear", qty=2)`. With its class, arguments are checked
        here and results are of the declared type; `key` is the instance of a keyed one."""
        return ImmortalHandle(self, name, kind, key)

    # Streams ---------------------------------------------------------------------------------------------------------

    def create(
        self,
        stream: str,
        *,
        partitions: int = 1,
        options: StreamOptions | dict[str, Any] | None = None,
        exist_ok: bool = True,
    ) -> StreamSummary:
        """Create a stream. With `exist_ok` an existing one is left as it is."""
        params = {"stream": stream, "partitions": partitions, "options": options or {}, "exist_ok": exist_ok}
        return self.request("stream.create", params, StreamSummary)

    def streams(self, pattern: str = "*", *, all: bool = False) -> list[StreamSummary]:
        """The streams whose names match a pattern such as `orders.*`; with `all` also what the hub keeps for itself."""
        return list(self.iter_streams(pattern, all=all))

    def iter_streams(self, pattern: str = "*", *, all: bool = False) -> Iterator[StreamSummary]:
        """The same one by one, for hubs with very many: pages are fetched as they are needed."""
        return self.entries("stream.list", {"pattern": pattern} | ({"all": True} if all else {}), StreamSummary)

    def describe(self, stream: str) -> StreamDescription:
        """Bounds, options and cursors of a stream."""
        return self.request("stream.describe", {"stream": stream}, StreamDescription)

    def delete(self, stream: str) -> None:
        """Delete a stream with its records and cursors."""
        self.call("stream.delete", {"stream": stream})

    def trim(self, stream: str, before: int, *, partition: int = 0) -> Bounds:
        """Forget the records below `before`; returns the bounds after it."""
        params = {"stream": stream, "before": before, "partition": partition}
        bounds = self.request("stream.trim", params, PartitionBounds)
        return Bounds(bounds.first, bounds.next)

    def grow(self, stream: str, partitions: int) -> StreamSummary:
        """Give a stream more partitions."""
        return self.request("stream.grow", {"stream": stream, "partitions": partitions}, StreamSummary)

    def set_options(self, stream: str, options: StreamOptions | dict[str, Any]) -> StreamSummary:
        """Replace the options of a stream."""
        return self.request("stream.set-options", {"stream": stream, "options": options}, StreamSummary)

    def bounds(self, stream: str, *, partition: int = 0) -> Bounds:
        """The durable records of a partition: first ≤ index < next."""
        params = {"stream": stream, "partition": partition}
        [bounds] = self.request("stream.bounds", params, list[PartitionBounds])
        return Bounds(bounds.first, bounds.next)

    def index_at_time(self, stream: str, time: datetime | int, *, partition: int = 0) -> int:
        """The first index accepted at this time (a datetime, or microseconds since 1970) or later."""
        params = {"stream": stream, "time_us": to_microseconds(time), "partition": partition}
        index = self.request("stream.index-at-time", params, Index).index
        assert index is not None
        return index

    def segments(self, stream: str, *, partition: int | None = None) -> StreamSegments:
        """The sealed Arrow files of a stream, for readers on the hub's machine."""
        return self.request("stream.segments", {"stream": stream, "partition": partition}, StreamSegments)

    def producer_sequence(self, stream: str, producer: str, *, partition: int = 0) -> int | None:
        """The last durable sequence of a producer: where to go on after a crash."""
        params = {"stream": stream, "producer": producer, "partition": partition}
        return self.request("producer.get", params, ProducerSequence).sequence

    # Queries ---------------------------------------------------------------------------------------------------------

    def sql(
        self, text: str, parameters: Sequence[Any] = (), *, limit: int | None = None, id: str | None = None
    ) -> SqlResult:
        """The rows of a SQL query over streams and tables by their names: `hub.sql("SELECT count(*) FROM orders")`.

        JSON payloads are columns of `value`: `value.fruit`. `parameters` are for the `?` of the text, `id` is for the
        verb `sql.cancel`. The query runs at the hub; closing its result, or leaving its `with` block, ends it."""
        if self._closed:
            raise Closed("this client has been closed")
        return SqlResult(self._connection, encode(SqlTicket(text, tuple(parameters), limit, id)))

    # Appending -------------------------------------------------------------------------------------------------------

    def append(
        self,
        /,
        stream: str,
        data: Any,
        *,
        type: str | Sequence[str | None] | None = None,
        key: bytes | str | Sequence[bytes | str | None] | None = None,
        id: int | str | Sequence[int | None] | None = None,
        event_time: datetime | int | str | Sequence[datetime | int | None] | None = None,
        payload: str | None = None,
        partition: int | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        retry_s: float = 30.0,
    ) -> Appended:
        """Append and wait until it is on disk.

        `data` is bytes, text, a mapping (stored as JSON), a `Record`, or a sequence of these; `type`, `key`, `id` and
        `event_time` are one value for all records, or a sequence. Or it is Arrow data, a pandas or Polars DataFrame:
        with a column `payload` its columns are those of records; otherwise each row is stored as a JSON object, and
        `type`, `key`, `id`, `event_time` and `payload` are names of its columns.

        Records with a key go to the partition of that key (`docs/how-to/partitions.md`), others to partition 0, unless
        `partition` says where. Those of one partition are one batch: all of it is stored, or none; `first` is -1 when
        records went to several. Arrow data without a sequence goes in parts.

        With `producer` and `sequence` (one number for each call, rising) it is stored once, however often it is sent,
        and is sent again for up to `retry_s` seconds when the connection breaks.
        """
        if (producer is None) != (sequence is None):
            raise BadRequest("'producer' and 'sequence' belong together: give both, or none")
        single = one_record(data, type, key, id, event_time) if payload is None else None
        if single is not None:
            appended = self._append_one(stream, single, partition, producer, sequence, retry_s)
            if appended is not None:
                return appended
        batch = to_batch(data, type=type, key=key, id=id, event_time=event_time, payload=payload)  # type: ignore[arg-type]
        in_parts = is_arrow(data) and producer is None
        if partition is not None:
            return self._append(stream, batch, partition, producer, sequence, retry_s, in_parts)
        partitions = self._partitions.of(stream) if "key" in batch.schema.names else 1
        results = [
            self._append(stream, part, number, producer, sequence, retry_s, in_parts)
            for number, part in by_partition(batch, partitions)
        ]
        if len(results) == 1:
            return results[0]
        return Appended(-1, sum(each.count for each in results), all(each.duplicate for each in results))

    def _append_one(
        self,
        stream: str,
        record: NewRecord,
        partition: int | None,
        producer: str | None,
        sequence: int | None,
        retry_s: float,
    ) -> Appended | None:
        """Append without a put, which is quicker for a single record; None if there is no line to the hub."""
        if self._closed:
            raise Closed("this client has been closed")
        if partition is None:
            partition = 0 if record.key is None else partition_of(record.key, self._partitions.of(stream))
        asked = Request(append=StreamAppend(stream, [record], partition, producer, sequence))
        give_up = time.monotonic() + retry_s
        while True:
            try:
                answer = self._connection.ask(asked)
                return None if answer is None else decode_result(answer, Appended)
            except Unreachable:
                if producer is None or time.monotonic() > give_up:
                    raise
                time.sleep(RETRY_PAUSE_S)

    def _append(
        self,
        stream: str,
        batch: pa.RecordBatch,
        partition: int,
        producer: str | None,
        sequence: int | None,
        retry_s: float,
        in_parts: bool,
    ) -> Appended:
        if in_parts and batch.nbytes > PART_BYTES:
            return self._append_parts(stream, split(batch, PART_BYTES), partition)
        give_up = time.monotonic() + retry_s
        while True:
            writer = self._writer(stream, partition)
            try:
                return writer.send(batch, producer, sequence).result()
            except NotStored:  # for another caller's sake: his batch was refused, or he needed the place
                self._forget_writer(stream, partition, writer)
            except (Unreachable, NotHere) as error:
                self._forget_writer(stream, partition, writer)
                may_repeat = producer is not None or isinstance(error, NotHere | NeverSent)  # those were not stored
                if not may_repeat or time.monotonic() > give_up:
                    raise
                time.sleep(RETRY_PAUSE_S)
            except HeadraceError:
                self._forget_writer(stream, partition, writer)
                raise

    def _append_parts(self, stream: str, parts: Iterable[pa.RecordBatch], partition: int) -> Appended:
        with self.writer(stream, partition=partition) as writer:
            results = [future.result() for future in [writer.append(part) for part in parts]]
        return Appended(results[0].first, sum(result.count for result in results), False)

    def writer(
        self,
        stream: str,
        *,
        partition: int = 0,
        producer: str | None = None,
        sequence: int | None = None,
        retry_s: float = 30.0,
    ) -> Writer:
        """Append with many batches under way: its `append` returns futures."""
        if (producer is None) != (sequence is None):
            raise BadRequest("'producer' and 'sequence' belong together: give both, or none")
        return Writer(
            self._connection, stream, partition=partition, producer=producer, sequence=sequence, retry_s=retry_s
        )

    def _writer(self, stream: str, partition: int) -> Writer:
        place = (stream, partition)
        surplus = None
        with self._lock:
            if self._closed:
                raise Closed("this client has been closed")
            writer = self._writers.pop(place, None) or Writer(self._connection, stream, partition=partition)
            self._writers[place] = writer
            if len(self._writers) > WRITERS_KEPT:
                surplus = self._writers.popitem(last=False)[1]
        if surplus is not None:
            surplus.retire()
        return writer

    def _forget_writer(self, stream: str, partition: int, writer: Writer) -> None:
        """Use another from now on, unless somebody else saw to that already."""
        with self._lock:
            if self._writers.get((stream, partition)) is writer:
                del self._writers[stream, partition]
        writer.retire()

    # Reading ---------------------------------------------------------------------------------------------------------

    def read(
        self,
        stream: str | Sequence[str],
        start: StartAt | None = None,
        end: EndAt = None,
        *,
        partition: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        types: str | Sequence[str | None] | None = None,
        cursor: str | None = None,
        on_trimmed: Literal["fail", "skip"] = "fail",
    ) -> Reader:
        """What is there now, from `start` (an index, a time, an age as "5m", "earliest", "latest") to before `end`.

        Several streams, or a stream with several partitions, add the columns `stream` and `partition`; with `partition`
        only one is read. With `cursor` the start is where that cursor stands, and `Reader.save` moves it.
        """
        ticket = read_ticket(start, end, limit, columns, types, on_trimmed, follow=False)
        return self._open_reader(stream, partition, ticket, cursor, start is None)

    def follow(
        self,
        stream: str | Sequence[str],
        start: StartAt | None = None,
        *,
        partition: int | None = None,
        limit: int | None = None,
        columns: Sequence[str] | None = None,
        types: str | Sequence[str | None] | None = None,
        cursor: str | None = None,
        on_trimmed: Literal["fail", "skip"] = "fail",
    ) -> Reader:
        """What is there, and then what comes, without end. Arguments are as in `read`."""
        ticket = read_ticket(start, None, limit, columns, types, on_trimmed, follow=True)
        return self._open_reader(stream, partition, ticket, cursor, start is None)

    def _open_reader(
        self,
        stream: str | Sequence[str],
        partition: int | None,
        ticket: ReadTicket,
        cursor: str | None,
        at_cursor: bool,
    ) -> Reader:
        names = [stream] if isinstance(stream, str) else list(stream)
        places = [
            (name, number)
            for name in names
            for number in (range(self.describe(name).partitions) if partition is None else [partition])
        ]
        cursors = (
            {} if cursor is None else {place: self.cursor(cursor, place[0], partition=place[1]) for place in places}
        )
        starts = {place: handle.get() for place, handle in cursors.items()} if at_cursor else {}
        saves = {place: handle.save for place, handle in cursors.items()}
        if isinstance(stream, str) and len(places) == 1:
            (place,) = places
            start = starts.get(place)
            ticket = ticket if start is None else structs.replace(ticket, start=start)
            return Reader(self._connection, structs.replace(ticket, stream=stream, partition=place[1]), saves=saves)
        ranges = []
        for place in places:
            start = starts.get(place)
            ranges.append(Range(*place, ticket.start if start is None else start, ticket.end))
        ticket = structs.replace(ticket, start="earliest", end=None, ranges=tuple(ranges))
        return Reader(self._connection, ticket, saves=saves)

    def group(
        self,
        stream: str,
        name: str,
        *,
        member: str | None = None,
        beat_s: float = BEAT_S,
        expire_s: float = EXPIRE_S,
    ) -> Group:
        """Join a consumer group: its members share the partitions of a stream, and take over from one that is gone
        after `expire_s`. Iterate over it for records, and call its `save` after what was dealt with."""
        return Group(self, stream, name, member=member, beat_s=beat_s, expire_s=expire_s)

    # Cursors and tables ----------------------------------------------------------------------------------------------

    def cursors(self, pattern: str = "*", *, stream: str | None = None) -> list[CursorInfo]:
        """The cursors whose names match a pattern, of one stream or of all."""
        return list(self.iter_cursors(pattern, stream=stream))

    def iter_cursors(self, pattern: str = "*", *, stream: str | None = None) -> Iterator[CursorInfo]:
        """The same one by one: pages are fetched as they are needed."""
        return self.entries("cursor.list", {"pattern": pattern, "stream": stream}, CursorInfo)

    def cursor(self, name: str, stream: str, *, partition: int = 0) -> Cursor:
        """A cursor; it comes into being when it is first saved."""
        return Cursor(self, name, stream, partition)

    def tables(self, pattern: str = "*", *, all: bool = False) -> list[TableSummary]:
        """The tables whose names match a pattern; with `all` also what the hub keeps for itself."""
        return list(self.iter_tables(pattern, all=all))

    def iter_tables(self, pattern: str = "*", *, all: bool = False) -> Iterator[TableSummary]:
        """The same one by one: pages are fetched as they are needed."""
        return self.entries("table.list", {"pattern": pattern} | ({"all": True} if all else {}), TableSummary)

    def create_table(self, name: str) -> Table:
        """Create a table; an existing one is left as it is."""
        self.call("table.create", {"table": name})
        return Table(self, name)

    def table(self, name: str) -> Table:
        """A table."""
        return Table(self, name)

    # The end ---------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush what is under way, and give the connection up."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            writers = list(self._writers.values())
            self._writers.clear()
        for writer in writers:
            with contextlib.suppress(HeadraceError):  # whoever appended has the error in the future
                writer.close()
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def connection_of(client: Client) -> Connection:
    """What it asks through, for the rest of this package."""
    return client._connection
