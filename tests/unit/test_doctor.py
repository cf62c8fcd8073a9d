import asyncio
import os
import socket
from pathlib import Path

import pytest

from headrace import doctor
from headrace.config import Config, Listen, Log, Tls
from headrace.doctor import (
    Finding,
    check_data,
    check_disk,
    check_java,
    check_limits,
    check_ports,
    check_security,
    examine,
)
from headrace.hub import Hub
from headrace.log.batch import Batch

RECORDS = 200


async def filled(data: Path) -> None:
    """A data directory with sealed segments, a journal and a checkpoint."""
    config = Config(log=Log(data=str(data), segment_bytes=16 * 1024))
    hub = await Hub.open(data, config)
    await hub.create_stream("orders")
    for number in range(0, RECORDS, 10):
        await hub.append("orders", Batch.of([f"{index} ".encode() * 100 for index in range(number, number + 10)]))
    async with asyncio.timeout(30):
        while not hub.segments("orders"):
            await asyncio.sleep(0.01)
    writer = await hub.begin_checkpoint("orders")
    await writer.write(b"state" * 1000)
    await writer.commit(100)
    await hub.close()


def bad(data: Path) -> list[Finding]:
    return [finding for finding in check_data(data) if finding.level == "bad"]


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def snapshot(data: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(data.rglob("*")) if file.is_file() and file.name != "LOCK"}


async def test_a_healthy_directory_is_read_whole_and_left_as_it_was(tmp_path: Path) -> None:
    await filled(tmp_path)
    before = snapshot(tmp_path)
    seen: list[str] = []
    findings = list(check_data(tmp_path, seen.append))
    assert {finding.level for finding in findings} == {"fine"}
    texts = " ".join(finding.text for finding in findings)
    assert "1 partitions of streams and tables" in texts
    assert "1 checkpoints: all read and checked" in texts
    assert any(text.startswith("segment 1 of ") for text in seen)
    assert snapshot(tmp_path) == before


async def test_damage_in_a_segment_is_named_by_stream_and_index(tmp_path: Path) -> None:
    await filled(tmp_path)
    segment = sorted(tmp_path.glob("segments/*/*/*.arrow"))[0]
    flip(segment, segment.stat().st_size // 2)
    (found,) = bad(tmp_path)
    first, _, following = segment.stem.partition("-")
    assert (found.check, found.stream, found.partition) == ("data", "orders", 0)
    assert (found.first, found.last) == (int(first), int(following) - 1)
    assert "restore from a backup" in found.text


async def test_a_segment_that_is_no_arrow_file_is_named_whole(tmp_path: Path) -> None:
    await filled(tmp_path)
    segment = sorted(tmp_path.glob("segments/*/*/*.arrow"))[0]
    segment.write_bytes(b"gone")
    assert [finding.stream for finding in bad(tmp_path)] == ["orders"]


async def test_damage_in_a_checkpoint_is_named(tmp_path: Path) -> None:
    await filled(tmp_path)
    (blob,) = [file for file in (tmp_path / "checkpoints").iterdir() if file.is_file()]
    flip(blob, blob.stat().st_size // 2)
    (found,) = bad(tmp_path)
    assert (found.check, found.stream) == ("data", "orders")


async def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    await filled(tmp_path)
    journal = max(file for file in (tmp_path / "journal").iterdir() if file.is_file())
    with journal.open("ab") as file:
        file.write(os.urandom(100))
    findings = list(check_data(tmp_path))
    assert not [finding for finding in findings if finding.level == "bad"]
    assert any("never acknowledged" in finding.text for finding in findings)


async def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    hub = await Hub.open(tmp_path)
    try:
        (finding,) = check_data(tmp_path)
        assert (finding.level, f"process {os.getpid()}" in finding.text) == ("warning", True)
    finally:
        await hub.close()


def test_a_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    (finding,) = check_data(tmp_path / "absent")
    assert (finding.level, (tmp_path / "absent").exists()) == ("fine", False)


async def test_a_directory_of_no_stream_is_pointed_out(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / "segments" / "lost+found").mkdir()
    assert [finding.text for finding in check_data(tmp_path) if finding.level == "warning"] == [
        "belonging to no stream: segments/lost+found"
    ]


def test_room_and_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, speed = check_disk(tmp_path / "absent", Config(log=Log(disk_reserve_bytes=0)))
    assert (room.level, speed.level in ("fine", "warning")) == ("fine", True)
    assert "takes" in speed.text
    assert list(tmp_path.iterdir()) == []
    full, _ = check_disk(tmp_path, Config(log=Log(disk_reserve_bytes=1 << 60)))
    assert full.level == "bad"

    def refused(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert [finding.level for finding in check_disk(tmp_path, Config())][1] == "bad"


def test_a_taken_port_is_bad() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        listen = Listen(flight=address, http="127.0.0.1:0", wallaroo="off", ockam="off", ignite="off", fabric="off")
        levels = [(finding.level, finding.text.split(":")[0]) for finding in check_ports(Config(listen=listen))]
    assert levels == [("bad", "flight"), ("fine", "http")]


def test_security_findings(tmp_path: Path) -> None:
    log = Log(data=str(tmp_path))
    assert [finding.level for finding in check_security(Config(log=log))] == ["fine"]
    open_to_all = Config(log=log, listen=Listen(flight="0.0.0.0:7070"))
    assert [finding.level for finding in check_security(open_to_all)] == ["warning", "warning"]
    assert [finding.level for finding in check_security(Config(log=log, tls=Tls(certificate="/absent.pem")))] == ["bad"]


def test_few_open_files_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for soft, level in ((256, "warning"), (65536, "fine"), (doctor.resource.RLIM_INFINITY, "fine")):
        monkeypatch.setattr(doctor.resource, "getrlimit", lambda which, soft=soft: (soft, soft))
        assert [finding.level for finding in check_limits()] == [level]


def test_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert [(finding.level, '"21"' in finding.text) for finding in check_java()] == [("fine", True)]
    program.write_text("#!/bin/sh\nexit 1\n")
    assert [finding.level for finding in check_java()] == ["warning"]
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor, "_packaged_java", lambda: None)
    assert "no Java was found" in next(check_java()).text


async def test_everything_is_examined(tmp_path: Path) -> None:
    config = Config(log=Log(data=str(tmp_path)))
    checks = {finding.check for finding in examine(config, ports=False)}
    assert checks == {"data", "room", "disk", "limits", "security", "java"}
