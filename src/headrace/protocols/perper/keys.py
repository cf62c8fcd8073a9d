"""From the keys of a stream cache to the indexes of its records: 16 bytes an item.

Keys of real streams grow (ticks, or 0 1 2 …), so the map is two parallel arrays sorted by key, and a new item is
appended to both. Keys that come late wait in a small dict and are merged in when somebody needs the order, or when
there are many of them.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

# Late keys are merged when they are more than this and more than an eighth of the rest.
LATE_MIN = 1024
# So few are put into their places one by one, which moves memory and no more.
FEW = 16


class KeyIndex:
    """A sorted map from 64-bit keys to 64-bit record indexes."""

    __slots__ = ("_in_order", "_indexes", "_keys", "_late", "_oldest")

    def __init__(self) -> None:
        self._keys = array("q")
        self._indexes = array("q")
        self._late: dict[int, int] = {}
        self._in_order = True  # greater keys lie at greater indexes
        # The smallest index at or after each place, once somebody asked while keys are not in order. A new key at the
        # end has the largest index of all, so it only adds its own.
        self._oldest: array[int] | None = None

    def __len__(self) -> int:
        return len(self._keys) + len(self._late)

    def __contains__(self, key: int) -> bool:
        return self.get(key) is not None

    def get(self, key: int) -> int | None:
        """The index of `key`'s record."""
        keys = self._keys
        if not keys:
            return self._late.get(key)
        place = bisect_left(keys, key)
        if place < len(keys) and keys[place] == key:
            return self._indexes[place]
        return self._late.get(key) if self._late else None

    def put(self, key: int, index: int) -> None:
        """Point `key` at `index`, whether or not it was there."""
        keys = self._keys
        if not keys or key > keys[-1]:
            if self._late and key in self._late:
                self._late[key] = index
                return
            keys.append(key)
            self._indexes.append(index)
            if self._oldest is not None:
                self._oldest.append(index)
            return
        place = bisect_left(keys, key)
        if keys[place] == key:
            self._indexes[place] = index
            self._in_order = self._in_order and place == len(keys) - 1
            self._oldest = None
            return
        self._late[key] = index
        if len(self._late) > LATE_MIN and len(self._late) * 8 > len(keys):
            self._merge()

    def extend(self, keys: array[int], indexes: array[int]) -> None:
        """Add many at once: strictly ascending and all above the largest key there is."""
        assert not keys or not self._keys or keys[0] > self._keys[-1]
        self._keys.extend(keys)
        self._indexes.extend(indexes)
        self._oldest = None

    def remove(self, key: int) -> bool:
        """Forget `key`; whether it was there."""
        if self._late.pop(key, None) is not None:
            return True
        place = bisect_left(self._keys, key)
        if place == len(self._keys) or self._keys[place] != key:
            return False
        del self._keys[place]
        del self._indexes[place]
        self._oldest = None
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._keys = array("q")
        self._indexes = array("q")
        self._late.clear()
        self._in_order = True
        self._oldest = None

    def _merge(self) -> None:
        if not self._late:
            return
        self._oldest = None
        if len(self._late) <= FEW:
            for key, index in self._late.items():
                place = bisect_left(self._keys, key)
                self._keys.insert(place, key)
                self._indexes.insert(place, index)
            self._late.clear()
            self._in_order = False
            return
        late = np.array(sorted(self._late.items()), np.int64)
        keys, indexes = np.array(self._keys, np.int64), np.array(self._indexes, np.int64)
        places = np.searchsorted(keys, late[:, 0])
        keys, indexes = np.insert(keys, places, late[:, 0]), np.insert(indexes, places, late[:, 1])
        self._keys, self._indexes = array("q", keys.tobytes()), array("q", indexes.tobytes())
        self._late.clear()
        self._in_order = bool(np.all(np.diff(indexes) > 0))

    def first(self) -> int | None:
        """The smallest key."""
        self._merge()
        return self._keys[0] if self._keys else None

    def last(self) -> int | None:
        """The largest key."""
        self._merge()
        return self._keys[-1] if self._keys else None

    def above(self, key: int | None, limit: int, index_min: int = 0) -> list[int]:
        """Up to `limit` keys above `key` (None: all), ascending, of records at `index_min` or later."""
        self._merge()
        start = 0 if key is None else bisect_right(self._keys, key)
        if index_min == 0:
            return self._keys[start : start + limit].tolist()
        found: list[int] = []
        for place in range(start, len(self._keys)):
            if self._indexes[place] >= index_min:
                found.append(self._keys[place])
                if len(found) == limit:
                    break
        return found

    def run(self, key: int, stride: int, limit: int) -> list[int]:
        """The keys `key`, `key + stride`, … that are there without a gap, up to `limit`."""
        self._merge()
        keys, size = self._keys, len(self._keys)
        place = bisect_left(keys, key)
        found: list[int] = []
        step = 1 if stride > 0 else -1
        while 0 <= place < size and len(found) < limit:
            there = keys[place]
            if there == key:
                found.append(key)
                key += stride
                place += step
            elif (there < key) == (stride > 0):
                place += step  # a key between two of the stride's
            else:
                break
        return found

    def oldest_index_from(self, key: int) -> int | None:
        """The smallest record index among the keys at or above `key`: everything before it may go."""
        self._merge()
        place = bisect_left(self._keys, key)
        if place == len(self._keys):
            return None
        if self._in_order:
            return self._indexes[place]
        if self._oldest is None:
            smallest = np.minimum.accumulate(np.array(self._indexes, np.int64)[::-1])[::-1]
            self._oldest = array("q", smallest.tobytes())
        return self._oldest[place]

    def drop_below(self, key: int) -> int:
        """Forget all keys below `key`; how many they were."""
        self._merge()
        place = bisect_left(self._keys, key)
        del self._keys[:place]
        del self._indexes[:place]
        if self._oldest is not None:
            del self._oldest[:place]
        return place

    def drop_indexes_below(self, index: int) -> int:
        """Forget the keys whose records lie before `index` (they were trimmed); how many they were."""
        self._merge()
        keys, indexes = np.array(self._keys), np.array(self._indexes)
        kept = indexes >= index
        dropped = len(keys) - int(np.count_nonzero(kept))
        if dropped:
            self._keys = array("q", keys[kept].tobytes())
            self._indexes = array("q", indexes[kept].tobytes())
            self._oldest = None
        return dropped

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """(key, index), by key."""
        self._merge()
        return iter(list(zip(self._keys, self._indexes, strict=True)))
