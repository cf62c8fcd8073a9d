"""The reader of what a binding receives: bytes in any pieces in, log records and pieces of checkpoints out."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.protocols.ambrosia.codec import (
    RECORD_HEADER,
    RECORD_HEADER_BYTES,
    SEQUENCE_CHECKPOINT,
    Blob,
    Checkpoint,
    check_bytes,
    decode_messages,
)
from headrace.protocols.errors import RemoteProtocolError


@dataclass(frozen=True, slots=True)
class Record:
    """A log record as a binding receives it."""

    committer: int
    sequence: int
    payload: bytes


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
        items: list[Record | Blob] = []
        at = 0
        while at < len(buffer):
            if self._blob_left:
                piece = bytes(buffer[at : at + self._blob_left])
                at += len(piece)
                self._blob_left -= len(piece)
                items.append(Blob(piece, not self._blob_left))
                continue
            record = self._record(buffer, at)
            if record is None:
                break
            at += RECORD_HEADER_BYTES + len(record.payload)
            items.append(record)
            if record.sequence == SEQUENCE_CHECKPOINT:
                self._blob_left = self._checkpoint_size(record.payload)
                if not self._blob_left:
                    items.append(Blob(b"", True))
        del buffer[:at]
        return items

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
