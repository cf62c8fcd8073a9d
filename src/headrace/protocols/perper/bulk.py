"""The many keys, or entries, of one request.

To look through a hundred thousand of them takes longer than the event loop can spare. So all that others want to know
of them is found out when they are read, which for large requests is beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from headrace.log.ops import Measured
from headrace.protocols.perper.ignite.binary import NULL
from headrace.slicing import in_slices


class Keys(list[bytes]):
    """Keys to get or to remove."""

    __slots__ = ("measured",)

    def __init__(self, keys: Iterable[bytes] = ()) -> None:
        super().__init__(keys)
        self.measured = Measured.of(self)

    def distinct(self) -> list[bytes]:
        """Each of them once."""
        found: dict[bytes, None] = {}
        for some in in_slices(self):
            found.update(dict.fromkeys(some))
        return list(found)


class Entries(Sequence[tuple[bytes, bytes]]):
    """Keys with their values to put. Side by side: a hundred thousand pairs would be as many objects more, each of
    which Python's garbage collector looks at."""

    __slots__ = ("all_keys", "all_values", "has_null", "measured")

    def __init__(self, keys: list[bytes], values: list[bytes]) -> None:
        self.all_keys = keys
        self.all_values = values
        self.measured = Measured.made(keys, values)
        self.has_null = any(key[0] == NULL for key in keys) or any(value[0] == NULL for value in values)

    def __len__(self) -> int:
        return len(self.all_keys)

    def __getitem__(self, which: Any) -> Any:
        if isinstance(which, slice):
            return list(zip(self.all_keys[which], self.all_values[which], strict=True))
        return self.all_keys[which], self.all_values[which]

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        return zip(self.all_keys, self.all_values, strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]
