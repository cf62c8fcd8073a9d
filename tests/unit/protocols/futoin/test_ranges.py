"""Sets of indexes, against a plain set."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.futoin import ranges
from headrace.protocols.futoin.ranges import Ranges


def test_runs_join() -> None:
    known = Ranges()
    known.add(0, 10)
    known.add(10, 20)
    known.add(30, 40)
    assert len(known) == 2
    assert known.covers(0, 20)
    assert known.covers(5, 6)
    assert not known.covers(15, 31)
    assert not known.covers(20, 21)
    known.add(20, 30)
    assert len(known) == 1
    assert known.covers(0, 40)


def test_nothing_is_covered_by_nothing() -> None:
    assert not Ranges().covers(0, 1)


def test_bounded() -> None:
    known = Ranges()
    for number in range(ranges.RANGES_MAX + 5):
        known.add(number * 2, number * 2 + 1)
    assert len(known) == ranges.RANGES_MAX
    assert not known.covers(0, 1)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 10)), max_size=15), st.integers(0, 45), st.integers(1, 8))
def test_same_as_a_set(runs: list[tuple[int, int]], first: int, size: int) -> None:
    known, plain = Ranges(), set()
    for start, length in runs:
        known.add(start, start + length)
        plain.update(range(start, start + length))
    assert known.covers(first, first + size) == plain.issuperset(range(first, first + size))
