"""Reading: what `Client.read` and `Client.follow` give back."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from headrace.client.batches import Batches, Fetched
from headrace.client.connection import Connection
from headrace.client.json_columns import decode_json
from headrace.client.records import Record, records_of, to_microseconds
from headrace.errors import BadRequest, Busy, HeadraceError
from headrace.protocols.flight.codec import AtTime, ReadTicket, encode
from headrace.units import position

Place = tuple[str, int]
"""A stream and the number of a partition."""


StartAt = int | str | datetime
EndAt = int | str | datetime | None


class _Ended(NamedTuple):
    """What the pump leaves when there is nothing more: an error, or the end."""

    error: HeadraceError | None


class Reader(Fetched):
    """Records of a read or follow, as they come. Iterate over it for records, or take `batches()`, `to_arrow()`,
    `to_pandas()`, `to_polars()`; Arrow tools take it as it is. Only what is asked for is fetched; leaving a `with`
    block, or `close()`, ends it.

    Not for several threads at once, except `close`.
    """

    def __init__(
        self, connection: Connection, ticket: ReadTicket, *, saves: Mapping[Place, Callable[[int], int]] | None = None
    ) -> None:
        """`saves` moves the cursor of each partition."""
        self._ticket = ticket
        self._saves = saves or {}
        #: The index after the last record that was handed out; None before the first one.
        self.position: int | None = None
        #: The same by stream and partition.
        self.positions: dict[Place, int] = {}
        super().__init__(connection, encode(ticket), None if ticket.follow else connection.timeout_s * 60)
        self._followed = [name for name in ("index", "stream", "partition") if name in self.schema.names]
        # A follower waits for records that may never come. It waits in a thread, so that Ctrl-C and timeouts work.
        self._pump = _Pump(self._next_chunk) if ticket.follow else None

    def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None at the end. With a timeout (followers only), `Busy` when none came in time."""
        if self._closed:
            return None
        batch = self._left()
        if batch is None:
            batch = self._next_chunk() if self._pump is None else self._pump.get(timeout_s)
        if batch is not None and batch.num_rows:
            last = {name: batch.column(name)[-1].as_py() for name in self._followed}
            self._handed_out(last.get("index", -1), last.get("stream"), last.get("partition"))
        return batch

    def _handed_out(self, index: int, stream: str | None, partition: int | None) -> None:
        """Note how far the caller has come."""
        if index >= 0:
            self.position = index + 1
            ticket = self._ticket
            at = (ticket.stream, ticket.partition) if ticket.stream is not None else (stream, partition)
            if at[0] is not None and at[1] is not None:
                self.positions[at[0], at[1]] = index + 1

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Record]:
        return records_of(batch)

    def _each(self, batch: pa.RecordBatch) -> Iterator[Record]:
        for record in super()._each(batch):
            self._handed_out(record.index, record.stream, record.partition)
            yield record

    def decoded(self, schema: pa.Schema | Mapping[str, Any]) -> Decoded:
        """The JSON in the payloads as columns, by a schema: `reader.decoded({"fruit": "string", "count": "int64"})`. A
        payload that does not fit has nulls there, and says why in the column `error`."""
        return Decoded(self, pa.schema(schema))

    def to_list(self) -> list[Record]:
        """Everything as a list of records."""
        return list(self)

    def save(self) -> int | None:
        """Make the position of the reader's cursor durable, in each partition: after the last record handed out."""
        if not self._saves:
            raise BadRequest("this reader has no cursor; give cursor='name' to read or follow")
        if self.position is not None and not self.positions:
            raise BadRequest("a cursor needs the columns index, stream and partition")
        saved = [self._saves[place](index) for place, index in self.positions.items()]
        return saved[-1] if saved else None

    def close(self) -> None:
        """End it; a thread that waits for the next batch gets the end."""
        was_closed = self._closed
        super().close()
        if not was_closed and self._pump is not None:
            self._pump.close()

    def __repr__(self) -> str:
        ticket = self._ticket
        of = ticket.stream or ", ".join(dict.fromkeys(each.stream for each in ticket.ranges or ()))
        where = f" partition {ticket.partition}" if ticket.stream is not None else ""
        at = "not begun" if self.position is None else f"next index {self.position}"
        kind = "follows" if ticket.follow else "reads"
        return f"<Reader {kind} {of}{where}, {at}: {', '.join(self.schema.names)}>"

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class Decoded(Batches):
    """Records with the JSON in their payloads as columns."""

    def __init__(self, reader: Reader, fields: pa.Schema) -> None:
        if "payload" not in reader.schema.names:
            raise BadRequest("'payload' is not among the columns that are read; without it there is nothing to decode")
        kept = [field for field in reader.schema if field.name != "payload"]
        taken = {field.name for field in kept} & set(fields.names)
        if taken:
            raise BadRequest(f"{min(taken)!r} is a column of every record; read without it: columns=[…]")
        self._reader = reader
        self._fields = fields
        self._kept = [field.name for field in kept]
        self.schema = pa.schema(
            [*kept, *(field.with_nullable(True) for field in fields), pa.field("error", pa.string())]
        )

    def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        batch = self._reader.next_batch()
        if batch is None:
            return None
        values, errors = decode_json(batch.column("payload"), self._fields)
        columns = [batch.column(name) for name in self._kept]
        return pa.RecordBatch.from_arrays([*columns, *values.flatten(), errors], schema=self.schema)


class _Pump:
    """Fetches one batch ahead in a thread of its own."""

    def __init__(self, fetch: Callable[[], pa.RecordBatch | None]) -> None:
        self._fetch = fetch
        self._ready: queue.Queue[pa.RecordBatch | _Ended] = queue.Queue(1)
        self._stopping = threading.Event()
        self._ended: _Ended | None = None
        threading.Thread(target=self._run, name="headrace-follow", daemon=True).start()

    def _run(self) -> None:
        ended = _Ended(None)
        try:
            while (batch := self._fetch()) is not None:
                if not self._offer(batch):
                    return
        except HeadraceError as error:
            ended = _Ended(error)
        self._offer(ended)

    def _offer(self, item: pa.RecordBatch | _Ended) -> bool:
        while not self._stopping.is_set():
            try:
                self._ready.put(item, timeout=0.2)
                return True
            except queue.Full:
                continue
        return False

    def get(self, timeout_s: float | None) -> pa.RecordBatch | None:
        """The next batch; None at the end."""
        if self._ended is None:
            try:
                item = self._ready.get(timeout=timeout_s)
            except queue.Empty:
                raise Busy(f"no record came in {timeout_s} s") from None
            if not isinstance(item, _Ended):
                return item
            self._ended = item
        if self._ended.error is not None:
            raise self._ended.error
        return None

    def close(self) -> None:
        """Wake whoever waits, and let the thread end."""
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._ready.put_nowait(_Ended(None))


def read_ticket(
    start: StartAt | None,
    end: EndAt,
    limit: int | None,
    columns: Sequence[str] | None,
    types: str | Sequence[str | None] | None,
    on_trimmed: Literal["fail", "skip"],
    *,
    follow: bool,
) -> ReadTicket:
    """What `read` and `follow` ask for, without the streams."""
    return ReadTicket(
        start=_place("earliest" if start is None else start),
        end=None if end is None else _place(end),  # type: ignore[arg-type]
        limit=limit,
        columns=None if columns is None else (columns,) if isinstance(columns, str) else tuple(columns),
        types=None if types is None else (types,) if isinstance(types, str) else tuple(types),
        follow=follow,
        on_trimmed=on_trimmed,
    )


def _place(where: int | str | datetime) -> int | Literal["earliest", "latest"] | AtTime:
    """A start or end as a ticket has it."""
    if isinstance(where, str):
        try:
            where = position(where)
        except ValueError as error:
            raise BadRequest(str(error)) from None
    if isinstance(where, datetime):
        return AtTime(to_microseconds(where))
    return where
