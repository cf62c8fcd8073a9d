"""Very many values, and very large ones, a slice at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from headrace.log.batch import Batch, Columns
from headrace.log.ops import PUT, Measured
from headrace.log.slices import SLICE_KEYS, Removals
from headrace.log.table import Table
from headrace.protocols.perper.bulk import Keys
from headrace.protocols.perper.ignite.binary import encode_byte_array, read_object
from headrace.slicing import SLICE, SLICE_BYTES, cut, in_slices, joined, lengths, let_go


class OnlySlices(Sequence[bytes]):
    """Can be had in slices only."""

    def __init__(self, values: list[bytes], most: int = SLICE) -> None:
        self._values = values
        self._most = most

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, which: Any) -> Any:
        assert isinstance(which, slice), "all of them in one go"
        found = self._values[which]
        assert len(found) <= self._most
        return found


class NotedBytes(bytes):
    """Notes what is copied of it."""

    copied: int

    def __getitem__(self, which: Any) -> Any:
        found = super().__getitem__(which)
        if isinstance(found, bytes):
            self.copied = max(self.copied, len(found))
        return found


VALUES = [b"x" * (number % 7) for number in range(2 * SLICE + 5)]


@pytest.mark.parametrize("count", [0, 1, SLICE, SLICE + 1, len(VALUES)])
def test_slices_are_all_of_it(count: int) -> None:
    values = VALUES[:count]
    guarded = OnlySlices(values) if count > SLICE else values
    assert [value for some in in_slices(guarded) for value in some] == values
    assert joined(guarded) == b"".join(values)
    assert lengths(guarded).tolist() == [len(value) for value in values]
    let_go(values)
    assert values == []


@pytest.mark.parametrize("count", [1, SLICE, len(VALUES)])
def test_what_the_log_knows_of_many_is_the_same_in_slices(count: int) -> None:
    keys, values = [b"key %d" % number for number in range(count)], VALUES[:count]
    sizes = [len(key) + len(value) for key, value in zip(keys, values, strict=True)]
    assert Measured.of(keys, values)[:2] == (sum(sizes), max(sizes))
    assert Measured.of(keys)[:2] == (sum(map(len, keys)), max(map(len, keys)))
    records = Columns(Batch.of(values, types=PUT, keys=keys).body).to_arrow(0, 0)
    assert records.column("payload").to_pylist() == values
    assert records.column("key").to_pylist() == keys
    assert Keys([*keys, *keys]).distinct() == keys


def test_keys_to_remove_are_looked_for_in_slices() -> None:
    table = Table()
    there = [b"key %d" % number for number in range(2 * SLICE_KEYS)]
    table.apply_many(there, [b"value"] * len(there), 0)
    asked = [*there, b"another", *there]
    removals = Removals(table, OnlySlices(asked, SLICE_KEYS))
    list(removals.slices())
    assert removals.keys == there
    assert removals.there == len(there)


def test_a_large_object_is_copied_in_slices() -> None:
    data = NotedBytes(encode_byte_array(bytes(3 * SLICE_BYTES)) + b"more")
    data.copied = 0
    end = len(data) - 4
    assert read_object(data, 0, end) == (bytes(data)[:end], end)
    assert data.copied == SLICE_BYTES
    assert [cut(b"abcdef", 1, 3), cut(b"abcdef", 2, 2)] == [b"bc", b""]


class NotAdded(bytes):
    """Cannot be copied by an addition."""

    def __radd__(self, other: bytes) -> bytes:
        raise AssertionError("copied once for each part")


def test_a_single_record_is_laid_out_in_one_copy() -> None:
    assert Batch.one(NotAdded(b"text"), type=PUT, key=b"key").body == Batch.one(b"text", type=PUT, key=b"key").body
