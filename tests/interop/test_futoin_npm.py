"""The published npm clients, unmodified, against a hub: adds, polls, reliable and live pushes, both codings."""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import headrace.serving.http
from headrace.config import Config, Futoin, SecuritySection, User
from headrace.protocols.futoin import server
from headrace.protocols.futoin.settings import MasterKey
from headrace.testing import memory_hub

FOLDER = Path(__file__).parent / "futoin"
CREDENTIALS = "evtuser:evtpass"
MAC_KEY = base64.b64encode(b"MyLongTestSecretKey-0123456789").decode()
EVENTS_OF_EACH_TYPE = 20

pytestmark = [pytest.mark.slow, pytest.mark.node]


@pytest.fixture
async def address() -> AsyncIterator[str]:
    config = Config(
        futoin=Futoin(
            insecure=True,
            mac_keys={"macuser": MAC_KEY},
            master_keys={"master-1": MasterKey(user="macuser", key=MAC_KEY)},
            global_id="127.0.0.1",
        ),
        security=SecuritySection(
            users={
                "evtuser": User(secret="evtpass", roles=["writer"]),
                "macuser": User(secret="not used", roles=["writer"]),
            }
        ),
    )
    async with memory_hub(config) as hub:
        futoin = await server.start(hub)
        assert futoin is not None
        listener = await headrace.serving.http.serve(hub, "127.0.0.1:0")
        try:
            yield listener.address
        finally:
            await listener.close()
            await futoin.close()


async def run_clients(node_modules: Path, *arguments: str) -> dict[str, list[Any]]:
    """What the clients said, by step."""
    process = await asyncio.create_subprocess_exec(
        "node",
        str(FOLDER / "client.js"),
        *arguments,
        env={**os.environ, "NODE_PATH": str(node_modules)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )
    output, errors = await asyncio.wait_for(process.communicate(), 280)
    seen: dict[str, list[Any]] = defaultdict(list)
    for line in output.decode().splitlines():
        said = json.loads(line)
        seen[said["step"]].append(said["seen"])
    assert process.returncode == 0, (seen.get("error"), errors.decode()[-2000:])
    return seen


@pytest.mark.parametrize("coding", ["JSON", "MPCK"])
async def test_published_clients(futoin_node_modules: Path, address: str, coding: str) -> None:
    seen = await run_clients(futoin_node_modules, address, "orders", coding, CREDENTIALS, MAC_KEY)
    assert seen["done"] == [True]
    assert seen["expected NotRegistered"] == ["NotRegistered"] * 4
    assert seen["expected LiveNotAllowed"] == ["LiveNotAllowed"] * 4
    for transport in ("http", "ws"):
        for version in ("1.0", "1.1"):
            check_adds_and_polls(seen, transport, version)
    for version in ("1.0", "1.1"):
        check_pushes(seen, version)
    signed = [
        seen[f"signed {form} {transport}"]
        for form in ("-smac:macuser", "-hmac:macuser")
        for transport in ("http", "ws")
    ]
    signed += [seen[f"master {kds} {transport}"] for kds in ("HKDF256", "HKDF512") for transport in ("http", "ws")]
    assert all(len(ids) == 1 and int(ids[0]) > 0 for ids in signed)


def check_adds_and_polls(seen: dict[str, list[Any]], transport: str, version: str) -> None:
    name = f"{transport}-{version}"
    assert seen[f"gen-{name} ping"] == [{"echo": 123}] or seen[f"gen-{name} ping"] == [123]
    assert seen[f"poll-{name} register"] == [True]
    added = seen[f"gen-{name} add"]
    assert [each["value"] for each in added] == [None, 5, "text é", [1, None, True], {"a": {"b": 1.5}}]
    polls = seen[f"poll-{name} events"]
    assert polls[-1] == []
    events = [event for poll in polls for event in poll]
    ids = [int(event["id"]) for event in events]
    assert ids == sorted(set(ids))
    own = [(event["id"], event["data"]) for event in events[-len(added) :]]
    assert own == [(each["id"], each["value"]) for each in added]
    assert seen[f"poll-{name} live"][0] >= len(events)


def check_pushes(seen: dict[str, list[Any]], version: str) -> None:
    reliable, filtered, live = (seen[f"push-{version} {kind}"][0] for kind in ("reliable", "filtered", "live"))
    ids = [int(event["id"]) for event in reliable]
    assert ids == list(range(1, len(ids) + 1))  # everything from the first event on, in order, once
    numbers = list(range(2 * EVENTS_OF_EACH_TYPE))
    assert [
        e["data"]["i"] for e in reliable if e["type"] in ("ODD", "EVEN") and e["data"]["version"] == version
    ] == numbers
    assert {event["type"] for event in filtered} == {"ODD"}
    assert [e["data"]["i"] for e in filtered if e["data"]["version"] == version] == numbers[1::2]
    assert [event["data"]["i"] for event in live] == numbers
