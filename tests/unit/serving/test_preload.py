"""What a hub needs is there before it is ready: nothing is imported, and no type defined, while clients wait."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.hub_process import FREE, START_S, HubProcess
from support.perper_peer import key
from support.until import wait_until
from support.wallaroo_peer import Peer

import headrace
from headrace.config.address import split_address
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam.client import connect as connect_ockam
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo import frames
from headrace.serving.runtime import LISTENERS

pytestmark = pytest.mark.slow

LATE_TYPES = """
import asyncio, sys
import msgspec
from headrace.config.load import load
from headrace.hub import Hub
from headrace.serving.runtime import Runtime

def defined(struct):
    return {found for derived in struct.__subclasses__() for found in (derived, *defined(derived))}

async def main():
    early = set()
    original = Hub.open

    async def opening(*arguments, **named):
        early.update(defined(msgspec.Struct))
        return await original(*arguments, **named)

    Hub.open = opening
    runtime = await Runtime.start(load(environment={}, flags=sys.argv[1:]))
    await runtime.stop()
    print("late:", *sorted(f"{struct.__module__}.{struct.__qualname__}" for struct in defined(msgspec.Struct) - early))

asyncio.run(main())
"""


def test_all_types_are_defined_before_the_hub_opens(tmp_path: Path) -> None:
    flags = [f"log.data={tmp_path / 'data'}", *(f"listen.{name}={FREE}" for name in LISTENERS)]
    ran = subprocess.run(
        [sys.executable, "-c", LATE_TYPES, *flags], capture_output=True, text=True, timeout=START_S, check=False
    )
    assert ran.stdout.strip() == "late:", ran.stderr


async def use_wallaroo(address: str) -> None:
    async with await Peer.connect(address) as peer:
        await peer.hello()
        await peer.introduce(1, b"wallaroo")
        peer.send(frames.Message(1, 1, b"x", 1, b"key"), frames.Message(1, 2, b"y"))
        await peer.acked(1, 2)


async def use_ockam(address: str) -> None:
    async with await connect_ockam(address) as connection:
        stream = await connection.create("ockam")
        await connection.push(stream, b"x")
        assert await connection.pull(stream, 0, 10)
        connection.save_index("client", stream, 1)
        assert await connection.get_index("client", stream) == 1


async def use_perper(ignite: str, fabric: str) -> None:
    client = await IgniteClient.connect(*split_address(ignite))
    await client.request(1052, "cache")
    await client.request(1001, key(1), key("x"), cache="cache")
    assert await client.request(1000, key(1), cache="cache") == key("x")
    assert await client.request(1020, b"", cache="cache") == 1
    await client.close()
    rpc = await FabricClient.connect(*split_address(fabric))
    await rpc.close()


async def use_futoin(address: str) -> None:
    async with await FutoinClient.connect(f"ws://{address}/futoin/events") as client:
        await client.register("POLL")
        await client.add("EVT", {"some": "data"})
        assert await client.poll("POLL")


def use_flight(address: str) -> None:
    with headrace.connect(address) as hub:
        hub.create("sdk")
        hub.append("sdk", [headrace.Record(payload=b"x", type="A", key=b"k"), b"y"])
        hub.append("sdk", {"some": "JSON"})
        assert len(list(hub.read("sdk"))) == 3
        assert len(list(hub.read("sdk", types=["A"]))) == 1
        hub.cursor("c", "sdk").save(1)
        table = hub.create_table("table")
        table.put("k", "v")
        assert table.get("k") == b"v"
        assert list(table.items())
        assert hub.streams()
        assert hub.describe("sdk")


def use_http(page: str) -> None:
    for path in ("/", "/health", "/metrics", "/api/openapi.json"):
        with urllib.request.urlopen(page + path, timeout=60) as answer:
            assert answer.read()
    for verb in ("hub.info", "stream.list", "table.list", "session.list", "verb.list"):
        asked = urllib.request.Request(f"{page}/api/v1/{verb}", b"{}", {"content-type": "application/json"})
        with urllib.request.urlopen(asked, timeout=60) as answer:
            assert answer.read()


def test_nothing_is_imported_once_a_hub_is_ready(tmp_path: Path) -> None:
    environment = {"PYTHONPROFILEIMPORTTIME": "1"}  # a line on standard error for each import
    with HubProcess(tmp_path, "futoin.insecure=true", environment=environment) as hub:
        at = hub.addresses
        wait_until(lambda: all(address in hub.log.read_text() for address in at.values()), "it has said where it is")
        begun = hub.log.read_text()
        assert "| headrace.serving" in begun.replace("  ", "")
        asyncio.run(use_wallaroo(at["wallaroo"]))
        asyncio.run(use_ockam(at["ockam"]))
        asyncio.run(use_perper(at["ignite"], at["fabric"]))
        asyncio.run(use_futoin(at["http"]))
        use_flight(at["flight"])
        use_http(hub.page)
        said = hub.log.read_text()[len(begun) :]
    imported = [line.rpartition("|")[2].strip() for line in said.splitlines() if line.startswith("import time:")]
    assert imported == []
