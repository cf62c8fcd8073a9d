"""The rule that every reader of a cell applies: which messages count. It does no I/O.

For each message, in the order of offsets:

1. A claim with a higher epoch than the present one: its writer is the owner from here on, and a commit that is not
   whole is dropped. Any other claim is nothing.
2. A commit of another epoch is nothing: its writer had lost the cell.
3. A commit, or a part of one, that has been seen already is nothing: the client sent it twice.
4. A commit of which the part before, or the commit before, was never seen: frames are lost, and nobody goes on.
5. Any other part is taken. With the last one the commit counts.
6. A leave of the present epoch: the cell has no owner.

The writer keeps to one thing: for an epoch and a sequence there is one content. A commit whose outcome it does not know
is neither tried with other content nor left out: the journal has failed, and whoever claims next learns from the log
what counted.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.messages import Claim, Kind, Message


class Counted(NamedTuple):
    """A commit that counts."""

    epoch: int
    sequence: int
    frames: int
    body: bytes
    """All frames, joined."""
    offset: int
    """Of its first message."""
    next_offset: int
    """Behind its last message."""


class Rule:
    """What a reader knows. Two that began at the same place agree, and so do two that began at any commit that counts,
    each with the epoch and the sequence there."""

    def __init__(self, epoch: int = 0, sequence: int = 0, owner: Claim | None = None) -> None:
        self.epoch = epoch
        self.sequence = sequence
        """Of the next frame that can count."""
        self.owner = owner
        """None when nobody has claimed the cell yet, or its owner has left, or reading began behind its claim."""
        self.has_left = epoch == 0
        """Nobody has the cell: its last owner has left, or there was none."""
        self.claims = 0
        self.strangers = 0
        """Messages of those who had lost the cell, or never had it."""
        self.duplicates = 0
        self.dropped = 0
        """Commits that were not whole when the cell was claimed."""
        self._parts: list[bytes] = []
        self._parts_offset = 0

    def feed(self, offset: int, message: Message) -> Counted | None:
        """The next message; the commit that counts with it, if one does."""
        match message.kind:
            case Kind.CLAIM:
                self._claimed(message)
            case Kind.LEAVE:
                if message.epoch == self.epoch:
                    self.owner = None
                    self.has_left = True
                else:
                    self.strangers += 1
            case Kind.COMMIT:
                return self._committed(offset, message)
        return None

    def _claimed(self, message: Message) -> None:
        if message.epoch <= self.epoch:
            self.strangers += 1
            return
        self.claims += 1
        self.dropped += bool(self._parts)
        self._parts = []
        self.epoch = message.epoch
        self.owner = message.claim
        self.has_left = False

    def _committed(self, offset: int, message: Message) -> Counted | None:
        if message.epoch != self.epoch:
            self.strangers += 1
            return None
        expected = self.sequence, len(self._parts)
        if (message.sequence, message.part) < expected:
            self.duplicates += 1
            return None
        if (message.sequence, message.part) > expected:
            raise Unrecoverable(
                f"the journal has lost frames: at offset {offset} part {message.part} of frame {message.sequence} "
                f"follows, and part {expected[1]} of frame {expected[0]} was expected"
            )
        if not self._parts:
            self._parts_offset = offset
        self._parts.append(message.body)
        if len(self._parts) < message.parts:
            return None
        body = self._parts[0] if message.parts == 1 else b"".join(self._parts)
        self._parts = []
        self.sequence += message.frames
        return Counted(message.epoch, message.sequence, message.frames, body, self._parts_offset, offset + 1)
