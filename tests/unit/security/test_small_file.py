"""A file that may be anything: what is not a small regular file is an error, and leaves nothing open."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.security import small_file


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, small_file.BYTES_MAX + 1)


@pytest.mark.parametrize(
    "make",
    [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path), sparse],
    ids=["directory", "pipe", "device", "loop", "too large"],
)
def test_what_is_no_small_file_is_refused_and_left_closed(make: Callable[[Path], None], tmp_path: Path) -> None:
    """The hub looks twice a second and with every login: what it left open would use up its descriptors."""
    place = tmp_path / "users.json"
    make(place)
    before = os.listdir("/proc/self/fd")
    for _ in range(3):
        with pytest.raises(OSError, match=r"."):
            small_file.read(place)
    assert os.listdir("/proc/self/fd") == before


def test_a_file_at_the_limit_is_read(tmp_path: Path) -> None:
    place = tmp_path / "users.json"
    place.touch()
    os.truncate(place, small_file.BYTES_MAX)
    assert len(small_file.read(place)) == small_file.BYTES_MAX
