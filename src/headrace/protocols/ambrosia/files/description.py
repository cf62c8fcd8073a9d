"""Files of the published coordinator in words: what `headrace immortal decode` shows."""

from __future__ import annotations

import msgspec

from headrace.protocols.ambrosia.description import messages_in_words
from headrace.protocols.ambrosia.files.layout import decode_checkpoint_head, read_log
from headrace.protocols.errors import RemoteProtocolError


class FileMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a log file."""

    sequence: int
    kind: str
    method: int | None = None
    caller: str | None = None
    call_number: int | None = None
    text: str | None = None
    base64: str | None = None
    bytes: int = 0


class DecodedFile(msgspec.Struct, frozen=True):
    """A file: what it is, and for a log what is in it."""

    name: str
    summary: str
    messages: list[FileMessage] = []


def decode_file(name: str, data: bytes) -> DecodedFile:
    """A log or a checkpoint file, told apart by the published names, `serverlogN` and `serverchkptN`."""
    if "chkpt" in name:
        try:
            head = decode_checkpoint_head(data)
        except RemoteProtocolError as error:
            return DecodedFile(name, f"no checkpoint file: {error}")
        waiting = [(output.destination.decode(errors="replace") or "itself") for output in head.outputs]
        return DecodedFile(
            name,
            f"checkpoint of committer {head.committer} before record {head.next_sequence}, "
            f"{head.checkpoint.size} bytes of state, outputs for {', '.join(waiting) or 'nobody'}",
        )
    records = read_log(data)
    messages = [
        FileMessage(sequence=record.sequence, **words)
        for record in records
        for words in messages_in_words(record.payload)
    ]
    if not records:
        return DecodedFile(name, "no record that holds")
    check = "XOR" if records[0].xor else "xxHash64"
    return DecodedFile(
        name,
        f"committer {records[0].committer}, records {records[0].sequence} to {records[-1].sequence}, {check}",
        messages,
    )
