"""The reader of what a binding sends, built for many small calls: bytes in any pieces in, events out.

RPCs are never turned into one object each. Consecutive RPCs with the same head (destination, method, RPC type) become
one `Calls`: their delivered form (destination cut out, size written again) packed into few bytes objects, plus a list
of lengths. A stretch of RPCs of equal head *and* equal size is found and rewritten by numpy in one step::

    sent        Size | 00 | n | destination | 00 method type | arguments
    delivered   Size'| 00 |                   00 method type | arguments        Size' = Size - len(n) - n

The reader never raises. On the first message that the protocol does not allow it appends `Malformed` as the last
event and reads nothing more; what came before stays valid. A batch is taken whole or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from headrace.protocols.ambrosia.codec import (
    AttachTo,
    Blob,
    BodyKind,
    Checkpoint,
    InitialMessage,
    RpcType,
    Signal,
    Type,
    decode_checkpoint,
    peek_int,
    read_body_head,
    read_int,
    read_name,
    zigzag_int,
)
from headrace.protocols.ambrosia.settings import Ambrosia
from headrace.protocols.errors import RemoteProtocolError
from headrace.units import KIB

LARGE_BYTES: Final = 32 * KIB
RUN_COUNT_MIN: Final = 8  # shorter stretches of equal messages are cheaper one by one
ALLOWED_FROM_BINDING: Final = frozenset(
    {Type.RPC, Type.ATTACH_TO, Type.TAKE_CHECKPOINT, Type.RPC_BATCH, Type.CHECKPOINT, Type.INITIAL_MESSAGE}
)
RPC_TYPE_NAMES: Final[dict[int, str]] = {RpcType.ASYNC: "async", RpcType.FORK: "fork", RpcType.IMPULSE: "impulse"}
RETURN_NAMES: Final[dict[int, str]] = {
    BodyKind.VALUE: "return",
    BodyKind.EMPTY: "return-empty",
    BodyKind.EXCEPTION: "exception",
}


@dataclass(eq=False, repr=False, slots=True)
class Calls:
    """Consecutive RPCs of one destination, method and type, in the form in which they are delivered."""

    destination: bytes
    label: str
    replayable: bool
    lengths: list[int] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)

    @property
    def count(self) -> int:
        """How many RPCs."""
        return len(self.lengths)

    def payload(self) -> bytes:
        """The messages, packed."""
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)

    def _with(self, lengths: list[int], payload: bytes) -> Calls:
        return Calls(self.destination, self.label, self.replayable, lengths, [payload])

    def without_first(self, count: int) -> Calls:
        """The same without its first RPCs, which were delivered already."""
        return self._with(self.lengths[count:], self.payload()[sum(self.lengths[:count]) :])

    def cut(self, bytes_max: int, count_max: int) -> list[Calls]:
        """The same in pieces of at most so many bytes and RPCs; only a single larger RPC makes a larger piece."""
        if self.count == 1:
            return [self]  # it may have megabytes, which nobody need copy
        ends = np.cumsum(self.lengths)
        payload = memoryview(self.payload())
        pieces: list[Calls] = []
        first = start = 0
        while first < self.count:
            fit = int(np.searchsorted(ends, start + bytes_max, side="right"))
            after = max(first + 1, min(fit, first + count_max))
            end = int(ends[after - 1])
            pieces.append(self._with(self.lengths[first:after], bytes(payload[start:end])))
            first, start = after, end
        return pieces


@dataclass(frozen=True, slots=True)
class Malformed:
    """The binding sent what the protocol does not allow; the link has to be closed."""

    reason: str


Event: TypeAlias = Calls | AttachTo | InitialMessage | Signal | Checkpoint | Blob | Malformed


def label_of_call(method: int, rpc_type: int) -> str:
    """The text in the `type` column of the log: `fork/33`, `impulse/2`, `async/7`, `type-3/5`."""
    return f"{name_of_rpc_type(rpc_type)}/{method}"


def name_of_rpc_type(rpc_type: int) -> str:
    """`fork`, `impulse`, `async`, or `type-N` for numbers that the protocol carries without knowing them."""
    return RPC_TYPE_NAMES.get(rpc_type) or f"type-{rpc_type}"


@dataclass(eq=False, slots=True)
class _Head:
    """What the RPCs of one stretch share: the bytes from the type byte up to the RPC type."""

    data: bytes
    size: int
    cut: int  # bytes of destination length and destination
    calls: Calls
    numbered: bool  # a name and a call number follow: async calls and return values


class MessageReader:
    """The receive side of a coordinator for one binding."""

    def __init__(self, limits: Ambrosia | None = None) -> None:
        self.limits = limits or Ambrosia()
        self.failed = False
        self.buffered_bytes = 0
        """Bytes of a message that is not whole yet."""
        self._pieces: list[bytes] = []
        self._needed_bytes = 1
        self._blob_left = 0

    def release(self) -> None:
        """Forget half a message: nothing more comes."""
        self.failed = True
        self._pieces.clear()
        self.buffered_bytes = 0

    def completes_large(self, data: bytes) -> bool:
        """Whether `data` brings the rest of a message that may take long to read."""
        return self.buffered_bytes > LARGE_BYTES and self.buffered_bytes + len(data) >= self._needed_bytes

    def feed(self, data: bytes) -> list[Event]:
        """All events that `data` completes."""
        if self.failed:
            return []
        if self._pieces:
            self._pieces.append(data)
            self.buffered_bytes += len(data)
            if self.buffered_bytes < self._needed_bytes:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        events: list[Event] = []
        try:
            at = self._scan(data, events)
        except RemoteProtocolError as error:
            self.failed = True
            self.buffered_bytes = 0
            events.append(Malformed(str(error)))
            return events
        self.buffered_bytes = len(data) - at
        if self.buffered_bytes:
            self._pieces.append(data[at:])
        return events

    def _scan(self, data: bytes, events: list[Event]) -> int:
        at, end = 0, len(data)
        while at < end:
            if self._blob_left:
                piece = data[at : at + self._blob_left]
                at += len(piece)
                self._blob_left -= len(piece)
                events.append(Blob(piece, not self._blob_left))
                continue
            after = self._scan_calls(data, at, end, events)
            if after != at:
                at = after
                continue
            body = self._whole_message(data, at, end)
            if body is None:
                return at
            at, after = body
            self._message(data, at, after, events)
            at = after
        self._needed_bytes = 1
        return at

    def _whole_message(self, data: bytes, at: int, end: int) -> tuple[int, int] | None:
        """Where the type byte stands and where the message ends; None when more bytes are needed.

        Size and type are judged as soon as they are known, before a large message is gathered.
        """
        integer = peek_int(data, at, end)
        if integer is None:
            self._needed_bytes = end - at + 1
            return None
        size, body = integer
        if size < 1:
            raise RemoteProtocolError(f"a message of {size} bytes")
        self._check("a message", size, "message_bytes_max")
        if body < end and data[body] not in ALLOWED_FROM_BINDING:
            raise RemoteProtocolError(f"a message of type {data[body]}, which a binding does not send")
        if body + size > end:
            self._needed_bytes = (body + size if body < end else body + 1) - at
            return None
        return body, body + size

    def _message(self, data: bytes, at: int, end: int, events: list[Event]) -> None:
        """Any message but a bare RPC, whose type byte is at `at`."""
        kind = data[at]
        at += 1
        if kind == Type.RPC_BATCH:
            self._batch(data, at, end, events)
        elif kind == Type.ATTACH_TO:
            self._check("a name", end - at, "name_bytes_max")
            if at == end:
                raise RemoteProtocolError("an AttachTo without a destination")
            events.append(AttachTo(data[at:end]))
        elif kind == Type.INITIAL_MESSAGE:
            self._check("an InitialMessage", end - at, "initial_bytes_max")
            events.append(InitialMessage(data[at:end]))
        elif kind == Type.CHECKPOINT:
            checkpoint = decode_checkpoint(data, at, end)
            self._check("a checkpoint", checkpoint.size, "checkpoint_bytes_max")
            self._blob_left = checkpoint.size
            events += [checkpoint] if checkpoint.size else [checkpoint, Blob(b"", True)]
        else:
            if at != end:
                raise RemoteProtocolError(f"a TakeCheckpoint with {end - at} bytes of data")
            events.append(Signal(Type.TAKE_CHECKPOINT))

    def _check(self, what: str, size: int, key: str) -> None:
        """`key` names the setting in `[ambrosia]` that limits the size."""
        limit: int = getattr(self.limits, key)
        if size > limit:
            raise RemoteProtocolError(f"{what} of {size} bytes, above ambrosia.{key} = {limit}")

    def _batch(self, data: bytes, at: int, end: int, events: list[Event]) -> None:
        """A batch of 0 is ignored and a batch of 1 is a plain call; all is well formed or nothing is taken."""
        count, at = read_int(data, at, end)
        if count > self.limits.batch_calls_max:
            limit = self.limits.batch_calls_max
            raise RemoteProtocolError(f"a batch of {count} calls, above ambrosia.batch_calls_max = {limit}")
        inner: list[Event] = []
        after = self._scan_calls(data, at, end, inner)
        if after != end:
            raise RemoteProtocolError("a batch that holds something other than whole RPCs")
        taken = sum(calls.count for calls in inner if isinstance(calls, Calls))
        if taken != count:
            raise RemoteProtocolError(f"a batch of {taken} RPCs that says {count}")
        events += inner

    def _head(self, data: bytes, at: int, end: int, events: list[Event]) -> _Head:
        """Read one RPC with care, and open the `Calls` that it and its likes go to."""
        destination, body = read_name(data, at + 1, end)
        if len(destination) > self.limits.name_bytes_max:
            self._check("a name", len(destination), "name_bytes_max")
        kind, method, rpc_type, after = read_body_head(data, body, end)
        label = RETURN_NAMES[kind] if kind else label_of_call(method, rpc_type)
        calls = Calls(destination, label, rpc_type != RpcType.IMPULSE)
        events.append(calls)
        return _Head(data[at:after], after - at, body - at - 1, calls, rpc_type == RpcType.ASYNC)

    def _scan_calls(self, data: bytes, at: int, end: int, events: list[Event]) -> int:
        """Take RPCs from `at` on until something else, or half a message, stands there; return that place."""
        size_max = self.limits.message_bytes_max
        head: _Head | None = None
        previous_size = 0
        while at < end:
            size = data[at]
            if size < 0x80 and not size & 1:
                size >>= 1
                body = at + 1
            else:
                integer = peek_int(data, at, end)
                if integer is None:
                    break
                size, body = integer
            after = body + size
            if size < 1 or after > end or size > size_max or data[body]:
                break  # data[body] is the type: an RPC is type 0
            if head is None or size < head.size or not data.startswith(head.data, body):
                head = self._head(data, body, after, events)
                previous_size = 0
            if head.numbered:
                self._check_numbered(data, body + head.size, after)
            elif size == previous_size and (end - at) // (after - at) >= RUN_COUNT_MIN:
                at = _take_run(data, at, after - at, body - at, end, head)
                previous_size = 0  # whatever follows differs: look at two more before trying again
                continue
            message = zigzag_int(size - head.cut) + b"\0" + data[body + 1 + head.cut : after]
            head.calls.parts.append(message)
            head.calls.lengths.append(len(message))
            previous_size = size
            at = after
        return at

    def _check_numbered(self, data: bytes, at: int, end: int) -> None:
        """The name and the number must be whole: a receiver that chokes on a logged message could never recover."""
        name, at = read_name(data, at, end)
        if len(name) > self.limits.name_bytes_max:
            self._check("a name", len(name), "name_bytes_max")
        read_int(data, at, end, 64)


def _take_run(data: bytes, at: int, stride: int, size_bytes: int, end: int, head: _Head) -> int:
    """Take all messages from `at` on that have the same size and head, in one step each some hundred."""
    prefix = size_bytes + head.size
    count = _equal_count(np.frombuffer(data, np.uint8, offset=at), stride, prefix, (end - at) // stride)
    body_size = stride - size_bytes - head.cut
    new_head = zigzag_int(body_size) + b"\0" + head.data[1 + head.cut :]
    sent = np.frombuffer(data, np.uint8, count * stride, at).reshape(count, stride)
    length = len(new_head) + stride - prefix
    delivered = np.empty((count, length), np.uint8)
    delivered[:, : len(new_head)] = np.frombuffer(new_head, np.uint8)
    delivered[:, len(new_head) :] = sent[:, prefix:]
    head.calls.parts.append(delivered.tobytes())
    head.calls.lengths.extend([length] * count)
    return at + count * stride


def _equal_count(view: npt.NDArray[np.uint8], stride: int, prefix: int, count_max: int) -> int:
    """How many strides begin with the same `prefix` bytes as the first; the steps grow, so short runs stay cheap."""
    first = view[:prefix]
    count, step = 1, 32
    while count < count_max:
        step = min(step * 4, count_max - count)
        block = view[count * stride : (count + step) * stride].reshape(step, stride)[:, :prefix]
        same = (block == first).all(axis=1)
        if not same.all():
            return count + int(same.argmin())
        count += step
    return count
