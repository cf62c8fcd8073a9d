"""An instance of the published coordinator as its directory of files tells it: its newest whole checkpoint, what was
logged after it, and what it had said to others that they had not acknowledged.

    INSTANCE_VERSION/serverchkptN   the state, and where the log continues
    INSTANCE_VERSION/serverlogN     what was logged; a coordinator that recovers begins a new file

A kill may leave half a checkpoint and half a record: both are noted, and nothing is lost by them, since what is not
whole was never delivered. Anything else that does not hold together is damage. All files are read one by one, mapped
into memory.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, cast

from headrace.errors import BadRequest
from headrace.protocols.ambrosia.codec import (
    RECORD_HEADER_BYTES,
    BodyKind,
    RpcType,
    Type,
    decode,
    read_body_head,
    read_int,
)
from headrace.protocols.ambrosia.files.layout import (
    COMMITTER_BYTES,
    CheckpointFile,
    DiskRecord,
    Output,
    Watermark,
    decode_checkpoint_head,
    decode_disk_record,
    page_of,
)
from headrace.protocols.errors import RemoteProtocolError

_CHECKPOINT_NAME: Final = re.compile(r"serverchkpt(\d+)")
_LOG_NAME: Final = re.compile(r"serverlog(\d+)")
_VERSIONED: Final = re.compile(r"(.+)_(\d+)")
_BATCH_HEADS: Final = {Type.RPC_BATCH: 1, Type.COUNT_REPLAYABLE_RPC_BATCH: 2}


class SingleMessage(NamedTuple):
    """One message of a record as it was delivered; batches are opened."""

    data: bytes
    method: int | None
    """None for a return value and the InitialMessage."""
    rpc_type: int
    body: BodyKind | None
    """None for the InitialMessage."""

    @property
    def replayable(self) -> bool:
        return self.rpc_type != RpcType.IMPULSE


@dataclass
class LogPart:
    """Records of one file that follow one another."""

    path: Path
    at: int
    first: int
    next: int


@dataclass
class Said:
    """What an instance had said to one destination when its checkpoint was taken."""

    replayable: int
    """How many calls that were no impulses."""
    acknowledged: int
    """How many of them the destination had for good."""
    waiting: list[bytes] = field(default_factory=list)
    """The others, in their order."""
    impulses: int = 0
    """Impulses that were not acknowledged: no recovery of the published coordinator keeps them."""


@dataclass
class FoundInstance:
    """What was found."""

    name: str
    version: int
    checkpoint_path: Path
    checkpoint: CheckpointFile
    parts: list[LogPart] = field(default_factory=list)
    unlogged: DiskRecord | None = None
    """What waited for the log when the checkpoint was taken, if no record came after it."""
    next_sequence: int = 0
    messages: int = 0
    largest_bytes: int = 0
    """Of a message."""
    delivery_type: Type = Type.RPC
    """The richest form in which it was sent its messages."""
    processed: dict[bytes, Watermark] = field(default_factory=dict)
    """By source, b"" being the instance itself."""
    mixed: set[bytes] = field(default_factory=set)
    """Sources that shared a record with others: which message is whose cannot be told."""
    said: dict[bytes, Said] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)

    def records(self) -> Iterator[DiskRecord]:
        """All records after the checkpoint, read again."""
        for part in self.parts:
            with _mapped(part.path) as data:
                at = part.at
                for _ in range(part.next - part.first):
                    record, at = decode_disk_record(data, at)
                    yield record
        if self.unlogged is not None:
            yield self.unlogged

    def blob(self, piece_bytes: int) -> Iterator[bytes]:
        """The state."""
        with self.checkpoint_path.open("rb") as file:
            file.seek(self.checkpoint.blob_at)
            while piece := file.read(piece_bytes):
                yield piece

    def source_of(self, record: DiskRecord) -> bytes | None:
        """Who sent the messages of a record, if that can be told of all that they sent."""
        sources = {mark.source for mark in record.watermarks}
        return next(iter(sources)) if len(sources) == 1 and not sources & self.mixed else None


def single_messages(payload: bytes) -> Iterator[SingleMessage]:
    """The messages of a record, one by one."""
    at, end = 0, len(payload)
    while at < end:
        start = at
        size, body = read_int(payload, at, end)
        at = body + size
        if size < 1 or at > end:
            raise RemoteProtocolError(f"a message of {size} bytes where {end - body} are left")
        kind = payload[body]
        if kind in _BATCH_HEADS:
            decode(payload, body, at, addressed=False)  # all is well formed
            inner = body + 1
            for _ in range(_BATCH_HEADS[Type(kind)]):
                _, inner = read_int(payload, inner, at)
            yield from single_messages(payload[inner:at])
        elif kind == Type.RPC:
            which, method, rpc_type, _ = read_body_head(payload, body + 1, at)
            decode(payload, body, at, addressed=False)
            yield SingleMessage(payload[start:at], None if which else method, rpc_type, BodyKind(which))
        elif kind == Type.INITIAL_MESSAGE:
            yield SingleMessage(payload[start:at], None, RpcType.FORK, None)
        else:
            raise RemoteProtocolError(f"a message of type {kind}, which no log holds")


@contextmanager
def _mapped(path: Path) -> Iterator[bytes]:
    """A file's bytes; slices of a map are bytes, and it is read only where it is looked at."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield cast(bytes, data)


def _numbered(directory: Path, names: re.Pattern[str]) -> dict[int, Path]:
    found = {int(match[1]): path for path in directory.iterdir() if (match := names.fullmatch(path.name))}
    return dict(sorted(found.items()))


def read_instance(directory: Path) -> FoundInstance:
    """Read a directory. What does not hold together is in `damage`; what precedes it can be had."""
    try:
        checkpoints, logs = _numbered(directory, _CHECKPOINT_NAME), _numbered(directory, _LOG_NAME)
        found, number = _newest_checkpoint(directory, checkpoints)
        _read_outputs(found)
        for log_number, path in logs.items():
            if log_number >= number and not found.damage:
                _read_log(found, path)
    except OSError as error:
        raise BadRequest(f"{error.filename}: {error.strerror}") from error
    _add_unlogged(found)
    return found


def _newest_checkpoint(directory: Path, paths: dict[int, Path]) -> tuple[FoundInstance, int]:
    versioned = _VERSIONED.fullmatch(directory.resolve().name)
    name, version = (versioned[1], int(versioned[2])) if versioned else (directory.resolve().name, 0)
    notes: list[str] = []
    for number, path in reversed(paths.items()):
        with _mapped(path) as data:
            try:
                head = decode_checkpoint_head(data)
                if len(data) < head.blob_at + head.checkpoint.size:
                    left = len(data) - head.blob_at
                    raise RemoteProtocolError(f"{head.checkpoint.size} bytes of state were announced, {left} are there")
            except RemoteProtocolError as error:
                notes.append(f"{path.name} is not whole and is left out: {error}")
                continue
        found = FoundInstance(name, version, path, head, next_sequence=head.next_sequence, notes=notes)
        for mark in head.inputs:
            found.processed[mark.source] = mark
        return found, number
    reason = "; ".join(notes) or "no file is called serverchkptN"
    raise BadRequest(f"{directory} has no checkpoint to continue from: {reason}")


# --- what it had said ------------------------------------------------------------------------------------------------


def _read_outputs(found: FoundInstance) -> None:
    for output in found.checkpoint.outputs:
        try:
            found.said[output.destination] = _said(output)
        except RemoteProtocolError as error:
            name = output.destination.decode(errors="replace") or "itself"
            found.damage.append(f"{found.checkpoint_path.name}: its calls of {name} do not hold: {error}")


def _said(output: Output) -> Said:
    """Pages are dropped whole once all in them is acknowledged, so the first one may hold calls that are."""
    if output.trim < 1 and not output.pages:
        return Said(output.last, 0)
    acknowledged = max(0, output.replayable_trim)
    said = Said(acknowledged, acknowledged)
    expected: int | None = None
    for data in output.pages:
        page = page_of(data)
        number = page.lowest
        if number != (expected or number):
            raise RemoteProtocolError(f"call {number} comes where {expected} was due")
        for message in single_messages(page.messages):
            if number > output.trim:
                if message.replayable:
                    said.waiting.append(message.data)
                else:
                    said.impulses += 1
            number += 1
        if number != page.highest + 1:
            raise RemoteProtocolError(f"a page ends at call {number - 1} and says {page.highest}")
        expected = number
    if expected is not None and expected != output.last + 1:
        raise RemoteProtocolError(f"the last call kept is {expected - 1}, and {output.last} were made")
    said.replayable += len(said.waiting)
    return said


# --- what was logged -------------------------------------------------------------------------------------------------


def _read_log(found: FoundInstance, path: Path) -> None:
    part = LogPart(path, 0, found.next_sequence, found.next_sequence)
    with _mapped(path) as data:
        at = 0
        while at < len(data):
            try:
                record, after = decode_disk_record(data, at)
                if record.committer != found.checkpoint.committer:
                    raise RemoteProtocolError(f"a record of committer {record.committer}")
            except RemoteProtocolError as error:
                _break_off(found, path, data, at, str(error))
                break
            if at == 0 and record.sequence < found.next_sequence:
                found.notes.append(f"{path.name} begins with record {record.sequence}, before {part.first}: left out")
                return
            try:
                if record.sequence != found.next_sequence:
                    raise RemoteProtocolError(f"record {record.sequence} comes where {found.next_sequence} was due")
                _take(found, record)
            except RemoteProtocolError as error:
                found.damage.append(f"{path.name}, byte {at}: {error}")
                break
            part.next, at = found.next_sequence, after
    if part.next > part.first:
        found.parts.append(part)


def _break_off(found: FoundInstance, path: Path, data: bytes, at: int, reason: str) -> None:
    """A record does not hold. If others follow it was whole once, and what was delivered is lost."""
    follows = _record_behind(data, at + 1, found)
    if follows is None:
        found.notes.append(f"{path.name} ends at byte {at} of {len(data)}, as after a kill: {reason}")
    else:
        found.damage.append(f"{path.name}, byte {at}: {reason}; record {follows} comes after it")


def _record_behind(data: bytes, at: int, found: FoundInstance) -> int | None:
    committer = COMMITTER_BYTES.pack(found.checkpoint.committer)
    while (at := data.find(committer, at)) >= 0:
        try:
            record, _ = decode_disk_record(data, at)
        except RemoteProtocolError:
            at += 1
            continue
        if record.sequence >= found.next_sequence:
            return record.sequence
        at += 1
    return None


def _take(found: FoundInstance, record: DiskRecord) -> None:
    """Count a record, if its trailer counts what it holds."""
    held = list(single_messages(record.payload))
    _check_trailer(found, record, [message.replayable for message in held if message.body is not None])
    found.delivery_type = max(found.delivery_type, _richest(record.payload))
    sources = {mark.source for mark in record.watermarks}
    found.mixed |= sources if len(sources) > 1 else set()
    found.processed |= {mark.source: mark for mark in record.watermarks}
    found.messages += len(held)
    found.largest_bytes = max([found.largest_bytes, *(len(message.data) for message in held)])
    found.next_sequence = record.sequence + 1


def _check_trailer(found: FoundInstance, record: DiskRecord, held: list[bool]) -> None:
    """Nothing else guards a trailer. `held` says of each call whether it is replayable. What was in the checkpoint's
    buffer is counted by the checkpoint already, and is in the first record after it."""
    grown = grown_replayable = 0
    for mark in record.watermarks:
        before = found.processed.get(mark.source, Watermark(mark.source, 0, 0))
        more, replayable = mark.last - before.last, mark.last_replayable - before.last_replayable
        if not 0 <= replayable <= more:
            raise RemoteProtocolError(f"record {record.sequence} counts backwards what {mark.source!r} said")
        grown, grown_replayable = grown + more, grown_replayable + replayable
    head = found.checkpoint
    is_first = record.sequence == head.next_sequence
    counted = len(list(single_messages(head.commit_buffer[RECORD_HEADER_BYTES:]))) if is_first else 0
    for what, count, most in (("calls", grown, len(held)), ("replayable calls", grown_replayable, sum(held))):
        if not most - counted <= count <= most:
            raise RemoteProtocolError(f"record {record.sequence} counts {count} {what}, and holds {most}")


def _richest(payload: bytes) -> Type:
    """The richest form of a message in a record: a counted batch, a batch or a bare one."""
    richest, at = Type.RPC, 0
    while at < len(payload):
        size, body = read_int(payload, at, len(payload))
        if payload[body] in _BATCH_HEADS:
            richest = max(richest, Type(payload[body]))
        at = body + size
    return richest


def _add_unlogged(found: FoundInstance) -> None:
    """The checkpoint's own buffer counts only if nothing was logged after it: else that is in the log."""
    head = found.checkpoint
    payload = head.commit_buffer[RECORD_HEADER_BYTES:]
    if found.parts or found.damage or not payload:
        return
    record = DiskRecord(head.committer, head.next_sequence, payload, head.watermarks, head.trims)
    try:
        _take(found, record)
    except RemoteProtocolError as error:
        found.damage.append(f"{found.checkpoint_path.name}: what waited for the log does not hold: {error}")
    else:
        found.unlogged = record
