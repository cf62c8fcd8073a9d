"""How far the journal was durable once.

    journal/proof
    proof  := "HRPROOF1" next_sequence:u64 first_sequence:u64 size:u64 crc:u32 zero:u32    (40 bytes)

The proof is written over about once a second, and when there is nothing to do: so far the journal was durable by then,
in the file that begins with `first_sequence`. An end that is lost later is missed, although nothing behind it is left
to vouch for it. Without a proof nothing is wrong; there is only less to go by.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from google_crc32c import value as crc32c

from headrace.log.disk import Disk
from headrace.log.place import JOURNAL

PROOF = f"{JOURNAL}/proof"
_MAGIC = b"HRPROOF1"
_RECORD = struct.Struct("<8sQQQ")


class Proof(NamedTuple):
    next_sequence: int
    first_sequence: int
    """Of the file that was being written."""
    size: int
    """Of that file."""

    def encode(self) -> bytes:
        record = _RECORD.pack(_MAGIC, *self)
        return record + struct.pack("<II", crc32c(record), 0)


NO_PROOF = Proof(0, 0, 0)


def proof_of(disk: Disk) -> Proof:
    try:
        data = disk.read_range(PROOF, 0, _RECORD.size + 4)
    except FileNotFoundError:
        return NO_PROOF
    if len(data) < _RECORD.size + 4 or crc32c(data[: _RECORD.size]) != int.from_bytes(data[_RECORD.size :], "little"):
        return NO_PROOF
    magic, *proven = _RECORD.unpack_from(data)
    return Proof(*proven) if magic == _MAGIC else NO_PROOF
