"""Transactions that stand on one another: what follows a refused one is refused too."""

from __future__ import annotations

import errno

import pytest
from unit.log.helpers import do, open_log, payloads

from headrace.errors import ConditionFailed, DiskFull, LimitExceeded
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.testing import FaultyDisk, MemoryDisk, memory_hub


def append(text: bytes) -> list[ops.Op]:
    return [ops.Append("s", Batch.one(text))]


def test_room_that_comes_back_leaves_no_hole() -> None:
    disk = FaultyDisk(MemoryDisk())
    log = open_log(disk)
    do(log, ops.CreateStream("s"))
    first = log.submit(append(b"first"))
    disk.fail_all("write", errno.ENOSPC)
    log.commit_once()
    disk.heal()
    second = log.submit(append(b"second"), after=first)
    third = log.submit(append(b"third"), after=second)
    alone = log.submit(append(b"alone"))
    log.commit_once()
    assert isinstance(first.error, DiskFull)
    assert (second.error, third.error, alone.error) == (first.error, first.error, None)
    assert payloads(log, "s") == [b"alone"]


def test_one_commit_may_hold_a_whole_chain() -> None:
    log = open_log()
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    first = log.submit(append(b"first"))
    refused = log.submit([*append(b"refused"), ops.Put("t", b"k", b"v", ops.PRESENT)], after=first)
    third = log.submit(append(b"third"), after=refused)
    log.commit_once()
    assert first.error is None
    assert isinstance(refused.error, ConditionFailed)
    assert third.error is refused.error
    assert payloads(log, "s") == [b"first"]
    assert third.after is None  # else a sender's whole history would stay in memory


async def test_a_chain_breaks_also_where_the_hub_does_not_take_it() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("s")
        chain = hub.chain()
        first = chain.transact(append(b"first"))
        too_large = chain.transact(append(bytes(17 * 1024 * 1024)))
        third = chain.transact(append(b"third"))
        assert (await first)[0].first == 0
        with pytest.raises(LimitExceeded):
            await too_large
        with pytest.raises(LimitExceeded):
            await third
        assert (await hub.chain().transact(append(b"another"))).pop().first == 1
