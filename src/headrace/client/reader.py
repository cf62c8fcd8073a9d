"""Reading: what `Client.read` and `Client.follow` give back."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from headrace.client.connection import Connection
from headrace.client.records import Record, records_of
from headrace.errors import BadRequest, Busy, HeadraceError
from headrace.protocols.flight.codec import ReadTicket, encode

if TYPE_CHECKING:
    import pandas


class _Ended(NamedTuple):
    """What the pump leaves when there is nothing more: an error, or the end."""

    error: HeadraceError | None


class Reader:
    """Records of a read or follow, as they come. Iterate over it for records, or take `batches()`, `to_arrow()`,
    `to_pandas()`. Only what is asked for is fetched; leaving a `with` block, or `close()`, ends it.

    Not for several threads at once, except `close`.
    """

    def __init__(self, connection: Connection, ticket: ReadTicket, *, save: Callable[[int], int] | None = None) -> None:
        self._connection = connection
        self._ticket = ticket
        self._save = save
        self._closed = False
        #: The index after the last record that was handed out; None before the first one.
        self.position: int | None = None
        with connection.translated():
            options = connection.options(None if ticket.follow else connection.timeout_s * 60)
            self._stream = connection.flight.do_get(flight.Ticket(encode(ticket)), options)
            self.schema: pa.Schema = self._stream.schema
        # A follower waits for records that may never come. It waits in a thread, so that Ctrl-C and timeouts work.
        self._pump = _Pump(self._next_chunk) if ticket.follow else None

    def next_batch(self, timeout_s: float | None = None) -> pa.RecordBatch | None:
        """The next batch, or None at the end. With a timeout (followers only), `Busy` when none came in time."""
        if self._closed:
            return None
        batch = self._next_chunk() if self._pump is None else self._pump.get(timeout_s)
        if batch is not None and "index" in batch.schema.names and batch.num_rows:
            self.position = batch.column("index")[-1].as_py() + 1
        return batch

    def _next_chunk(self) -> pa.RecordBatch | None:
        try:
            return self._stream.read_chunk().data
        except StopIteration:
            return None
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            if self._closed and isinstance(error, flight.FlightCancelledError):
                return None
            raise self._connection.failure(error) from None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Arrow record batches, as they come."""
        while (batch := self.next_batch()) is not None:
            yield batch

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            for record in records_of(batch):
                if self.schema.get_field_index("index") >= 0:
                    self.position = record.index + 1
                yield record

    def to_arrow(self) -> pa.Table:
        """Everything as one Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def to_pandas(self, /, **options: Any) -> pandas.DataFrame:
        """Everything as a pandas DataFrame."""
        frame: pandas.DataFrame = self.to_arrow().to_pandas(**options)
        return frame

    def to_list(self) -> list[Record]:
        """Everything as a list of records."""
        return list(self)

    def save(self) -> int | None:
        """Make the position of the reader's cursor durable: after the last record handed out."""
        if self._save is None:
            raise BadRequest("this reader has no cursor; give cursor='name' to read or follow")
        return None if self.position is None else self._save(self.position)

    def close(self) -> None:
        """End it; a thread that waits for the next batch gets the end."""
        if not self._closed:
            self._closed = True
            self._stream.cancel()
            if self._pump is not None:
                self._pump.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and hasattr(self, "_stream"):
            self._closed = True
            self._stream.cancel()


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
