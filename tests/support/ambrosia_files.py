"""Writes the log and checkpoint files of the published AMBROSIA coordinator, which Headrace itself only reads."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from headrace.protocols.ambrosia.codec import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    Call,
    Checkpoint,
    Message,
    RpcBatch,
    check_bytes,
    encode,
    zigzag_int,
)
from headrace.protocols.ambrosia.files import layout


def _name(name: bytes) -> bytes:
    return zigzag_int(len(name)) + name


def _encode_watermarks(watermarks: tuple[layout.Watermark, ...]) -> bytes:
    return b"".join(_name(mark.source) + layout._PAIR.pack(mark.last, mark.last_replayable) for mark in watermarks)


def _encode_trims(trims: tuple[layout.Trim, ...]) -> bytes:
    return b"".join(_name(trim.destination) + layout._LONG.pack(trim.replayable) for trim in trims)


def encode_disk_record(record: layout.DiskRecord) -> bytes:
    """A record as a log file holds it."""
    length = RECORD_HEADER_BYTES + len(record.payload)
    check = layout.check_bytes_xor(record.payload) if record.xor else check_bytes(record.payload)
    stored = length if record.xor else -length - 1
    return b"".join(
        (
            RECORD_HEADER.pack(record.committer, stored, check, record.sequence),
            record.payload,
            zigzag_int(len(record.watermarks)),
            _encode_watermarks(record.watermarks),
            zigzag_int(len(record.trims)),
            _encode_trims(record.trims),
        )
    )


def _encode_output(output: layout.Output) -> bytes:
    counts = layout._OUTPUT.pack(output.last, output.trim, output.replayable_trim, len(output.pages))
    return _name(output.destination) + counts + b"".join(output.pages)


def encode_page(size: int, data: bytes, *counts: int) -> bytes:
    """A page of messages not yet acknowledged: highest, lowest, unsent replayable and total replayable number."""
    return struct.pack(f"<ii{len(data)}s4q", size, len(data), data, *counts)


def encode_checkpoint_head(file: layout.CheckpointFile) -> bytes:
    """A checkpoint file up to and with its Checkpoint message; the blob follows."""
    return b"".join(
        (
            layout._HEAD.pack(file.committer, file.next_sequence, file.buffer_bytes, len(file.commit_buffer)),
            file.commit_buffer,
            layout._COUNT.pack(len(file.watermarks)) + _encode_watermarks(file.watermarks),
            layout._COUNT.pack(len(file.trims)) + _encode_trims(file.trims),
            layout._COUNT.pack(len(file.inputs)) + _encode_watermarks(file.inputs),
            layout._COUNT.pack(len(file.outputs)) + b"".join(map(_encode_output, file.outputs)),
            encode(file.checkpoint),
        )
    )


def page_of(messages: list[bytes], lowest: int, replayable: int | None = None) -> bytes:
    """A page with these messages, numbered from `lowest` on."""
    data = b"".join(messages)
    replayable = len(messages) if replayable is None else replayable
    return encode_page(1 << 20, data, lowest + len(messages) - 1, lowest, 0, replayable)


class Instance:
    """The directory of an instance, written file by file."""

    def __init__(self, parent: Path, name: str, version: int = 0, committer: int = -77) -> None:
        self.path = parent / f"{name}_{version}"
        self.path.mkdir()
        self.committer = committer
        self._last: dict[bytes, tuple[int, int]] = {}

    def checkpoint(self, number: int, next_sequence: int, blob: bytes, **more: Any) -> None:
        """A checkpoint file."""
        file = layout.CheckpointFile(self.committer, next_sequence, more.pop("buffer", bytes(24)),
                                     Checkpoint(len(blob)), **more)  # fmt: skip
        self._last |= {mark.source: (mark.last, mark.last_replayable) for mark in file.inputs}
        (self.path / f"serverchkpt{number}").write_bytes(encode_checkpoint_head(file) + blob)

    def record(self, sequence: int, *said: tuple[bytes, list[Call]], batch: bool = False, xor: bool = False) -> bytes:
        """A record with what each source said, as it is on the disk."""
        marks = []
        messages: list[Message] = []
        for source, calls in said:
            last, replayable = self._last.get(source, (0, 0))
            counts = last + len(calls), replayable + sum(call.rpc_type != 2 for call in calls)
            self._last[source] = counts
            marks.append(layout.Watermark(source, *counts))
            messages += [RpcBatch(tuple(calls))] if batch else calls
        payload = b"".join(map(encode, messages))
        return encode_disk_record(layout.DiskRecord(self.committer, sequence, payload, tuple(marks), (), xor))

    def log(self, number: int, *records: bytes) -> Path:
        """A log file."""
        path = self.path / f"serverlog{number}"
        path.write_bytes(b"".join(records))
        return path
