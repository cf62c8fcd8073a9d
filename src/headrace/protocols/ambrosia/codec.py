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

`call_reader.py` holds the fast reader of what a binding sends; this module reads and writes one message at a time.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final, TypeAlias

import xxhash

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

RECORD_HEADER: Final = struct.Struct("<iiQq")
RECORD_HEADER_BYTES: Final = RECORD_HEADER.size
SEQUENCE_CONTROL: Final = -1
SEQUENCE_CHECKPOINT: Final = -2
RECORD_BYTES_MAX: Final = 8 << 20  # a record is closed at this size; only one oversize message makes a larger one

assert RECORD_HEADER_BYTES == 24


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


@dataclass(frozen=True, slots=True)
class Limits:
    """What a reader accepts before it gives up. Each is a key of `[ambrosia]` in the configuration."""

    message_bytes_max: int = 64 << 20  # the coordinator of 2024 took 9 MiB messages, its buffers are 8 MiB
    initial_bytes_max: int = 8 << 20  # "Initial row is too many bytes" is where the published coordinator stops
    name_bytes_max: int = 255
    checkpoint_bytes_max: int = 1 << 40


# --- integers -------------------------------------------------------------------------------------------------


def encode_zigzag(value: int, bits: int) -> bytes:
    """A signed integer of 32 or 64 bits in base 128, low group first, in as few bytes as possible."""
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


def _decode_zigzag(data: bytes, at: int, end: int, bits: int) -> tuple[int, int] | None:
    """The integer at `at` and the position after it; None when `end` cuts it off."""
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


def zigzag_int(value: int) -> bytes:
    """ZigZagInt."""
    return SMALL_INTS[value] if 0 <= value < len(SMALL_INTS) else encode_zigzag(value, 32)


def zigzag_long(value: int) -> bytes:
    """ZigZagLong."""
    return SMALL_INTS[value] if 0 <= value < len(SMALL_INTS) else encode_zigzag(value, 64)


SMALL_INTS: Final = tuple(encode_zigzag(value, 32) for value in range(4096))


def peek_int(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """A ZigZagInt and the position after it; None when more bytes are needed."""
    return _decode_zigzag(data, at, end, 32)


def read_int(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A ZigZagInt that must be whole, and the position after it."""
    found = _decode_zigzag(data, at, end, 32)
    if found is None:
        raise RemoteProtocolError("an integer runs past the end of its message")
    return found


def read_long(data: bytes, at: int, end: int) -> tuple[int, int]:
    """A ZigZagLong that must be whole, and the position after it."""
    found = _decode_zigzag(data, at, end, 64)
    if found is None:
        raise RemoteProtocolError("an integer runs past the end of its message")
    return found


def read_name(data: bytes, at: int, end: int) -> tuple[bytes, int]:
    """A ZigZagInt length, that many bytes, and the position after them."""
    length, at = read_int(data, at, end)
    if length < 0 or at + length > end:
        raise RemoteProtocolError(f"a name of {length} bytes where {end - at} are left")
    return data[at : at + length], at + length


def _named(name: bytes) -> bytes:
    return zigzag_int(len(name)) + name


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
class Signal:
    """A message without data."""

    type: Type


@dataclass(frozen=True, slots=True)
class Counts:
    """Commit or ReplayFrom: numbers between two coordinators, all messages and replayable ones."""

    type: Type
    all: int
    replayable: int


@dataclass(frozen=True, slots=True)
class TrimTo:
    """Between two coordinators: outputs up to this number are not needed any more."""

    number: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Ping or PingReturn, a test aid of the published coordinator: like an RPC, with five clock stamps at its end."""

    type: Type
    destination: bytes | None
    method: int
    rpc_type: int
    stamps: tuple[int, ...]


Message: TypeAlias = Call | Return | RpcBatch | AttachTo | InitialMessage | Checkpoint | Signal | Counts | TrimTo | Ping

SIGNALS: Final = frozenset(
    {
        Type.TAKE_CHECKPOINT,
        Type.UPGRADE_TAKE_CHECKPOINT,
        Type.TAKE_BECOMING_PRIMARY_CHECKPOINT,
        Type.UPGRADE_SERVICE,
        Type.BECOMING_PRIMARY,
    }
)
_STAMPS: Final = struct.Struct("<5q")
_FIXED_LONG: Final = struct.Struct("<q")


def frame(kind: int, data: bytes) -> bytes:
    """Size, type and data."""
    return zigzag_int(len(data) + 1) + bytes((kind,)) + data


def encode_body(call: Call | Return) -> bytes:
    """An RPC without its destination."""
    if isinstance(call, Return):
        return bytes((call.kind,)) + _named(call.responder) + zigzag_long(call.call_number) + call.value
    head = b"\0" + zigzag_int(call.method) + bytes((call.rpc_type,))
    if call.rpc_type == RpcType.ASYNC:
        head += _named(call.caller) + zigzag_long(call.call_number)
    return head + call.arguments


def encode(message: Message) -> bytes:
    """One framed message. The blob of a checkpoint is the caller's to send."""
    match message:
        case Call() | Return():
            where = b"" if message.destination is None else _named(message.destination)
            return frame(Type.RPC, where + encode_body(message))
        case RpcBatch(calls, replayable):
            inner = b"".join(map(encode, calls))
            if replayable is None:
                return frame(Type.RPC_BATCH, zigzag_int(len(calls)) + inner)
            return frame(Type.COUNT_REPLAYABLE_RPC_BATCH, zigzag_int(len(calls)) + zigzag_int(replayable) + inner)
        case AttachTo(destination):
            return frame(Type.ATTACH_TO, destination)
        case InitialMessage(data):
            return frame(Type.INITIAL_MESSAGE, data)
        case Checkpoint(size, fixed):
            return frame(Type.CHECKPOINT, _FIXED_LONG.pack(size) if fixed else zigzag_long(size))
        case Signal(kind):
            return frame(kind, b"")
        case Counts(kind, every, replayable):
            return frame(kind, zigzag_long(every) + zigzag_long(replayable))
        case TrimTo(number):
            return frame(Type.TRIM_TO, zigzag_long(number))
        case Ping(kind, destination, method, rpc_type, stamps):
            where = b"" if destination is None else _named(destination)
            head = where + b"\0" + zigzag_int(method) + bytes((rpc_type,))
            return frame(kind, head + _STAMPS.pack(*stamps))


def decode_body(data: bytes, at: int, end: int) -> Call | Return:
    """An RPC body. Its kind comes first, so a return value is never read as a call."""
    if at >= end:
        raise RemoteProtocolError("an RPC without a body")
    kind = data[at]
    at += 1
    if kind == BodyKind.CALL:
        method, at = read_int(data, at, end)
        if at >= end:
            raise RemoteProtocolError("a call without an RPC type")
        rpc_type = data[at]
        at += 1
        if rpc_type != RpcType.ASYNC:
            return Call(method, rpc_type, data[at:end])
        caller, at = read_name(data, at, end)
        number, at = read_long(data, at, end)
        return Call(method, rpc_type, data[at:end], None, caller, number)
    if kind > BodyKind.EXCEPTION:
        raise RemoteProtocolError(f"an RPC body of unknown kind {kind}")
    responder, at = read_name(data, at, end)
    number, at = read_long(data, at, end)
    return Return(BodyKind(kind), responder, number, data[at:end])


def _decode_rpc(data: bytes, at: int, end: int, addressed: bool) -> Call | Return:
    if not addressed:
        return decode_body(data, at, end)
    destination, at = read_name(data, at, end)
    return replace(decode_body(data, at, end), destination=destination)


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
    size, after = read_long(data, at, end) if end - at != 8 else _long_or_fixed(data, at, end)
    fixed = after != end
    if fixed:
        if end - at != 8:
            raise RemoteProtocolError("a checkpoint whose size is in neither form")
        (size,) = _FIXED_LONG.unpack_from(data, at)
    if size < 0:
        raise RemoteProtocolError(f"a checkpoint of {size} bytes")
    return Checkpoint(size, fixed)


def _long_or_fixed(data: bytes, at: int, end: int) -> tuple[int, int]:
    try:
        return read_long(data, at, end)
    except RemoteProtocolError:  # eight bytes with every high bit set are no ZigZagLong, but a fixed size
        return 0, at


def _decode_ping(kind: Type, data: bytes, at: int, end: int, addressed: bool) -> Ping:
    destination = None
    if addressed:
        destination, at = read_name(data, at, end)
    method, at = read_int(data, at + 1, end)
    if end - at != 1 + _STAMPS.size:
        raise RemoteProtocolError("a ping without its five stamps")
    return Ping(kind, destination, method, data[at], _STAMPS.unpack_from(data, at + 1))


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
        case Type.TRIM_TO:
            number, at = read_long(data, at, end)
            return TrimTo(number)
        case _:
            every, at = read_long(data, at, end)
            replayable, at = read_long(data, at, end)
            return Counts(kind, every, replayable)


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


def check_bytes_xor(payload: bytes) -> int:
    """The check of logs written before December 2021: 8-byte words, the last one padded, combined by XOR."""
    padded = payload + bytes(-len(payload) % 8)
    check = 0
    for (word,) in struct.iter_unpack("<Q", padded):
        check ^= word
    return check


def encode_record(committer: int, sequence: int, payload: bytes) -> bytes:
    """A data or control record."""
    length = RECORD_HEADER_BYTES + len(payload)
    return RECORD_HEADER.pack(committer, length, check_bytes(payload), sequence) + payload


def encode_signal_record(committer: int, kind: Type) -> bytes:
    """A control record of one message without data."""
    return encode_record(committer, SEQUENCE_CONTROL, frame(kind, b""))


def encode_checkpoint_record(committer: int, size: int) -> bytes:
    """The record that announces a blob of `size` bytes: sequence -2 and check bytes 0."""
    payload = encode(Checkpoint(size))
    return RECORD_HEADER.pack(committer, RECORD_HEADER_BYTES + len(payload), 0, SEQUENCE_CHECKPOINT) + payload


def wrap_batch(messages: bytes, count: int, replayable: int) -> bytes:
    """RPCs as one batch: type 5 when all are replayable, else 13. A batch of one is never written."""
    if count < 2:
        raise LocalProtocolError(f"a batch of {count}")
    if replayable == count:
        return frame(Type.RPC_BATCH, zigzag_int(count) + messages)
    return frame(Type.COUNT_REPLAYABLE_RPC_BATCH, zigzag_int(count) + zigzag_int(replayable) + messages)


@dataclass(frozen=True, slots=True)
class Record:
    """A log record as a binding receives it."""

    committer: int
    sequence: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Blob:
    """The bytes of a checkpoint that followed its record, in pieces; `last` ends it."""

    data: bytes
    last: bool


class RecordReader:
    """What a binding receives, from bytes in any pieces. Raises `RemoteProtocolError`; nothing is read after that."""

    def __init__(self, record_bytes_max: int = 1 << 30) -> None:
        self.record_bytes_max = record_bytes_max
        self._buffer = bytearray()
        self._blob_left = 0
        self._expected: int | None = None

    def feed(self, data: bytes) -> list[Record | Blob]:
        """All that is whole now. Sequence ids without gap or repeat, and check bytes, are verified here."""
        buffer = self._buffer
        buffer += data
        found: list[Record | Blob] = []
        at = 0
        while at < len(buffer):
            if self._blob_left:
                piece = bytes(buffer[at : at + self._blob_left])
                at += len(piece)
                self._blob_left -= len(piece)
                found.append(Blob(piece, not self._blob_left))
                continue
            record = self._record(buffer, at)
            if record is None:
                break
            at += RECORD_HEADER_BYTES + len(record.payload)
            found.append(record)
            if record.sequence == SEQUENCE_CHECKPOINT:
                self._blob_left = self._checkpoint_size(record.payload)
                if not self._blob_left:
                    found.append(Blob(b"", True))
        del buffer[:at]
        return found

    def _record(self, buffer: bytearray, at: int) -> Record | None:
        if len(buffer) - at < RECORD_HEADER_BYTES:
            return None
        committer, length, check, sequence = RECORD_HEADER.unpack_from(buffer, at)
        if not RECORD_HEADER_BYTES <= length <= self.record_bytes_max:
            raise RemoteProtocolError(f"a record of {length} bytes")
        if len(buffer) - at < length:
            return None
        payload = bytes(buffer[at + RECORD_HEADER_BYTES : at + length])
        if sequence == SEQUENCE_CHECKPOINT:
            self._expected = None  # the records that follow begin wherever the checkpoint stands
        elif check != check_bytes(payload):
            raise RemoteProtocolError(f"record {sequence}: wrong check bytes")
        if sequence >= 0:
            if self._expected is not None and sequence != self._expected:
                raise RemoteProtocolError(f"record {sequence} where {self._expected} was next")
            self._expected = sequence + 1
        elif sequence < SEQUENCE_CHECKPOINT:
            raise RemoteProtocolError(f"a record with sequence id {sequence}")
        return Record(committer, sequence, payload)

    @staticmethod
    def _checkpoint_size(payload: bytes) -> int:
        messages = decode_messages(payload, addressed=False)
        if len(messages) != 1 or not isinstance(messages[0], Checkpoint):
            raise RemoteProtocolError("a checkpoint record without exactly one Checkpoint message")
        return messages[0].size
