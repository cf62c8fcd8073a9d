"""A file that may be anything: what is not a small regular file is an error, and leaves nothing open."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.security import small_file
from headrace.security.users import UsersFile


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


def test_users_that_were_written_with_the_old_time_and_size_are_seen(tmp_path: Path) -> None:
    """As `rsync --inplace --times` does, or an editor after the clock was set back: the right would have stayed."""
    place = tmp_path / "users.json"
    place.write_text('{"bea": {"secret": "x", "roles": ["admin"]}}')
    users = UsersFile(place, tmp_path)
    assert users.users()["bea"].roles == ["admin"]
    before = place.stat()
    while place.stat().st_ctime_ns == before.st_ctime_ns:  # the system's clock may take some milliseconds for a step
        with place.open("r+") as file:
            file.write('{"bea": {"secret": "x", "roles": ["clerk"]}}')
        os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (place.stat().st_mtime_ns, place.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert users.users()["bea"].roles == ["clerk"]
