"""The rules of delivery, without I/O: every transition of the table, windows, repeats, gaps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.futoin.errors import PeerError
from headrace.protocols.futoin.interface import ANONYMOUS_PING, GEN, POLL, PUSH
from headrace.protocols.futoin.session import (
    BACK_OFF_FIRST_S,
    BACK_OFF_MAX_S,
    Channel,
    Delivery,
    LiveDelivery,
    Phase,
    check_constraints,
)


@pytest.mark.parametrize(
    ("interface", "channel", "known", "error"),
    [
        (GEN, Channel(True, False), True, None),
        (GEN, Channel(False, False), False, "Insecure channel"),
        (GEN, Channel(True, False), False, "Anonymous not allowed"),
        (POLL, Channel(False, False), True, None),
        (PUSH, Channel(False, False), False, "Anonymous not allowed"),
        (PUSH, Channel(False, False), True, "Bi-Direct Channel is required"),
        (PUSH, Channel(False, True), True, None),
        (ANONYMOUS_PING, Channel(False, False), False, None),
    ],
)
def test_constraints(interface: object, channel: Channel, known: bool, error: str | None) -> None:
    if error is None:
        check_constraints(interface, channel, known)  # type: ignore[arg-type]
    else:
        with pytest.raises(PeerError, match=error):
            check_constraints(interface, channel, known)  # type: ignore[arg-type]


class TestDelivery:
    def test_one_group_at_a_time(self) -> None:
        delivery = Delivery(10, window=1)
        group = delivery.send(15)
        assert (group.seq, group.first, group.next) == (0, 10, 15)
        assert not delivery.may_send
        assert delivery.confirm(0)
        assert (delivery.position, delivery.next, delivery.phase) == (15, 15, Phase.IDLE)
        assert delivery.send(20).seq == 1

    def test_position_follows_without_gaps(self) -> None:
        delivery = Delivery(0, window=3)
        for end in (5, 10, 15):
            delivery.send(end)
        assert not delivery.confirm(2)
        assert not delivery.confirm(1)
        assert delivery.position == 0
        assert delivery.phase is Phase.FLOWING
        assert delivery.confirm(0)
        assert (delivery.position, delivery.phase) == (15, Phase.IDLE)

    def test_refused_group_is_repeated_with_its_seq(self) -> None:
        delivery = Delivery(0, window=2)
        first = delivery.send(5)
        assert delivery.refuse(0) == BACK_OFF_FIRST_S
        assert delivery.phase is Phase.HELD
        assert not delivery.may_send
        assert delivery.refuse(0) is None  # it is already waiting
        assert delivery.repeat(0) is first
        assert delivery.repeat(0) is None
        assert delivery.refuse(0) == 2 * BACK_OFF_FIRST_S
        for _ in range(20):
            delivery.repeat(0)
            pause_s = delivery.refuse(0)
        assert pause_s == BACK_OFF_MAX_S
        delivery.repeat(0)
        assert delivery.confirm(0)
        assert delivery.position == 5

    def test_two_refused_groups_are_both_repeated(self) -> None:
        delivery = Delivery(0, window=3)
        for end in (5, 10, 15):
            delivery.send(end)
        delivery.refuse(0)
        delivery.refuse(1)
        delivery.confirm(2)
        assert delivery.phase is Phase.HELD
        assert delivery.repeat(0) is not None
        assert delivery.phase is Phase.HELD
        assert delivery.repeat(1) is not None
        assert delivery.phase is Phase.FLOWING
        delivery.confirm(0)
        delivery.confirm(1)
        assert (delivery.position, delivery.phase) == (15, Phase.IDLE)

    def test_skipped_events_count_as_delivered(self) -> None:
        delivery = Delivery(0, window=2)
        delivery.skip(7)
        assert (delivery.position, delivery.next) == (7, 7)
        delivery.send(9)
        delivery.skip(12)
        assert (delivery.position, delivery.next) == (7, 12)
        delivery.confirm(0)
        assert delivery.position == 12

    def test_own_advance_of_the_consumer(self) -> None:
        delivery = Delivery(0, window=2)
        delivery.advance(4)
        assert (delivery.position, delivery.next) == (4, 4)
        delivery.advance(2)
        assert delivery.next == 4
        delivery.send(6)
        delivery.advance(9)
        assert delivery.next == 6  # not under a group that is on its way

    def test_late_answers_after_the_end_change_nothing(self) -> None:
        delivery = Delivery(0, window=2)
        delivery.send(5)
        delivery.close()
        delivery.close()
        assert not delivery.confirm(0)
        assert delivery.refuse(0) is None
        assert delivery.repeat(0) is None
        assert delivery.position == 0
        assert not delivery.may_send

    def test_answers_to_unknown_groups_change_nothing(self) -> None:
        delivery = Delivery(0, window=2)
        assert not delivery.confirm(5)
        assert delivery.refuse(5) is None

    @given(st.lists(st.tuples(st.sampled_from(["send", "confirm", "refuse", "repeat", "skip"]), st.integers(0, 6))))
    def test_never_leaves_the_table_and_never_jumps(self, steps: list[tuple[str, int]]) -> None:
        delivery = Delivery(0, window=3)
        confirmed: set[int] = set()
        ends: dict[int, int] = {}
        for what, number in steps:
            before = delivery.position
            if what == "send" and delivery.may_send:
                group = delivery.send(delivery.next + 1 + number)
                ends[group.seq] = group.next
            elif what == "confirm" and number in ends:
                delivery.confirm(number)
                confirmed.add(number)
            elif what == "refuse":
                delivery.refuse(number)
            elif what == "repeat":
                delivery.repeat(number)
            elif what == "skip":
                delivery.skip(delivery.next + number)
            assert delivery.position >= before
            unconfirmed = [seq for seq in ends if seq not in confirmed]
            if unconfirmed:
                first = min(unconfirmed)
                assert delivery.position <= ends[first]
            assert delivery.in_flight <= 3


class TestLiveDelivery:
    def test_window(self) -> None:
        live = LiveDelivery(0, window=2, backlog_max=1000, group_events=100)
        assert [live.send(5), live.send(9)] == [0, 1]
        assert not live.may_send
        live.finish(0)
        live.finish(0)
        assert live.may_send
        assert live.in_flight == 1

    def test_dropped_groups_leave_gaps(self) -> None:
        live = LiveDelivery(0, window=2, backlog_max=1000, group_events=100)
        assert live.drop_backlog(1000) == 0
        assert live.drop_backlog(1250) == 3
        assert (live.next, live.next_seq, live.dropped) == (300, 3, 3)
        assert live.send(400) == 3

    def test_skip(self) -> None:
        live = LiveDelivery(5, window=2, backlog_max=1000, group_events=100)
        live.skip(9)
        live.skip(3)
        assert (live.next, live.next_seq) == (9, 0)
