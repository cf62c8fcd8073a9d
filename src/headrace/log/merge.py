"""Many small bodies as one set of Arrow columns.

A tail often consists of batches of a few records. Arrow's cost is per array, about 30 µs for the columns of one body
however small; joining the raw sections first and making the arrays once costs a tenth of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.log.batch import HEAD, LAYOUT, ONE_TYPE, TYPE, read_one_type

Bits = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]


class Variable(NamedTuple):
    """Values of any length, as in a body: which are there (None: all), where they end, their bytes."""

    valid: Bits | None
    offsets: Offsets
    data: bytes


class Fixed(NamedTuple):
    valid: Bits | None
    values: Longs


class Sections(NamedTuple):
    """One body, taken apart and not yet made into arrays."""

    records: int
    payload: Variable
    optional: Sequence[Fixed | Variable | None]
    """In the order of `LAYOUT`."""


_NONE = (None,) * len(LAYOUT)


def split(body: bytes) -> Sections:
    """The sections of a body."""
    columns, nulls, count = HEAD.unpack_from(body)
    payload, at = _variable(body, HEAD.size, count, False)
    if not columns:  # many have only payloads
        return Sections(count, payload, _NONE)
    optional: list[Fixed | Variable | None] = []
    section: Fixed | Variable | None
    for bit, _, _, is_fixed in LAYOUT:
        if not columns & bit:
            optional.append(None)
            continue
        if bit == TYPE and columns & ONE_TYPE:
            type, at = read_one_type(body, at)
            section = _spread(type, count)
        else:
            section, at = (_fixed if is_fixed else _variable)(body, at, count, bool(nulls & bit))
        optional.append(section)
    return Sections(count, payload, optional)


def _validity(body: bytes, at: int, count: int, present: bool) -> tuple[Bits | None, int]:
    if not present:
        return None, at
    size = (count + 7) // 8
    bits = np.unpackbits(np.frombuffer(body, np.uint8, size, at), count=count, bitorder="little")
    return bits, at + size + -size % 8


def _fixed(body: bytes, at: int, count: int, nulls: bool) -> tuple[Fixed, int]:
    valid, at = _validity(body, at, count, nulls)
    return Fixed(valid, np.frombuffer(body, np.int64, count, at)), at + 8 * count


def _variable(body: bytes, at: int, count: int, nulls: bool) -> tuple[Variable, int]:
    valid, at = _validity(body, at, count, nulls)
    offsets = np.frombuffer(body, np.int32, count + 1, at)
    size = int(offsets[count])
    at += 4 * (count + 1)
    at += -at % 8
    return Variable(valid, offsets, body[at : at + size]), at + size + -size % 8


def merge(bodies: Sequence[bytes]) -> tuple[list[pa.Array | None], pa.Array]:
    """The columns of several bodies, one behind the other: the optional ones (None for one that no body has), and the
    payloads."""
    parts = [split(body) for body in bodies]
    counts = [part.records for part in parts]
    payload = _merge_variable([part.payload for part in parts], counts, pa.binary())
    optional = []
    for slot, sections in zip(LAYOUT, zip(*(part.optional for part in parts), strict=True), strict=True):
        merged: Callable[..., pa.Array | None] = _merge_fixed if slot.is_fixed else _merge_variable
        optional.append(merged(sections, counts, slot.kind))
    return optional, payload


def _spread(type: str, count: int) -> Variable:
    """A type that all records of a body share, as a column."""
    text = type.encode()
    return Variable(None, np.arange(count + 1, dtype=np.int32) * np.int32(len(text)), text * count)


def _bitmap(valids: list[Bits | None], counts: list[int]) -> pa.Buffer | None:
    """Arrow's validity of several parts; None when nothing is null."""
    if all(valid is None for valid in valids):
        return None
    bits = [np.ones(count, np.uint8) if valid is None else valid for valid, count in zip(valids, counts, strict=True)]
    return pa.py_buffer(np.packbits(np.concatenate(bits), bitorder="little").tobytes())


def _merge_fixed(parts: Sequence[Fixed | None], counts: list[int], kind: pa.DataType) -> pa.Array | None:
    if not any(parts):
        return None
    filled = [
        part or Fixed(np.zeros(count, np.uint8), np.zeros(count, np.int64))
        for part, count in zip(parts, counts, strict=True)
    ]
    values = np.concatenate([part.values for part in filled])
    validity = _bitmap([part.valid for part in filled], counts)
    return pa.Array.from_buffers(kind, sum(counts), [validity, pa.py_buffer(values)])


def _merge_variable(parts: Sequence[Variable | None], counts: list[int], kind: pa.DataType) -> pa.Array | None:
    if not any(parts):
        return None
    filled = [
        part or Variable(np.zeros(count, np.uint8), np.zeros(count + 1, np.int32), b"")
        for part, count in zip(parts, counts, strict=True)
    ]
    ends = np.cumsum([len(part.data) for part in filled])
    starts = [0, *ends[:-1].tolist()]
    offsets = np.zeros(sum(counts) + 1, np.int32)
    np.concatenate(
        [part.offsets[1:] + np.int32(start) for part, start in zip(filled, starts, strict=True)], out=offsets[1:]
    )
    data = b"".join([part.data for part in filled])
    validity = _bitmap([part.valid for part in filled], counts)
    return pa.Array.from_buffers(kind, sum(counts), [validity, pa.py_buffer(offsets), pa.py_buffer(data)])
