"""Who is told of which execution, and who has it reserved."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from headrace.protocols.errors import LocalProtocolError
from headrace.protocols.perper.books import Executions
from headrace.protocols.perper.fabric.executions import (
    ExecutionFeed,
    Filter,
    Reservations,
    ReservedFeed,
    SingleReservation,
    snapshot,
)
from headrace.protocols.perper.fabric.session import CallSession, Event
from headrace.protocols.perper.records import Execution

ANY = Filter("a", "", "")


def running(agent: str = "a", instance: str = "i", delegate: str = "d") -> Execution:
    return Execution(agent, instance, delegate, False)


def done(agent: str = "a") -> Execution:
    return running(agent)._replace(finished=True)


def names(messages: list[dict[str, Any]]) -> list[str]:
    return [
        "|" if message.get("startOfStream") else ("-" if message["cancelled"] else "+") + message["execution"]
        for message in messages
    ]


def test_filters() -> None:
    assert Filter("a", "", "").matches(running())
    assert not Filter("b", "", "").matches(running())
    assert not Filter("a", "x", "").matches(running())
    assert not Filter("a", "", "x").matches(running())
    assert Filter("a", "i", "d").matches(running())
    assert not ANY.matches(done())
    assert not ANY.matches(None)


def test_a_feed_from_the_start_to_the_changes() -> None:
    book, sent = Executions(), []
    book.apply("one", running())
    book.apply("old", done())
    book.apply("other", running("b"))
    feed = ExecutionFeed(book, ANY, sent.append)
    feed.start()
    assert names(sent) == ["+one", "|"]
    book.apply("two", running())
    book.apply("two", running())  # put again: announced once
    book.apply("one", done())  # finished: cancelled, as the text says
    book.apply("one", None)  # and not cancelled again
    book.apply("two", None)
    book.apply("never", done())
    book.apply("never", None)
    book.apply("old", running())  # turned back
    book.apply("old", running("b"))  # and now another agent's
    assert names(sent) == ["+one", "|", "+two", "-one", "-two", "+old", "-old"]
    feed.close()
    book.apply("late", running())
    assert names(sent)[-1] == "-old"
    assert names(snapshot(book, ANY)) == ["+late"]
    assert book.agents() == {"b": 2, "a": 1}


def worker(book: Executions, locks: Reservations, permits: int = 0, group: str = "") -> tuple[ReservedFeed, list[Any]]:
    sent: list[Any] = []
    feed = ReservedFeed(book, locks, group, ANY, sent.append)
    feed.start()
    feed.add_permits(permits)
    return feed, sent


def test_permits_are_spent_by_deliveries() -> None:
    book, locks = Executions(), Reservations()
    for name in "xyz":
        book.apply(name, running())
    feed, sent = worker(book, locks, 2)
    assert names(sent) == ["|", "+x", "+y"]
    book.apply("x", done())
    assert names(sent) == ["|", "+x", "+y", "-x"]
    feed.add_permits(1)
    assert names(sent)[-1] == "+z"
    book.apply("y", None)
    assert names(sent)[-1] == "-y"
    assert feed.permits == 0
    assert list(feed.delivered) == ["z"]
    assert len(locks) == 1


def test_one_worker_of_a_group_gets_it_and_a_lost_one_gives_it_back() -> None:
    book, locks = Executions(), Reservations()
    first, first_sent = worker(book, locks, 1)
    _, second_sent = worker(book, locks, 1)
    other, other_sent = worker(book, locks, 1, group="other")
    book.apply("x", running())
    assert (names(first_sent), names(second_sent), names(other_sent)) == (["|", "+x"], ["|"], ["|", "+x"])
    first.close()
    assert names(second_sent) == ["|", "+x"]
    other.close()
    assert len(locks) == 1


def test_a_lock_is_not_held_without_a_permit() -> None:
    book, locks = Executions(), Reservations()
    first, _ = worker(book, locks, 1)
    idle, idle_sent = worker(book, locks, 0)
    ready, ready_sent = worker(book, locks, 1)
    book.apply("x", running())
    first.close()
    assert names(idle_sent) == ["|"]
    assert names(ready_sent) == ["|", "+x"]
    ready.close()
    assert names(idle_sent) == ["|"]
    idle.add_permits(1)
    assert names(idle_sent) == ["|", "+x"]


def test_a_finished_execution_goes_to_nobody_else() -> None:
    book, locks = Executions(), Reservations()
    _, first_sent = worker(book, locks, 1)
    _, second_sent = worker(book, locks, 5)
    book.apply("x", running())
    book.apply("x", done())
    assert names(first_sent) == ["|", "+x", "-x"]
    assert names(second_sent) == ["|"]
    assert len(locks) == 0
    assert not locks._waiting


def test_single_reservations() -> None:
    book, locks = Executions(), Reservations()
    told: list[tuple[str, bool]] = []

    def reserve(name: str, execution: str = "x") -> SingleReservation:
        made = SingleReservation(book, locks, "g", execution)
        made.granted = lambda active: told.append((name, active))
        made.start()
        return made

    book.apply("x", running())
    first, second, third = reserve("first"), reserve("second"), reserve("third")
    assert told == [("first", True)]
    second.close()
    first.close()
    assert told == [("first", True), ("third", True)]
    book.apply("x", done())
    fourth = reserve("fourth")
    third.close()
    assert told[-1] == ("fourth", False)
    fourth.close()
    reserve("none", "y").close()
    assert told[-1] == ("none", False)
    assert locks.holders() == {}


class Workers(RuleBasedStateMachine):
    """Any mix of workers, permits and executions: each runs at one worker at most, and none is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.book, self.locks = Executions(), Reservations()
        self.workers: list[tuple[ReservedFeed, list[Any]]] = []
        self.finished: set[str] = set()

    @rule(permits=st.integers(0, 2))
    def comes(self, permits: int) -> None:
        if len(self.workers) < 4:
            self.workers.append(worker(self.book, self.locks, permits))

    @rule(number=st.integers(0, 3))
    def dies(self, number: int) -> None:
        if number < len(self.workers):
            self.workers.pop(number)[0].close()

    @rule(number=st.integers(0, 3), permits=st.integers(1, 3))
    def takes_more(self, number: int, permits: int) -> None:
        if number < len(self.workers):
            self.workers[number][0].add_permits(permits)

    @rule(name=st.sampled_from("uvwxyz"))
    def is_called(self, name: str) -> None:
        self.book.apply(name, running())
        self.finished.discard(name)

    @rule(name=st.sampled_from("uvwxyz"), remove=st.booleans())
    def ends(self, name: str, remove: bool) -> None:
        if self.book.get(name) is not None:
            self.book.apply(name, None if remove else done())

    @invariant()
    def each_at_one_worker(self) -> None:
        held = [name for feed, _ in self.workers for name in feed.delivered]
        assert len(held) == len(set(held)) == len(self.locks)
        active = {name for name, record in self.book.of_agent("a").items() if not record.finished}
        assert set(held) <= active
        if active - set(held):  # somebody waits: then nobody has a permit to spare
            assert all(feed.permits == 0 for feed, _ in self.workers)

    @invariant()
    def announced_once_until_cancelled(self) -> None:
        for _, sent in self.workers:
            open_names: set[str] = set()
            for message in names(sent)[1:]:
                assert (message[1:] in open_names) == (message[0] == "-")
                open_names ^= {message[1:]}


TestWorkers = Workers.TestCase
TestWorkers.settings = settings(max_examples=60, stateful_step_count=25)


def test_calls_move_by_their_table() -> None:
    call = CallSession(takes_many=False)
    assert call.request()
    assert not call.request()
    call.move(Event.NO_MORE_REQUESTS)
    call.move(Event.STATUS)
    assert call.ended
    with pytest.raises(LocalProtocolError):
        call.move(Event.REQUEST)
