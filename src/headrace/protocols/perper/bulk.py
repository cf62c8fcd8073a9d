"""The many keys, or entries, of one request.

To look through a hundred thousand of them takes longer than the event loop can spare. So all that others want to know
of them is found out when they are read, which for large requests is beside the loop.
"""

from __future__ import annotations

from collections.abc import Iterable

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


class Entries(list[tuple[bytes, bytes]]):
    """Keys with their values to put."""

    __slots__ = ("all_keys", "all_values", "has_null", "measured")

    def __init__(self, entries: Iterable[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(entries)
        self.all_keys = [key for key, _ in self]
        self.all_values = [value for _, value in self]
        self.measured = Measured.made(self.all_keys, self.all_values)
        self.has_null = any(key[0] == NULL or value[0] == NULL for key, value in self)
