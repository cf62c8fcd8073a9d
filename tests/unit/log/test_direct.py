"""Writes past the page cache: the file holds what was written, on whichever way it went."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.log import direct
from headrace.log.direct import BLOCK, OsSyncedFile

Spoil = Callable[[pytest.MonkeyPatch], None]


def direct_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of the tests knows it: otherwise most of this file would test the other one."""


def no_such_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_RWF_DSYNC", 0)


def not_when_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.open

    def refusing(path: Any, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no direct writes here")
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", refusing)


def not_when_written(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any) -> int:
        raise OSError(errno.EOPNOTSUPP, "no such flag for this file")

    monkeypatch.setattr(os, "pwritev", refusing)


def short_by_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at, flags: real(fd, [buffers[0][:BLOCK]], at, flags))


def short_within_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(fd: int, buffers: Sequence[memoryview], at: int, flags: int) -> int:
        with open(f"/proc/self/fd/{fd}", "r+b") as other:
            return os.pwrite(other.fileno(), buffers[0][:1000], at)

    monkeypatch.setattr(os, "pwritev", short)


WAYS = [direct_way, no_such_flag, not_when_opened, not_when_written, short_by_blocks, short_within_a_block]


@pytest.mark.parametrize("way", WAYS)
def test_the_file_holds_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Spoil) -> None:
    """As the journal does it: each write begins on the last eight bytes of the one before."""
    way(monkeypatch)
    sizes = [40, 100, 4048, 8, 9000, BLOCK, 3, 30_000, 8]
    file = OsSyncedFile(tmp_path / "file")
    expected = b""
    for number, size in enumerate(sizes):
        piece = bytes([65 + number]) * size
        file.write_at(len(expected), [piece[:5], b"", piece[5:], bytes(8)])
        expected += piece
        stored = (tmp_path / "file").read_bytes()
        assert stored[: len(expected)] == expected
        assert not any(stored[len(expected) :])
    file.close()


def test_it_goes_past_the_page_cache_where_it_can(tmp_path: Path) -> None:
    file = OsSyncedFile(tmp_path / "file")
    file.write_at(0, [b"x"])
    assert file.is_direct
    file.close()


@pytest.mark.parametrize("way", [not_when_opened, not_when_written])
def test_the_ordinary_way_syncs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Spoil) -> None:
    way(monkeypatch)
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    file = OsSyncedFile(tmp_path / "file")
    for turn in range(1, 4):
        file.write_at(10 * turn - 10, [b"0123456789"])
        assert len(synced) == turn
    assert not file.is_direct
    file.close()


@pytest.mark.parametrize("way", [not_when_written, short_within_a_block])
def test_a_file_with_a_new_name_stays_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Spoil) -> None:
    """A journal file that was a spare is renamed while it is open; a refusal after that must not make another file."""
    file = OsSyncedFile(tmp_path / "spare")
    file.write_at(0, [b"first "])
    (tmp_path / "spare").rename(tmp_path / "journal")
    way(monkeypatch)
    file.write_at(6, [b"second"])
    assert not file.is_direct
    assert [path.name for path in tmp_path.iterdir()] == ["journal"]
    assert (tmp_path / "journal").read_bytes().rstrip(b"\0") == b"first second"
    file.close()


def test_a_read_that_is_refused_takes_the_ordinary_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"before")
    file = OsSyncedFile(tmp_path / "file")
    real = os.preadv

    def refusing(*arguments: Any) -> int:
        if file.is_direct:
            raise OSError(errno.EINVAL, "no direct reads here")
        return real(*arguments)

    monkeypatch.setattr(os, "preadv", refusing)
    file.write_at(6, [b", after"])
    assert (tmp_path / "file").read_bytes().rstrip(b"\0") == b"before, after"
    file.close()


def test_a_new_size_is_synced_by_a_call_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a direct write may be called durable before the file's new size is."""
    monkeypatch.setattr(direct, "_SYNCS_NEW_SIZES", False)
    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (synced.append(fd), real(fd)))
    file = OsSyncedFile(tmp_path / "file")
    for offset, syncs in [(0, 1), (100, 1), (BLOCK - 1, 2), (BLOCK, 2), (2 * BLOCK, 3), (0, 3)]:
        file.write_at(offset, [b"xy"])
        assert len(synced) == syncs
    assert file.is_direct
    file.truncate(BLOCK)
    file.write_at(BLOCK, [b"z"])
    assert len(synced) == syncs + 2
    file.close()


@pytest.mark.parametrize(
    ("release", "trusted"),
    [
        ("6.7.0", True),
        ("6.18.3-arch1", True),
        ("7.0", True),
        ("10", True),
        ("6.6.99", False),
        ("5.15.0-91-generic", False),
    ],
)
def test_which_kernels_sync_new_sizes(release: str, trusted: bool) -> None:
    assert direct.syncs_new_sizes(release) == trusted


@settings(max_examples=60, deadline=None)
@given(
    writes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9 * BLOCK), st.booleans()), min_size=1, max_size=12),
    stage_blocks=st.integers(2, 4),
)
def test_any_writes_from_anywhere(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, int, bool]], stage_blocks: int
) -> None:
    """Against a model: from the end, back into the last block or further, with a file cut and opened again between."""
    path = tmp_path_factory.mktemp("direct") / "file"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(direct, "STAGE_BYTES", stage_blocks * BLOCK)
        file = OsSyncedFile(path)
        model = b""
        for number, (back, size, reopen) in enumerate(writes):
            offset = max(0, len(model) - back * 1500)
            data = bytes([33 + number]) * size
            file.write_at(offset, [data])
            model = model[:offset] + data
            stored = path.read_bytes()
            assert stored[: len(model)] == model
            if reopen:
                file.truncate(len(model))
                file.close()
                file = OsSyncedFile(path)
        file.close()


def test_what_is_behind_the_last_block_stays(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"o" * 5 * BLOCK)
    file = OsSyncedFile(tmp_path / "file")
    file.write_at(BLOCK + 10, [b"n" * BLOCK])
    stored = (tmp_path / "file").read_bytes()
    ends = [0, BLOCK + 10, 2 * BLOCK + 10, 3 * BLOCK, 5 * BLOCK]
    assert [set(stored[a:b]) for a, b in pairwise(ends)] == [{ord("o")}, {ord("n")}, {0}, {ord("o")}]
    file.close()


def test_a_place_behind_the_end_is_an_error(tmp_path: Path) -> None:
    file = OsSyncedFile(tmp_path / "file")
    file.write_at(0, [b"abc"])
    file.truncate(3)
    with pytest.raises(OSError, match="ends before") as raised:
        file.write_at(BLOCK + 1, [b"x"])
    assert raised.value.errno == errno.EIO
    file.close()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_other_errors_are_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    file = OsSyncedFile(tmp_path / "file")
    file.write_at(0, [b"before"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda *_: (_ for _ in ()).throw(OSError(number, "said the disk")))
        with pytest.raises(OSError, match="said the disk"):
            file.write_at(6, [b"lost"])
    file.truncate(6)
    file.write_at(6, [b", after"])
    assert (tmp_path / "file").read_bytes()[:13] == b"before, after"
    file.close()


def test_an_opening_that_fails_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        OsSyncedFile(tmp_path / "missing" / "file")
