"""The few things that Spark asks of a hub, and nothing more.

Everything in this package that runs in a Spark process speaks to the hub through `HubPort`. A call that meets a hub
which is down (restarting, say) is repeated until it answers or `wait_s` has passed, so a running query outlives a
restart of the hub. All calls are safe to repeat: reads, and writes that name their batch.
"""

from __future__ import annotations

import functools
import operator
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.flight as flight

from headrace.client.connection import Connection
from headrace.config.profiles import PEM_BEGINS, resolve
from headrace.errors import HeadraceError, Unreachable
from headrace.log.segment import SegmentRef
from headrace.protocols.flight.codec import decode_error
from headrace.spark.errors import BadOption

CALL_TIMEOUT_S = 300.0
READ_BATCH_BYTES = 4 << 20
# What Flight says of a connection that a later attempt may mend.
PASSING = (
    flight.FlightUnavailableError,
    flight.FlightCancelledError,
    flight.FlightTimedOutError,
    flight.FlightInternalError,
)
WAIT_S_DEFAULT = 120.0
TLS_SCHEME = "grpc+tls://"
_RETRY_FIRST_S = 0.05
_RETRY_MOST_S = 1.0


@dataclass(frozen=True)
class StreamState:
    """A stream as the planner sees it: `bounds[p]` is (first index kept, next index) of partition p."""

    name: str
    id: int
    bounds: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Access:
    """Where a hub is, and what it asks of those who come.

    `ca` holds certificates in PEM: its text and not its path, since tasks run on machines that lack the file.
    """

    address: str
    token: str | None = field(default=None, repr=False)
    ca: str | None = field(default=None, repr=False)


class HubPort:
    """A hub, seen from Spark. Connects on first use; not safe for several threads."""

    def __init__(self, address: str, connect: Callable[[], HubConnection], wait_s: float = WAIT_S_DEFAULT) -> None:
        self.address = address
        self._connect = connect
        self._wait_s = wait_s
        self._connection: HubConnection | None = None

    def close(self) -> None:
        """Let go of the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def call(self, verb: str, request: dict[str, Any], **body: bytes) -> Any:
        """Call a verb of the hub; the answer as plain Python values. `body` is one more field, which is not JSON."""
        deadline = time.monotonic() + self._wait_s
        pause_s = _RETRY_FIRST_S
        while True:
            try:
                return self._connected().call(verb, request, **body)
            except HeadraceError as error:
                pause_s = self._pause(deadline, pause_s, error)

    def describe(self, names: Sequence[str]) -> list[StreamState]:
        """The streams with these names (or matching these patterns) that exist now."""
        return msgspec.convert(self.call("spark.describe", {"names": list(names)}), list[StreamState])

    def index_at_time(self, stream: str, partition: int, time_us: int) -> int:
        """The first index whose time is not before `time_us`."""
        request = {"stream": stream, "partition": partition, "time_us": time_us}
        return int(self.call("stream.index-at-time", request)["index"])

    def segments(self, stream: str) -> dict[int, list[SegmentRef]]:
        """The sealed files of a stream by partition, oldest first."""
        answer = self.call("stream.segments", {"stream": stream})
        values = operator.itemgetter(*SegmentRef._fields)
        return {
            of["partition"]: [SegmentRef(*values(file)) for file in of["segments"] if file["path"]]
            for of in answer["partitions"]
        }

    def position(self, cursor: str, stream: str) -> list[int | None]:
        """How far the reader behind a cursor has come for good, by partition."""
        return list(self.call("spark.position", {"cursor": cursor, "stream": stream}))

    def move_cursor(self, cursor: str, positions: Mapping[str, Sequence[int | None]]) -> None:
        """Move a cursor forward to these positions, by stream and partition; it never goes back, nor where None is."""
        self.call("spark.move-cursor", {"cursor": cursor, "positions": positions})

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """The records from `start` up to, not including, `end`, in order. Goes on where it was when the hub returns.

        With `types` only records of these; the hub then says `Trimmed` instead of leaving a gap that nobody could see.
        """
        position = start
        deadline = time.monotonic() + self._wait_s
        pause_s = _RETRY_FIRST_S
        while position < end:
            try:
                for batch in self._connected().read(stream, partition, position, end, columns, types):
                    yield batch
                    if batch.num_rows:
                        position = batch.column("index")[-1].as_py() + 1
                        deadline, pause_s = time.monotonic() + self._wait_s, _RETRY_FIRST_S
                return
            except HeadraceError as error:
                pause_s = self._pause(deadline, pause_s, error)

    def waiting(self, wait_s: float) -> HubPort:
        """Another port to the same hub that waits this long."""
        return HubPort(self.address, self._connect, wait_s)

    def _connected(self) -> HubConnection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _pause(self, deadline: float, pause_s: float, error: HeadraceError) -> float:
        """Wait before the next attempt, if there is time for one and the error may pass."""
        if not error.retriable:
            raise error
        self.close()
        if time.monotonic() + pause_s > deadline:
            raise Unreachable(
                f"the hub at {self.address} has not answered for {self._wait_s:g} s: {error}. Start it with "
                "`headrace up`, or say where it is with the option `hub` or the variable HEADRACE_HUB"
            ) from error
        time.sleep(pause_s)
        return min(pause_s * 2, _RETRY_MOST_S)


def access_to(address: str | None = None, token: str | None = None, ca: str | None = None) -> Access:
    """How to reach a hub: what is given, otherwise HEADRACE_HUB, HEADRACE_TOKEN and HEADRACE_CA, otherwise the
    profile that `headrace use` chose.

    `ca` is the path of a file, or its text.
    """
    target = resolve(address, token=token, tls=ca or False)
    authority = "" if isinstance(target.tls, bool) else target.tls
    text = authority.decode() if isinstance(authority, bytes) else str(authority)
    if text and not text.lstrip().startswith(PEM_BEGINS):
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise BadOption("ca", text, f"a file with certificates in PEM ({error.strerror})") from error
    return Access(target.address, target.token, text or None)


def open_port(hub: str | Access, wait_s: float = WAIT_S_DEFAULT) -> HubPort:
    """A port to a hub."""
    access = access_to(hub) if isinstance(hub, str) else hub
    return HubPort(access.address, lambda: HubConnection(access), wait_s)


class HubConnection:
    """A connection over Arrow Flight, as the SDK makes it: address, token and TLS mean the same here."""

    def __init__(self, access: Access) -> None:
        tls = access.ca.encode() if access.ca and access.address.startswith(TLS_SCHEME) else False
        with _translated():
            self._connection = Connection(
                access.address, token=access.token, user=None, password=None, tls=tls, timeout_s=CALL_TIMEOUT_S
            )

    def call(self, verb: str, request: dict[str, Any], **body: bytes) -> Any:
        if body:
            return self._put(verb, request, body)
        with _translated():
            action = flight.Action(verb, msgspec.json.encode(request))
            (result,) = self._connection.flight.do_action(action, self._connection.options(CALL_TIMEOUT_S))
            return msgspec.json.decode(result.body.to_pybytes())

    def _put(self, verb: str, request: dict[str, Any], body: dict[str, bytes]) -> Any:
        """A call whose bytes travel as they are: a put into a verb."""
        (name,) = body
        row = pa.record_batch({name: pa.array([body[name]], pa.binary())})
        command = flight.FlightDescriptor.for_command(msgspec.json.encode({"verb": verb}))
        with _translated():
            options = self._connection.options(CALL_TIMEOUT_S)
            writer, answers = self._connection.flight.do_put(command, row.schema, options)
            with writer:  # on the way out it raises what the hub refused
                writer.write_with_metadata(row, pa.py_buffer(msgspec.json.encode(request)))
                writer.done_writing()
                answer = answers.read()
            if answer is None:
                raise Unreachable(f"the hub did not answer {verb}")
            return msgspec.json.decode(answer.to_pybytes())

    def read(
        self,
        stream: str,
        partition: int,
        start: int,
        end: int,
        columns: Sequence[str] | None,
        types: Sequence[str] | None,
    ) -> Iterator[pa.RecordBatch]:
        ticket: dict[str, Any] = {"stream": stream, "partition": partition, "start": start, "end": end}
        # Records below the first one kept are left out of all types: whoever asked sees the gap and names it.
        ticket |= {"on_trimmed": "skip" if types is None else "fail", "batch_bytes": READ_BATCH_BYTES}
        if columns is not None:
            ticket["columns"] = list(columns)
        if types is not None:
            ticket["types"] = list(types)
        with _translated():
            asked = flight.Ticket(msgspec.json.encode(ticket))
            for chunk in self._connection.flight.do_get(asked, self._connection.options()):
                yield chunk.data

    def close(self) -> None:
        self._connection.close()


@contextmanager
def _translated() -> Iterator[None]:
    """Flight's errors as the hub's own, or as Unreachable when waiting may help."""
    try:
        yield
    except flight.FlightError as error:
        decoded = decode_error(error.extra_info) if error.extra_info else None
        if decoded is not None:
            raise decoded from None
        reason = str(error).partition(". Detail:")[0]
        if isinstance(error, PASSING):
            raise Unreachable(reason) from error
        raise HeadraceError(f"the hub failed: {reason}") from error
    except pa.ArrowException as error:
        raise Unreachable(str(error)) from error


def shared_port(access: Access, wait_s: float = WAIT_S_DEFAULT) -> HubPort:
    """The port of this process to a hub: Spark's workers are reused, so is their connection.

    The process id is part of the key because workers are forked and a connection must not be shared by two.
    """
    return _port_of(os.getpid(), access, wait_s)


@functools.cache
def _port_of(process: int, access: Access, wait_s: float) -> HubPort:
    return open_port(access, wait_s)
