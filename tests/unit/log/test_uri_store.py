"""Stores under a URI, beside what every store keeps to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.s3 import S3Server

from headrace.errors import BadConfig, StoreUnavailable
from headrace.log.cached_store import CachedStore
from headrace.log.disk import OsDisk
from headrace.log.spool import SPOOL_BYTES
from headrace.log.store import CHUNK_BYTES, DirectoryStore, Store
from headrace.log.uri_store import open_uri


@pytest.mark.parametrize("uri", ["nothing", "what://ever", ""])
def test_a_uri_that_says_nothing_is_refused(uri: str) -> None:
    with pytest.raises(BadConfig, match=r"log\.kafka\.store"):
        open_uri(uri, "0")


def test_a_folder_has_no_lock_and_two_hubs_see_it(tmp_path: Path) -> None:
    one, two = (open_uri(f"file://{tmp_path}/a%20folder", "3") for _ in range(2))
    one.put("f/a", b"x")
    assert two.get("f/a") == b"x"
    assert (tmp_path / "a folder/3/f/a").read_bytes() == b"x"
    assert sorted(path.name for path in (tmp_path / "a folder/3").iterdir()) == ["f"]
    one.close()
    two.close()


def test_large_blobs_in_s3(s3_folder: str) -> None:
    store = open_uri(s3_folder, "0")
    data = bytes(range(256)) * 50_000
    assert len(data) > max(SPOOL_BYTES, 2 * CHUNK_BYTES)
    with store.create("f/a") as blob:
        for start in range(0, len(data), 1_000_000):
            blob.write(data[start : start + 1_000_000])
    assert b"".join(store.chunks("f/a")) == data
    assert store.get_range("f/a", 10**7, 100) == data[10**7 : 10**7 + 100]


def test_a_copy_that_breaks_off_leaves_nothing_in_s3(s3_folder: str) -> None:
    store = open_uri(s3_folder, "0")

    def chunks() -> Iterator[bytes]:
        yield b"x" * 1000
        raise OSError("the disk that it comes from failed")

    with pytest.raises(OSError, match="disk"):
        store.copy_in("f/a", chunks())
    assert store.list("f") == []
    assert list(store.names()) == []


def test_all_names_of_a_store(s3_folder: str, tmp_path: Path) -> None:
    stores: list[Store] = [open_uri(s3_folder, "0"), open_uri(tmp_path.as_uri(), "0")]
    for store in stores:
        for name in ("f/1/b", "f/a", "g/c"):
            store.put(name, b"x")
        assert sorted(store.names()) == ["f/1/b", "f/a", "g/c"]
        assert sorted(store.names("f")) == ["f/1/b", "f/a"]


@pytest.mark.slow
def test_a_server_that_is_gone_is_told(tmp_path: Path) -> None:
    server = S3Server()
    store = CachedStore(DirectoryStore(OsDisk(tmp_path)), open_uri(server.bucket(), "0"), 10**6)
    name = store.put("f/a", b"0123456789")
    server.stop()
    assert store.get(name) == b"0123456789"
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        store.put("f/b", b"x")
    assert store.trouble() is not None
    store.close()
