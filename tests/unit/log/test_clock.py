"""A clock that is set back while a log is open: nothing waits until it has caught up."""

from __future__ import annotations

import threading

import pytest
from unit.log.helpers import do, open_log

from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import has_passed
from headrace.testing import FakeClock


@pytest.mark.parametrize(
    ("now_us", "passed"), [(100, False), (109, False), (110, True), (10_000, True), (99, True), (0, True)]
)
def test_whether_a_time_has_passed(now_us: int, passed: bool) -> None:
    assert has_passed(10, 100, now_us) is passed


def test_the_proof_beside_the_journal_is_kept_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FakeClock()
    log = open_log(clock=clock)
    do(log, ops.CreateStream("s"))
    proofs = 0

    def prove() -> None:
        nonlocal proofs
        proofs += 1

    monkeypatch.setattr(log, "prove", prove)
    committed = threading.Event()
    log.start(lambda pending, touched: committed.set())

    def append() -> None:
        committed.clear()
        log.submit([ops.Append("s", Batch.one(b"x"))])
        assert committed.wait(60)

    for step_s, expected in ((2.0, 1), (0.0, 1), (-3600.0, 2), (0.5, 2), (0.6, 3)):
        clock.advance(step_s)
        append()
        append()  # when it is durable, all that the first one led to is done
        assert proofs == expected
    log.close()
