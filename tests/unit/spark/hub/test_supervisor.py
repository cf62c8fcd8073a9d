"""The process that runs the configured pipelines: started, started again, and ended with the hub."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from support.until import until

from headrace.config import Config, Grant, Listen, PipelineEntry, Spark
from headrace.config import Log as LogSection
from headrace.security import Principal
from headrace.spark.hub import supervisor
from headrace.spark.hub.registry import Definition
from headrace.testing import memory_hub

ENTRY = PipelineEntry("p", sql="SELECT payload FROM stream('a')", into="b")
ADMIN = Principal("admin", (), (Grant(rights=["read", "write", "admin"]),))
COUNTS = "import sys; open(sys.argv[1], 'a').write('x')"
SLEEPS = "import sys, time; open(sys.argv[1], 'a').write('x'); time.sleep(60)"


def config(place: Path, address: str = "127.0.0.1:7070", enabled: bool = True) -> Config:
    return msgspec.structs.replace(
        Config(),
        log=LogSection(data=str(place)),
        listen=Listen(flight=address),
        pipeline=[msgspec.structs.replace(ENTRY, enabled=enabled)],
    )


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def written(path: Path, count: int) -> None:
    await until(lambda: len(read(path)) >= count)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "RESTART_FIRST_S", 0.01)
    monkeypatch.setattr(supervisor, "RESTART_MOST_S", 0.02)


async def test_it_is_started_again_when_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    marks = tmp_path / "marks"
    monkeypatch.setattr(supervisor, "_command", lambda *_: [sys.executable, "-c", COUNTS, str(marks)])
    async with memory_hub(config(tmp_path)) as hub:
        service = await supervisor.start(hub)
        await written(marks, 2)
        await service.close()


async def test_it_ends_with_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    marks = tmp_path / "marks"
    monkeypatch.setattr(supervisor, "_command", lambda *_: [sys.executable, "-c", SLEEPS, str(marks)])
    async with memory_hub(config(tmp_path)) as hub:
        service = await supervisor.start(hub)
        await written(marks, 1)
        async with asyncio.timeout(60):
            await service.close()
    assert read(marks) == "x"


@pytest.mark.parametrize(("address", "enabled"), [("127.0.0.1:7070", False), ("off", True), ("127.0.0.1:0", True)])
async def test_nothing_is_started_without_reason_or_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None, address: str, enabled: bool
) -> None:
    async def refuse(command: list[str], environment: dict[str, str]) -> int:
        raise AssertionError("started")

    monkeypatch.setattr(supervisor.child_process, "run", refuse)
    async with memory_hub(config(tmp_path, address, enabled)) as hub:
        service = await supervisor.start(hub)
        await asyncio.sleep(0)
        await service.close()


async def test_one_that_was_stopped_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    runs = []

    async def run(command: list[str], environment: dict[str, str]) -> int:
        runs.append(command[-1])
        await hub.verbs.call("pipeline.report", {"name": "p", "state": "running"}, ADMIN)
        if len(runs) == 2:
            await hub.verbs.call("pipeline.report", {"name": "p", "state": "stopped"}, ADMIN)
            ended.set()
        return 0

    ended = asyncio.Event()
    monkeypatch.setattr(supervisor.child_process, "run", run)
    async with memory_hub(config(tmp_path)) as hub:
        service = await supervisor.start(hub)
        async with asyncio.timeout(60):
            await ended.wait()
        await asyncio.sleep(0.05)  # longer than any pause between two runs here
        await service.close()
    assert runs == ["p", "p"]


def test_the_command_carries_the_settings_of_spark() -> None:
    settings = Spark(master="spark://x:7077", conf={"spark.a": "1"}, home="/checkpoints")
    chosen = msgspec.structs.replace(Config(), spark=settings, listen=Listen(flight="0.0.0.0:1"))
    command = supervisor._command(chosen, ["p", "q"], "", chosen.listen.flight)
    assert command[1:7] == ["-m", "headrace", "pipeline", "run", "--hub", "127.0.0.1:1"]
    expected = ["--master", "spark://x:7077", "--conf", "spark.a=1", "--home", "/checkpoints", "p", "q"]
    assert command[-8:] == expected
    assert "grpc+tls://127.0.0.1:1" in supervisor._command(chosen, ["p"], "hub.pem", chosen.listen.flight)


def test_secrets_travel_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_CA", raising=False)
    monkeypatch.delenv("HEADRACE_TOKEN", raising=False)
    assert not {"HEADRACE_CA", "HEADRACE_TOKEN"} & set(supervisor._environment(Config(), ""))
    chosen = msgspec.structs.replace(Config(), spark=Spark(token="t"))
    assert "t" not in supervisor._command(chosen, ["p"], "hub.pem", chosen.listen.flight)
    given = supervisor._environment(chosen, "hub.pem")
    assert (given["HEADRACE_TOKEN"], given["HEADRACE_CA"]) == ("t", "hub.pem")
    chosen = msgspec.structs.replace(Config(), spark=Spark(ca="authority.pem"))
    assert supervisor._environment(chosen, "hub.pem")["HEADRACE_CA"] == "authority.pem"


def project_config(place: Path) -> Config:
    entry = PipelineEntry("shop", project="/srv/shop", trigger="30s")
    return msgspec.structs.replace(config(place), pipeline=[ENTRY, entry])


async def test_a_project_has_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> None:
    marks, others = tmp_path / "marks", tmp_path / "others"
    launched: list[list[str]] = []

    def command(config: Config, names: list[str], *rest: str) -> list[str]:
        launched.append(names)
        return [sys.executable, "-c", SLEEPS, str(others)]

    def project_command(config: Config, project: Definition, *rest: str) -> list[str]:
        launched.append([project.project])
        return [sys.executable, "-c", SLEEPS, str(marks)]

    monkeypatch.setattr(supervisor, "_command", command)
    monkeypatch.setattr(supervisor, "_project_command", project_command)
    async with memory_hub(project_config(tmp_path)) as hub:
        service = await supervisor.start(hub)
        await written(marks, 1)
        await written(others, 1)
        await service.close()
    assert ["/srv/shop"] in launched
    assert ["p"] in launched


def test_what_runs_a_project() -> None:
    spark = Spark(master="local[2]", conf={"a": "b"})
    project = Definition("shop", project="/srv/shop")
    words = supervisor._project_command(msgspec.structs.replace(Config(), spark=spark), project, "c.pem", "0.0.0.0:7")
    assert words[2:6] == ["headrace", "pipelines", "run", "--hub"]
    assert words[6] == "grpc+tls://127.0.0.1:7"
    assert words[-5:] == ["--name", "shop", "--every", "1 minute", "/srv/shop"]
