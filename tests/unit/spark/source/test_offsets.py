"""Planning as pure arithmetic on offsets."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import StructType

from headrace.spark.errors import DataLoss
from headrace.spark.hub_client import StreamState
from headrace.spark.options import parse_source
from headrace.spark.source import offsets
from headrace.spark.source.data_source import StreamReader
from headrace.spark.source.offsets import Position, Range


def state(name: str, *bounds: tuple[int, int], id: int = 1) -> StreamState:
    return StreamState(name, id, bounds)


def offset(name: str, *next_: int, id: int = 1) -> offsets.Offset:
    return offsets.make({name: Position(id, (0,) * len(next_), next_)}, "c", "hub:1")


def test_offset_survives_json_with_large_indexes() -> None:
    one = offset("a", 2**60, 7)
    assert json.loads(json.dumps(one)) == one
    assert offsets.positions_of(one)["a"].next == (2**60, 7)


def test_advance_takes_everything_without_a_limit() -> None:
    positions, losses = offsets.advance(offset("a", 3, 0), [state("a", (0, 10), (0, 4))], None)
    assert positions["a"].next == (10, 4)
    assert losses == []


def test_a_batch_is_the_range_between_two_offsets() -> None:
    found = offsets.ranges_between(offset("a", 3, 4), offset("a", 10, 4))
    assert found == [Range("a", 0, 3, 10)]


def test_a_partition_that_appears_later_is_read_from_its_first_index() -> None:
    start = offset("a", 3)
    positions, losses = offsets.advance(start, [state("a", (0, 3), (5, 9))], None)
    assert losses == []
    assert offsets.ranges_between(start, offsets.make(positions, "c", "hub:1")) == [Range("a", 1, 5, 9)]


def test_a_stream_that_appears_later_is_read_from_its_first_index() -> None:
    start = offset("a", 3)
    positions, _ = offsets.advance(start, [state("a", (0, 3)), state("b", (2, 6), id=2)], None)
    assert offsets.ranges_between(start, offsets.make(positions, "c", "hub:1")) == [Range("b", 0, 2, 6)]


def test_a_stream_made_again_is_a_loss_of_what_was_never_read() -> None:
    _, losses = offsets.advance(offset("a", 3, id=1), [state("a", (8, 9), id=2)], None)
    assert [(one.first, one.last) for one in losses] == [(3, 7)]


def test_a_stream_made_again_loses_nothing_when_all_was_read() -> None:
    start = offset("a", 8, id=1)
    positions, losses = offsets.advance(start, [state("a", (8, 9), id=2)], None)
    assert losses == []
    assert offsets.ranges_between(start, offsets.make(positions, "c", "hub:1")) == [Range("a", 0, 8, 9)]


def test_a_hub_that_answers_late_never_moves_a_query_back() -> None:
    positions, _ = offsets.advance(offset("a", 9), [state("a", (0, 5))], None)
    assert positions["a"].next == (9,)


def test_what_was_read_and_is_not_at_the_hub_any_more() -> None:
    """As behind an older copy of the hub's data. A partition that is not read has no end."""
    start = offset("a", 9, 9, 3)
    older = [state("a", (0, 5), (0, 0), (0, 3)), state("b", (0, 1), id=2)]
    (loss,) = offsets.beyond(start, older, {0, 2})
    assert (loss.partition, loss.first, loss.last) == (0, 5, 8)
    assert offsets.back(start, [loss])["streams"]["a"]["next"] == [5, 9, 3]
    assert start["streams"]["a"]["next"] == [9, 9, 3]
    assert [one.partition for one in offsets.beyond(start, older, None)] == [0, 1]
    assert offsets.beyond(start, [state("a", (0, 5), id=2)], None) == []


def test_a_query_may_begin_beyond_the_end_of_a_stream() -> None:
    start = offsets.make({"a": Position(1, (9,), (9,))}, "c", "hub:1")
    assert offsets.beyond(start, [state("a", (0, 5))], None) == []


def test_clip_names_what_was_trimmed() -> None:
    kept, losses = offsets.clip([Range("a", 0, 2, 9)], [state("a", (5, 20))])
    assert kept == [Range("a", 0, 5, 9)]
    error = losses[0]
    assert isinstance(error, DataLoss)
    assert "indexes 2 to 4" in str(error)


def test_clip_of_a_range_that_is_wholly_gone_leaves_nothing() -> None:
    kept, losses = offsets.clip([Range("a", 0, 2, 4)], [state("a", (5, 20))])
    assert kept == []
    assert (losses[0].first, losses[0].last) == (2, 3)


def test_clip_of_a_deleted_stream_is_a_loss() -> None:
    kept, losses = offsets.clip([Range("a", 0, 2, 4)], [])
    assert kept == []
    assert "deleted" in str(losses[0])


@given(
    backlogs=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1, max_size=6),
    limit=st.integers(1, 2500),
)
def test_limits_are_kept_and_used_up(backlogs: list[tuple[int, int]], limit: int) -> None:
    start = offset("a", *(begin for begin, _ in backlogs))
    states = [state("a", *((0, begin + more) for begin, more in backlogs))]
    positions, _ = offsets.advance(start, states, limit)
    taken = sum(after - begin for after, (begin, _) in zip(positions["a"].next, backlogs, strict=True))
    assert taken == min(limit, sum(more for _, more in backlogs))
    assert all(
        begin <= after <= begin + more for after, (begin, more) in zip(positions["a"].next, backlogs, strict=True)
    )


@given(
    sizes=st.lists(st.integers(1, 5000), min_size=1, max_size=5), tasks=st.integers(1, 16), least=st.integers(1, 2000)
)
def test_pieces_cover_their_ranges_exactly_and_in_order(sizes: list[int], tasks: int, least: int) -> None:
    ranges = [Range("a", number, 100, 100 + size) for number, size in enumerate(sizes)]
    pieces = offsets.split(ranges, tasks, least)
    assert len(pieces) <= tasks + len(ranges)
    for one in ranges:
        mine = [piece for piece in pieces if piece.partition == one.partition]
        assert mine[0].start == one.start
        assert mine[-1].end == one.end
        assert all(left.end == right.start for left, right in itertools.pairwise(mine))


def test_all_cores_get_work_when_there_is_enough() -> None:
    assert len(offsets.split([Range("a", 0, 0, 1_000_000)], 4, 1000)) == 4


@pytest.mark.parametrize("limit", [None, 5])
def test_equal_positions_are_equal_json(limit: int | None) -> None:
    states = [state("b", (0, 3)), state("a", (0, 3), id=2)]
    first, _ = offsets.advance(offsets.make({}, None, "h"), states, limit)
    second, _ = offsets.advance(offsets.make({}, None, "h"), states[::-1], None)
    again = offsets.make(second, None, "h")
    if limit is None:
        assert json.dumps(offsets.make(first, None, "h")) == json.dumps(again)
    else:
        assert json.dumps(offsets.make(first, None, "h")) != json.dumps(again)


def test_a_cursor_stays_with_the_slower_of_two_sources() -> None:
    """A join of a stream with itself asks twice for its end, and more may have come between."""
    fast, slow = offset("a", 105, 7, 3), offset("a", 100, 9)
    for order in ([fast, slow], [slow, fast]):
        assert offsets.cursor_positions(order) == {("hub:1", "c"): {"a": [100, 7]}}
    texts = [json.dumps(slow), json.dumps(fast)]
    assert offsets.cursor_positions([*texts, "no JSON", "7"]) == {("hub:1", "c"): {"a": [100, 7]}}


def test_partitions_that_are_not_read_have_no_position() -> None:
    def only(partition: int, *next_: int) -> offsets.Offset:
        return offsets.make({"a": Position(1, (0,) * len(next_), next_)}, "c", "hub:1", [partition])

    assert offsets.cursor_positions([only(1, 0, 8)]) == {("hub:1", "c"): {"a": [None, 8]}}
    assert offsets.cursor_positions([only(1, 0, 8), only(0, 5, 0)]) == {("hub:1", "c"): {"a": [5, 8]}}
    assert offsets.cursor_positions([offset("a", 1) | {"cursor": None}]) == {}


class Recorder:
    """A port that only notes where cursors go."""

    def __init__(self) -> None:
        self.moves: list[tuple[str, Any]] = []

    def move_cursor(self, cursor: str, positions: Any) -> None:
        self.moves.append((cursor, positions))


def test_a_source_moves_its_cursor_where_it_reads_and_may_leave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    port = Recorder()
    monkeypatch.setattr("headrace.spark.source.data_source.shared_port", lambda access, wait_s: port)
    given = {"stream": "a", "cursor": "c", "partitions": "1", "hub": "hub:1"}
    reader = StreamReader(parse_source(given), StructType())
    end = reader._offset({"a": Position(1, (0, 0), (0, 8))})
    reader.commit(end)
    assert port.moves == [("c", {"a": [None, 8]})]
    StreamReader(parse_source(given | {"moveCursor": "false"}), StructType()).commit(end)
    assert len(port.moves) == 1


def test_a_batch_says_from_where_to_where_it_read() -> None:
    def at(*begin: int, to: tuple[int, ...], id: int = 1) -> offsets.Offset:
        return offsets.make({"a": Position(id, begin, to)}, "c", "h")

    before = [at(0, 0, to=(5, 6)), at(0, 0, to=(4, 9))]
    after = [at(0, 0, 2, to=(8, 6, 3)), at(0, 0, 2, to=(7, 9, 3))]
    (found,) = offsets.read_ranges(before, after, "h")
    assert found == {"cursor": "c", "stream": "a", "first": [4, 6, 2], "next": [7, 6, 3]}
    (first,) = offsets.read_ranges([], after[:1], "h")
    assert first["first"] == [0, 0, 2]
    (unknown,) = offsets.read_ranges(None, after[:1], "h")
    assert (unknown["first"], unknown["next"]) == ([], [8, 6, 3])
    (elsewhere,) = offsets.read_ranges(before, after[:1], "another hub")
    assert elsewhere["cursor"] is None
    (again,) = offsets.read_ranges([at(0, to=(5,))], [at(7, to=(9,), id=2)], "h")
    assert again["first"] == [7]
    (some,) = offsets.read_ranges([], [at(1, 2, to=(3, 4)) | {"partitions": [1]}], "h")
    assert (some["first"], some["next"]) == ([None, 2], [None, 4])
    assert offsets.read_ranges([], ["not ours", "{}"], "h") == []
