"""Debugging: the past is served to a program again, as far as somebody wants to see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from support.ambrosia_peer import coordinator, settings
from support.until import until

from headrace.config import ImmortalSection
from headrace.errors import BadRequest
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.protocols.ambrosia.binding.methods import method_id
from headrace.protocols.ambrosia.client import Host, Immortal, fork, serve
from headrace.protocols.ambrosia.coordinator.store import StreamNames
from headrace.security import EVERYTHING
from headrace.testing import memory_hub

LEDGER = StreamNames("ledger")


class Ledger(Immortal):
    total: int = 0

    @fork
    def add(self, amount: int) -> None:
        self.total += amount


@asynccontextmanager
async def filled() -> AsyncIterator[Hub]:
    """A hub with a ledger that has added 1, 10 and 100."""
    async with memory_hub(settings(ledger=ImmortalSection())) as hub, coordinator(hub) as ports:
        addresses = {side: ports.addresses[f"ambrosia.ledger.{side}"] for side in ("receive", "send")}
        async with serve(Ledger, name="ledger", **addresses) as host:
            adds = [b'{"amount": %d}' % amount for amount in (1, 10, 100)]
            await hub.append(LEDGER.inbox, Batch.of(adds, types=str(method_id("add"))))
            await until(lambda: host.immortal.total == 111)  # type: ignore[attr-defined]
            yield hub


def replay(hub: Hub, **options: Any) -> Any:
    return hub.verbs.call("immortal.replay", {"name": "ledger", **options}, EVERYTHING)


async def debugged(hub: Hub, **options: Any) -> Any:
    """The immortal when it knows that its replay has ended."""
    debug = await replay(hub, tell_end=True, **options)
    host = Host(Ledger, name="ledger", receive=debug.receive, send=debug.send)
    running = asyncio.ensure_future(host.run())
    await asyncio.wait_for(host.wait_replayed(), 60)
    assert host.immortal.replaying
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return host.immortal


async def test_a_debugged_immortal_knows_when_the_replay_has_ended() -> None:
    async with filled() as hub:
        assert (await debugged(hub)).total == 111


async def test_a_replay_ends_at_the_message_that_is_asked_for() -> None:
    async with filled() as hub:
        end = hub.bounds(LEDGER.log).next
        totals = [(await debugged(hub, until=index)).total for index in range(end - 3, end + 1)]
        assert totals == [0, 1, 11, 111]


async def test_a_replay_that_cannot_end_there_is_refused() -> None:
    async with filled() as hub:
        end = hub.bounds(LEDGER.log).next
        with pytest.raises(BadRequest, match=f"has logged messages below {end}, none up to {end + 1}"):
            await replay(hub, until=end + 1)
        taken = await hub.verbs.call("immortal.checkpoint", {"name": "ledger"}, EVERYTHING)
        with pytest.raises(BadRequest, match=f"no checkpoint before message 0: from {taken.position} on"):
            await replay(hub, until=0, checkpoint=taken.id)
        assert (await debugged(hub, until=end - 2)).total == 1  # from the checkpoint before it
