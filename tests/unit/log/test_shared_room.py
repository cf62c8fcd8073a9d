"""A log on a shared store whose tails are full: appends wait for the store, and an owner that waits is still told when
it has lost the cell."""

from __future__ import annotations

import threading
from collections.abc import Iterable

import pytest
from support.until import wait_until
from unit.log.helpers import Outcomes
from unit.log.test_shared import FarStore, Place, numbers

from headrace.errors import LogFailed
from headrace.log import ops
from headrace.log.batch import Batch


class SlowStore(FarStore):
    """Takes what it is given when somebody lets it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def copy_in(self, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        assert self.gate.wait(60)
        return super().copy_in(name, chunks)


@pytest.mark.parametrize("is_slow", [True, False])
def test_appends_wait_at_the_limit_of_the_tails(is_slow: bool) -> None:
    """A store that is slow, or out of reach: appends go on until the tails are full, wait, and go on by themselves."""
    place = Place()
    place.far = SlowStore()
    outcomes = Outcomes()
    log = place.open(tail_bytes_max=20_000, maintenance_interval_s=0.02, commit_bytes_max=1)
    if not is_slow:
        place.far.gate.set()
        place.far.error = OSError("no route")
    log.start(outcomes)
    pendings = [log.submit([ops.CreateStream("s")])]
    pendings += [log.submit([ops.Append("s", Batch.one(b"x" * 1000))]) for _ in range(60)]
    wait_until(lambda: log.state.tail_bytes > 20_000)
    if not is_slow:
        wait_until(lambda: "no route" in log.trouble().get("store", ""))
    wait_until(lambda: log.queue_bytes > 0)
    stored = sum(pending.done for pending in pendings)
    assert 15 < stored < 40, "no more than the tails hold"
    assert numbers(log, "s")[:10] == [b"x" * 1000] * 10, "reads go on"
    place.far.error = None
    place.far.gate.set()
    outcomes.wait_for(pendings[-1])
    assert all(pending.error is None for pending in pendings)
    wait_until(lambda: log.trouble() == {})
    assert len(numbers(log, "s")) == 60
    log.close()


def test_an_owner_that_waits_for_its_store_learns_that_it_has_lost_the_cell() -> None:
    place = Place()
    place.far.error = OSError("no route")
    outcomes = Outcomes()
    log = place.open(tail_bytes_max=20_000, maintenance_interval_s=0.02, commit_bytes_max=1)
    log.start(outcomes)
    log.submit([ops.CreateStream("s")])
    pendings = [log.submit([ops.Append("s", Batch.one(b"x" * 1000))]) for _ in range(60)]
    wait_until(lambda: log.state.tail_bytes > 20_000 and "store" in log.trouble())
    log.journal.is_fenced = True  # type: ignore[attr-defined]
    outcomes.wait_for(pendings[-1])
    assert isinstance(pendings[-1].error, LogFailed)
    given_up: list[bool] = []
    log.store.give_up = lambda: given_up.append(True)  # type: ignore[method-assign]
    log.close()
    assert given_up, "nobody waits for a store that does not answer, since what is put there counts for nobody"
