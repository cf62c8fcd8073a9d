"""Put before a Python process by `PYTHONPATH`: the disk fails what makes a path durable, if the path fits a pattern.

`HEADRACE_FAILING_SYNCS` is the pattern. It is tried on the path of a file that is synced, and on the new name of one
that is renamed.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Any

PATTERN = re.compile(os.environ.get("HEADRACE_FAILING_SYNCS", "(?!)"))


def fail(path: str) -> None:
    if PATTERN.search(path):
        raise OSError(errno.EIO, "injected", path)


def syncing(original: Callable[[int], None]) -> Callable[[int], None]:
    def sync(descriptor: int) -> None:
        fail(os.readlink(f"/proc/self/fd/{descriptor}"))
        original(descriptor)

    return sync


def renaming(original: Callable[..., None]) -> Callable[..., None]:
    def rename(old: Any, new: Any, **options: Any) -> None:
        fail(f"rename:{os.fspath(new)}")
        original(old, new, **options)

    return rename


os.fsync, os.fdatasync = syncing(os.fsync), syncing(os.fdatasync)  # type: ignore[assignment]
os.rename, os.replace = renaming(os.rename), renaming(os.replace)
