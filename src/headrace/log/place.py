"""Where a log is, seen from outside: nothing is opened. Without pyarrow, which a hub imports with a bounded pool."""

from __future__ import annotations

from pathlib import Path

from headrace.errors import BadConfig

JOURNAL = "journal"
"""The folder of the journal: a directory with it holds a log."""
OLD_FOLDER = "data"
"""Until 0.1 `make up`, `make run` and `headrace demo` kept the log in a folder of this name inside the directory."""


def holds_log(directory: Path) -> bool:
    """Whether a hub has kept its log there."""
    return (directory / JOURNAL).is_dir()


def older_log(directory: Path) -> Path | None:
    """The log that an earlier version kept inside this directory instead of in it."""
    older = directory / OLD_FOLDER
    return older if holds_log(older) else None


def check_place(directory: Path) -> str | None:
    """Refuse to begin a new log around one of an earlier version. Returns a warning when both are there."""
    older = older_log(directory)
    if older is None:
        return None
    if holds_log(directory):
        return f"{older} holds another log, of an earlier `make up` or `make run`; headrace up --data {older} serves it"
    aside = directory.with_name(f"{directory.name}-old")
    raise BadConfig(
        f"{directory} holds no log, and {older} holds one of an earlier `make up` or `make run`; "
        f"move it: mv {directory} {aside} && mv {aside / OLD_FOLDER} {directory}"
    )
