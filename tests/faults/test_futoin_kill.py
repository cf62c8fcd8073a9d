"""kill -9 of a real hub while events are added, polled and pushed: nothing acknowledged is lost, nobody goes back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from support.forked_hub import ForkedHub
from support.until import DEADLINE_S, until

from headrace.protocols.futoin.client import Client, Event, RemoteError

pytestmark = pytest.mark.slow

ROUNDS = 4
WRITERS = 4
LOST = (RemoteError, OSError, TimeoutError, EOFError)


def real_hub(folder: Path) -> ForkedHub:
    return ForkedHub(folder, "futoin.insecure=true", only=("http",))


def events_of(hub: ForkedHub) -> str:
    return f"ws://{hub.addresses['http']}/futoin/events"


class Witness:
    """What was acknowledged to whom."""

    def __init__(self) -> None:
        self.added: dict[int, Any] = {}
        self.polled: list[Event] = []
        self.poll_confirmed = 0
        self.pushed: list[Event] = []


async def write(url: str, writer: int, witness: Witness, numbers: Any) -> None:
    with contextlib.suppress(*LOST):
        async with await Client.connect(url) as client:
            while True:
                data = [writer, next(numbers)]
                witness.added[await client.add("A", data)] = data


async def poll(url: str, witness: Witness) -> None:
    with contextlib.suppress(*LOST):
        async with await Client.connect(url) as client:
            await client.register("POLL")
            last: int | None = None
            while True:
                events = await client.poll("POLL", last)
                # The answer came, so the position it named is durable: nothing at or below it may be shown again.
                witness.poll_confirmed = max(witness.poll_confirmed, last or 0)
                assert all(event.id > witness.poll_confirmed for event in events)
                if events:
                    witness.polled += [event for event in events if event.id > (last or witness.poll_confirmed)]
                    last = events[-1].id


async def receive(url: str, witness: Witness) -> None:
    async def take(seq: int, events: list[Event]) -> None:
        known = witness.pushed[-1].id if witness.pushed else 0
        assert events[0].id <= known + 1, "a group is missing"
        witness.pushed += [event for event in events if event.id > known]

    with contextlib.suppress(*LOST):
        async with await Client.connect(url) as client:
            await client.register("PUSH")
            await client.ready_to_receive("PUSH", take)
            await client.closed.wait()


async def everything(url: str) -> list[Event]:
    found: list[Event] = []
    async with await Client.connect(url) as client:
        while events := await client.poll("LIVE", found[-1].id if found else None):
            found += events
    return found


async def test_killed_again_and_again(tmp_path: Path) -> None:
    randomness = random.Random(18)
    hub = real_hub(tmp_path)
    witness = Witness()
    numbers = iter(range(10**9))
    for _ in range(ROUNDS):
        hub.start()
        url = events_of(hub)
        tasks = [asyncio.create_task(write(url, writer, witness, numbers)) for writer in range(WRITERS)]
        tasks += [asyncio.create_task(poll(url, witness)), asyncio.create_task(receive(url, witness))]
        enough = len(witness.added) + randomness.randrange(50, 300)
        await until(lambda enough=enough: len(witness.added) >= enough)
        hub.kill()
        await asyncio.gather(*tasks)

    hub.start()
    try:
        stored = await everything(events_of(hub))
        by_id = {event.id: event.data for event in stored}
        assert [event.id for event in stored] == list(range(1, len(stored) + 1))
        missing = {number: data for number, data in witness.added.items() if by_id.get(number) != data}
        assert missing == {}
        assert len(witness.added) >= ROUNDS * 50

        finishing = asyncio.create_task(receive(events_of(hub), witness))
        await until(lambda: len(witness.pushed) >= len(stored))
        finishing.cancel()
        assert [(event.id, event.data) for event in witness.pushed] == [(event.id, event.data) for event in stored]

        async with await Client.connect(events_of(hub)) as client:
            rest = await client.poll("POLL")
            assert not rest or rest[0].id > witness.poll_confirmed
        polled = {event.id: event.data for event in witness.polled}
        assert all(by_id[number] == data for number, data in polled.items())
        assert set(range(1, witness.poll_confirmed + 1)) <= set(polled)
    finally:
        hub.kill()


@pytest.mark.node
async def test_published_receiver_goes_on(tmp_path: Path, futoin_node_modules: Path) -> None:
    """The npm ReliableReceiver through three deaths of the hub: every event, in order, and only repeats in between."""
    hub = real_hub(tmp_path)
    hub.start()
    (tmp_path / "data" / "users.json").write_text('{"evtuser":{"secret":"evtpass","roles":["writer"]}}')
    script = Path(__file__).parents[1] / "interop" / "futoin" / "receiver.js"
    receiver = await asyncio.create_subprocess_exec(
        "node", str(script), hub.addresses["http"], "events", "NODE", "evtuser:evtpass",
        env={**os.environ, "NODE_PATH": str(futoin_node_modules)},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert receiver.stdout is not None
    seen: list[int] = []
    added = 0
    try:
        for _ in range(3):
            async with await Client.connect(events_of(hub), "evtuser:evtpass") as client:
                for _ in range(50):
                    added = await client.add("A", added)
            while not seen or seen[-1] < added - 20:  # somewhere in the middle of the last events
                seen += json.loads(await asyncio.wait_for(receiver.stdout.readline(), DEADLINE_S))
            hub.kill()
            hub.start()
        while seen[-1] < added:
            seen += json.loads(await asyncio.wait_for(receiver.stdout.readline(), DEADLINE_S))
    finally:
        receiver.kill()
        await receiver.wait()
        hub.kill()
    highest = 0
    for number in seen:
        assert number <= highest + 1, "an event is missing"
        highest = max(highest, number)
    assert highest == added == 150
