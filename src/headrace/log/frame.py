"""The journal's unit: a frame is one transaction, checked as a whole.

All integers are little endian. A frame starts at a multiple of 8 bytes in its file and fills a multiple of 8.

    frame     := header directory data
    header    := magic:u32                                half of the file's salt
                 directory_bytes:u32   data_bytes:u32
                 directory_crc:u32     data_crc:u32       CRC-32C each
                 header_crc:u32                           CRC-32C of the other 36 bytes of the header, begun with the
                                                          other half of the salt
                 sequence:u64                             1 more than the frame before, over all files
                 durable:u64                              all frames below this one were synced by then
    directory := entry* padding
    entry     := kind:u8 = 1 (records)  flags:u8  producer_bytes:u16  stream:u32  partition:u32  count:u32
                 base:u64  time_us:i64  producer_sequence:u64  body_bytes:u32  zero:u32  producer
               | kind:u8 = 2 (event)    zero:u8 × 3  size:u32  MessagePack of one of the events below
    data      := the bodies of the records entries, in order (see batch.py)

Two checksums, because they fail apart: damage in the data leaves the directory, which says exactly which indexes of
which stream are lost. `durable` tells damage from a torn tail: a bad frame with a good frame behind it that says
"everything up to here was synced" has rotted; a bad frame without one was never acknowledged.

The salt is random, each journal file has its own, and no client ever learns it: whatever somebody sends as a payload,
a search for frames behind a torn one does not take it for a frame. Nor does it take what an earlier file left.
"""

from __future__ import annotations

import secrets
import struct
from typing import NamedTuple

import msgspec
import pyarrow as pa
from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.log.ops import StreamOptions

HEADER = struct.Struct("<IIIIIIQQ")
RECORDS = struct.Struct("<BBHIIIQqQII")
EVENT = struct.Struct("<BxxxI")
KIND_RECORDS = 1
KIND_EVENT = 2
HAS_PRODUCER = 1
PRODUCER_BYTES_MAX = 1024
CRC_BYTES = 512 * 1024
"""About a third of a millisecond."""


class Salt(NamedTuple):
    """What the frames of one journal file have in common, and nobody else knows."""

    magic: int
    """How each of them begins; never 0, which is how the end of a file begins."""
    seed: int
    """What the checksum of each header begins with."""

    @property
    def magic_bytes(self) -> bytes:
        return self.magic.to_bytes(4, "little")


PLAIN = Salt(0x31465248, 0)
"""Of all files before version 3: "HRF1"."""


def random_salt() -> Salt:
    return Salt(1 + secrets.randbelow(2**32 - 1), secrets.randbits(32))


_BEFORE_CRC = struct.Struct("<IIIII")
_AFTER_CRC = struct.Struct("<QQ")
_PADDING = tuple(b"\0" * n for n in range(8))


class RecordsEntry(msgspec.Struct, frozen=True, gc=False):
    """Records of one partition: where they stand and who sent them."""

    stream: int
    partition: int
    count: int
    base: int
    time_us: int
    producer: str | None
    producer_sequence: int
    body_bytes: int


class Event(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A change of the log's own state."""


class StreamCreated(Event, frozen=True, array_like=True, tag=1):
    id: int
    name: str
    kind: str
    options: StreamOptions
    time_us: int
    firsts: list[int]
    """The first index of each partition: above all that an earlier stream of this name ever used."""


class StreamGrown(Event, frozen=True, array_like=True, tag=2):
    id: int
    firsts: list[int]
    """Of the partitions that are added."""


class OptionsChanged(Event, frozen=True, array_like=True, tag=3):
    id: int
    options: StreamOptions


class StreamDeleted(Event, frozen=True, array_like=True, tag=4):
    id: int
    nexts: list[int]


class StreamTrimmed(Event, frozen=True, array_like=True, tag=5):
    id: int
    partition: int
    first: int


class CursorSaved(Event, frozen=True, array_like=True, tag=6):
    cursor: str
    stream: int
    partition: int
    index: int
    time_us: int


class CursorDeleted(Event, frozen=True, array_like=True, tag=7):
    cursor: str
    stream: int
    partition: int


class ProducerSet(Event, frozen=True, array_like=True, tag=8):
    stream: int
    partition: int
    producer: str
    sequence: int | None


class CheckpointAdded(Event, frozen=True, array_like=True, tag=9):
    id: int
    stream: int
    position: int
    size: int
    time_us: int
    meta: dict[str, str]


class CheckpointDropped(Event, frozen=True, array_like=True, tag=10):
    id: int


class SegmentStored(Event, frozen=True, array_like=True, tag=11):
    """A shared store has a segment: its records are there, and in no smaller segment or tail any more."""

    stream: int
    partition: int
    first: int
    next: int
    bytes: int
    name: str


class SnapshotStored(Event, frozen=True, array_like=True, tag=12):
    """A shared store has a snapshot. The one before the last goes."""

    sequence: int
    name: str
    removed: list[str]
    """Blobs that were dropped before, and are gone from the store by now."""


class CheckpointStored(Event, frozen=True, array_like=True, tag=13):
    """As `CheckpointAdded`, and what the blob is found by in a shared store."""

    id: int
    stream: int
    position: int
    size: int
    time_us: int
    meta: dict[str, str]
    name: str


AnyEvent = (
    StreamCreated
    | StreamGrown
    | OptionsChanged
    | StreamDeleted
    | StreamTrimmed
    | CursorSaved
    | CursorDeleted
    | ProducerSet
    | CheckpointAdded
    | CheckpointDropped
    | SegmentStored
    | SnapshotStored
    | CheckpointStored
)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyEvent)


def encode_records(
    stream: int,
    partition: int,
    count: int,
    base: int,
    time_us: int,
    producer: bytes,
    producer_sequence: int,
    body_bytes: int,
) -> bytes:
    """A directory entry for one body; an empty producer means none."""
    flags = HAS_PRODUCER if producer else 0
    return (
        RECORDS.pack(
            KIND_RECORDS,
            flags,
            len(producer),
            stream,
            partition,
            count,
            base,
            time_us,
            producer_sequence,
            body_bytes,
            0,
        )
        + producer
    )


def encode_event(event: AnyEvent) -> bytes:
    """A directory entry for a change of state."""
    data = _encoder.encode(event)
    return EVENT.pack(KIND_EVENT, len(data)) + data


EncodedFrame = tuple[bytes, ...]
"""Header and directory, and the bodies: apart, so that large ones need not be copied to be written."""


def frames_bytes(frames: list[EncodedFrame]) -> int:
    return sum(len(piece) for frame in frames for piece in frame)


def encode_frame(sequence: int, durable: int, directory: bytes, *bodies: bytes) -> EncodedFrame:
    """A whole frame without a salt. Each body is already a multiple of 8."""
    return encode_salted_frame(PLAIN, sequence, durable, directory, *bodies)


def extend_crc(crc: int, data: bytes) -> int:
    """A checksum with more data behind. Much is taken in pieces: no other thread of Python runs during one."""
    if len(data) <= CRC_BYTES:
        return crc32c_extend(crc, data)  # type: ignore[no-any-return]
    buffer = pa.py_buffer(data)
    for at in range(0, len(data), CRC_BYTES):
        crc = crc32c_extend(crc, buffer.slice(at, min(CRC_BYTES, len(data) - at)))
    return crc


def encode_salted_frame(
    salt: Salt, sequence: int, durable: int, directory: bytes, *bodies: bytes, data_crc: int | None = None
) -> EncodedFrame:
    """A whole frame of a file with this salt. `data_crc` is that of all bodies, if it is known."""
    magic, seed = salt
    directory += _PADDING[-len(directory) % 8]
    data_bytes = sum(map(len, bodies))
    if data_crc is None:
        data_crc = 0
        for body in bodies:
            data_crc = extend_crc(data_crc, body)
    before = _BEFORE_CRC.pack(magic, len(directory), data_bytes, crc32c(directory), data_crc)
    after = _AFTER_CRC.pack(sequence, durable)
    header_crc: int = crc32c_extend(seed, before + after)
    return b"".join((before, header_crc.to_bytes(4, "little"), after, directory)), *bodies


class Header(NamedTuple):
    """A frame header that passed its own checksum."""

    directory_bytes: int
    data_bytes: int
    directory_crc: int
    data_crc: int
    sequence: int
    durable: int

    @property
    def frame_bytes(self) -> int:
        return HEADER.size + self.directory_bytes + self.data_bytes


_SEQUENCE = struct.Struct("<Q")
_SEQUENCE_AT = HEADER.size - _AFTER_CRC.size


def sequence_of(data: bytes, at: int) -> int:
    """The sequence in what may be a header, unchecked; -1 when the data ends before."""
    at += _SEQUENCE_AT
    return int(_SEQUENCE.unpack_from(data, at)[0]) if at + _SEQUENCE.size <= len(data) else -1


def decode_header(data: bytes | memoryview, at: int, salt: Salt = PLAIN) -> Header | None:
    """The header at `at`, or None when no intact header of a frame with this salt stands there."""
    if at + HEADER.size > len(data):
        return None
    magic, directory_bytes, data_bytes, directory_crc, data_crc, crc, sequence, durable = HEADER.unpack_from(data, at)
    if magic != salt.magic:
        return None
    if crc32c_extend(salt.seed, bytes(data[at : at + 20]) + bytes(data[at + 24 : at + 40])) != crc:
        return None
    return Header(directory_bytes, data_bytes, directory_crc, data_crc, sequence, durable)


def decode_directory(directory: bytes, *, with_events: bool = True) -> list[RecordsEntry | AnyEvent]:
    """The entries of a directory that passed its checksum; of those that a snapshot has seen, only records matter."""
    entries: list[RecordsEntry | AnyEvent] = []
    at = 0
    end = len(directory)
    while at + EVENT.size <= end and directory[at]:
        if directory[at] == KIND_RECORDS:
            entry, at = _decode_records(directory, at)
            entries.append(entry)
        else:
            _, size = EVENT.unpack_from(directory, at)
            at += EVENT.size
            if with_events:
                entries.append(_decoder.decode(directory[at : at + size]))
            at += size
    return entries


def decode_only_records(directory: bytes) -> RecordsEntry | None:
    """The entry of a directory with nothing but records of nobody in particular: what most directories are."""
    if len(directory) != RECORDS.size or directory[0] != KIND_RECORDS:
        return None
    _, _, _, stream, partition, count, base, time_us, sequence, body_bytes, _ = RECORDS.unpack_from(directory)
    return RecordsEntry(stream, partition, count, base, time_us, None, sequence, body_bytes)


def _decode_records(directory: bytes, at: int) -> tuple[RecordsEntry, int]:
    _, _, producer_bytes, stream, partition, count, base, time_us, sequence, body_bytes, _ = RECORDS.unpack_from(
        directory, at
    )
    at += RECORDS.size
    producer = directory[at : at + producer_bytes].decode() if producer_bytes else None
    entry = RecordsEntry(stream, partition, count, base, time_us, producer, sequence, body_bytes)
    return entry, at + producer_bytes
