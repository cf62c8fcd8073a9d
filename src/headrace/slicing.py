"""Very many values, and very large ones, a slice at a time.

What Python does in one step, such as to join a hundred thousand values, to free them, or to copy tens of megabytes, no
other thread of the process can interrupt. So the event loop waits for it even where it is done beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from headrace.units import MIB

SLICE: Final = 2_000
"""Values that are dealt with in one step: a tenth of a millisecond."""
SLICE_BYTES: Final = MIB
Value = TypeVar("Value")


def in_slices(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """The values, in parts of `SLICE` at most."""
    if len(values) <= SLICE:
        yield values
        return
    for start in range(0, len(values), SLICE):
        yield values[start : start + SLICE]


def let_go(values: list[Value]) -> None:
    """Empty a list whose values nobody else may need."""
    while values:
        del values[-SLICE:]


def joined(values: Sequence[bytes]) -> bytes:
    """All of them end to end."""
    return b"".join(values) if len(values) <= SLICE else b"".join([b"".join(some) for some in in_slices(values)])


def lengths(values: Sequence[bytes]) -> npt.NDArray[np.int64]:
    """How long each is."""
    found = np.empty(len(values), np.int64)
    start = 0
    for some in in_slices(values):
        found[start : start + len(some)] = list(map(len, some))
        start += len(some)
    return found


def cut(data: bytes, start: int, end: int) -> bytes:
    """A part of it. Python lets other threads run while it joins large pieces."""
    if end - start <= SLICE_BYTES:
        return data[start:end]
    return b"".join([data[at : min(at + SLICE_BYTES, end)] for at in range(start, end, SLICE_BYTES)])
