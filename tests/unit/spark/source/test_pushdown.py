from __future__ import annotations

from datetime import UTC, datetime

from pyspark.sql.datasource import EqualTo, GreaterThan, GreaterThanOrEqual, In, IsNotNull, LessThan, LessThanOrEqual

from headrace.spark.source.pushdown import INDEX_MAX, PushedFilters


def test_index_filters_are_taken_exactly() -> None:
    narrowing = PushedFilters()
    assert narrowing.take(GreaterThan(("index",), 3))
    assert narrowing.take(LessThanOrEqual(("index",), 9))
    assert narrowing.take(IsNotNull(("index",)))
    assert narrowing.indexes() == (4, 10)
    assert narrowing.take(EqualTo(("index",), 5))
    assert narrowing.indexes() == (5, 6)


def test_bounds_on_both_ends() -> None:
    narrowing = PushedFilters()
    assert narrowing.take(GreaterThanOrEqual(("index",), 3))
    assert narrowing.take(LessThan(("index",), 9))
    assert narrowing.indexes() == (3, 9)
    assert PushedFilters().indexes() == (0, INDEX_MAX)


def test_times_narrow_and_stay_with_spark() -> None:
    narrowing = PushedFilters()
    assert not narrowing.take(GreaterThan(("time",), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)))
    assert not narrowing.take(LessThanOrEqual(("time",), datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC)))
    assert narrowing.times_us() == (1_000_000, 2_000_001)


def test_types_narrow_together_with_the_option() -> None:
    narrowing = PushedFilters()
    assert narrowing.types(["a"]) == ("a",)
    assert not narrowing.take(In(("type",), ("a", "b")))
    assert narrowing.types(None) == ("a", "b")
    assert narrowing.types(["b", "c"]) == ("b",)


def test_streams_and_partitions() -> None:
    narrowing = PushedFilters()
    assert narrowing.take(EqualTo(("stream",), "a"))
    assert narrowing.take(In(("partition",), (0, 2)))
    assert narrowing.wants("stream", "a")
    assert not narrowing.wants("stream", "b")
    assert [narrowing.wants("partition", number) for number in range(3)] == [True, False, True]


def test_what_no_list_can_say_is_left_to_spark() -> None:
    narrowing = PushedFilters()
    assert not narrowing.take(In(("type",), ("a", None)))
    assert not narrowing.take(In(("stream",), ("a", None)))
    assert not narrowing.take(EqualTo(("payload",), b"x"))
    assert not narrowing.take(EqualTo(("value", "n"), 1))
    assert narrowing.types(None) is None
    assert narrowing.wants("stream", "b")
