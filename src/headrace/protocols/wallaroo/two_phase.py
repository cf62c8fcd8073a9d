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

from headrace.protocols.wallaroo.codec import WORKERS_LEFT
from headrace.protocols.wallaroo.frames import Message, PeerFault, WorkersLeft
from headrace.protocols.wallaroo.wire import FieldReader, Layout, boolean, counted, packed, short, u64


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


Inner = ListUncommitted | ReplyUncommitted | Phase1 | Reply | Phase2 | WorkersLeft

RANGES = counted("ranges", u64("stream id"), u64("start"), u64("end"))

LAYOUTS = {
    201: Layout(ListUncommitted, u64("request")),
    202: Layout(ReplyUncommitted, u64("request"), counted("transactions", short("transaction"))),
    203: Layout(Phase1, short("transaction"), RANGES),
    204: Layout(Reply, short("transaction"), boolean("commit")),
    205: Layout(Phase2, short("transaction"), boolean("commit")),
    206: WORKERS_LEFT,
}
TAGS = {layout.kind: tag for tag, layout in LAYOUTS.items()}


def encode(inner: Inner) -> bytes:
    tag = TAGS[type(inner)]
    return packed(">", "B", tag) + LAYOUTS[tag].write(">", inner)


def decode(payload: bytes) -> Inner:
    reader = FieldReader(payload, ">", "two-phase-commit message")
    tag = reader.integer("B", "tag")
    if tag not in LAYOUTS:
        raise PeerFault(f"Unable to decode two-phase-commit message: unknown tag {tag}")
    inner: Inner = LAYOUTS[tag].read(reader)
    return inner


def wrap(inner: Inner) -> Message:
    """The MESSAGE that carries it."""
    return Message(stream_id=0, message_id=0, payload=encode(inner))
