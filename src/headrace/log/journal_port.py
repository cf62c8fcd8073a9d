"""What a journal is: frames in the order of their sequence, where everything becomes durable first.

`FileJournal` (`journal.py`) keeps it in files; `headrace.testing` has one in memory. A journal grows by commits. It
consists of pieces, such as files or ranges of offsets, and is cut behind what segments and snapshots hold.

Life: `read` to its end, then `open`, then `write` and `mark` by one thread, while another calls `cut_behind`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import msgspec

from headrace.errors import HeadraceError
from headrace.log.frame import PLAIN, EncodedFrame, Salt, encode_salted_frame
from headrace.log.runs import FrameRun


class Unrecoverable(HeadraceError):
    """The state cannot be told any more."""

    code = "unrecoverable"


class CutMeanwhile(Unrecoverable):
    """Another hub has cut the journal behind a newer snapshot while it was read: read it again."""


class GoodFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame whose directory is intact; `data` is None when only the records are damaged. A start may make a million
    of these: nothing is made more quickly."""

    sequence: int
    directory: bytes
    data: bytes | None
    path: str
    offset: int


class LostFrames(NamedTuple):
    """Frames that were durable once and cannot be read; nobody knows what was in them."""

    first_sequence: int
    next_sequence: int
    path: str
    offset: int
    size: int
    """Of what stands there instead; 0 when nobody knows how much is missing."""


class TornTail(NamedTuple):
    """What stands behind the last intact frame, and no later one vouches for."""

    path: str
    offset: int
    size: int


Good = GoodFrame | FrameRun
"""What can be folded."""
Stored = Good | LostFrames | TornTail


class Position(NamedTuple):
    """How far a journal has been written. Replaced as a whole, so that other threads may look at it."""

    first_sequence: int
    """Of the piece being written."""
    size: int
    """Bytes of it that count; 0 when none has been begun since the journal was opened."""


class JournalPort(Protocol):
    """A journal."""

    next_sequence: int
    """Of the next frame to be made. All before it are durable, or on their way. Known when everything has been read."""
    position: Position
    idle_mark_s: float | None = None
    """How often an idle writer marks; None for once, after the last work."""
    commits_max: int = 1
    """How many commits may be on their way at once. With 1 there is only `write`."""
    salt: Salt = PLAIN
    """Of the frames of the next commit."""

    @property
    def first(self) -> int:
        """The sequence that its oldest piece begins with; that of the next frame when there is none."""
        ...

    def read(self, sequence: int | None, is_final: bool = False, bookmark: bytes = b"") -> Iterator[Stored]:
        """All that is stored, in order. A snapshot has what is below `sequence`, but for records that wait to be
        sealed, and the journal's `bookmark`. Raises `Unrecoverable` when frames between the snapshot and the first that
        is stored are missing; frames that the snapshot has seen and that are not there are lost, and the one behind
        them with them: there may have been more, unless the snapshot is final. A sequence of None reads from the oldest
        frame: whoever reads will find the snapshot by what the frames say."""
        ...

    def bookmark(self, sequence: int) -> bytes:
        """What a snapshot should keep, so that reading can begin where frames from `sequence` on stand."""
        return b""

    def set_aside(self, torn: TornTail) -> None:
        """Keep the bytes of a torn tail for people to look at, and end the journal before them."""
        ...

    def open(self) -> None:
        """Begin to write, in a new piece. Everything has been read."""
        ...

    def frame(self, offset: int, directory: bytes, *bodies: bytes) -> EncodedFrame:
        """The `offset`-th frame of the commit being made."""
        sequence = self.next_sequence
        return encode_salted_frame(self.salt, sequence + offset, sequence, directory, *bodies)

    def write_ahead(self, body: bytes, directory_bytes: int) -> Iterator[None]:
        """Write the body of records before their frame, which must be the only one of the next commit but those that
        are written between the slices; its directory takes so many bytes at most. A journal that has no way to do that
        does nothing. Errors are those of `write`."""
        return iter(())

    def forget_ahead(self) -> None:
        """The frame whose body was written before it does not come, or has come."""
        return

    def write(self, frames: list[EncodedFrame]) -> None:
        """Make the frames of one commit durable: all or none. Raises an `OSError` out of `FULL_ERRNOS` when there is
        no room and nothing has happened; any other error is final."""
        ...

    def begin(self, frames: list[EncodedFrame]) -> None:
        """Send a commit on its way. It is durable when `land` says so, and those begun before it are."""
        self.write(frames)

    def land(self, timeout_s: float) -> bool:
        """Wait at most so long for the oldest commit on its way; whether it is durable now. Any error is final."""
        return True

    def explain(self, error: Exception) -> str:
        """What to tell people about an error that was final."""
        return (
            f"writing and syncing the journal failed ({error}): the log accepts nothing more; check the disk and start "
            "again, what was acknowledged is recovered from disk"
        )

    def mark(self) -> None:
        """Note that all before is durable, so that later damage cannot pass for a torn tail."""
        if self.position.size:
            self.write([self.frame(0, b"", b"")])
            self.prove()

    def prove(self) -> None:
        """Note the same, in another place: an end that is lost from now on is missed. For a journal whose end can be
        lost without a trace."""
        return

    def doubt(self, final_sequence: int | None) -> str:
        """Why it may have been longer than what `read` found, in a sentence; empty when it was not. `final_sequence` is
        where it ended at a clean stop."""
        return ""

    def sealed_to(self, bytes_max: int) -> int:
        """While it is longer than that: the sequence up to which records should be sealed, so that its oldest piece can
        go. Otherwise 0."""
        ...

    def cut_behind(self, sequence: int, *, reuse: bool = True) -> bool:
        """Let pieces go that have only frames below a sequence; whether there were any. Without `reuse` they are not
        written over: somebody copies them."""
        ...

    def free_bytes(self) -> int:
        """How much more it can take."""
        ...

    def gauges(self) -> dict[str, float]:
        """Figures of its own for metrics, by name."""
        return {}

    def close(self) -> None: ...
