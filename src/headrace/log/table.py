"""A table: the fold of a stream of changes, held in memory.

The stream has one partition; a change is a record with the table's key in `key`, the value in `payload`, and
`put` or `delete` as its `type`. The newest record of a key counts. Compaction writes the values that only old records
hold again at the end, and trims what is before.

A damaged record may be of any key. So behind damage a key is in doubt until a newer record says what it holds: asking
for it is an error, and so is asking for all keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec
import pyarrow as pa

from headrace.errors import Damaged

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
        self.damage: Damaged | None = None
        """The newest of its records that cannot be read."""
        self._deleted: set[bytes] = set()
        """Keys that a record behind the damage has deleted: there is no doubt that they are absent."""

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: bytes) -> bytes | None:
        """Raises `Damaged` when a damaged record may hold the key's newest value."""
        value = self._values.get(key)
        if self.damage is not None and self._may_concern(self.damage, key, value):
            raise _of_a_table(self.damage)
        return None if value is None else value.data

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """A snapshot, in the order in which the keys first came. Raises `Damaged` when it cannot be told."""
        if self.damage is not None:
            raise _of_a_table(self.damage)
        return ((key, value.data) for key, value in list(self._values.items()))

    def lose(self, damage: Damaged) -> None:
        """Records cannot be read; those that were folded in are older."""
        self.damage = damage
        self._deleted.clear()

    def _may_concern(self, damage: Damaged, key: bytes, value: Value | None) -> bool:
        return key not in self._deleted if value is None else value.index <= damage.last

    def is_doubtful(self, key: bytes) -> bool:
        """Whether damage may concern a key, with the commit under way counted in; only for the writer."""
        if self.damage is None or key in self._pending:
            return False
        return self._may_concern(self.damage, key, self._values.get(key))

    def peek(self, key: bytes) -> bytes | None:
        """The value with the commit under way counted in; only for the writer. Raises as `get` does."""
        pending = self._pending.get(key, _MISSING)
        return self.get(key) if pending is _MISSING else pending  # type: ignore[return-value]

    def growth(self, key: bytes, value: bytes | None) -> int:
        """How many bytes more there will be with a value in its place; only for the writer."""
        held = self._pending.get(key, _MISSING)
        if held is _MISSING:  # not by `get`: what is in doubt takes room, too
            durable = self._values.get(key)
            held = None if durable is None else durable.data
        return _size(key, value) - _size(key, held)  # type: ignore[arg-type]

    def set_pending(self, changes: Iterable[tuple[bytes, bytes | None]], growth: int) -> None:
        self._pending.update(changes)
        self.pending_bytes += growth

    def undo_of(self, keys: Iterable[bytes], growth: int) -> Callable[[], None]:
        """Takes back what `set_pending` is about to do."""
        before = [(key, self._pending.get(key, _MISSING)) for key in keys]

        def undo() -> None:
            for key, value in before:
                if value is _MISSING:
                    self._pending.pop(key, None)
                else:
                    self._pending[key] = value  # type: ignore[assignment]
            self.pending_bytes -= growth

        return undo

    def settle_pending(self) -> None:
        """The commit under way is over, and what is durable of it is applied."""
        self._pending.clear()
        self.pending_bytes = self.bytes

    def apply(self, key: bytes, value: bytes | None, index: int) -> None:
        """A change has become durable as record `index`."""
        if self.damage is not None:
            (self._deleted.add if value is None else self._deleted.discard)(key)
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


def _of_a_table(damage: Damaged) -> Damaged:
    return Damaged(
        damage.stream,
        damage.partition,
        damage.first,
        damage.last,
        damage.where,
        "what they said of this table's keys is lost: restore them from a backup, or put or delete the key again",
    )


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
