"""Which transactions a commit takes: small ones pass large ones, and the order within a stream stays."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from random import Random

import pytest
from support.until import wait_until

from headrace.config.sections import Log as LogSettings
from headrace.errors import Busy
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.directory import open_directory
from headrace.log.pending import OPERATION_BYTES, Pending
from headrace.log.queue import OPERATIONS_MAX, CommitQueue
from headrace.testing import FakeClock, MemoryDisk

LARGE = 20_000
SETTINGS = LogSettings(commit_bytes_max=10_000, queue_bytes_max=30_000, tail_bytes_max=40_000)


def transaction(name: str, *streams: str, nbytes: int = 10) -> Pending:
    operations: list[ops.Op] = [ops.Append(stream, Batch.one(b"")) for stream in streams]
    return Pending(operations, nbytes, nbytes + OPERATION_BYTES * len(operations), name)


def filled(*pendings: Pending) -> CommitQueue:
    queue = CommitQueue(SETTINGS)
    for pending in pendings:
        queue.add(pending)
    return queue


def commits(queue: CommitQueue) -> list[str]:
    """What each takes, until nothing is left."""
    return [" ".join(pending.token for pending in taken) for taken in iter(queue.gather, [])]


def large(name: str, *streams: str) -> Pending:
    return transaction(name, *streams, nbytes=LARGE)


def test_small_ones_share_a_commit_and_a_large_one_is_alone() -> None:
    queue = filled(transaction("1", "a"), transaction("2", "b"), large("L", "c"), transaction("3", "d"))
    assert commits(queue) == ["1 2 3", "L"]


def test_a_commit_takes_only_so_many_operations_however_small() -> None:
    queue = CommitQueue(LogSettings())
    for number in range(OPERATIONS_MAX + 1):
        queue.add(transaction(str(number), "a"))
    assert len(queue.gather()) == OPERATIONS_MAX
    assert len(queue.gather()) == 1


def test_many_operations_make_a_transaction_large() -> None:
    most, more = (transaction(str(count), *["a"] * count) for count in (OPERATIONS_MAX, OPERATIONS_MAX + 1))
    queue = CommitQueue(LogSettings())
    for pending in (more, transaction("1", "b"), most):
        queue.add(pending)
    assert [pending.token for pending in queue.gather()] == [more.token]
    assert [pending.token for pending in queue.gather()] == ["1", most.token]


def test_large_ones_and_what_is_small_take_turns() -> None:
    queue = filled(large("L1", "a"), large("L2", "b"), large("L3", "c"), transaction("1", "d"))
    assert queue.gather()[0].token == "L1"
    queue.add(transaction("2", "e"))
    assert [pending.token for pending in queue.gather()] == ["1", "2"]
    queue.add(transaction("3", "e"))
    assert commits(queue) == ["L2", "3", "L3"]


def test_what_touches_something_that_waits_waits_behind_it() -> None:
    queue = filled(
        large("L1", "x"),
        large("L2", "a"),
        transaction("1", "a", "b"),  # behind L2
        transaction("2", "b"),  # and so behind 1
        transaction("3", "c"),
    )
    assert commits(queue) == ["L1", "3", "L2", "1 2"]


def test_many_keys_weigh_as_much_as_many_bytes() -> None:
    log = open_directory(MemoryDisk(), FakeClock(), SETTINGS)
    pending = log.submit([ops.DeleteMany("t", [b"k"] * 100)])
    assert (pending.nbytes, pending.weight) == (100, 100 + 101 * OPERATION_BYTES)
    log.close()


def test_streams_are_made_and_deleted_in_their_turn() -> None:
    def deletion(name: str, stream: str) -> Pending:
        return Pending([ops.DeleteStream(stream)], 0, 0, name)

    queue = filled(large("L1", "x"), large("L2", "a"), deletion("delete a", "a"), deletion("delete b", "b"))
    assert commits(queue) == ["L1", "delete b", "L2", "delete a"]


def test_one_large_transaction_is_no_congestion() -> None:
    queue = filled(large("L1", "a"))
    assert not queue.is_congested
    queue.add(large("L2", "a"))
    assert queue.is_congested
    queue.settled(queue.gather())
    assert not queue.is_congested
    for number in range(21):
        queue.add(transaction(str(number), "b", nbytes=700))
    assert not queue.is_congested
    queue.add(transaction("21", "b", nbytes=700))
    assert queue.is_congested


def test_bulky_ones_are_no_reason_to_stop_reading_from_others() -> None:
    """They share commits, being just below what is large: seven of them would have been congestion as small ones."""
    queue = filled(*(transaction(str(number), "a", nbytes=4_000) for number in range(6)))
    assert not queue.is_congested
    queue.add(transaction("6", "a", nbytes=4_000))
    assert queue.is_congested
    assert commits(queue) == ["0 1 2", "3 4 5", "6"]


def test_many_short_keys_count_by_the_work_they_are() -> None:
    queue = filled(Pending([], 100, 20_000, "keys"))
    assert not queue.is_congested
    queue.add(Pending([], 100, 20_000, "more keys"))
    assert queue.is_congested
    queue.settled(queue.gather())
    assert not queue.is_congested


def test_large_ones_that_wait_are_no_reason_to_refuse_small_ones() -> None:
    queue = filled(*(large("L", "a") for _ in range(4)))
    with pytest.raises(Busy, match="80000 bytes wait"):
        queue.add(large("L", "a"))
    queue.add(transaction("1", "b"))
    assert queue.nbytes == 4 * LARGE + 10


def test_without_room_small_ones_go_on_for_a_while() -> None:
    queue = filled(large("L", "a"), *(transaction(str(number), "b", nbytes=700) for number in range(11)))
    queue.is_held_back = True
    assert commits(queue) == ["0 1 2 3 4 5 6 7 8"]  # a quarter of 40,000 is used up
    queue.is_held_back = False
    assert commits(queue) == ["L", "9 10"]


def test_without_room_bulky_ones_leave_what_there_is_to_small_ones() -> None:
    bulky = [transaction(str(number), "a", nbytes=4_000) for number in range(5)]
    queue = filled(*bulky, transaction("small", "b"), transaction("of a", "a"))
    queue.is_held_back = True
    assert commits(queue) == ["small"]  # the other one waits behind those of its stream
    queue.is_held_back = False
    assert commits(queue) == ["0 1 2", "3 4 of a"]


def test_what_went_while_there_was_room_leaves_what_there_is_without_room_to_small_ones() -> None:
    """A commit of bulky ones may be what fills the tails."""
    bulky = [transaction(f"bulky {number}", f"b{number}", nbytes=9_000) for number in range(4)]
    queue = filled(*bulky)
    assert queue.gather() == bulky[:2]
    queue.is_held_back = True
    small = [transaction(f"small {number}", "s") for number in range(3)]
    for each in small:
        queue.add(each)
    assert queue.gather() == small
    queue.is_held_back = False
    assert queue.gather() == bulky[2:]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_the_order_of_each_stream_stays(seed: int) -> None:
    random = Random(seed)
    queue = CommitQueue(SETTINGS)
    handed_in: list[Pending] = []
    taken: list[Pending] = []
    for number in range(200):
        streams = random.sample("abcdef", random.randint(1, 3))
        if queue.nbytes < 2 * SETTINGS.queue_bytes_max:
            handed_in.append(transaction(str(number), *streams, nbytes=random.choice((10, 3_000, LARGE))))
            queue.add(handed_in[-1])
        queue.is_held_back = random.random() < 0.3
        if random.random() < 0.4:
            gathered = queue.gather()
            queue.settled(gathered)
            taken += gathered
    queue.is_held_back = False
    while gathered := queue.gather():
        taken += gathered
    for stream in "abcdef":
        assert _of(stream, taken) == _of(stream, handed_in)
    assert len(taken) == len(handed_in)


def _of(stream: str, pendings: Sequence[Pending]) -> list[str]:
    return [pending.token for pending in pendings if stream in pending.touches]


def test_a_log_whose_tails_are_full_stores_what_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large append waits for sealing, which does not come; a small one to another stream does not."""
    log = open_directory(MemoryDisk(), FakeClock(), SETTINGS)
    seals = threading.Event()
    step = log.maintenance.step
    monkeypatch.setattr(log.maintenance, "step", lambda: seals.is_set() and step())
    for name in ("large", "small"):
        log.submit([ops.CreateStream(name, 1, ops.StreamOptions())])
    log.start(lambda outcomes, touched: None)
    try:
        first, second = (log.submit([ops.Append("large", Batch.of([bytes(1000)] * 45))]) for _ in range(2))
        wait_until(lambda: first.done)
        small = log.submit([ops.Append("small", Batch.one(b"x"))])
        wait_until(lambda: small.done)
        assert not second.done
        seals.set()
        wait_until(lambda: second.done)
        assert (first.error, second.error, small.error) == (None, None, None)
    finally:
        seals.set()
        log.close()
