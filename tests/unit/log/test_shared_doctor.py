"""The doctor of a log on a shared store."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.log.test_moving import Far
from unit.log.test_shared import checkpoint, do, fill, work

from headrace.errors import StoreUnavailable
from headrace.log import ops
from headrace.log.shared_doctor import examine
from headrace.log.stamp import split


@pytest.fixture
def far(tmp_path: Path) -> Far:
    far = Far()
    far.tag = "-hub"
    log = far.open(tmp_path / "hub")
    do(log, ops.CreateStream("s"))
    do(log, ops.CreateStream("t", kind="table"))
    do(log, ops.Put("t", b"k", b"v"))
    for start in range(0, 2000, 100):
        fill(log, "s", 100, start)
        work(log)
    checkpoint(log, "s", b"state")
    log.close()
    return far


def test_a_log_that_is_well(far: Far, tmp_path: Path) -> None:
    assert far.kept.first > 0
    seen: list[tuple[int, int]] = []
    before = dict(far.far.blobs), far.kept.next_sequence
    report = examine(far, tmp_path / "empty", lambda *step: seen.append(step), lambda *row: None)
    assert report.healthy
    assert (report.findings, report.strangers) == ([], [])
    assert report.segments == len(seen) > 2
    assert (report.snapshots, report.checkpoints) == (2, 1)
    assert {(stream.stream, stream.next) for stream in report.streams} == {("s", 2000), ("t", 1)}
    assert before == (far.far.blobs, far.kept.next_sequence), "the doctor changes nothing"


def test_what_is_missing_or_damaged_is_named(far: Far, tmp_path: Path) -> None:
    log = far.open(tmp_path / "hub2")
    first, second, *_ = log.partition("s").segments
    [blob] = log.state.checkpoint_names.values()
    newest = log.state.snapshots[-1].name
    log.close()
    blobs = far.far.blobs
    del blobs[split(first.path)[0]]
    for name in (second.path, blob, newest):
        bare = split(name)[0]
        blobs[bare] = blobs[bare][:-1]
    report = examine(far, tmp_path / "empty", row_check=lambda *row: "not a row")
    assert not report.healthy
    kinds = [finding.kind for finding in report.findings]
    assert kinds == ["damaged-snapshot", "damaged-records", "damaged-records", "damaged-checkpoint", "unreadable-row"]
    ranges = [(finding.first, finding.last) for finding in report.findings[1:3]]
    assert ranges == [(first.first, first.next - 1), (second.first, second.next - 1)]


def test_a_snapshot_that_is_missing_is_named(far: Far, tmp_path: Path) -> None:
    log = far.open(tmp_path / "hub2")
    del far.far.blobs[split(log.state.snapshots[-1].name)[0]]
    log.close()
    assert [finding.kind for finding in examine(far, tmp_path / "empty").findings] == ["damaged-snapshot"]


def test_a_journal_without_its_snapshot_is_the_end(far: Far, tmp_path: Path) -> None:
    for name in [name for name in far.far.blobs if name.startswith("snapshots")]:
        del far.far.blobs[name]
    report = examine(far, tmp_path / "empty")
    assert not report.healthy
    assert [finding.kind for finding in report.findings] == ["unrecoverable"]
    assert "no snapshot that it names" in report.findings[0].text


def test_what_no_event_names_is_listed(far: Far, tmp_path: Path) -> None:
    far.far.blobs["segments/1/0/left.arrow"] = b""
    far.far.blobs["elsewhere"] = b""
    report = examine(far, tmp_path / "empty")
    assert report.healthy
    assert report.strangers == ["segments/1/0/left.arrow"]


def test_a_store_out_of_reach_is_no_damage(far: Far, tmp_path: Path) -> None:
    far.far.error = OSError("no route")
    with pytest.raises(StoreUnavailable):
        examine(far, tmp_path / "empty")
