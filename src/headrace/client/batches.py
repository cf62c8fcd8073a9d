"""Arrow batches that come from a hub: what reads, follows and queries have in common."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.flight as flight

from headrace.client.connection import Connection
from headrace.client.records import shortened
from headrace.errors import BadRequest

if TYPE_CHECKING:
    import pandas
    import polars

SHOWN_ROWS = 20


class Batches:
    """Something that Arrow can read once, as it comes: polars, DuckDB, pandas and pyarrow take it as it is."""

    schema: pa.Schema

    def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        raise NotImplementedError

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow record batches, as they come."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Arrow's PyCapsule interface."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> pa.Table:
        """Everything as one Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self, /, **options: Any) -> pandas.DataFrame:
        """Everything as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas(**options)
        return frame

    def to_polars(self) -> polars.DataFrame:
        """Everything as a Polars DataFrame."""
        try:
            import polars
        except ModuleNotFoundError:
            raise BadRequest("Polars is not installed: pip install polars") from None
        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)
        return frame


class Fetched(Batches):
    """What one `do_get` sends. Only what is asked for is fetched; leaving a `with` block, or `close()`, ends it."""

    def __init__(self, connection: Connection, ticket: bytes, timeout_s: float | None) -> None:
        self._connection = connection
        self._closed = False
        self._batch: pa.RecordBatch | None = None
        self._rows: Iterator[Any] = iter(())  # of the batch, not handed out yet
        self._stream, self.schema = connection.patiently(lambda: self._open(ticket, timeout_s))

    def _open(self, ticket: bytes, timeout_s: float | None) -> tuple[flight.FlightStreamReader, pa.Schema]:
        """The schema comes when the hub has begun, or says why it has not."""
        connection = self._connection
        stream = connection.flight.do_get(flight.Ticket(ticket), connection.options(timeout_s))
        return stream, stream.schema

    def _next_chunk(self) -> pa.RecordBatch | None:
        try:
            return self._stream.read_chunk().data
        except StopIteration:
            return None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if self._closed and isinstance(error, flight.FlightCancelledError):
                return None
            raise self._connection.failure(error) from None

    def _rows_of(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """The rows of a batch as Python objects."""
        return rows_of(batch)

    def _each(self, batch: pa.RecordBatch) -> Iterator[Any]:
        """The rows of a batch, one by one. If the caller breaks off, the next read continues there."""
        self._batch, self._rows = batch, self._rows_of(batch)
        for row in self._rows:  # noqa: UP028 - `yield from` would close the iterator when the caller breaks off
            yield row

    def _left(self) -> pa.RecordBatch | None:
        """The rest of a batch whose rows were not all taken."""
        count = sum(1 for _ in self._rows)
        return self._batch.slice(self._batch.num_rows - count) if self._batch is not None and count else None

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches():
            yield from self._each(batch)

    def close(self) -> None:
        """End it; a thread that waits for the next batch gets the end."""
        if not self._closed:
            self._closed = True
            self._stream.cancel()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_stream"):
            self._closed = True
            self._stream.cancel()


class SqlResult(Fetched):
    """The rows of a query, as they come: iterate over it for a dict each, or take `to_arrow()`, `to_pandas()`,
    `to_polars()`, `to_list()`. Not for several threads at once, except `close`."""

    def __init__(self, connection: Connection, ticket: bytes) -> None:
        super().__init__(connection, ticket, connection.timeout_s * 60)

    @property
    def columns(self) -> list[str]:
        """Their names."""
        return list(self.schema.names)

    def next_batch(self) -> pa.RecordBatch | None:
        """The next batch, or None at the end."""
        left = self._left()
        if left is not None or self._closed:
            return left
        return self._next_chunk()

    def to_list(self) -> list[dict[str, Any]]:
        """Everything as a list of dicts."""
        return list(self)

    def __repr__(self) -> str:
        columns = ", ".join(f"{field.name} {field.type}" for field in self.schema)
        return f"SqlResult({columns})"

    def _repr_html_(self) -> str:
        """The first rows, for a notebook; they are still there afterwards."""
        first = self.next_batch()
        if first is not None:
            self._batch, self._rows = first, rows_of(first)
        rows = () if first is None else rows_of(first.slice(0, SHOWN_ROWS))
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(f"<tr>{''.join(f'<td>{_shown(value)}</td>' for value in row.values())}</tr>" for row in rows)
        more = "<p>…</p>" if first is not None and first.num_rows > SHOWN_ROWS else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"

    def __enter__(self) -> SqlResult:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def rows_of(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """A dict for each row. SQL's widest integers, which sums of integers are, come as Arrow's decimals: here they are
    Python's own."""
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.to_pylist()
        is_whole = pa.types.is_decimal(column.type) and column.type.scale == 0
        columns[name] = [None if value is None else int(value) for value in values] if is_whole else values
    for row in zip(*columns.values(), strict=True):
        yield dict(zip(columns, row, strict=True))


def _shown(value: object) -> str:
    return html.escape("" if value is None else value if isinstance(value, str) else shortened(value))
