"""The AMBROSIA client protocol as bytes: integers, messages, log records. Pure: no sockets, no hub.

The coordinator (the hub) and a language binding (the service) talk over two one-way sockets::

    binding ──► coordinator    message message message ...              bare, no records
    coordinator ──► binding    record record [blob] record ...          messages only inside records

    message   Size ZigZagInt (1-5) | Type (1) | Data (Size - 1)
    record    committer i32 | length i32 | check u64 | sequence i64 | message message ...      all little endian
              └──────────────────── 24 bytes ────────────────────┘
              length counts header and messages; check is xxHash64 (seed 0) of the messages
              sequence: 0, 1, 2 ... data; -1 control; -2 checkpoint (check bytes 0, the blob follows, not in length)

    RPC data, to the coordinator    ZigZagInt n | destination (n bytes; n = 0 is a call to oneself) | body
    RPC data, to the binding        body
    body      00 | ZigZagInt method | rpc type (1) | [type 0: ZigZagInt n | caller | ZigZagLong call] | arguments
              01 value, 02 empty, 03 exception | ZigZagInt n | responder | ZigZagLong call | value

This module reads and writes one message at a time. `call_reader.py` reads what a binding sends, fast and in any pieces,
and `record_reader.py` what it receives.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

import xxhash

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

RECORD_HEADER: Final = struct.Struct("<iiQq")
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size  # 24
SEQUENCE_CONTROL: Final = -1
SEQUENCE_CHECKPOINT: Final = -2
RECORD_BYTES_MAX: Final = 8 << 20  # a record is closed at this size; only one oversize message makes a larger one


class Type(IntEnum):
    """The type byte of a message."""

    RPC = 0
    ATTACH_TO = 1
    TAKE_CHECKPOINT = 2
    COMMIT = 3
    REPLAY_FROM = 4
    RPC_BATCH = 5
    PING = 6
    PING_RETURN = 7
    CHECKPOINT = 8
    INITIAL_MESSAGE = 9
    UPGRADE_TAKE_CHECKPOINT = 10
    TAKE_BECOMING_PRIMARY_CHECKPOINT = 11
    UPGRADE_SERVICE = 12
    COUNT_REPLAYABLE_RPC_BATCH = 13
    TRIM_TO = 14
    BECOMING_PRIMARY = 15


class RpcType(IntEnum):
    """How a call is meant. Values above 2 pass through unchanged and count as replayable."""

    ASYNC = 0
    FORK = 1
    IMPULSE = 2


class BodyKind(IntEnum):
    """The first byte of an RPC body."""

    CALL = 0
    VALUE = 1
    EMPTY = 2
    EXCEPTION = 3


# --- integers -------------------------------------------------------------------------------------------------


def _encode_zigzag(value: int, bits: int) -> bytes:
    if not -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        raise LocalProtocolError(f"{value} does not fit {bits} bits")
    rest = (value << 1) ^ (value >> (bits - 1))
    rest &= (1 << bits) - 1
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


SMALL_INTS: Final = tuple(_encode_zigzag(value, 32) for value in range(4096))


def zigzag_int(value: int, bits: int = 32) -> bytes:
    """A ZigZagInt, with 64 bits a ZigZagLong: base 128, low group first, in as few bytes as possible."""
    return SMALL_INTS[value] if 0 <= value < len(SMALL_INTS) else _encode_zigzag(value, bits)


def peek_int(data: bytes, at: int, end: int, bits: int = 32) -> tuple[int, int] | None:
    """A ZigZagInt or ZigZagLong and the position after it; None when `end` cuts it off."""
    longest = at + (5 if bits == 32 else 10)
    shift = raw = 0
    while at < end:
        byte = data[at]
        raw |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            raw &= (1 << bits) - 1  # published decoders ignore the bits above; so do we
            return (raw >> 1) ^ -(raw & 1), at
        if at == longest:
            raise RemoteProtocolError(f"an integer of more than {bits} bits")
        shift += 7
    return None


def read_int(data: bytes, at: int, end: int, bits: int = 32) -> tuple[int, int]:
    """A ZigZagInt or ZigZagLong that must be whole, and the position after it."""
    integer = peek_int(data, at, end, bits)
    if integer is None:
        raise RemoteProtocolError("an integer runs past the end of its message")
    return integer


def read_name(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """A ZigZagInt length, that many bytes, and the position after them."""
    length, at = read_int(data, at, end)
    if length < 0 or at + length > end:
        raise RemoteProtocolError(f"a name of {length} bytes where {end - at} are left")
    return data[at : at + length], at + length


def _name(name: bytes | None) -> bytes:
    return b"" if name is None else zigzag_int(len(name)) + name


# --- messages -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """An RPC. `destination` is None in the form that a binding receives, b"" for oneself in the form it sends."""

    method: int
    rpc_type: int
    arguments: bytes
    destination: bytes | None = None
    caller: bytes = b""
    call_number: int = 0


@dataclass(frozen=True, slots=True)
class Return:
    """The answer to an async call: a value, nothing, or an exception."""

    kind: BodyKind
    responder: bytes
    call_number: int
    value: bytes
    destination: bytes | None = None


@dataclass(frozen=True, slots=True)
class RpcBatch:
    """Several RPCs in one message; `replayable` is the count of those that are no impulse, in type 13 only."""

    calls: tuple[Call | Return, ...]
    replayable: int | None = None


@dataclass(frozen=True, slots=True)
class AttachTo:
    """Sent once for each destination before the first RPC to it."""

    destination: bytes


@dataclass(frozen=True, slots=True)
class InitialMessage:
    """Any bytes; they come back as record 0."""

    data: bytes


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`size` bytes of state follow the message. The C client writes the size as fixed 64 bits."""

    size: int
    fixed: bool = False


@dataclass(frozen=True, slots=True)
class Blob:
    """Some bytes of a checkpoint, which follow its message; the last piece says so and may be empty."""

    data: bytes
    last: bool


@dataclass(frozen=True, slots=True)
class Signal:
    """A message without data."""

    type: Type


@dataclass(frozen=True, slots=True)
class Numbers:
    """Between two coordinators: Commit and ReplayFrom (all messages, replayable ones), or TrimTo (one number)."""

    type: Type
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ping:
    """Ping or PingReturn, a test aid of the published coordinator: a call whose arguments are five clock stamps."""

    type: Type
    call: Call


Message: TypeAlias = Call | Return | RpcBatch | AttachTo | InitialMessage | Checkpoint | Signal | Numbers | Ping

SIGNALS: Final = frozenset(
    {
        Type.TAKE_CHECKPOINT,
        Type.UPGRADE_TAKE_CHECKPOINT,
        Type.TAKE_BECOMING_PRIMARY_CHECKPOINT,
        Type.UPGRADE_SERVICE,
        Type.BECOMING_PRIMARY,
    }
)
COUNT_OF_NUMBERS: Final = {Type.COMMIT: 2, Type.REPLAY_FROM: 2, Type.TRIM_TO: 1}
STAMPS_BYTES: Final = 5 * 8
_FIXED_LONG: Final = struct.Struct("<q")


def frame(kind: int, data: bytes) -> bytes:
    """Size, type and data."""
    return zigzag_int(len(data) + 1) + bytes((kind,)) + data


def frame_batch(messages: bytes, count: int, replayable: int | None) -> bytes:
    """RPCs as one batch, of type 13 if it says how many are replayable, else of type 5."""
    if replayable is None:
        return frame(Type.RPC_BATCH, zigzag_int(count) + messages)
    return frame(Type.COUNT_REPLAYABLE_RPC_BATCH, zigzag_int(count) + zigzag_int(replayable) + messages)


def encode_body(call: Call | Return) -> bytes:
    """An RPC without its destination."""
    if isinstance(call, Return):
        return bytes((call.kind,)) + _name(call.responder) + zigzag_int(call.call_number, 64) + call.value
    head = b"\0" + zigzag_int(call.method) + bytes((call.rpc_type,))
    if call.rpc_type == RpcType.ASYNC:
        head += _name(call.caller) + zigzag_int(call.call_number, 64)
    return head + call.arguments


def encode(message: Message) -> bytes:
    """One framed message. The blob of a checkpoint is the caller's to send."""
    match message:
        case Call() | Return():
            return frame(Type.RPC, _name(message.destination) + encode_body(message))
        case RpcBatch(calls, replayable):
            return frame_batch(b"".join(map(encode, calls)), len(calls), replayable)
        case AttachTo(destination):
            return frame(Type.ATTACH_TO, destination)
        case InitialMessage(data):
            return frame(Type.INITIAL_MESSAGE, data)
        case Checkpoint(size, fixed):
            return frame(Type.CHECKPOINT, _FIXED_LONG.pack(size) if fixed else zigzag_int(size, 64))
        case Signal(kind):
            return frame(kind, b"")
        case Numbers(kind, numbers):
            return frame(kind, b"".join(zigzag_int(number, 64) for number in numbers))
        case Ping(kind, call):
            return frame(kind, _name(call.destination) + encode_body(call))


def read_body_head(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Kind, method and RPC type (0 if it is no call) of an RPC body, and the position after them.

    The kind comes first, so a return value is never read as a call.
    """
    if at >= end:
        raise RemoteProtocolError("an RPC without a body")
    kind = data[at]
    if kind:  # no call: that is 0
        if kind > BodyKind.EXCEPTION:
            raise RemoteProtocolError(f"an RPC body of unknown kind {kind}")
        return kind, 0, 0, at + 1
    method, at = read_int(data, at + 1, end)
    if at >= end:
        raise RemoteProtocolError("a call without an RPC type")
    return kind, method, data[at], at + 1


def _decode_rpc(data: bytes, at: int, end: int, addressed: bool) -> Call | Return:
    destination = None
    if addressed:
        destination, at = read_name(data, at, end)
    kind, method, rpc_type, at = read_body_head(data, at, end)
    if rpc_type != RpcType.ASYNC:
        return Call(method, rpc_type, data[at:end], destination)
    name, at = read_name(data, at, end)
    number, at = read_int(data, at, end, 64)
    if kind == BodyKind.CALL:
        return Call(method, rpc_type, data[at:end], destination, name, number)
    return Return(BodyKind(kind), name, number, data[at:end], destination)


def _decode_batch(kind: Type, data: bytes, at: int, end: int, addressed: bool) -> RpcBatch:
    count, at = read_int(data, at, end)
    replayable = None
    if kind == Type.COUNT_REPLAYABLE_RPC_BATCH:
        replayable, at = read_int(data, at, end)
    calls: list[Call | Return] = []
    while at < end:
        size, at = read_int(data, at, end)
        if size < 1 or at + size > end:
            raise RemoteProtocolError(f"an RPC of {size} bytes in a batch with {end - at} left")
        if data[at] != Type.RPC:
            raise RemoteProtocolError(f"a message of type {data[at]} inside a batch")
        calls.append(_decode_rpc(data, at + 1, at + size, addressed))
        at += size
    if count != len(calls):
        raise RemoteProtocolError(f"a batch of {len(calls)} RPCs that says {count}")
    return RpcBatch(tuple(calls), replayable)


def decode_checkpoint(data: bytes, at: int, end: int) -> Checkpoint:
    """The size in either form: ZigZagLong if that uses up the data exactly, else 8 bytes little endian."""
    could_be_fixed = end - at == _FIXED_LONG.size
    try:
        size, after = read_int(data, at, end, 64)
    except RemoteProtocolError:  # eight bytes with every high bit set are no ZigZagLong, but a fixed size
        if not could_be_fixed:
            raise
        size, after = 0, at
    fixed = after != end
    if fixed:
        if not could_be_fixed:
            raise RemoteProtocolError("a checkpoint whose size is in neither form")
        (size,) = _FIXED_LONG.unpack_from(data, at)
    if size < 0:
        raise RemoteProtocolError(f"a checkpoint of {size} bytes")
    return Checkpoint(size, fixed)


def _decode_ping(kind: Type, data: bytes, at: int, end: int, addressed: bool) -> Ping:
    call = _decode_rpc(data, at, end, addressed)
    if not isinstance(call, Call) or len(call.arguments) != STAMPS_BYTES:
        raise RemoteProtocolError("a ping without its five stamps")
    return Ping(kind, call)


def _decode_numbers(kind: Type, data: bytes, at: int, end: int) -> Numbers:
    numbers = []
    for _ in range(COUNT_OF_NUMBERS[kind]):
        number, at = read_int(data, at, end, 64)
        numbers.append(number)
    return Numbers(kind, tuple(numbers))


def decode(data: bytes, at: int, end: int, *, addressed: bool) -> Message:
    """The message whose type byte is at `at` and which ends at `end`; `addressed`: a binding sent it."""
    try:
        kind = Type(data[at])
    except ValueError:
        raise RemoteProtocolError(f"a message of unknown type {data[at]}") from None
    at += 1
    if kind in SIGNALS:
        if at != end:
            raise RemoteProtocolError(f"a {kind.name} with {end - at} bytes of data")
        return Signal(kind)
    match kind:
        case Type.RPC:
            return _decode_rpc(data, at, end, addressed)
        case Type.RPC_BATCH | Type.COUNT_REPLAYABLE_RPC_BATCH:
            return _decode_batch(kind, data, at, end, addressed)
        case Type.ATTACH_TO:
            return AttachTo(data[at:end])
        case Type.INITIAL_MESSAGE:
            return InitialMessage(data[at:end])
        case Type.CHECKPOINT:
            return decode_checkpoint(data, at, end)
        case Type.PING | Type.PING_RETURN:
            return _decode_ping(kind, data, at, end, addressed)
        case _:
            return _decode_numbers(kind, data, at, end)


def decode_messages(data: bytes, *, addressed: bool) -> list[Message]:
    """All messages of a record's payload, or of bytes that a binding sent. Checkpoint blobs may not be among them."""
    messages = []
    at, end = 0, len(data)
    while at < end:
        size, at = read_int(data, at, end)
        if size < 1 or at + size > end:
            raise RemoteProtocolError(f"a message of {size} bytes where {end - at} are left")
        messages.append(decode(data, at, at + size, addressed=addressed))
        at += size
    return messages


# --- records --------------------------------------------------------------------------------------------------


def check_bytes(payload: bytes | memoryview) -> int:
    """xxHash64 with seed 0 over the messages of a record."""
    return xxhash.xxh64_intdigest(payload)


def record_header(committer: int, sequence: int, payload: bytes | memoryview) -> bytes:
    """The header of a record; the check bytes of a checkpoint's are 0."""
    check = 0 if sequence == SEQUENCE_CHECKPOINT else check_bytes(payload)
    return RECORD_HEADER.pack(committer, RECORD_HEADER_BYTES + len(payload), check, sequence)


def encode_record(committer: int, sequence: int, payload: bytes) -> bytes:
    """A record of any kind."""
    return record_header(committer, sequence, payload) + payload


def encode_signal_record(committer: int, kind: Type) -> bytes:
    """A control record of one message without data."""
    return encode_record(committer, SEQUENCE_CONTROL, frame(kind, b""))


def encode_checkpoint_record(committer: int, size: int) -> bytes:
    """The record that announces a blob of `size` bytes."""
    return encode_record(committer, SEQUENCE_CHECKPOINT, encode(Checkpoint(size)))
