"""What every store keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.log.cached_store import CachedStore
from headrace.log.disk import OsDisk
from headrace.log.kafka.topic_store import TopicStore
from headrace.log.store import DirectoryStore, Store
from headrace.log.uri_store import open_uri
from headrace.testing import FaultyDisk, MemoryDisk, MemoryStore
from headrace.testing.kafka import FakeKafka


def topic_store() -> TopicStore:
    kafka = FakeKafka()
    kafka.create_topic("blobs", 3, 3, {"cleanup.policy": "compact"})
    return TopicStore(kafka, "blobs", 2)


DIRECTORIES = ["directory", "directory in memory", "faulty directory", "folder"]
KINDS = [*DIRECTORIES, "memory", "s3", "topic", "cached topic", "cached", "cached in memory"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made: Store
    match request.param:
        case "directory":
            made = DirectoryStore(OsDisk(tmp_path / "data"))
        case "directory in memory":
            made = DirectoryStore(MemoryDisk())
        case "faulty directory":
            made = DirectoryStore(FaultyDisk(MemoryDisk(), short_writes=3))
        case "folder":
            made = open_uri((tmp_path / "a folder").as_uri(), "0")
        case "s3":
            made = open_uri(request.getfixturevalue("s3_folder"), "0")
        case "cached":
            made = CachedStore(DirectoryStore(OsDisk(tmp_path / "cache")), open_uri(tmp_path.as_uri(), "0"), 10_000)
        case "topic":
            made = topic_store()
        case "cached topic":
            made = CachedStore(DirectoryStore(OsDisk(tmp_path / "cache")), topic_store(), 10_000)
        case "cached in memory":
            made = CachedStore(DirectoryStore(MemoryDisk()), MemoryStore(), 1)
        case _:
            made = MemoryStore()
    yield made
    made.close()


def test_a_blob_is_found_under_its_name(store: Store) -> None:
    store.put("segments/7/0/a.arrow", b"0123456789")
    assert store.get("segments/7/0/a.arrow") == b"0123456789"
    assert store.size("segments/7/0/a.arrow") == 10
    assert store.get_range("segments/7/0/a.arrow", 2, 3) == b"234"
    assert store.get_range("segments/7/0/a.arrow", 8, 3) == b"89"
    assert store.map("segments/7/0/a.arrow").to_pybytes() == b"0123456789"


def test_a_blob_is_there_as_a_whole_or_not_at_all(store: Store) -> None:
    blob = store.create("f/a")
    blob.write(b"0", memoryview(b"1"))
    blob.begin_sync()
    blob.sync()
    blob.write()
    blob.write(b"2")
    assert store.list("f") == []
    with pytest.raises(FileNotFoundError):
        store.get("f/a")
    blob.finish()
    blob.abort()  # too late
    assert store.list("f") == ["a"]
    assert store.get("f/a") == b"012"


def test_a_blob_that_is_given_up_leaves_nothing(store: Store) -> None:
    store.put("f/a", b"old")
    store.create("f/a").abort()
    store.create("f/b").abort()
    with pytest.raises(ZeroDivisionError), store.create("f/a") as blob:
        blob.write(b"new" * (1 // 0))
    assert store.list("f", tidy=True) == ["a"]
    assert store.get("f/a") == b"old"


def test_a_blob_takes_the_place_of_an_earlier_one(store: Store) -> None:
    store.put("f/a", b"old and long")
    store.put("f/a", b"new")
    assert store.get("f/a") == b"new"


def test_a_name_that_is_not_there_is_said_to_be_missing(store: Store) -> None:
    store.put("f/b", b"")
    for ask in (store.get, store.size, store.map, lambda name: store.get_range(name, 0, 1)):
        with pytest.raises(FileNotFoundError):
            ask("f/a")


def test_a_folder_lists_what_is_right_below_it(store: Store) -> None:
    for name in ("f/b", "f/a", "f/g/c", "g/d"):
        store.put(name, b"x")
    assert store.list("f") == ["a", "b", "g"]
    assert store.list("f/g") == ["c"]
    assert store.list("nowhere") == []


def test_what_died_on_its_way_is_not_listed_and_is_tidied_away(store: Store) -> None:
    store.put("f/a", b"whole")
    store.create("f/b").write(b"half")
    assert store.list("f") == ["a"]
    assert store.list("f", tidy=True) == ["a"]
    if isinstance(store, DirectoryStore):
        assert store.disk.list("f") == ["a"]


def test_a_deleted_blob_is_gone_and_whoever_mapped_it_has_it_still(store: Store) -> None:
    store.put("f/a", b"x" * 5_000)
    mapped = store.map("f/a")
    store.delete("f/a")
    store.delete("f/a")
    assert store.list("f") == []
    assert mapped.to_pybytes() == b"x" * 5_000


def test_a_folder_goes_with_all_that_is_in_it(store: Store) -> None:
    for name in ("f/1/0/a", "f/1/0/b", "f/1/1/a", "f/1/2/a", "f/10/0/a"):
        store.put(name, b"x")
    store.delete("f/1/2/a")  # its folder may stay, empty
    store.delete_all("f/1")
    store.delete_all("nowhere")
    assert store.list("f") == ["10"]
    assert store.get("f/10/0/a") == b"x"


def test_a_damaged_blob_is_kept_elsewhere(store: Store) -> None:
    store.put("f/a", b"rotten")
    store.set_aside("f/a")
    assert store.list("f") == []
    assert store.get("quarantine/a") == b"rotten"


def test_only_files_of_this_machine_have_a_path(store: Store) -> None:
    store.put("f/a", b"here")
    path, handover = store.local_path("f/a"), store.handover()
    assert (path is None) == (handover is None)
    if path is not None and handover is not None:
        assert Path(path).read_bytes() == b"here"
        assert path == f"{handover[0]}/f/a"
