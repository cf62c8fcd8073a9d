"""Paths that requests name on the hub's machine: an admin of the hub is not one of its machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from headrace.errors import BadRequest


def place_below(data: str, root: str, path: str, setting: str) -> Path:
    """A path below a root, which a setting names relative to the data directory. Links do not lead elsewhere. Blocks on
    the disk."""
    try:
        top = Path(data, root).absolute().resolve()
        place = (top / path).resolve()
        if any(map(Path.is_symlink, (place, *place.parents))):  # Python 3.13 leaves a loop of links as it is
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except (OSError, ValueError, RuntimeError) as error:  # a name that no disk takes, a loop of links
        raise BadRequest(f"{path!r} is not a path: {error}") from error
    if top not in place.parents:
        raise BadRequest(f"{path!r} is not below {top}; the setting is {setting}")
    return place
