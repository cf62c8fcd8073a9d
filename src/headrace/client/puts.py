"""One Flight put from the client's side, and the thread that reads its acknowledgements.

When the connection breaks and every batch under way carries a producer and sequence, the put is opened again and those
batches are sent again: the hub stores each once. Otherwise whoever waits is told.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import threading
import time
from collections import deque
from typing import NamedTuple

import pyarrow as pa
import pyarrow.flight as flight

from headrace.client.connection import Connection
from headrace.errors import Closed, DiskFull, HeadraceError, NotHere, Unreachable
from headrace.log.ops import Appended
from headrace.protocols.flight.codec import PutCommand, decode_ack, encode, error_from_body, refused_batch

UNDER_WAY_BYTES_MAX = 32 << 20
UNDER_WAY_BATCHES_MAX = 10_000
RETRY_PAUSE_S = 0.1


class NotStored(Closed):
    """The put or writer ended before this batch, which is certainly not stored."""


class _UnderWay(NamedTuple):
    """A batch that was sent and not yet acknowledged. Without a producer it must not be sent twice."""

    batch: pa.RecordBatch
    metadata: bytes
    future: concurrent.futures.Future[Appended]


class Put:
    """An open put. One thread at a time sends; the put's own thread settles the futures in order."""

    def __init__(self, connection: Connection, command: PutCommand, schema: pa.Schema, retry_s: float) -> None:
        self.schema = schema
        self._connection = connection
        self._command = command
        self._retry_s = retry_s
        self._error: HeadraceError | None = None
        self._under_way: deque[_UnderWay] = deque()
        self._bytes = 0
        self._changed = threading.Condition()  # guards the four above
        self._writing = threading.Lock()  # guards the call: held by whoever writes to it, ends it or opens it anew
        self._finishing = False
        self._has_taken = False
        self._settled_count = 0  # of the call, which numbers its batches from 0
        self._refused: int | None = None
        self._broken_since: float | None = None
        self._open()
        self._thread = threading.Thread(target=self._run, name="headrace-acks", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        self._settled_count = 0
        descriptor = flight.FlightDescriptor.for_command(encode(self._command))
        with self._connection.translated():
            self._writer, self._acks = self._connection.flight.do_put(
                descriptor, self.schema, self._connection.options()
            )

    @property
    def ended(self) -> bool:
        """Whether the put is over, so that a new one is needed."""
        return self._error is not None

    @property
    def refusal(self) -> HeadraceError | None:
        """Why the put ended before it was given a batch, if the hub said so: another one would fare no better."""
        return None if self._has_taken or _is_gone(self._error) else self._error

    def send(self, batch: pa.RecordBatch, metadata: bytes) -> concurrent.futures.Future[Appended] | None:
        """Put one batch on its way, after waiting for room; None when the put ended before that: nothing was sent."""
        entry = _UnderWay(batch, metadata, concurrent.futures.Future())
        entry.future.set_running_or_notify_cancel()  # what is on its way to the hub cannot be called back
        with self._changed:
            while self._error is None and self._is_full(batch.nbytes):
                self._changed.wait()
        with self._writing:
            with self._changed:
                if self._error is not None:
                    return None
                self._has_taken = True
                self._under_way.append(entry)
                self._bytes += batch.nbytes
            self._write(entry)
        return entry.future

    def _is_full(self, size: int) -> bool:
        if len(self._under_way) >= UNDER_WAY_BATCHES_MAX:
            return True
        return bool(self._under_way) and self._bytes + size > UNDER_WAY_BYTES_MAX

    def _write(self, entry: _UnderWay) -> None:
        # A failure to write means that the call has ended: the put's thread learns why and does what is to be done.
        # (Arrow says ArrowInvalid, "already closed", for every write after the first that failed.)
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.write_with_metadata(entry.batch, entry.metadata)

    def finish(self) -> None:
        """Send nothing more, and wait until everything sent is settled."""
        self.end()
        self._thread.join()

    def end(self) -> None:
        """Send nothing more; what was sent is settled in its time."""
        with self._writing:
            self._finishing = True
            self._done_writing()

    def _done_writing(self) -> None:
        with contextlib.suppress(pa.ArrowException, OSError):
            self._writer.done_writing()

    # The put's own thread --------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            failure = self._read_acks()
            with self._writing:
                failure = self._end_call(failure)
                if self._may_resume(failure):
                    failure = self._resume()
                    if failure is None:
                        continue
                with self._changed:
                    self._error = failure or Closed("the put has ended")
                    left = list(self._under_way)
                    self._under_way.clear()
                    self._changed.notify_all()
            break
        for number, entry in enumerate(left, self._settled_count):
            assert failure is not None
            entry.future.set_exception(self._told(number, failure))

    def _told(self, number: int, failure: HeadraceError) -> HeadraceError:
        """What to tell whoever waits for a batch of a put that has failed."""
        if self._refused is None or number == self._refused:
            return failure
        if number < self._refused:
            return Unreachable("stored, but its acknowledgement was lost: the put ended as a later batch was refused")
        return NotStored(f"not stored: an earlier batch of the same writer was refused: {failure}")

    def _note_refusal(self, failure: HeadraceError, batch: int | None) -> None:
        # What may pass says nothing of the batches behind the refused one: they may be stored. A full disk says it.
        open_ended = failure.retriable and not isinstance(failure, DiskFull | NotHere)
        self._refused = None if open_ended else batch

    def _read_acks(self) -> HeadraceError | None:
        """Settle futures until the call ends; the failure, if the hub sent one or the connection said so."""
        try:
            while (message := self._acks.read()) is not None:
                ack = decode_ack(message.to_pybytes())
                if ack.error is not None:
                    failure = error_from_body(ack.error)
                    self._note_refusal(failure, ack.batch)
                    return failure
                self._settle(Appended(ack.first, ack.count, ack.duplicate))
        except (pa.ArrowException, OSError) as error:
            return self._status(error)
        except HeadraceError as error:
            return error
        return None

    def _status(self, error: Exception) -> HeadraceError:
        """Why the call ended, and which batch it was for."""
        failure = self._connection.failure(error)
        if isinstance(error, flight.FlightError) and error.extra_info:
            self._note_refusal(failure, refused_batch(error.extra_info))
        return failure

    def _settle(self, appended: Appended) -> None:
        self._broken_since = None
        with self._changed:
            entry = self._under_way.popleft()
            self._bytes -= entry.batch.nbytes
            self._settled_count += 1
            self._changed.notify_all()
        entry.future.set_result(appended)

    def _end_call(self, failure: HeadraceError | None) -> HeadraceError | None:
        """End the call and learn its status; an early end without one is a broken connection."""
        try:
            self._writer.close()
        except (pa.ArrowException, OSError) as error:
            failure = failure or self._status(error)
        if failure is None and self._under_way:
            failure = Unreachable("the put ended before the hub had acknowledged everything")
        return failure

    def _may_resume(self, failure: HeadraceError | None) -> bool:
        if not _is_gone(failure) or not self._under_way or not self._retry_s:
            return False
        if not all(entry.metadata for entry in self._under_way):
            return False
        if self._broken_since is None:
            self._broken_since = time.monotonic()
        return not self._is_late()

    def _is_late(self) -> bool:
        return self._broken_since is not None and time.monotonic() - self._broken_since > self._retry_s

    def _resume(self) -> HeadraceError | None:
        """Open the call again and send again what was under way; the failure when there was no time left for it."""
        while True:
            time.sleep(RETRY_PAUSE_S)
            try:
                self._open()
                break
            except HeadraceError as failure:
                if not _is_gone(failure) or self._is_late():
                    return failure
        for entry in self._under_way:
            self._write(entry)
        if self._finishing:
            self._done_writing()
        return None


def _is_gone(failure: HeadraceError | None) -> bool:
    """Whether the hub went away. Narrower than `retriable`: a hub that is there and says why it does not store (busy,
    disk full, log failed) is heard by the caller at once, who may wait or not."""
    return isinstance(failure, Unreachable | Closed | NotHere)
