"""The cache in front of a shared store: what it fetches, checks, keeps and lets go of."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StoreUnavailable
from headrace.log.cached_store import CachedStore
from headrace.log.disk import OsDisk
from headrace.log.stamp import Stamp, split, stamped
from headrace.log.store import BlobDamaged, DirectoryStore
from headrace.testing import FaultyDisk, MemoryDisk, MemoryStore


class FarStore(MemoryStore):
    """A store that can be out of reach, and that counts."""

    def __init__(self) -> None:
        super().__init__()
        self.error: OSError | None = None
        self.fetched: list[str] = []
        self.gate: threading.Event | None = None

    def _reach(self) -> None:
        if self.error is not None:
            raise self.error

    def copy_in(self, name: str, chunks: Iterable[bytes | memoryview]) -> str:
        self._reach()
        return super().copy_in(name, chunks)

    def chunks(self, name: str) -> Iterator[bytes]:
        self.fetched.append(name)
        if self.gate is not None:
            self.gate.wait(60)
        self._reach()
        return iter([self.get(name)[:3], self.get(name)[3:]])

    def delete(self, name: str) -> None:
        self._reach()
        super().delete(name)


@pytest.fixture
def far() -> FarStore:
    return FarStore()


def near(far: FarStore, directory: Path, bytes_max: int = 1000) -> CachedStore:
    return CachedStore(DirectoryStore(OsDisk(directory)), far, bytes_max, "-hub")


def files(directory: Path) -> list[str]:
    found = (path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
    return sorted(name for name in found if name != "LOCK")


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="?"), min_size=1),
    st.integers(0, 2**63),
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(1, 2**31)) | st.just((-1, -1, 0)),
)
def test_a_stamp_comes_back_as_it_was(name: str, size: int, crc: int, place: tuple[int, int, int]) -> None:
    stamp = Stamp(size, crc, *place)
    assert split(stamped(name, stamp)) == (name, stamp)
    assert split(name) == (name, None)


def test_a_blob_is_stamped_and_in_both_places(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a")
    name = store.put("f/a", b"0123456789")
    assert split(name) == ("f/a", Stamp(10, 0x280C069E))
    assert far.blobs == {"f/a": b"0123456789"}
    assert files(tmp_path / "a") == ["f/a"]
    assert store.get(name) == b"0123456789"
    assert (store.size(name), far.fetched) == (10, [])
    assert store.gauges() == {"cache_bytes": 10, "store_fetched_bytes": 0, "store_stored_bytes": 10}
    store.close()


def test_an_empty_directory_fetches_once(far: FarStore, tmp_path: Path) -> None:
    name = near(far, tmp_path / "a").put("f/a", b"0123456789")
    store = near(far, tmp_path / "b")
    assert store.map(name).to_pybytes() == b"0123456789"
    assert store.get_range(name, 2, 3) == b"234"
    assert far.fetched == ["f/a"]
    store.close()
    again = near(far, tmp_path / "b")
    assert again.get(name) == b"0123456789"
    assert far.fetched == ["f/a"], "a start keeps what is there"
    again.close()


def test_readers_on_this_machine_may_map_what_is_here(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a", bytes_max=10)
    names = [store.put("f/a", b"a" * 10), store.put("f/b", b"b" * 10)]
    assert [store.local_path(name) for name in names] == [None, str(tmp_path / "a/f/b")]
    assert store.local_path("") is None
    store.close()
    again = near(far, tmp_path / "a")
    assert again.local_path(names[1]) is None, "nobody has checked it yet"
    again.get(names[1])
    assert again.local_path(names[1]) == str(tmp_path / "a/f/b")
    again.close()


def test_an_empty_blob_can_be_mapped(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a")
    assert store.map(store.put("f/a", b"")).size == 0
    store.close()


def test_many_that_want_one_blob_fetch_it_once(far: FarStore, tmp_path: Path) -> None:
    name = near(far, tmp_path / "a").put("f/a", b"0123456789")
    store = near(far, tmp_path / "b")
    far.gate = threading.Event()
    got: list[bytes] = []
    readers = [threading.Thread(target=lambda: got.append(store.get(name))) for _ in range(4)]
    for reader in readers:
        reader.start()
    far.gate.set()
    for reader in readers:
        reader.join()
    assert (got, far.fetched) == ([b"0123456789"] * 4, ["f/a"])
    store.close()


@pytest.mark.parametrize("damage", [b"0123456788", b"012345678", b"", b"0123456789x"])
def test_a_damaged_file_of_the_cache_is_fetched_again(far: FarStore, tmp_path: Path, damage: bytes) -> None:
    store = near(far, tmp_path / "a")
    name = store.put("f/a", b"0123456789")
    store.close()
    (tmp_path / "a/f/a").write_bytes(damage)
    store = near(far, tmp_path / "a")
    assert store.get(name) == b"0123456789"
    assert (tmp_path / "a/f/a").read_bytes() == b"0123456789"
    store.close()


def test_damage_that_shows_later_is_fetched_again_once(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a")
    name = store.put("f/a", b"0123456789")
    (tmp_path / "a/f/a").write_bytes(b"rotten")
    assert store.get(name) == b"rotten", "nobody has looked yet"
    assert store.renew(name)
    assert store.get(name) == b"0123456789"
    assert not store.renew(name), "it was stored like that"
    assert not store.renew("f/b"), "nobody knows what it should be"
    store.close()


def test_a_damaged_blob_of_the_store_is_never_served(far: FarStore, tmp_path: Path) -> None:
    name = near(far, tmp_path / "a").put("f/a", b"0123456789")
    far.blobs["f/a"] = b"0123456780"
    store = near(far, tmp_path / "b")
    for _ in range(2):
        with pytest.raises(BlobDamaged, match="f/a"):
            store.get(name)
    assert files(tmp_path / "b") == []
    assert store.trouble() is None
    store.close()


def test_a_store_that_is_out_of_reach_is_named_and_tried_again(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a")
    name = store.put("f/a", b"0123456789")
    far.error = OSError("no route to the bucket")
    assert store.get(name) == b"0123456789", "it is here"
    other = near(far, tmp_path / "b")
    with pytest.raises(StoreUnavailable, match="no route to the bucket"):
        other.get(name)
    assert "no route" in str(other.trouble())
    with pytest.raises(StoreUnavailable):
        store.put("f/b", b"x")
    with pytest.raises(StoreUnavailable):
        store.delete(name)
    assert files(tmp_path / "a") == ["f/a"], "what the store does not have is not kept"
    assert files(tmp_path / "b") == []
    far.error = None
    assert other.get(name) == b"0123456789"
    assert other.trouble() is None
    store.put("f/b", b"x")
    assert store.trouble() is None
    store.close()
    other.close()


def test_a_store_that_goes_away_inside_of_a_blob_leaves_nothing(far: FarStore, tmp_path: Path) -> None:
    name = near(far, tmp_path / "a").put("f/a", b"0123456789")

    def cut_off(name: str) -> Iterator[bytes]:
        yield b"0123"
        raise OSError("connection reset")

    far.chunks = cut_off  # type: ignore[method-assign]
    store = near(far, tmp_path / "b")
    with pytest.raises(StoreUnavailable, match="connection reset"):
        store.get(name)
    assert files(tmp_path / "b") == []
    store.close()


def test_what_is_missing_from_the_store_is_missing(far: FarStore, tmp_path: Path) -> None:
    name = near(far, tmp_path / "a").put("f/a", b"0123456789")
    far.blobs.clear()
    store = near(far, tmp_path / "b")
    with pytest.raises(FileNotFoundError):
        store.get(name)
    with pytest.raises(FileNotFoundError):
        store.size("f/a")
    store.close()


def test_a_cache_without_room_is_no_damage(far: FarStore) -> None:
    name = near_memory(far, MemoryDisk()).put("f/a", b"0123456789")
    disk = FaultyDisk(MemoryDisk())
    store = near_memory(far, disk)
    disk.fail_all("create", errno.ENOSPC)
    with pytest.raises(StoreUnavailable, match="cache"):
        store.get(name)
    disk.heal()
    disk.fail_all("write", errno.ENOSPC)
    with pytest.raises(StoreUnavailable, match="cache"):
        store.get(name)
    disk.heal()
    assert store.get(name) == b"0123456789"


def near_memory(far: FarStore, disk: MemoryDisk) -> CachedStore:
    return CachedStore(DirectoryStore(disk), far, 1000)


def test_what_was_used_longest_ago_goes_first(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a", bytes_max=30)
    names = [store.put(f"f/{letter}", letter.encode() * 10) for letter in "abc"]
    assert files(tmp_path / "a") == ["f/a", "f/b", "f/c"]
    store.get(names[0])
    names.append(store.put("f/d", b"d" * 10))
    assert files(tmp_path / "a") == ["f/a", "f/c", "f/d"]
    assert store.get(names[1]) == b"b" * 10
    assert files(tmp_path / "a") == ["f/a", "f/b", "f/d"]
    assert store.gauges()["cache_bytes"] == 30
    store.close()
    smaller = near(far, tmp_path / "a", bytes_max=10)
    assert len(files(tmp_path / "a")) == 1
    smaller.close()


def test_a_cache_gives_way_on_a_full_disk(far: FarStore) -> None:
    """Appends are refused when the disk is full: what can be fetched again must not be what fills it."""
    store = CachedStore(DirectoryStore(MemoryDisk(free_bytes=100)), far, 10**6, free_bytes_min=65)
    names = [store.put(f"f/{letter}", letter.encode() * 10) for letter in "abcdef"]
    assert store.gauges()["cache_bytes"] == 30
    assert [store.get(name) for name in names] == [letter * 10 for letter in (b"a", b"b", b"c", b"d", b"e", b"f")]
    assert store.gauges()["cache_bytes"] == 30


def test_a_log_that_is_being_opened_waits_for_the_store(far: FarStore) -> None:
    name = near_memory(far, MemoryDisk()).put("f/a", b"0123456789")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            far.error = None

    far.error = OSError("no route")
    store = CachedStore(DirectoryStore(MemoryDisk()), far, 1000, patience_s=5, wait=wait)
    assert store.get(name) == b"0123456789"
    assert len(waits) == 3
    far.error = OSError("no route")
    store = CachedStore(DirectoryStore(MemoryDisk()), far, 1000, patience_s=5, wait=waits.append)
    with pytest.raises(StoreUnavailable):
        store.get(name)
    assert len(waits) == 3 + 5
    store = CachedStore(DirectoryStore(MemoryDisk()), far, 1000, patience_s=5, wait=waits.append)
    store.recovered()
    with pytest.raises(StoreUnavailable):
        store.get(name)
    assert len(waits) == 8, "a reader is told at once"


def test_what_is_mapped_stays(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a", bytes_max=10)
    names = [store.put("f/a", b"a" * 10)]
    mapped = store.map(names[0])
    slice_of_it = mapped.slice(2, 3)
    del mapped
    names.append(store.put("f/b", b"b" * 10))
    store.put("f/c", b"c" * 10)
    assert files(tmp_path / "a") == ["f/a"], "a reader has it"
    assert slice_of_it.to_pybytes() == b"aaa"
    del slice_of_it
    store.get(names[1])
    assert files(tmp_path / "a") == ["f/b"]
    store.close()


def test_what_is_deleted_is_gone_from_both(far: FarStore, tmp_path: Path) -> None:
    store = near(far, tmp_path / "a")
    names = [store.put(name, b"x") for name in ("f/a", "f/1/b", "g/c")]
    store.delete(names[0])
    assert (sorted(far.blobs), files(tmp_path / "a")) == (["f/1/b", "g/c"], ["f/1/b", "g/c"])
    store.delete_all("f")
    assert (sorted(far.blobs), files(tmp_path / "a")) == (["g/c"], ["g/c"])
    assert store.gauges()["cache_bytes"] == 1
    store.close()


def test_what_a_process_that_died_left_is_removed(far: FarStore, tmp_path: Path) -> None:
    near(far, tmp_path / "a").close()
    (tmp_path / "a/f").mkdir()
    (tmp_path / "a/f/x.tmp").write_bytes(b"half")
    (tmp_path / "a/f/y.fetched.tmp").write_bytes(b"half")
    near(far, tmp_path / "a").close()
    assert files(tmp_path / "a") == []


def test_two_hubs_store_at_once_and_neither_touches_the_others(far: FarStore, tmp_path: Path) -> None:
    """Their names differ by the hub; so each is what its own hub wrote."""
    stores = [CachedStore(DirectoryStore(OsDisk(tmp_path / hub)), far, 10**6, f"-{hub}") for hub in ("one", "two")]
    names: dict[str, bytes] = {}

    def put_all(store: CachedStore) -> None:
        for number in range(50):
            data = f"{number}{store.tag}".encode()
            names[store.put(f"f/{number}{store.tag}", data)] = data

    writers = [threading.Thread(target=put_all, args=(store,)) for store in stores]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(names) == 100
    for store in stores:
        assert all(store.get(name) == data for name, data in names.items())
        store.close()
