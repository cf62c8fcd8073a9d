"""Log and checkpoint files of the published coordinator, so that its users can look into them. Pure bytes.

log file         record record record ...
record           committer i32 | length i32 | check u64 | sequence i64 | messages | trailer
                 length = -(24 + messages) - 1 with xxHash64 check bytes, 24 + messages with the old XOR check
trailer          ZigZagInt n, n x (name, last i64, last replayable i64)       what is processed of each source
                 ZigZagInt n, n x (name, replayable trim i64)                 what each destination has for good
                 in neither length nor check
checkpoint file  committer i32 | next sequence i64 | buffer size i32 | used i32 | commit buffer (used)
                 i32 n, watermarks | i32 n, trims | i32 n, inputs | i32 n, outputs | Checkpoint message | blob
output           name | last i64 | trim i64 | replayable trim i64 | i32 n, n x page
page             size i32 | used i32 | bytes (used) | highest, lowest, unsent replayable, total replayable i64
name             ZigZagInt length | UTF-8; the empty name is the instance itself
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final, TypeVar

from headrace.protocols.ambrosia.codec import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    Checkpoint,
    check_bytes,
    decode,
    read_int,
    read_name,
)
from headrace.protocols.errors import RemoteProtocolError

COMMIT_BUFFER_BYTES: Final = 8 << 20
_HEAD: Final = struct.Struct("<iqii")
_COUNT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")
_PAIR: Final = struct.Struct("<qq")
_OUTPUT: Final = struct.Struct("<qqqi")
_PAGE: Final = struct.Struct("<ii")
_PAGE_COUNTS: Final = struct.Struct("<4q")
COMMITTER_BYTES: Final = struct.Struct("<i")


@dataclass(frozen=True, slots=True)
class Watermark:
    """How much of a source has been processed: all messages, and those that are no impulses."""

    source: bytes
    last: int
    last_replayable: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Up to which replayable number a destination has our messages for good."""

    destination: bytes
    replayable: int


@dataclass(frozen=True, slots=True)
class DiskRecord:
    """One record of a log file."""

    committer: int
    sequence: int
    payload: bytes
    watermarks: tuple[Watermark, ...] = ()
    trims: tuple[Trim, ...] = ()
    xor: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What a checkpoint file keeps about one destination."""

    destination: bytes
    last: int
    trim: int
    replayable_trim: int
    pages: tuple[bytes, ...] = ()
    """Messages not yet acknowledged by it, as they stand in the file."""


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of an output: their bytes, and the numbers of the first and the last."""

    messages: bytes
    lowest: int
    highest: int


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """A checkpoint file up to its blob, which starts at `blob_at` of the bytes that were read."""

    committer: int
    next_sequence: int
    commit_buffer: bytes
    checkpoint: Checkpoint
    watermarks: tuple[Watermark, ...] = ()
    trims: tuple[Trim, ...] = ()
    inputs: tuple[Watermark, ...] = ()
    outputs: tuple[Output, ...] = ()
    buffer_bytes: int = COMMIT_BUFFER_BYTES
    blob_at: int = field(default=0, compare=False)


Named = TypeVar("Named", Watermark, Trim)


def _unpack(layout: struct.Struct, data: bytes, at: int) -> tuple[tuple[int, ...], int]:
    if at + layout.size > len(data):
        raise RemoteProtocolError("the file ends in the middle of a record")
    return layout.unpack_from(data, at), at + layout.size


def _take(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size < 0 or at + size > len(data):
        raise RemoteProtocolError(f"{size} bytes where {len(data) - at} are left")
    return data[at : at + size], at + size


def _decode_named(
    kind: type[Named], layout: struct.Struct, data: bytes, at: int, count: int
) -> tuple[tuple[Named, ...], int]:
    """So many times a name and its numbers."""
    if count < 0:
        raise RemoteProtocolError(f"{count} names and numbers")
    items = []
    for _ in range(count):
        name, at = read_name(data, at, len(data))
        numbers, at = _unpack(layout, data, at)
        items.append(kind(name, *numbers))
    return tuple(items), at


def check_bytes_xor(payload: bytes) -> int:
    """The check of logs written before December 2021: 8-byte words, the last one padded, combined by XOR."""
    check = 0
    for (word,) in struct.iter_unpack("<Q", payload + bytes(-len(payload) % 8)):
        check ^= word
    return check


def decode_disk_record(data: bytes, at: int = 0) -> tuple[DiskRecord, int]:
    """The record at `at`, its check bytes verified, and the position after its trailer."""
    (committer, stored, check, sequence), start = _unpack(RECORD_HEADER, data, at)
    xor = stored >= 0
    length = stored if xor else -stored - 1
    if length < RECORD_HEADER_BYTES or at + length > len(data):
        raise RemoteProtocolError(f"a record of {length} bytes where {len(data) - at} are left")
    payload = data[start : at + length]
    if check != (check_bytes_xor(payload) if xor else check_bytes(payload)):
        raise RemoteProtocolError(f"record {sequence}: wrong check bytes")
    count, at = read_int(data, at + length, len(data))
    watermarks, at = _decode_named(Watermark, _PAIR, data, at, count)
    count, at = read_int(data, at, len(data))
    trims, at = _decode_named(Trim, _LONG, data, at, count)
    return DiskRecord(committer, sequence, payload, watermarks, trims, xor), at


def read_log(data: bytes) -> list[DiskRecord]:
    """The records of a log file up to the first that does not hold: as the published coordinator replays it."""
    records: list[DiskRecord] = []
    at = 0
    while at < len(data):
        try:
            record, at = decode_disk_record(data, at)
        except RemoteProtocolError:
            break
        if records and (record.committer, record.sequence) != (records[0].committer, records[-1].sequence + 1):
            break
        records.append(record)
    return records


def _decode_output(data: bytes, at: int) -> tuple[Output, int]:
    destination, at = read_name(data, at, len(data))
    (last, trim, replayable_trim, count), at = _unpack(_OUTPUT, data, at)
    pages = []
    for _ in range(count):
        (_, used), _ = _unpack(_PAGE, data, at)
        page, at = _take(data, at, _PAGE.size + used + _PAGE_COUNTS.size)
        pages.append(page)
    return Output(destination, last, trim, replayable_trim, tuple(pages)), at


def page_of(data: bytes) -> Page:
    """A page as an output has it."""
    highest, lowest, _, _ = _PAGE_COUNTS.unpack_from(data, len(data) - _PAGE_COUNTS.size)
    return Page(data[_PAGE.size : -_PAGE_COUNTS.size], lowest, highest)


def decode_checkpoint_head(data: bytes) -> CheckpointFile:
    """A checkpoint file up to and with its Checkpoint message. `data` may hold the blob too, or its beginning."""
    (committer, next_sequence, buffer_bytes, used), at = _unpack(_HEAD, data, 0)
    buffer, at = _take(data, at, used)
    (count,), at = _unpack(_COUNT, data, at)
    watermarks, at = _decode_named(Watermark, _PAIR, data, at, count)
    (count,), at = _unpack(_COUNT, data, at)
    trims, at = _decode_named(Trim, _LONG, data, at, count)
    (count,), at = _unpack(_COUNT, data, at)
    inputs, at = _decode_named(Watermark, _PAIR, data, at, count)
    (count,), at = _unpack(_COUNT, data, at)
    outputs = []
    for _ in range(count):
        output, at = _decode_output(data, at)
        outputs.append(output)
    size, at = read_int(data, at, len(data))
    if size < 1 or at + size > len(data):
        raise RemoteProtocolError("the file ends before its Checkpoint message")
    checkpoint = decode(data, at, at + size, addressed=False)
    if not isinstance(checkpoint, Checkpoint):
        raise RemoteProtocolError(f"{checkpoint} where a Checkpoint message was due")
    return CheckpointFile(
        committer, next_sequence, buffer, checkpoint, watermarks, trims, inputs, tuple(outputs), buffer_bytes, at + size
    )
