"""A table: the fold of a stream of changes, held in memory.

The stream has one partition; a change is a record with the table's key in `key`, the value in `payload`, and
`put` or `delete` as its `type`. The newest record of a key counts. Compaction writes the values that only old records
hold again at the end, and trims what is before. A record `clear`, without a key, says that there is no key any more;
the same frame trims all records before it, so that whoever does not know of `clear` comes to the same.

A damaged record may be of any key. So behind damage a key is in doubt until a newer record says what it holds: asking
for it is an error, and so is asking for all keys. A record `damage-accepted`, without a key, ends all doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, islice

import msgspec
import pyarrow as pa

from headrace.errors import Damaged
from headrace.log.ops import DELETE, LostChanges

CLEAR = "clear"
DAMAGE_ACCEPTED = "damage-accepted"
_MISSING = object()


class Value(msgspec.Struct, frozen=True, gc=False):
    """What a key holds and which record said so."""

    data: bytes
    index: int


Values = dict[bytes, Value]


class Table:
    """Keys and values. Changed by the writer under the log's lock; single look-ups need no lock."""

    __slots__ = (
        "_damaged_from",
        "_deleted",
        "_flying",
        "_is_cleared",
        "_pending",
        "_values",
        "accepted_below",
        "bytes",
        "damage",
        "is_behind",
        "pending_bytes",
    )

    def __init__(self) -> None:
        self._values: Values = {}
        self._pending: dict[bytes, bytes | None] = {}
        self._flying: tuple[tuple[dict[bytes, bytes | None], bool, int], ...] = ()
        """What commits on their way change, oldest first, and by how many bytes the table grows with each at most."""
        self._is_cleared = False
        """The commit under way clears the table: only what is pending will be there. None other is on its way."""
        self.is_behind = False
        """Records are durable that are not folded in yet."""
        self.bytes = 0
        """Of the live keys and values."""
        self.pending_bytes = 0
        """`bytes` as they will be at most when the commit under way is durable; only for the writer."""
        self.damage: Damaged | None = None
        """The newest of its records that cannot be read."""
        self._damaged_from = 0
        self.accepted_below = 0
        """Damage below this index was accepted, and may still lie there."""
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

    def keys(self) -> list[bytes]:
        """A snapshot, in the order in which the keys first came. Raises as `items` does."""
        if self.damage is not None:
            raise _of_a_table(self.damage)
        return list(self._values)

    def page(self, offset: int, limit: int) -> list[tuple[bytes, bytes]]:
        """So many items from number `offset` on, in the same order. Raises as `items` does."""
        if self.damage is not None:
            raise _of_a_table(self.damage)
        offset = min(offset, len(self._values))  # whoever asks may name any number, and Python's islice takes few
        while True:
            try:
                # One step for the interpreter: no other thread changes the table meanwhile.
                page = list(islice(self._values.items(), offset, offset + limit))
            except RuntimeError:  # it did
                continue
            return [(key, value.data) for key, value in page]

    def lose(self, damage: Damaged) -> None:
        """Records cannot be read; those that were folded in are older."""
        if self.damage is None:
            self._damaged_from = damage.first
        self.damage = damage
        self._deleted.clear()

    def _may_concern(self, damage: Damaged, key: bytes, value: Value | None) -> bool:
        return key not in self._deleted if value is None else value.index <= damage.last

    # -- the commit under way; only for the writer ------------------------------------------------------------------

    def is_doubtful(self, key: bytes) -> bool:
        """Whether damage may concern a key."""
        if self.damage is None or self._under_way(key) is not _MISSING:
            return False
        return self._may_concern(self.damage, key, self._values.get(key))

    def peek(self, key: bytes) -> bytes | None:
        """The value. Raises as `get` does."""
        pending = self._under_way(key)
        if pending is _MISSING:
            return self.get(key)
        return pending  # type: ignore[return-value]

    def _under_way(self, key: bytes) -> object:
        """What the newest commit under way that changes a key gives it; None when that is a clear."""
        pending: object = self._pending.get(key, _MISSING)
        if pending is not _MISSING:
            return pending
        if self._is_cleared:
            return None
        for changes, is_cleared, _ in reversed(self._flying):
            if key in changes:
                return changes[key]
            if is_cleared:
                return None
        return _MISSING

    def growth(self, key: bytes, value: bytes | None) -> int:
        """How many bytes more there will be with a value in its place."""
        return _size(key, value) - _size(key, self._held(key))

    def _held(self, key: bytes) -> bytes | None:
        """As `peek`, and not by `get`: what is in doubt takes room, too."""
        held = self._under_way(key)
        if held is _MISSING:
            durable = self._values.get(key)
            return None if durable is None else durable.data
        return held  # type: ignore[return-value]

    def to_delete(self, keys: Iterable[bytes]) -> tuple[list[bytes], int, int]:
        """Which of the keys must be deleted so that none is there, how many of these are there, and the growth."""
        if self._pending or self._flying or self._is_cleared:
            there = {key: held for key in dict.fromkeys(keys) if (held := self._held(key)) is not None}
        else:  # as nearly always, and much quicker
            values = self._values
            there = {key: values[key].data for key in dict.fromkeys(keys) if key in values}
        wanted = list(there)
        if self.damage is not None:
            wanted += [key for key in dict.fromkeys(keys) if key not in there and self.is_doubtful(key)]
        return wanted, len(there), -sum(map(len, there)) - sum(map(len, there.values()))

    def to_rewrite(self, keys: Iterable[bytes], before: int) -> tuple[list[bytes], list[bytes]]:
        """Those of the keys whose newest record is below an index, with their values: of changes under way none is."""
        changed = self._pending or self._flying or self._is_cleared
        values = self._values
        wanted = [
            (key, held.data)
            for key in keys
            if (held := values.get(key)) is not None
            and held.index < before
            and not (changed and self._under_way(key) is not _MISSING)
        ]
        return [key for key, _ in wanted], [value for _, value in wanted]

    @property
    def pending_count(self) -> int:
        """How many keys there will be."""
        held: Mapping[bytes, object] = self._values
        changed: dict[bytes, bytes | None] = {}
        for changes, is_cleared, _ in (*self._flying, (self._pending, self._is_cleared, 0)):
            if is_cleared:
                held, changed = {}, {}
            changed |= changes
        return len(held) + sum((value is not None) - (key in held) for key, value in changed.items())

    @property
    def is_blank(self) -> bool:
        """Whether no key will be there, beyond doubt."""
        has_values = bool(self._values or self._flying) or self.damage is not None
        return not self._pending and (self._is_cleared or not has_values)

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

    def set_cleared(self) -> Callable[[], None]:
        """The commit under way clears the table. Returns what takes that back."""
        before = self._pending, self._is_cleared, self.pending_bytes

        def undo() -> None:
            self._pending, self._is_cleared, self.pending_bytes = before

        self._pending, self._is_cleared, self.pending_bytes = {}, True, 0
        return undo

    def settle_pending(self) -> None:
        """The commit under way is over, and what is durable of it is applied."""
        self._pending.clear()
        self._flying = ()
        self._is_cleared = False
        self.pending_bytes = self.bytes

    def set_off(self) -> None:
        """The next commit begins while this one is on its way."""
        growth = self.pending_bytes - self.bytes - sum(growth for *_, growth in self._flying)
        self._flying += ((self._pending, self._is_cleared, growth),)
        self._pending, self._is_cleared = {}, False

    def land(self) -> None:
        """The oldest commit that has set off is over, and what is durable of it is applied."""
        self._flying = self._flying[1:]
        self.pending_bytes = self.bytes + sum(growth for *_, growth in self._flying)

    # -- what is durable ---------------------------------------------------------------------------------------------

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

    def apply_many(self, keys: Sequence[bytes], values: Sequence[bytes | None], base: int) -> None:
        """Changes have become durable as the records from `base` on."""
        held, size = self._values, self.bytes
        for key, value, index in zip(keys, values, count(base), strict=False):
            old = held.get(key)
            if old is not None:
                size -= len(key) + len(old.data)
            if value is not None:
                held[key] = Value(value, index)
                size += len(key) + len(value)
            elif old is not None:
                del held[key]
        self.bytes = size
        if self.damage is not None:
            for key, value in zip(keys, values, strict=True):
                (self._deleted.add if value is None else self._deleted.discard)(key)

    def clear(self) -> Values:
        """All keys are gone for good. Returns what was there: to free many objects at once would hold everybody up."""
        values, self._values = self._values, {}
        self.bytes = 0
        self.damage = None
        self._deleted.clear()
        return values

    def lost_changes(self) -> LostChanges | None:
        """What is given up with the damage."""
        damage = self.damage
        if damage is None:
            return None
        in_doubt = sum(value.index <= damage.last for value in self._values.values())
        return LostChanges(self._damaged_from, damage.last, in_doubt)

    def accept_damage(self) -> None:
        """The damage is accepted for good: there is no doubt any more."""
        if self.damage is not None:
            self.accepted_below = self.damage.last + 1
        self.damage = None
        self._deleted.clear()

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
            elif kind == CLEAR:
                self.clear()
            elif kind == DAMAGE_ACCEPTED:
                self.accept_damage()
        self.settle_pending()

    def written_before(self, index: int) -> list[tuple[bytes, bytes]]:
        """Live keys whose newest record is below an index. The writer may change the table meanwhile: what it
        changes has a newer record then."""
        values = self._values
        return [
            (key, value.data) for key in list(values) if (value := values.get(key)) is not None and value.index < index
        ]


def _of_a_table(damage: Damaged) -> Damaged:
    return Damaged(
        damage.stream,
        damage.partition,
        damage.first,
        damage.last,
        damage.where,
        "what they said of this table's keys is lost: restore them from a backup, or put or delete the key again; "
        "table.accept-damage serves what is left",
    )


def _size(key: bytes, value: bytes | None) -> int:
    return 0 if value is None else len(key) + len(value)
