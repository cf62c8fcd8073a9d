"""Messages of a journal topic. They have neither Kafka keys nor Kafka headers.

All integers are little endian.

    message := magic "HRK1"
               kind:u8                  1 claim, 2 commit, 3 leave, 4 commit with a packed body
               zero:u8
               part:u16  parts:u16      this message's place in its commit, and how many the commit has
               zero:u16
               epoch:u64                of the owner that wrote it
               sequence:u64             of the commit's first frame; otherwise the next one, as the writer knows it
               frames:u32               of the whole commit
               crc:u32                  CRC-32C of the body
               body
    body    := a piece of the commit's frames, joined | MessagePack of `Claim` | nothing
               | a piece of the commit's frames, packed (`packing.py`)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import IntEnum
from itertools import chain
from typing import NamedTuple

import msgspec
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.log.frame import EncodedFrame
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.packing import BadPacking, pack, unpack

MAGIC = b"HRK1"
HEAD = struct.Struct("<4sBBHHHQQII")
BODY_BYTES_MAX = 900_000
"""Of one message, before it is packed: with its head, and in a batch of the client's, it stays below every limit that
brokers have."""


class Kind(IntEnum):
    CLAIM = 1
    COMMIT = 2
    LEAVE = 3
    PACKED = 4
    """A commit, too. Only on the way: whoever decodes it gets a commit."""


class Claim(msgspec.Struct, frozen=True):
    """Who takes a cell. `hub` is new with each process, so that no two owners ever share one."""

    hub: str
    started_us: int = 0
    version: str = ""
    addresses: dict[str, str] = {}
    """Listener → host:port, as others reach it."""


class Message(NamedTuple):
    kind: Kind
    part: int
    parts: int
    epoch: int
    sequence: int
    frames: int
    body: bytes

    @property
    def claim(self) -> Claim:
        return msgspec.msgpack.decode(self.body, type=Claim)


def encode(message: Message) -> bytes:
    kind, part, parts, epoch, sequence, frames, body = message
    return _encode(kind, part, parts, epoch, sequence, frames, [body])


def _encode(kind: Kind, part: int, parts: int, epoch: int, sequence: int, frames: int, body: Sequence[bytes]) -> bytes:
    """The body comes in pieces, so that it is copied once, to where it stands in the message."""
    crc = 0
    for piece in body:
        crc = crc32c_extend(crc, piece)
    return b"".join((HEAD.pack(MAGIC, kind, 0, part, parts, 0, epoch, sequence, frames, crc), *body))


def decode(value: bytes | None, offset: int) -> Message | None:
    """The message at an offset; None for one that is not ours."""
    if value is None or len(value) < HEAD.size or not value.startswith(MAGIC):
        return None
    _, kind, _, part, parts, _, epoch, sequence, frames, crc = HEAD.unpack_from(value)
    body = value[HEAD.size :]
    if crc32c(body) != crc:
        raise Unrecoverable(f"the message at offset {offset} of the journal fails its checksum")
    if kind not in Kind.__members__.values():
        raise Unrecoverable(
            f"the message at offset {offset} of the journal is of kind {kind}, which this version does not know: use "
            "a newer one"
        )
    if kind == Kind.PACKED:
        try:
            kind, body = Kind.COMMIT, unpack(body)
        except BadPacking as error:
            raise Unrecoverable(f"the message at offset {offset} of the journal cannot be unpacked: {error}") from error
    return Message(Kind(kind), part, parts, epoch, sequence, frames, body)


def claim_message(epoch: int, sequence: int, claim: Claim) -> bytes:
    return encode(Message(Kind.CLAIM, 0, 1, epoch, sequence, 0, msgspec.msgpack.encode(claim)))


def leave_message(epoch: int, sequence: int) -> bytes:
    return encode(Message(Kind.LEAVE, 0, 1, epoch, sequence, 0, b""))


def commit_messages(
    epoch: int,
    sequence: int,
    frames: Sequence[EncodedFrame],
    body_bytes_max: int = BODY_BYTES_MAX,
    compression: str = "none",
) -> list[bytes]:
    """A commit as messages; one without frames' bytes is one message, too."""
    values = []
    bodies = _cut(chain.from_iterable(frames), body_bytes_max)
    for part, body in enumerate(bodies):
        packed = None if compression == "none" else pack(b"".join(body), compression)
        kind, pieces = (Kind.COMMIT, body) if packed is None else (Kind.PACKED, [packed])
        values.append(_encode(kind, part, len(bodies), epoch, sequence, len(frames), pieces))
    return values


def _cut(pieces: Iterable[bytes], size_max: int) -> list[list[bytes]]:
    """The same bytes in bodies of one size, and what is left. Only a piece that a cut goes through is copied."""
    bodies: list[list[bytes]] = [[]]
    room = size_max
    for piece in pieces:
        at, size = 0, len(piece)
        while size - at > room:
            bodies[-1].append(piece[at : at + room])
            bodies.append([])
            at, room = at + room, size_max
        bodies[-1].append(piece[at:] if at else piece)
        room -= size - at
    return bodies
