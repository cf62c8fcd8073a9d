"""The file of users, and the word that there have been some.

A hub without users lets everybody in. So a file that is lost, or emptied, must not look like a hub that never had
users: `users.required` in the data directory is written before the first user and stays when the last one goes.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.config import User
from headrace.log.disk import PRIVATE, fsync, fsync_directory, is_final
from headrace.security import small_file
from headrace.security.passwords import SecurityError

REQUIRED = "users.required"
REQUIRED_TEXT = b"""This hub has had users, so nobody is let in without a name, also while there are no users.
`headrace user open` removes this file.
"""


class UsersFile:
    """The users that `headrace user add` keeps beside the data. Read again when the file changes."""

    def __init__(self, path: Path, data: Path) -> None:
        self.path = path
        self._required = data / REQUIRED
        self._stamp: small_file.Stamp | None = None
        self._users: dict[str, User] = {}
        self.on_disk_failure: Callable[[str, OSError], None] | None = None
        """Told what was being written when the disk failed."""

    def users(self) -> dict[str, User]:
        """The users now in the file; a file that cannot be understood is an error, not an empty one."""
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._stamp, self._users = None, {}
            return self._users
        except OSError as error:
            raise self._not_readable(error) from error
        stamp = small_file.stamp(status)
        if stamp != self._stamp:
            try:
                self._users = msgspec.json.decode(small_file.read(self.path), type=dict[str, User])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise SecurityError(f"{self.path} is not a users file: {error}") from error
            except OSError as error:
                raise self._not_readable(error) from error
            self._stamp = stamp
        return self._users

    @property
    def stamp(self) -> object:
        """Differs when other users were read."""
        return self._stamp

    def is_required(self) -> bool:
        """Whether there have been users. What cannot be found out is taken for yes."""
        try:
            self._required.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True
        return True

    def require(self) -> None:
        """Write down, durably, that there have been users."""
        try:
            descriptor = os.open(self._required, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except FileExistsError:
            return
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(REQUIRED_TEXT)
                file.flush()
                fsync(file.fileno())
            fsync_directory(self._required.parent)
        except OSError as error:
            self._failed(error)
            raise

    def forget(self) -> None:
        """Take that back."""
        try:
            self._required.unlink(missing_ok=True)
            fsync_directory(self._required.parent)
        except OSError as error:
            raise self._not_writable(error) from error

    @contextlib.contextmanager
    def changing(self) -> Iterator[dict[str, User]]:
        """The users, to be changed in the block and durable after it. Whoever else changes the file, the hub or another
        command, waits: none overwrites what the other has added, or brings back what it has removed."""
        try:
            for folder in (self._required.parent, self.path.parent):
                folder.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
            lock = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._not_writable(error) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._stamp = None
            users = dict(self.users())
            had_some = bool(users)
            yield users
            if users or had_some:
                self.require()
            self._write(users)
        except OSError as error:
            raise self._not_writable(error) from error
        finally:
            os.close(lock)

    def _not_readable(self, error: OSError) -> SecurityError:
        return SecurityError(f"the users file {self.path} cannot be read: {error.strerror}")

    def _failed(self, error: OSError) -> None:
        if self.on_disk_failure is not None and is_final(error):
            self.on_disk_failure("writing the users file", error)

    def _not_writable(self, error: OSError) -> SecurityError:
        self._failed(error)
        return SecurityError(f"the users file {self.path} cannot be written: {error.strerror}")

    def _write(self, users: dict[str, User]) -> None:
        """Replace the file: readable by its owner only, and never half written."""
        beside = self.path.with_suffix(".new")
        beside.unlink(missing_ok=True)  # left by a command that was killed, with whatever rights it had
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(users)) + b"\n")
            file.flush()
            fsync(file.fileno())
        os.replace(beside, self.path)
        fsync_directory(self.path.parent)  # a user who was removed does not come back with a power cut
        self._stamp = None
