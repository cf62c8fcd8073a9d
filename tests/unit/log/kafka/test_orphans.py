"""Blobs that a hub put into the store and that no event named, since it died before: the next owner removes them, and
nothing else. With the store in a topic, and in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from unit.log.kafka.test_takeover import Cluster, check, filled
from unit.log.test_shared import checkpoint, do, fill, work

from headrace.log import ops, orphans, snapshot
from headrace.log.batch import Batch
from headrace.log.checkpoint import CheckpointDamaged
from headrace.log.kafka import topic_store
from headrace.log.log import Log
from headrace.log.stamp import split

AFTER_S = orphans.AFTER_US / 1_000_000


@pytest.fixture(params=["kafka", "file"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    return Cluster(tmp_path, "kafka" if request.param == "kafka" else (tmp_path / "far").as_uri())


def leave_orphan(log: Log, data: bytes = b"state" * 400_000) -> int:
    """A checkpoint that was written and not registered; the number it would have had."""
    blob = log.begin_checkpoint("s")
    blob.write(data)
    blob.finish()
    return blob.id


def stored(log: Log) -> set[str]:
    """The bare names of all that is in the store, whole or not."""
    return {split(name)[0] for name in log.store.since(0) if name is not None}


def look(cluster: Cluster, log: Log) -> None:
    """Have the log look for orphans, and prove with a commit that it owns the cell."""
    cluster.clock.advance(AFTER_S + 1)
    work(log)
    do(log, ops.Put("t", b"proof", b"1"))
    work(log)


def test_what_an_owner_left_without_a_name_is_removed_by_the_next(cluster: Cluster) -> None:
    log = filled(cluster)
    number = checkpoint(log, "s", b"kept" * 500_000)
    orphan = leave_orphan(log)
    owner = cluster.open()
    own = checkpoint(owner, "s", b"its own")
    unfinished = leave_orphan(owner)
    before = stored(owner)
    look(cluster, owner)
    gone = before - stored(owner)
    assert [name for name in gone if name.startswith(f"checkpoints/{orphan}-")]
    assert all(log.store.tag in name for name in gone)
    assert owner.gauges()["store_orphans"] >= 1
    assert any(name.startswith(f"checkpoints/{unfinished}-") for name in stored(owner)), "it may be registered yet"
    do(owner, ops.RegisterCheckpoint(unfinished, "s", 1, 2_000_000, {}))
    cluster.kafka.compact("headrace.blobs")
    after = cluster.open()
    check(after)
    assert b"".join(after.read_checkpoint(number)) == b"kept" * 500_000
    assert b"".join(after.read_checkpoint(own)) == b"its own"
    assert b"".join(after.read_checkpoint(unfinished)) == b"state" * 400_000
    look(cluster, after)
    check(cluster.open())


def test_nothing_is_removed_before_a_commit_proves_who_owns_the_log(cluster: Cluster) -> None:
    """A hub that was replaced sees what its successor puts into the store, and knows nothing of it."""
    zombie = filled(cluster)
    cluster.clock.advance(AFTER_S + 1)
    owner = cluster.open()
    number = checkpoint(owner, "s", b"the successor's")
    owner_has = stored(owner)
    for _ in range(20):
        zombie.maintain_once()
    assert zombie.maintenance.shared.orphans._sequence is not None, "it has looked"
    assert zombie.failed is None, "it does not know yet"
    assert stored(owner) >= owner_has
    pending = zombie.submit([ops.Append("s", Batch.one(b"zombie"))])
    zombie.commit_once()
    assert pending.error is not None
    work(zombie)
    assert stored(owner) >= owner_has
    assert b"".join(owner.read_checkpoint(number)) == b"the successor's"
    check(owner)


def test_a_removal_that_is_cut_off_is_done_by_the_next(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(cluster)
    left = {leave_orphan(log, b"%d" % each * 1000) for each in range(3)}
    second = cluster.open()
    removed: list[str] = []
    delete = second.store.delete

    def dies(name: str) -> None:
        if removed:
            raise KeyboardInterrupt
        removed.append(name)
        delete(name)

    monkeypatch.setattr(second.store, "delete", dies)
    with pytest.raises(KeyboardInterrupt):
        look(cluster, second)
    third = cluster.open()
    look(cluster, third)
    assert not {name for name in stored(third) if name.startswith(tuple(f"checkpoints/{each}-" for each in left))}
    check(third)


def test_parts_of_a_blob_that_was_never_whole_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(tmp_path)
    log = filled(cluster)
    blob = log.begin_checkpoint("s")
    blob.write(b"x" * 3 * topic_store.PART_BYTES)
    sent: list[int] = []
    send = topic_store.TopicStore._send

    def dies(store: topic_store.TopicStore, *arguments: object) -> None:
        if len(sent) == 2:
            raise KeyboardInterrupt
        sent.append(1)
        send(store, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(topic_store.TopicStore, "_send", dies)
    with pytest.raises(KeyboardInterrupt):
        blob.finish()
    monkeypatch.undo()
    owner = cluster.open()
    assert [name for name in stored(owner) if name.startswith(f"checkpoints/{blob.id}-")]
    look(cluster, owner)
    assert not [name for name in stored(owner) if name.startswith(f"checkpoints/{blob.id}-")]
    check(owner)


def test_an_unfinished_file_in_a_folder_is_removed(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, (tmp_path / "far").as_uri())
    filled(cluster)
    left = tmp_path / "far" / "0" / "checkpoints" / "9-hub-that-died.blob.tmp"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half")
    foreign = tmp_path / "far" / "0" / "notes" / "of-people.txt"
    foreign.parent.mkdir()
    foreign.write_bytes(b"not ours")
    look(cluster, cluster.open())
    assert not left.exists()
    assert foreign.exists()


def test_the_next_owner_looks_only_at_what_came_since(tmp_path: Path) -> None:
    """In a topic: a snapshot says up to where every blob has a name."""
    cluster = Cluster(tmp_path)
    owner = cluster.open()
    do(owner, ops.CreateStream("s"))
    do(owner, ops.CreateStream("t", kind="table"))
    assert owner.state.store_mark == 0
    leave_orphan(owner)
    second = cluster.open()
    look(cluster, second)
    fill(second, "s", 100)
    work(second)
    mark = second.state.store_mark
    assert mark > 0
    kept = leave_orphan(second)
    fill(second, "s", 100, 100)
    work(second)
    held = second.state.store_mark
    assert held >= mark
    names = [name for name in second.store.since(held) if name is not None]
    assert any(name.startswith(f"checkpoints/{kept}-") for name in names), "not behind what has no name yet"
    third = cluster.open()
    assert 0 < third.state.store_mark <= held
    look(cluster, third)
    with pytest.raises(CheckpointDamaged):
        list(snapshotless(third, kept))


def snapshotless(log: Log, id: int) -> list[bytes]:
    """The blob that had that number at another hub, if it is there."""
    for name in stored(log):
        if name.startswith(f"checkpoints/{id}-"):
            return list(log.store.chunks(name))
    raise CheckpointDamaged("gone")


def test_a_store_out_of_reach_is_looked_at_later(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    log = filled(cluster)
    orphan = leave_orphan(log)
    owner = cluster.open()

    def unreachable(mark: int) -> None:
        raise OSError("out of reach")

    with monkeypatch.context() as patched:
        patched.setattr(owner.store, "since", unreachable)
        look(cluster, owner)
        assert owner.maintenance.error == "out of reach"
    assert [name for name in stored(owner) if name.startswith(f"checkpoints/{orphan}-")]
    look(cluster, owner)
    assert not [name for name in stored(owner) if name.startswith(f"checkpoints/{orphan}-")]


def test_snapshots_of_earlier_versions_have_no_mark() -> None:
    state = snapshot.State()
    state.is_shared, state.store_mark = True, 42
    data = snapshot.encode(state, bookmark=b"x")
    found = snapshot.decode(data)
    assert found is not None
    assert found.store_mark == 42
    assert snapshot.SharedImage([], [], {}, []).store_mark == 0
