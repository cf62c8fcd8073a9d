import asyncio
import contextlib
import errno
import json
import os
import re
import signal
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace import __version__
from headrace.config import Grant
from headrace.config.load import Loaded, load
from headrace.errors import Damaged, DataDirectoryLocked, Forbidden, LogFailed
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.disk import OsSyncedFile
from headrace.log.frame import HEADER
from headrace.log.journal import END
from headrace.security import Principal
from headrace.serving import memory, runtime
from headrace.serving.listener import Listener
from headrace.serving.runtime import (
    LISTENERS,
    SERVICES,
    Announced,
    Runtime,
    StartFailed,
    load_entry,
    run,
    write_ready_file,
)


def loaded(tmp_path: Path, *flags: str) -> Loaded:
    """Settings with all listeners off but those that are named."""
    off = [f"listen.{name}=off" for name in LISTENERS]
    return load(environment={}, flags=[*off, f"log.data={tmp_path / 'data'}", *flags])


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., Awaitable[Listener | None]] | None]:
    """Fakes by "module:function"; what is not here is not in this installation, HTTP apart."""
    found: dict[str, Any] = {LISTENERS["http"]: load_entry(LISTENERS["http"])}
    monkeypatch.setattr(runtime, "load_entry", found.get)
    return found


def fake(events: list[str], name: str, *, fails: bool = False, stuck: bool = False) -> Any:
    async def close() -> None:
        events.append(f"{name} closed")
        if fails:
            raise ZeroDivisionError(name)
        if stuck:
            await asyncio.Event().wait()

    async def start(hub: Any, address: str = "") -> Listener:
        events.append(f"{name} started {address}".rstrip())
        return Listener(address or "x:1", close)

    return start


async def test_services_start_before_listeners_and_stop_after_them(tmp_path: Path, parts: dict[str, Any]) -> None:
    events: list[str] = []
    parts[SERVICES["futoin"]] = fake(events, "futoin")
    parts[LISTENERS["flight"]] = fake(events, "flight", fails=True)
    parts[LISTENERS["ockam"]] = fake(events, "ockam")
    runtime = await Runtime.start(loaded(tmp_path, "listen.ockam=a:1", "listen.flight=b:2", "listen.wallaroo=c:3"))
    assert runtime.addresses == {"flight": "b:2", "ockam": "a:1"}
    assert "wallaroo" in runtime.missing
    await runtime.stop()
    assert events[:3] == ["futoin started", "flight started b:2", "ockam started a:1"]
    assert sorted(events[3:5]) == ["flight closed", "ockam closed"]
    assert events[5:] == ["futoin closed"]


async def test_a_listener_that_does_not_stop_is_left_behind(tmp_path: Path, parts: dict[str, Any]) -> None:
    parts[LISTENERS["ockam"]] = fake([], "ockam", stuck=True)
    runtime = await Runtime.start(loaded(tmp_path, "listen.ockam=a:1", "limits.stop_s=10ms"))
    await asyncio.wait_for(runtime.stop(), 60)


async def test_listeners_stop_together(tmp_path: Path, parts: dict[str, Any]) -> None:
    for name in ("flight", "ockam", "wallaroo"):
        parts[LISTENERS[name]] = fake([], name, stuck=True)
    names = ("flight", "ockam", "wallaroo")
    runtime = await Runtime.start(loaded(tmp_path, *(f"listen.{name}=a:1" for name in names), "limits.stop_s=400ms"))
    began = asyncio.get_running_loop().time()
    await runtime.stop()
    assert asyncio.get_running_loop().time() - began < 3 * 0.4


async def test_a_failing_start_stops_what_had_started_and_frees_the_data(tmp_path: Path, parts: dict[str, Any]) -> None:
    async def taken(hub: Any, address: str) -> Listener:
        raise OSError(98, "Address already in use")

    events: list[str] = []
    parts[LISTENERS["flight"]] = fake(events, "flight")
    parts[LISTENERS["ockam"]] = taken
    settings = loaded(tmp_path, "listen.flight=b:2", "listen.ockam=a:1")
    with pytest.raises(
        StartFailed, match="ockam cannot listen on a:1: Address already in use; .*--set listen.ockam=HOST:PORT"
    ):
        await Runtime.start(settings)
    assert events == ["flight started b:2", "flight closed"]
    parts[LISTENERS["ockam"]] = fake(events, "ockam")
    await (await Runtime.start(settings)).stop()


async def test_a_second_hub_on_the_same_data_is_refused(tmp_path: Path, parts: dict[str, Any]) -> None:
    runtime = await Runtime.start(loaded(tmp_path))
    try:
        with pytest.raises(DataDirectoryLocked, match=f"process {os.getpid()}"):
            await Runtime.start(loaded(tmp_path))
    finally:
        await runtime.stop()


async def test_run_writes_the_ready_file_serves_and_stops_on_a_signal(tmp_path: Path, parts: dict[str, Any]) -> None:
    ready_file = tmp_path / "ready.json"
    ready_file.write_text("left over from a run that was killed")
    ready = asyncio.Event()
    settings = loaded(tmp_path, "listen.http=127.0.0.1:0")
    running = asyncio.create_task(run(settings, ready_file=ready_file, on_ready=lambda runtime: ready.set()))
    await asyncio.wait_for(ready.wait(), 60)
    addresses = json.loads(ready_file.read_text())
    async with httpx.AsyncClient(base_url=f"http://{addresses['http']}") as client:
        assert (await client.get("/health")).json()["ready"] is True
        info = (await client.post("/api/v1/hub.info", json={})).json()
        assert info["listeners"] == addresses
        metrics = (await client.get("/metrics")).text
        assert f'headrace_info{{version="{__version__}"}} 1.0' in metrics
        assert float(re.findall(r"^headrace_resident_memory_bytes (\S+)$", metrics, re.MULTILINE)[0]) > 1e6
        assert 'headrace_verb_seconds_count{verb="hub.info"} 1.0' in metrics
    os.kill(os.getpid(), signal.SIGTERM)
    assert await asyncio.wait_for(running, 60) == 0
    assert not ready_file.exists()


async def test_memory_that_the_start_used_goes_back_before_the_hub_is_ready(
    tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []

    def trim(pad: int) -> int:
        order.append("trimmed")
        return 1

    def stop(announced: Announced) -> None:
        order.append("ready")
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(memory, "find_trim", lambda: trim)
    assert await asyncio.wait_for(run(loaded(tmp_path, "listen.http=off"), on_ready=stop), 60) == 0
    assert order == ["trimmed", "ready"]


async def test_a_failed_log_ends_the_process_with_its_own_code(tmp_path: Path, parts: dict[str, Any]) -> None:
    async def serve(hub: Hub, address: str) -> Listener:
        hub._failed.set_result(LogFailed("fdatasync failed"))
        return Listener(address, lambda: asyncio.sleep(0))

    parts[LISTENERS["ockam"]] = serve
    code = await asyncio.wait_for(run(loaded(tmp_path, "listen.ockam=a:1")), 60)
    assert code == runtime.EXIT_LOG_FAILED


async def test_a_log_that_fails_while_the_hub_stops_ends_with_that_code(
    tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listener that stores what it has when it is told to stop finds a disk that cannot sync any more."""

    async def serve(hub: Hub, address: str) -> Listener:
        await hub.create_stream("s")

        async def close() -> None:
            monkeypatch.setattr(OsSyncedFile, "write_at", failing_write)
            with contextlib.suppress(LogFailed):
                await hub.append("s", Batch.of([b"x"]))

        return Listener(address, close)

    def failing_write(file: OsSyncedFile, offset: int, pieces: Sequence[bytes]) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    def stop(announced: Announced) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    parts[LISTENERS["ockam"]] = serve
    code = await asyncio.wait_for(run(loaded(tmp_path, "listen.ockam=a:1"), on_ready=stop), 60)
    assert code == runtime.EXIT_LOG_FAILED


@pytest.mark.parametrize("stops", [False, True])
async def test_a_disk_that_fails_under_an_idle_hub_ends_it_with_that_code(
    tmp_path: Path, parts: dict[str, Any], monkeypatch: pytest.MonkeyPatch, stops: bool
) -> None:
    """The note that all is durable is what fails: nobody waits for it."""
    original = OsSyncedFile.write_at

    def failing_mark(file: OsSyncedFile, offset: int, pieces: Sequence[bytes]) -> None:
        if sum(map(len, pieces)) == HEADER.size + len(END):
            raise OSError(errno.EIO, "the disk is gone")
        original(file, offset, pieces)

    async def serve(hub: Hub, address: str) -> Listener:
        await hub.create_stream("s")
        return Listener(address, lambda: asyncio.sleep(0))

    monkeypatch.setattr(OsSyncedFile, "write_at", failing_mark)
    monkeypatch.setattr("headrace.log.threads.IDLE_MARK_S", 3600.0 if stops else 0.01)
    parts[LISTENERS["ockam"]] = serve
    stop = (lambda runtime: os.kill(os.getpid(), signal.SIGTERM)) if stops else (lambda runtime: None)
    code = await asyncio.wait_for(run(loaded(tmp_path, "listen.ockam=a:1"), on_ready=stop), 60)
    assert code == runtime.EXIT_LOG_FAILED


async def test_a_part_whose_table_is_damaged_is_not_served_and_the_others_are(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    async def damaged(hub: Hub, address: str) -> Listener:
        raise Damaged("ockam.addresses", 0, 3, 4)

    parts[LISTENERS["ockam"]] = damaged
    parts[LISTENERS["ignite"]] = fake([], "ignite")
    started = await Runtime.start(loaded(tmp_path, "listen.ockam=a:1", "listen.ignite=a:2"))
    try:
        assert list(started.addresses) == ["ignite"]
        assert "indexes 3 to 4 are damaged" in started.hub.health.report().reasons["ockam"]
    finally:
        await started.stop()


def test_entries() -> None:
    assert load_entry("headrace.serving.http:serve") is not None
    assert load_entry("headrace.no_such_module:serve") is None
    assert load_entry("headrace.no.such.module:serve") is None
    with pytest.raises(AttributeError):
        load_entry("headrace.serving.http:no_such_function")


def test_the_ready_file_is_replaced_whole(tmp_path: Path) -> None:
    write_ready_file(tmp_path / "ready", {"http": "127.0.0.1:1"})
    assert json.loads((tmp_path / "ready").read_text()) == {"http": "127.0.0.1:1"}
    assert [file.name for file in tmp_path.iterdir()] == ["ready"]


async def test_every_verb_of_a_full_hub_refuses_without_its_right(tmp_path: Path) -> None:
    """With all parts of this installation started: no verb may forget its right."""
    local = [f"listen.{name}=127.0.0.1:0" for name in LISTENERS]
    runtime = await Runtime.start(loaded(tmp_path, *local))
    try:
        lesser = {"read": ["write"], "write": ["read"], "admin": ["read", "write"]}
        for verb in runtime.hub.verbs:
            assert verb.summary, f"{verb.name} has no summary"
            for principal in (
                Principal("stranger", (), ()),
                Principal("lesser", (), (Grant(rights=lesser[verb.right]),)),  # type: ignore[arg-type]
                Principal("elsewhere", (), (Grant(rights=[verb.right], verbs=["other.verb"]),)),
            ):
                with pytest.raises(Forbidden, match=verb.name):
                    await runtime.hub.verbs.call(verb.name, {}, principal)
    finally:
        await runtime.stop()
