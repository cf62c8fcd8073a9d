import os
from pathlib import Path

import pytest
from google_crc32c import value as crc32c
from support.until import until

from headrace.config import Config, Log
from headrace.doctor import Finding, data
from headrace.doctor.data import check_data, check_place, process_using
from headrace.hub import Hub
from headrace.log.batch import Batch

RECORDS = 200


async def filled(folder: Path) -> None:
    """A data directory with sealed segments, a journal and a checkpoint."""
    config = Config(log=Log(data=str(folder), segment_bytes=16 * 1024))
    hub = await Hub.open(folder, config)
    await hub.create_stream("orders")
    for number in range(0, RECORDS, 10):
        await hub.append("orders", Batch.of([f"{index} ".encode() * 100 for index in range(number, number + 10)]))
    await until(lambda: hub.segments("orders"))
    writer = await hub.begin_checkpoint("orders")
    await writer.write(b"state" * 1000)
    await writer.commit(100)
    await hub.close()


def bad(folder: Path) -> list[Finding]:
    return [finding for finding in check_data(folder) if finding.level == "fail"]


def flip(file: Path, position: int) -> None:
    content = bytearray(file.read_bytes())
    content[position] ^= 1
    file.write_bytes(content)


def snapshot(folder: Path) -> dict[str, bytes]:
    files = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != "LOCK")
    return {str(file): file.read_bytes() for file in files}


async def test_a_healthy_directory_is_read_whole_and_left_as_it_was(tmp_path: Path) -> None:
    await filled(tmp_path)
    before = snapshot(tmp_path)
    seen: list[str] = []
    findings = list(check_data(tmp_path, seen.append))
    assert {finding.level for finding in findings} == {"ok"}
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
    assert "restore from a backup" in found.advice


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


async def test_a_directory_of_a_newer_version_is_not_called_well(tmp_path: Path) -> None:
    await filled(tmp_path)
    journal = min(file for file in (tmp_path / "journal").iterdir() if file.is_file())
    content = bytearray(journal.read_bytes())
    content[8:12] = (99).to_bytes(4, "little")
    content[24:28] = crc32c(bytes(content[:24])).to_bytes(4, "little")
    journal.write_bytes(content)
    (finding,) = check_data(tmp_path)
    assert (finding.level, "has format version 99" in finding.text) == ("fail", True)
    assert finding.advice.startswith("use the version that wrote it or a newer one")


async def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    await filled(tmp_path)
    journal = max((tmp_path / "journal").glob("*.journal"))
    end = len(journal.read_bytes().rstrip(b"\0"))
    with journal.open("r+b") as file:
        file.seek(end + -end % 8)  # a frame that was begun where the next one is due
        file.write(os.urandom(100))
    findings = list(check_data(tmp_path))
    assert not [finding for finding in findings if finding.level == "fail"]
    assert any("never acknowledged" in finding.text for finding in findings)


async def test_a_directory_in_use_is_not_touched(tmp_path: Path) -> None:
    hub = await Hub.open(tmp_path)
    try:
        (finding,) = check_data(tmp_path)
        assert (finding.level, f"process {os.getpid()}" in finding.text) == ("warn", True)
        assert process_using(tmp_path) == os.getpid()
    finally:
        await hub.close()
    assert process_using(tmp_path) is None


def test_a_directory_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    (finding,) = check_data(tmp_path / "absent")
    assert (finding.level, (tmp_path / "absent").exists()) == ("ok", False)
    assert process_using(tmp_path / "absent") is None


async def test_a_directory_of_no_stream_is_pointed_out(tmp_path: Path) -> None:
    await filled(tmp_path)
    (tmp_path / "segments" / "lost+found").mkdir()
    assert [finding.text for finding in check_data(tmp_path) if finding.level == "warn"] == [
        "belonging to no stream: segments/lost+found"
    ]


async def test_a_clock_behind_the_newest_record_is_told(tmp_path: Path) -> None:
    await filled(tmp_path)
    assert [one.level for one in check_data(tmp_path) if one.check == "clock"] == ["ok"]
    (finding,) = [one for one in check_data(tmp_path, now_us=1_000_000) if one.check == "clock"]
    assert finding.level == "warn"
    assert "behind the newest record" in finding.text
    assert "set the clock" in finding.advice


def place(folder: Path) -> dict[str, Finding]:
    return {finding.check: finding for finding in check_place(folder)}


def test_a_place_of_ones_own_is_well(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert place(tmp_path)["place"].level == "ok"
    assert "can be made in" in place(tmp_path / "new" / "data")["place"].text


def test_a_place_that_others_may_write_to_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = place(tmp_path)["place"]
    assert (found.level, found.advice, "may write to" in found.text) == ("warn", f"chmod go= {tmp_path}", True)


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o701])
def test_a_place_that_others_may_look_into_is_told(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    found = place(tmp_path)["place"]
    assert (found.level, found.advice, "may look into" in found.text) == ("warn", f"chmod go= {tmp_path}", True)


def test_a_place_of_someone_else_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    found = place(tmp_path)["place"]
    assert (found.level, "this is user 54321" in found.text) == ("warn", True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = place(tmp_path)["place"]
    assert (found.level, found.advice.endswith(f"chown -R user 54321 {tmp_path}")) == ("fail", True)


def test_a_file_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    assert [finding.level for finding in check_place(tmp_path / "data")] == ["fail"]


def test_a_users_file_that_others_may_read_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    users = tmp_path / "users.json"
    users.write_text("{}")
    users.chmod(0o644)
    assert f"chmod 600 {users}" in [finding.advice for finding in check_place(tmp_path)]
    users.chmod(0o600)
    assert {finding.level for finding in check_place(tmp_path)} == {"ok"}


@pytest.mark.parametrize(
    ("mount", "level", "words"),
    [
        ("rw,relatime - ext4 /dev/sda rw", "ok", "is on ext4"),
        ("rw - tmpfs tmpfs rw,size=1k", "fail", "in memory (tmpfs)"),
        ("rw - nfs4 server:/export rw", "warn", "not on a disk of this machine (nfs4)"),
        ("rw - fuse.sshfs me@there: rw", "warn", "not on a disk of this machine"),
        ("rw - overlay overlay rw,lowerdir=/a", "warn", "container's own layer"),
        ("ro,relatime - ext4 /dev/sda ro", "fail", "read-only"),
        ("rw - ext4 /dev/sda rw,nobarrier", "warn", "nobarrier: syncs promise nothing"),
    ],
)
def test_the_file_system_under_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, level: str, words: str
) -> None:
    table = tmp_path / "mountinfo"
    folder = tmp_path / "with space"
    folder.mkdir()
    shown = str(folder).replace(" ", "\\040")
    table.write_text(
        f"22 1 8:1 / / rw - xfs /dev/root rw\n23 22 8:2 / {shown} {mount}\n24 22 8:3 / /elsewhere rw - nfs x rw\n"
    )
    monkeypatch.setattr(data, "MOUNTS", table)
    found = place(folder)["file system"]
    assert (found.level, words in found.text) == (level, True)
    assert bool(found.advice) == (level != "ok")


def test_a_system_that_does_not_tell_its_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOUNTS", tmp_path / "absent")
    assert place(tmp_path)["file system"].level == "ok"
