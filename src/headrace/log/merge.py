"""Many small bodies as one set of Arrow columns.

A tail often consists of batches of a few records. Arrow's cost is per array, about 30 µs for the columns of one body
however small. So the raw sections of a column are joined first, body by body, and each array is made once.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.batch import HEAD, LAYOUT, ONE_TYPE, TYPE, Section, Slot, read_one_type

_LAST_OFFSET = struct.Struct("<i")
Bits = npt.NDArray[np.uint8]
Variable = tuple[Section, Section]
"""Where each value ends, and the bytes of all."""


class _Body:
    """A body that is read from start to end, a section at a time."""

    __slots__ = ("at", "columns", "count", "data", "nulls")

    def __init__(self, data: bytes) -> None:
        self.data = memoryview(data)  # sections are copied once, where they are joined
        self.columns, self.nulls, self.count = HEAD.unpack_from(data)
        self.at = HEAD.size

    def take(self, size: int) -> Section:
        """The next section."""
        start = self.at
        end = start + size
        self.at = end + -end % 8
        return self.data[start:end]

    def take_validity(self, bit: int) -> Bits | None:
        """Which values of the next column are there; None when all are."""
        if not self.nulls & bit:
            return None
        packed = np.frombuffer(self.take((self.count + 7) // 8), np.uint8)
        return np.unpackbits(packed, count=self.count, bitorder="little")

    def take_variable(self) -> Variable:
        count = self.count
        (size,) = _LAST_OFFSET.unpack_from(self.data, self.at + 4 * count)
        return self.take(4 * count + 4)[4:], self.take(size)

    def take_one_type(self) -> Variable:
        """A type that all records of a body share, as `take_variable` would give it."""
        text, self.at = read_one_type(self.data, self.at)
        data = text.encode()
        ends = np.arange(1, self.count + 1, dtype=np.int32) * np.int32(len(data))
        return ends.tobytes(), data * self.count


def merge(bodies: Sequence[bytes]) -> tuple[list[pa.Array | None], pa.Array]:
    """The columns of several bodies, one behind the other: the optional ones (None for one that no body has), and the
    payloads."""
    parts = [_Body(body) for body in bodies]
    counts = [part.count for part in parts]
    payload = _variable([part.take_variable() for part in parts], counts, pa.binary(), None)
    return [_optional(parts, counts, slot) for slot in LAYOUT], payload


def _optional(parts: list[_Body], counts: list[int], slot: Slot) -> pa.Array | None:
    bit = slot.bit
    if not any(part.columns & bit for part in parts):
        return None
    valid: list[Bits | None] = []
    sections: list[Variable] = []
    for part in parts:
        if not part.columns & bit:
            valid.append(np.zeros(part.count, np.uint8))
            sections.append((bytes(part.count * (8 if slot.is_fixed else 4)), b""))
        else:
            valid.append(part.take_validity(bit))
            if slot.is_fixed:
                sections.append((part.take(8 * part.count), b""))
            elif bit == TYPE and part.columns & ONE_TYPE:
                sections.append(part.take_one_type())
            else:
                sections.append(part.take_variable())
    return (_fixed if slot.is_fixed else _variable)(sections, counts, slot.kind, _bitmap(valid, counts))


def _bitmap(valid: list[Bits | None], counts: list[int]) -> pa.Buffer | None:
    """Arrow's validity of several parts; None when nothing is null."""
    if all(bits is None for bits in valid):
        return None
    filled = [np.ones(count, np.uint8) if bits is None else bits for bits, count in zip(valid, counts, strict=True)]
    return pa.py_buffer(np.packbits(np.concatenate(filled), bitorder="little").tobytes())


def _fixed(sections: list[Variable], counts: list[int], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    values = b"".join([values for values, _ in sections])
    return pa.Array.from_buffers(kind, sum(counts), [validity, pa.py_buffer(values)])


def _variable(sections: list[Variable], counts: list[int], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    data = [data for _, data in sections]
    starts = [0, *accumulate(map(len, data[:-1]))]
    ends = np.frombuffer(b"".join([ends for ends, _ in sections]), np.int32)
    offsets = np.zeros(len(ends) + 1, np.int32)
    np.add(ends, np.repeat(np.array(starts, np.int32), counts), out=offsets[1:])
    return pa.Array.from_buffers(kind, len(ends), [validity, pa.py_buffer(offsets), pa.py_buffer(b"".join(data))])
