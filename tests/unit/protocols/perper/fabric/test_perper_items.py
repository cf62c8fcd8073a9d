"""Which keys a listener gets."""

from __future__ import annotations

from headrace.protocols.perper.fabric.items import ItemFeed
from headrace.protocols.perper.keys import KeyIndex


class Stream:
    def __init__(self, *keys: int) -> None:
        self.keys = KeyIndex()
        self.arrivals = 0
        self.add(*keys)

    def add(self, *keys: int) -> None:
        for key in keys:
            self.keys.put(key, self.arrivals)
            self.arrivals += 1

    def feed(self, start: int, stride: int) -> ItemFeed:
        return ItemFeed(self.keys, self.arrivals, start, stride)


def test_stride_0_from_a_key_is_inclusive() -> None:
    stream = Stream(10, 20, 30)
    feed = stream.feed(20, 0)
    assert feed.take(100) == [20, 30]
    stream.add(25, 40)  # 25 comes too late: it is skipped silently
    assert feed.take(100) == [40]
    assert feed.take(100) == []


def test_stride_0_autodetect_gives_only_what_arrives() -> None:
    stream = Stream(10, 20)
    feed = stream.feed(-1, 0)
    assert feed.take(100) == []
    stream.add(15)  # below what was there, and still new
    assert feed.take(100) == [15]
    stream.add(30)
    assert feed.take(100) == [30]


def test_stride_0_takes_a_page_at_a_time() -> None:
    feed = Stream(*range(10)).feed(0, 0)
    assert [feed.take(4), feed.take(4), feed.take(4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_stride_0_from_the_smallest_key() -> None:
    assert Stream(-(2**63), 5).feed(-(2**63), 0).take(9) == [-(2**63), 5]


def test_packed_from_a_key_blocks_at_a_gap() -> None:
    stream = Stream(0, 1, 3)
    feed = stream.feed(0, 1)
    assert feed.take(100) == [0, 1]
    stream.add(2)
    assert feed.take(100) == [2, 3]


def test_packed_before_there_is_anything() -> None:
    stream = Stream()
    feed = stream.feed(5, 2)
    assert feed.take(100) == []
    stream.add(5, 6, 7)
    assert feed.take(100) == [5, 7]


def test_packed_autodetect() -> None:
    assert Stream(0, 1, 2).feed(-1, 1).take(9) == [2]
    assert Stream(0, 1, 2).feed(-1, -1).take(9) == [0]
    stream = Stream()
    feed = stream.feed(-1, 1)
    assert feed.take(9) == []
    stream.add(7, 8)
    assert feed.take(9) == [7, 8]


def test_packed_downwards() -> None:
    stream = Stream(5, 4, 3)
    feed = stream.feed(5, -1)
    assert feed.take(2) == [5, 4]
    assert feed.take(2) == [3]
    empty = Stream()
    feed = empty.feed(-1, -1)
    assert feed.take(1) == []
    empty.add(9, 8)
    assert feed.take(9) == [9, 8]
