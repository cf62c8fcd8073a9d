"""A table: the fold of a stream of changes, held in memory.

The stream has one partition; a change is a record with the table's key in `key`, the value in `payload`, and
`put` or `delete` as its `type`. The newest record of a key counts. Compaction writes the values that only old records
hold again at the end, and trims what is before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import pyarrow as pa

PUT = "put"
DELETE = "delete"
_MISSING = object()


class Value(msgspec.Struct, frozen=True, gc=False):
    """What a key holds and which record said so."""

    data: bytes
    index: int


class Table:
    """Keys and values. Changed by the writer under the log's lock; single look-ups need no lock."""

    def __init__(self) -> None:
        self._values: dict[bytes, Value] = {}
        self._pending: dict[bytes, bytes | None] = {}
        self.bytes = 0
        """Of the live keys and values."""
        self.pending_bytes = 0
        """`bytes` as they will be at most when the commit under way is durable; only for the writer."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        value = self._values.get(key)
        return None if value is None else value.data

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """A snapshot, in the order in which the keys first came."""
        for key, value in list(self._values.items()):
            yield key, value.data

    def peek(self, key: bytes) -> bytes | None:
        """The value with the commit under way counted in; only for the writer."""
        pending = self._pending.get(key, _MISSING)
        return self.get(key) if pending is _MISSING else pending  # type: ignore[return-value]

    def growth(self, key: bytes, value: bytes | None) -> int:
        """How many bytes more there will be with a value in its place; only for the writer."""
        return _size(key, value) - _size(key, self.peek(key))

    def set_pending(self, changes: Iterable[tuple[bytes, bytes | None]], growth: int) -> None:
        self._pending.update(changes)
        self.pending_bytes += growth

    def settle_pending(self) -> None:
        """The commit under way is over, and what is durable of it is applied."""
        self._pending.clear()
        self.pending_bytes = self.bytes

    def apply(self, key: bytes, value: bytes | None, index: int) -> None:
        """A change has become durable as record `index`."""
        old = self._values.get(key)
        if old is not None:
            self.bytes -= len(key) + len(old.data)
        if value is None:
            self._values.pop(key, None)
        else:
            self._values[key] = Value(value, index)
            self.bytes += len(key) + len(value)

    def fold(self, records: pa.RecordBatch) -> None:
        """Apply stored records, oldest first."""
        for index, kind, key, payload in zip(
            records.column("index").to_pylist(),
            records.column("type").to_pylist(),
            records.column("key").to_pylist(),
            records.column("payload").to_pylist(),
            strict=True,
        ):
            if key is not None:
                self.apply(key, None if kind == DELETE else payload, index)
        self.settle_pending()

    def written_before(self, index: int) -> list[tuple[bytes, bytes]]:
        """Live keys whose newest record is below an index."""
        return [(key, value.data) for key, value in self._values.items() if value.index < index]


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
