"""What a hub and a process that runs a query for it say to each other, over a socket of their own.

    head:u32  body:u64  head bytes (MessagePack of a message below)  body bytes (Arrow or JSON)

    hub      Ask ────────────────────────────────────────────────────────► process    the statement
    hub ◄──  Resolve, Scan, Next ◄────────────────────────────────────────  process    what it needs to read
    hub      Relations, Opened, Part ────────────────────────────────────► process    what it gets
    hub ◄──  Columns, then Rows any number of times, each answered by More  process    the result
    hub ◄──  Finished, or Failed ◄────────────────────────────────────────  process    the end; then the next Ask

The process knows only what it was sent: who asks, and what they may read, is for the hub to know. It imports nothing of
Headrace but this room.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Any, Literal

import msgspec

HEAD_BYTES_MAX = 16 << 20
_SIZES = struct.Struct("<IQ")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of all messages."""


class Dialect(msgspec.Struct, frozen=True, array_like=True):
    """What names in statements may be, as their scope has it."""

    is_plain: bool = False
    """Names may have a schema before them, and nothing has a meaning of the hub's own: no `stream(…)`, no `value`."""
    hidden: tuple[str, ...] = ()
    """Columns that are there for those who name them: `*` does not mean them."""


class ValueLimits(msgspec.Struct, frozen=True, array_like=True):
    """How much of JSON payloads `value` opens."""

    fields_max: int
    depth_max: int


class Ask(Message, frozen=True):
    """Run a statement. `form` is how rows come back: Arrow batches, JSON lines, or only the columns."""

    text: str
    parameters: list[Any]
    value: ValueLimits
    form: Literal["arrow", "json", "columns"] = "arrow"
    rows_max: int | None = None
    """No row after this one is wanted."""
    bytes_max: int | None = None
    """Nor one with which the rows of the result would take more than this."""
    dialect: Dialect = Dialect()


class Relation(Message, frozen=True):
    """Something to read that the hub has let the statement read. Its Arrow schema is the body of `Relations`, which
    holds those of all, one behind the other, of `schema_bytes` each."""

    number: int
    name: str
    schema_bytes: int
    places: list[tuple[str, int, int, int]]
    """The partitions it consists of, each with its stream's name, its number, its first and its next index."""
    opened: str | None = None
    """The column with JSON that `value` opens."""
    is_stream: bool = False
    """Whether its records have an index and a time, and come from its places."""


class Wanted(Message, frozen=True):
    """A name in a statement (in a plain one, its parts), and the options of `stream('name', option => 'value')`."""

    names: list[str]
    options: dict[str, str] = {}


class Resolve(Message, frozen=True):
    """May the statement read these, and what are they? Answered by `Relations`, in the same order."""

    wanted: list[Wanted]


class Relations(Message, frozen=True):
    """The answer. None for a name that there is not."""

    relations: list[Relation | None]


class Bounds(Message, frozen=True):
    """What is wanted of a relation at most: both ends are included, None is open."""

    index_min: int | None = None
    index_max: int | None = None
    time_min_us: int | None = None
    time_max_us: int | None = None
    places: list[int] | None = None
    """Which of the relation's places."""


class Scan(Message, frozen=True):
    """Begin to read a relation. Answered by `Opened`."""

    relation: int
    columns: list[str]
    bounds: Bounds


class Opened(Message, frozen=True):
    """A scan has begun."""

    scan: int


class Next(Message, frozen=True):
    """More of a scan, or with `close` no more. Answered by `Part`."""

    scan: int
    close: bool = False


class Part(Message, frozen=True):
    """Rows of a scan: an Arrow batch as body. Without rows the scan has ended."""

    rows: int
    place: int = 0


class Columns(Message, frozen=True):
    """The columns of the result: names and SQL types; the Arrow schema is the body."""

    names: list[str]
    types: list[str]


class Rows(Message, frozen=True):
    """Rows of the result as body, an Arrow batch or JSON arrays with commas between. Answered by `More`."""

    rows: int


class More(Message, frozen=True):
    """Go on."""


class Finished(Message, frozen=True):
    """All rows that were wanted have been sent. `is_whole`: there were no others."""

    is_whole: bool
    limits_met: list[str] = []
    """Limits of `value` because of which it has less than the payloads."""


class Failed(Message, frozen=True):
    """The statement cannot be run, and why. `kind` is `sql`, or the limit that was met."""

    kind: Literal["sql", "memory", "hub"]
    text: str


Said = Ask | Resolve | Relations | Scan | Opened | Next | Part | Columns | Rows | More | Finished | Failed
_decoder = msgspec.msgpack.Decoder(Said)


class Gone(Exception):
    """The other side has ended."""


class Wire:
    """One end of the socket. Used by one thread at a time."""

    def __init__(self, connection: socket.socket, body_bytes_max: int = 1 << 40) -> None:
        self.socket = connection
        self._body_bytes_max = body_bytes_max

    def send(self, message: Message, body: Any = b"") -> None:
        """Send one message; raises `Gone`, or `TimeoutError` if the socket has a timeout."""
        head = msgspec.msgpack.encode(message)
        size = len(body)
        try:
            self.socket.sendall(_SIZES.pack(len(head), size) + head)
            if size:
                self.socket.sendall(body)
        except TimeoutError:
            raise
        except OSError as error:
            raise Gone(str(error)) from error

    def receive(self) -> tuple[Any, memoryview]:
        """The next message with its body. A peer that breaks the rules is gone."""
        sizes = self._exactly(_SIZES.size)
        head_size, body_size = _SIZES.unpack(sizes)
        if head_size > HEAD_BYTES_MAX or body_size > self._body_bytes_max:
            raise Gone(f"it sent a message of {head_size} + {body_size} bytes")
        try:
            message = _decoder.decode(self._exactly(head_size))
        except msgspec.MsgspecError as error:
            raise Gone(f"it sent something other than a message: {error}") from error
        return message, self._exactly(body_size)

    def ask(self, message: Message, kind: type[Message]) -> tuple[Any, memoryview]:
        """Send, and receive the answer of a kind."""
        self.send(message)
        answer, body = self.receive()
        if not isinstance(answer, kind):
            raise Gone(f"it answered with {type(answer).__name__}")
        return answer, body

    def _exactly(self, size: int) -> memoryview:
        received = memoryview(bytearray(size))
        at = 0
        while at < size:
            try:
                count = self.socket.recv_into(received[at:])
            except TimeoutError:
                raise
            except OSError as error:
                raise Gone(str(error)) from error
            if not count:
                raise Gone("its connection has ended")
            at += count
        return received

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
