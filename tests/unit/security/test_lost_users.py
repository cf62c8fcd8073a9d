"""A hub whose users file is lost while it runs: nobody is let in, by no setting, and nobody stays."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from support.ambrosia_peer import RawBinding
from support.until import DEADLINE_S, until
from support.wallaroo_peer import Peer

from headrace.config import Config, Log
from headrace.config.load import load
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.client import RemoteError
from headrace.protocols.wallaroo import frames
from headrace.security import Security
from headrace.serving.runtime import LISTENERS, Runtime

COOKIE = "a cookie for all of them"


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    """With users, and with every setting that lets peers in beside them."""
    Security(Config(log=Log(data=str(tmp_path / "data")))).add_user("alice", None, ["admin"])
    flags = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    flags += [f"log.data={tmp_path / 'data'}", f"wallaroo.cookie={COOKIE}", "futoin.insecure=true"]
    flags += ["ambrosia.immortals.a.checkpoints_kept=2"]
    started = await Runtime.start(load(environment={}, flags=flags))
    try:
        yield started
    finally:
        await started.stop()


async def wallaroo(runtime: Runtime) -> Peer:
    peer = await Peer.connect(runtime.addresses["wallaroo"])
    await peer.hello(COOKIE.encode())
    return peer


async def futoin(runtime: Runtime) -> FutoinClient:
    client = await FutoinClient.connect(f"ws://{runtime.addresses['http']}/futoin/orders")
    try:
        await client.add("ORDER", {"count": 1})
    except RemoteError:
        await client.close()
        raise
    return client


async def ambrosia(runtime: Runtime) -> RawBinding:
    receive, send = (runtime.addresses[f"ambrosia.a.{half}"] for half in ("receive", "send"))
    binding = await RawBinding.connect(receive, send)
    try:
        await binding.signal()
    except (EOFError, ConnectionError):
        await binding.close()
        raise
    return binding


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["deleted", "emptied", "garbled"])
async def test_no_setting_lets_anyone_in_or_stay(runtime: Runtime, tmp_path: Path, loss: str) -> None:
    connector, binding, client = await wallaroo(runtime), await ambrosia(runtime), await futoin(runtime)

    async def received(number: int, events: object) -> None: ...

    await client.ready_to_receive("LIVE", received)
    users = tmp_path / "data" / "users.json"
    if loss == "deleted":
        users.unlink()
    else:
        users.write_text("{}" if loss == "emptied" else "{")
    assert "no longer holds" in await connector.error()
    await binding.closed()
    await asyncio.wait_for(client.closed.wait(), DEADLINE_S)
    await client.close()
    peer = await Peer.connect(runtime.addresses["wallaroo"])
    peer.send(frames.Hello(frames.VERSION, COOKIE.encode(), b"test", b""))
    await peer.error()
    with pytest.raises(RemoteError, match="Unauthorized|SecurityError"):
        await futoin(runtime)
    with pytest.raises((EOFError, ConnectionError)):
        await ambrosia(runtime)
    async with httpx.AsyncClient(base_url=f"http://{runtime.addresses['http']}") as api:
        assert (await api.get("/health")).status_code == 503
        assert (await api.post("/api/v1/hub.info", json={})).status_code == 401
    users.unlink(missing_ok=True)
    Security(Config(log=Log(data=str(tmp_path / "data")))).add_user("alice", None, ["admin"])
    await until(lambda: runtime.hub.security.trouble() is None)
    await (await wallaroo(runtime)).close()


@pytest.mark.slow
async def test_they_let_in_beside_users(runtime: Runtime) -> None:
    connector, binding, client = await wallaroo(runtime), await ambrosia(runtime), await futoin(runtime)
    for one in (connector, binding, client):
        await one.close()
