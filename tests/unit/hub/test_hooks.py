"""What a hub tells those who watch it, and whose request it says it was."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import BadRequest, LogFailed, UnknownStream
from headrace.hub import Hub
from headrace.hub.hooks import Read
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.testing import memory_hub


async def test_requests_and_commits_are_told_with_whose_they_are() -> None:
    async with memory_hub() as hub:
        await hub.create_stream("orders")
        asked: list[tuple[str, list[type[ops.Op]], bool]] = []
        settled: list[asyncio.Future[Any]] = []
        hub.hooks.submit.append(lambda who, asking, token: asked.append((who, [type(one) for one in asking], token[1])))
        hub.hooks.commit.append(lambda outcomes: settled.extend(one.token[0] for one in outcomes if one.token))
        appended = hub.used_by("wallaroo").append("orders", Batch.one(b"pear"))
        moved = hub.used_by("ockam").transact([ops.SaveCursor("reader", "orders", 1, 0, False)])
        assert asked == [("wallaroo", [ops.Append], True), ("ockam", [ops.SaveCursor], False)]
        await asyncio.gather(appended, moved)
        await hub.create_stream("more")
        assert settled[:2] == [appended, moved]
        assert asked[2:] == [("", [ops.CreateStream], False)]


async def test_a_request_refused_at_once_is_told_too() -> None:
    async with memory_hub() as hub:
        asked: list[BaseException | None] = []
        hub.hooks.submit.append(lambda who, operations, token: asked.append(token[0].exception()))
        with pytest.raises(BadRequest) as refused:
            await hub.transact([])
        assert asked == [refused.value]


async def test_reads_are_told_when_they_end() -> None:
    async with memory_hub() as hub:
        ended: list[Read] = []
        errors: list[BaseException | None] = []
        hub.hooks.read += [ended.append, lambda read: errors.append(read.error)]
        await hub.create_stream("orders")
        await hub.append("orders", Batch.of([b"pear"] * 5))
        await hub.used_by("futoin").read("orders", 2)
        assert [(one.protocol, one.verb, one.stream, one.partition, one.start, one.records) for one in ended] == [
            ("futoin", "read", "orders", 0, 2, 3)
        ]
        batches = hub.scan("orders", 0, 5)
        assert len(ended) == 1
        assert sum(batch.num_rows for batch in batches) == 5
        assert (ended[1].verb, ended[1].records) == ("scan", 5)
        with pytest.raises(UnknownStream) as unknown:
            await hub.read("nowhere", 0)
        assert errors == [None, None, unknown.value]


async def test_a_hub_in_a_protocols_hands_is_the_same_hub(tmp_path: Path) -> None:
    hub = await Hub.open(tmp_path / "data")
    seen = hub.used_by("ockam")
    await seen.create_stream("orders")
    waiting = asyncio.ensure_future(seen.wait("orders", 0))
    await hub.append("orders", Batch.one(b"pear"))
    await waiting
    await hub.drained()
    await hub.close()
    with pytest.raises(LogFailed):
        await seen.wait("orders", 5)
    await seen.close()
    assert {name for name in vars(hub) if vars(hub)[name] is not vars(seen)[name]} == {"protocol"}
