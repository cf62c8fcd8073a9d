"""Files of the published coordinator described for people: what `headrace immortal decode` shows."""

from __future__ import annotations

import msgspec

from headrace.protocols.ambrosia.description import DescribedMessage, describe_messages
from headrace.protocols.ambrosia.files.layout import decode_checkpoint_head, read_log
from headrace.protocols.errors import RemoteProtocolError


class DecodedFile(msgspec.Struct, frozen=True):
    """A file: what it is, and for a log what is in it."""

    name: str
    summary: str
    messages: list[DescribedMessage] = []


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
    if not records:
        return DecodedFile(name, "no record that holds")
    first, last = records[0], records[-1]
    check = "XOR" if first.xor else "xxHash64"
    return DecodedFile(
        name,
        f"committer {first.committer}, records {first.sequence} to {last.sequence}, {check}",
        [
            DescribedMessage(sequence=record.sequence, **fields)
            for record in records
            for fields in describe_messages(record.payload)
        ],
    )
