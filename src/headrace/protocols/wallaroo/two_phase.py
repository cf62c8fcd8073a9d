"""Two-phase-commit messages of the sink role: not frames, but the payload of a v3 MESSAGE on stream 0.

    inner := tag u8, body          big endian, no length of its own
    201 LIST_UNCOMMITTED   request u64
    202 REPLY_UNCOMMITTED  request u64, count u32, short transaction*
    203 PHASE1             short transaction, count u32, (stream u64, start u64, end u64)*
    204 REPLY              short transaction, commit u8
    205 PHASE2             short transaction, commit u8
    206 WORKERS_LEFT       request u64, count u32, short worker*

Headrace takes the worker's side towards sources only; these exist so that traces of a sink can be read and written.
"""

from __future__ import annotations

import msgspec

from headrace.protocols.wallaroo.frames import Message, PeerFault
from headrace.protocols.wallaroo.wire import FieldReader, packed, short


class ListUncommitted(msgspec.Struct, frozen=True, gc=False):
    request: int


class ReplyUncommitted(msgspec.Struct, frozen=True):
    request: int
    transactions: tuple[bytes, ...]


class Phase1(msgspec.Struct, frozen=True):
    transaction: bytes
    ranges: tuple[tuple[int, int, int], ...]


class Reply(msgspec.Struct, frozen=True, gc=False):
    transaction: bytes
    commit: bool


class Phase2(msgspec.Struct, frozen=True, gc=False):
    transaction: bytes
    commit: bool


class WorkersLeft(msgspec.Struct, frozen=True):
    request: int
    workers: tuple[bytes, ...]


Inner = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft


def encode(inner: Inner) -> bytes:
    match inner:
        case ListUncommitted(request):
            return packed(">", "BQ", 201, request)
        case ReplyUncommitted(request, transactions):
            return packed(">", "BQ", 202, request) + _texts(transactions)
        case Phase1(transaction, ranges):
            numbers = b"".join(packed(">", "QQQ", *each) for each in ranges)
            return packed(">", "B", 203) + short(">", transaction) + packed(">", "I", len(ranges)) + numbers
        case Reply(transaction, commit):
            return packed(">", "B", 204) + short(">", transaction) + packed(">", "B", int(commit))
        case Phase2(transaction, commit):
            return packed(">", "B", 205) + short(">", transaction) + packed(">", "B", int(commit))
        case WorkersLeft(request, workers):
            return packed(">", "BQ", 206, request) + _texts(workers)


def decode(payload: bytes) -> Inner:
    reader = FieldReader(payload, ">", "two-phase-commit message")
    tag = reader.u8("tag")
    match tag:
        case 201:
            return ListUncommitted(reader.u64("request"))
        case 202:
            return ReplyUncommitted(reader.u64("request"), _read_texts(reader))
        case 203:
            transaction = reader.short("transaction")
            count = reader.count(24, "ranges")
            return Phase1(transaction, tuple(_read_range(reader) for _ in range(count)))
        case 204:
            return Reply(reader.short("transaction"), reader.u8("commit") != 0)
        case 205:
            return Phase2(reader.short("transaction"), reader.u8("commit") != 0)
        case 206:
            return WorkersLeft(reader.u64("request"), _read_texts(reader))
    raise PeerFault(f"Unable to decode two-phase-commit message: unknown tag {tag}")


def wrap(inner: Inner) -> Message:
    """The MESSAGE that carries it."""
    return Message(stream_id=0, message_id=0, payload=encode(inner))


def _texts(values: tuple[bytes, ...]) -> bytes:
    return packed(">", "I", len(values)) + b"".join(short(">", value) for value in values)


def _read_texts(reader: FieldReader) -> tuple[bytes, ...]:
    return tuple(reader.short("text") for _ in range(reader.count(2, "texts")))


def _read_range(reader: FieldReader) -> tuple[int, int, int]:
    return reader.u64("stream id"), reader.u64("start"), reader.u64("end")
