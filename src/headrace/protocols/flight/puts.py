"""One `do_put`: batches in, appends to the hub, acknowledgements out once they are on disk.

Two threads serve a put. gRPC's own thread reads batches and hands them to the hub's loop; a second one writes
acknowledgements as appends become durable, so that a client may send on while earlier batches are synced.

What is under way is bounded by bytes, of one put and of all of them: a producer faster than the disk is not read from,
and gRPC's flow control holds it back. A batch waits for its place before it is copied into the log's form: gRPC keeps
the message itself until the next one comes, so a large batch is in memory twice. How much may wait is bounded as well
(room.py), and so are acknowledgements that the client does not read (acknowledgements.py).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from headrace.errors import BadRequest, Busy, HeadraceError
from headrace.log.batch import Batch
from headrace.log.ops import Appended, Line
from headrace.protocols.flight.acknowledgements import Settled, Settling
from headrace.protocols.flight.bridge import Bridge, cancelled, to_flight_error
from headrace.protocols.flight.codec import PutAck, PutColumns, decode_metadata, encode
from headrace.protocols.flight.permit import Permit
from headrace.protocols.flight.room import WaitingRoom, Window
from headrace.protocols.flight.session import Numbered, PutSession, PutState

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.flight")

# One put may have this much waiting for the disk: enough for the next commit to gather while one syncs.
UNDER_WAY_BYTES_MAX = 32 << 20
# Acknowledgements that wait for the client to read them; above it, those that can be are folded together.
ACKS_WAITING_MAX = 65_536
# What a batch under way takes besides its bytes.
BATCH_OVERHEAD_BYTES = 1024
# How long acknowledgements may take after a failure before the client is thought to read none.
ACKS_STUCK_S = 1.0


class _Received(NamedTuple):
    """A batch on its way to the hub, and what it has taken of the windows."""

    numbered: Numbered
    batch: Batch
    taken: int
    settled: Settled


class Putting:
    """Serves one put from beginning to end."""

    def __init__(
        self,
        hub: Hub,
        bridge: Bridge,
        session: PutSession,
        permit: Permit,
        all_puts: Window,
        waiting_room: WaitingRoom,
        context: flight.ServerCallContext,
        writer: flight.FlightMetadataWriter,
        got_on: Callable[[], None],
        came: Callable[[int], None],
    ) -> None:
        self._hub = hub
        self._bridge = bridge
        self._session = session
        self._permit = permit
        self._context = context
        self._writer = writer
        self._got_on = got_on
        self._came = came
        self._lock = threading.Lock()
        self._windows = (Window(UNDER_WAY_BYTES_MAX), all_puts)
        self._waiting_room = waiting_room
        self._settling = Settling(ACKS_WAITING_MAX)
        self._all_read = False
        self._refused = False  # this and the next three: only the loop changes them
        self._handed_over = 0
        self._line = Line()
        self._waiting: deque[_Received] = deque()
        self._records_in = hub.metrics.protocol.of("flight").records_in
        self._processed = hub.stream(session.command.stream).options.ack != "durable"

    def run(self, reader: flight.MetadataRecordBatchReader) -> None:
        """Read until the client has sent all; raises the error that ended the put."""
        acknowledging = threading.Thread(target=self._acknowledge, name="flight-acks", daemon=True)
        acknowledging.start()
        self._bridge.post(self._watch)
        try:
            self._read(reader)
        finally:
            self._settling.close()
            self._let_acks_end(acknowledging, reader)
        if self._session.error is not None:
            # gRPC drops messages that are unread when such a status comes: it must say by itself which batch it means.
            raise to_flight_error(self._session.error, self._session.refused_batch)

    def _read(self, reader: flight.MetadataRecordBatchReader) -> None:
        number = 0
        try:
            columns = PutColumns(reader.schema, self._hub.config.log.batch_bytes_max)
            while self._session.state is PutState.OPEN:
                try:
                    chunk = reader.read_chunk()
                except StopIteration:
                    self._all_read = True
                    return
                self._got_on()
                self._bridge.check_new()
                if not self._refused:  # otherwise the refusal is on its way to the client
                    self._receive(columns, chunk)
                    number = self._session.received_count
                del chunk  # its bytes may be many, and the next may be long in coming
        except HeadraceError as error:
            self._settle_now(number, error.to_keep())
        except pa.ArrowInvalid as error:
            self._settle_now(number, BadRequest(f"batch {number}: the Arrow data is malformed: {error}"))
        except pa.ArrowMemoryError:
            text = f"batch {number}: what it unfolds to finds no room (flight.unfolded_bytes_max); send smaller batches"
            self._settle_now(number, Busy(text))

    def _let_acks_end(self, acknowledging: threading.Thread, reader: flight.MetadataRecordBatchReader) -> None:
        """Wait for the other thread. A client that only sends must get rid of what it sends before it reads, so that is
        taken and dropped: the put has failed by then."""
        acknowledging.join(None if self._all_read else ACKS_STUCK_S)
        while acknowledging.is_alive() and not self._all_read:
            try:
                reader.read_chunk()
            except (StopIteration, pa.ArrowException, OSError):
                break
        acknowledging.join()

    def _receive(self, columns: PutColumns, chunk: flight.FlightStreamChunk) -> None:
        metadata = chunk.app_metadata
        numbered_metadata = decode_metadata(None if metadata is None else metadata.to_pybytes())
        if chunk.data is None:
            raise BadRequest(f"batch {self._session.received_count}: a message without records")
        with self._lock:
            if self._session.state is not PutState.OPEN:
                return
            numbered = self._session.receive(numbered_metadata)
        if not chunk.data.num_rows:
            self._settle_now(numbered.number, None)
            return
        try:
            self._came(chunk.data.get_total_buffer_size())
            records = columns.apply(chunk.data)
            taken = sum(column.get_total_buffer_size() for column in records.columns) + BATCH_OVERHEAD_BYTES
            self._enter(taken)  # before they are there twice
            try:
                batch = Batch.from_arrow(records)
            except BaseException:
                self._leave(taken)
                raise
        except BadRequest as error:
            raise BadRequest(f"batch {numbered.number}: {error}") from None
        settled: Settled = concurrent.futures.Future()
        self._settling.put(numbered.number, settled)
        self._bridge.post(self._append, _Received(numbered, batch, taken, settled))

    def _enter(self, size: int) -> None:
        own, all_puts = self._windows
        with self._waiting_room.place(size, own, all_puts) as check_place:

            def check() -> None:
                check_place()
                self._got_on()  # it is we who wait for the disk, not for the client
                self._bridge.check(self._context)

            own.enter(size, check)
            try:
                all_puts.enter(size, check)
            except BaseException:
                own.leave(size)
                raise

    def _leave(self, size: int) -> None:
        for window in self._windows:
            window.leave(size)

    def _settle_now(self, number: int, error: HeadraceError | None) -> None:
        """Settle a batch without the hub, after the batches before it."""
        settled: Settled = concurrent.futures.Future()
        if error is None:
            settled.set_result(Appended(-1, 0, False))
        else:
            settled.set_exception(error)
        self._settling.put(number, settled)

    def _watch(self) -> None:
        """In the loop: tell the client at once when it may not write any more, also if it sends nothing."""
        self._permit.on_refused = lambda error: self._settle_now(self._handed_over, error)
        if self._permit.error is not None:
            self._permit.on_refused(self._permit.error)

    def _append(self, received: _Received) -> None:
        """In the loop: hand a batch to the hub, behind those of this put that wait for the hub to have room."""
        self._waiting.append(received)
        if len(self._waiting) == 1:
            self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting and not self._hub.congested:
            self._append_now(self._waiting.popleft())
        if self._waiting:
            drained = asyncio.ensure_future(self._hub.drained())
            drained.add_done_callback(self._drained)

    def _drained(self, drained: asyncio.Task[None]) -> None:
        if drained.cancelled() or drained.exception() is not None:
            while self._waiting:  # the log has failed: the appends learn it one by one
                self._append_now(self._waiting.popleft())
        self._hand_over()

    def _append_now(self, received: _Received) -> None:
        numbered, batch, taken, settled = received
        command = self._session.command
        if self._refused or self._permit.error is not None:
            self._leave(taken)
            after = Busy(f"batch {numbered.number} comes after one that was refused")
            settled.set_exception(self._permit.error or after)
            return
        self._handed_over = numbered.number + 1
        future = self._hub.append(
            command.stream,
            batch,
            partition=command.partition,
            producer=numbered.producer,
            sequence=numbered.sequence,
            line=self._line,
            after=numbered.after,
        )
        future.add_done_callback(functools.partial(self._appended, taken, settled))
        self._refused = future.done() and not future.cancelled() and future.exception() is not None

    def _appended(self, size: int, settled: Settled, future: asyncio.Future[Appended]) -> None:
        self._leave(size)
        if future.cancelled():
            settled.set_exception(cancelled())
        elif (error := future.exception()) is not None:
            self._refused = True
            settled.set_exception(error)
        else:
            settled.set_result(future.result())

    def _acknowledge(self) -> None:
        """The second thread: wait for each append in turn, tell the client."""
        command = self._session.command
        while (entry := self._settling.get()) is not None:
            try:
                appended = entry.settled.result()
                if self._processed and appended.count:
                    # The stream acknowledges when a cursor has passed.
                    index_next = entry.index_next or appended.first + appended.count
                    passed = self._hub.acknowledged(command.stream, index_next, command.partition)
                    self._bridge.run(passed, self._context)
                with self._lock:
                    ack = self._session.stored(
                        entry.number, appended.first, appended.count, appended.duplicate, entry.batches
                    )
                self._records_in.inc(0 if appended.duplicate else appended.count)
            except Exception as error:
                ack = self._failed(entry.number, error)
            self._send(ack)
        with self._lock:
            self._session.end()
            ack = self._session.last_ack()
        self._send(ack)

    def _failed(self, number: int, error: Exception) -> PutAck | None:
        if not isinstance(error, HeadraceError | flight.FlightCancelledError):
            logger.error("an append of a Flight put failed unexpectedly", exc_info=error)
        if not isinstance(error, HeadraceError):
            error = Busy("the append was cancelled, or failed inside the hub; its log says more")
        with self._lock:
            return self._session.fail(number, error.to_keep())

    def _send(self, ack: PutAck | None) -> None:
        if ack is None:
            return
        try:
            self._writer.write(pa.py_buffer(encode(ack)))
        except (pa.ArrowException, OSError):
            # The client has gone: what it sent is stored all the same, and there is nobody to tell.
            logger.debug("nobody reads the acknowledgements of this put any more")
