import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from headrace.config.load import load
from headrace.config.profiles import resolve
from headrace.doctor import Finding, examine, online, worst
from headrace.doctor.online import check_hub
from headrace.serving.runtime import LISTENERS, Runtime

OFF = [f"listen.{name}=off" for name in LISTENERS]


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    flags = [*OFF, "listen.flight=127.0.0.1:0", "listen.http=127.0.0.1:0", f"log.data={tmp_path / 'data'}"]
    started = await Runtime.start(load(environment={}, flags=flags))
    try:
        yield started
    finally:
        await started.stop()


async def asked(runtime: Runtime, **options: Any) -> list[Finding]:
    address = runtime.addresses["flight"]
    return await asyncio.to_thread(
        lambda: list(check_hub(resolve(address, token=options.get("token")), options.get("config")))
    )


async def test_a_hub_that_is_well(runtime: Runtime) -> None:
    found = await asked(runtime)
    assert worst(found) == "ok"
    texts = [finding.text for finding in found]
    assert any(f"process {os.getpid()}" in text for text in texts)
    assert "ready: it takes records" in texts
    assert f"http: {runtime.addresses['http']} accepts connections" in texts


async def test_alarms_are_told(runtime: Runtime) -> None:
    runtime.hub.health.check("disk", lambda: "the disk is full")
    found = await asked(runtime)
    assert [finding.text for finding in found if finding.level == "fail"] == ["not ready: disk: the disk is full"]
    assert "ready: it takes records" not in [finding.text for finding in found]


async def test_a_hub_of_another_version_or_time_is_told(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(online, "__version__", "99.0")
    monkeypatch.setattr(runtime.hub.sessions, "now_us", lambda: int((time.time() - 60) * 1e6))
    warned = [finding.text for finding in await asked(runtime) if finding.level == "warn"]
    assert any("and this command is 99.0" in text for text in warned)
    assert any("clock and ours are" in text for text in warned)


async def test_listeners_that_are_gone_or_were_configured_later(runtime: Runtime) -> None:
    runtime.addresses["ockam"] = "127.0.0.1:1"
    config = load(environment={}, flags=[*OFF, "listen.wallaroo=127.0.0.1:7100"]).config
    found = await asked(runtime, config=config)
    assert [finding.text for finding in found if finding.level == "fail"] == ["ockam: 127.0.0.1:1: Connection refused"]
    assert [finding.text for finding in found if finding.level == "warn"] == [
        "wallaroo is configured, and the running hub does not have it"
    ]


async def test_a_listener_on_all_addresses_is_tried_where_the_hub_was_asked(runtime: Runtime) -> None:
    port = runtime.addresses["http"].rpartition(":")[2]
    runtime.addresses["http"] = f"0.0.0.0:{port}"
    assert f"http: 0.0.0.0:{port} accepts connections" in [finding.text for finding in await asked(runtime)]


async def test_what_the_hub_warns_about_and_lacks(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime.hub.security, "warnings", lambda: ["it is open; close it"])
    runtime.missing.append("fabric")
    warned = [(finding.text, finding.advice) for finding in await asked(runtime) if finding.level == "warn"]
    assert ("it is open", "close it") in warned
    assert any("does not hold: fabric" in text for text, _ in warned)


async def test_a_hub_that_asks_who_we_are(runtime: Runtime) -> None:
    runtime.hub.security.add_user("alice", None, ["reader"])
    (finding,) = await asked(runtime)
    assert (finding.level, finding.advice) == ("warn", "give --token or --user")


def test_a_hub_that_is_not_there() -> None:
    (finding,) = check_hub(resolve("127.0.0.1:1"))
    assert (finding.level, "does not answer" in finding.text) == ("fail", True)


async def test_everything_is_examined_and_the_hub_on_the_directory_is_asked(runtime: Runtime, tmp_path: Path) -> None:
    addresses = [f"listen.{name}={address}" for name, address in runtime.addresses.items()]
    config = load(environment={}, flags=[*OFF, *addresses, f"log.data={tmp_path / 'data'}"]).config
    found = await asyncio.to_thread(lambda: list(examine(config)))
    assert {finding.check for finding in found} == {
        "place", "file system", "data", "room", "disk", "clock", "limits", "ports", "security", "packages", "java",
        "spark engine", "hub", "listeners",
    }  # fmt: skip
    held = [finding.text for finding in found if finding.check == "ports"]
    assert all(f"(process {os.getpid()})" in text for text in held)
    assert worst(found) != "fail", [finding for finding in found if finding.level == "fail"]


async def test_without_a_hub_none_is_asked(tmp_path: Path) -> None:
    config = load(environment={}, flags=[*OFF, f"log.data={tmp_path / 'data'}"]).config
    checks = {finding.check for finding in examine(config, ports=False)}
    assert not checks & {"hub", "listeners", "ports"}


def test_findings_as_json() -> None:
    import msgspec

    encoded = json.loads(msgspec.json.encode(Finding("data", "ok", "fine")))
    assert encoded == {"check": "data", "level": "ok", "text": "fine"}
