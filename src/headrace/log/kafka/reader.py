"""Reading a cell on from a place, and knowing where in it things stand.

A piece is a range of offsets that begins with a commit that counts: the first of an epoch, or the first behind so many
bytes. So all who read the same cell have the same pieces, whoever wrote it. A reader begins at a piece, since it must
know epoch and sequence there.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from headrace.log.frame import HEADER, decode_header
from headrace.log.journal_port import CutMeanwhile, GoodFrame, Unrecoverable
from headrace.log.kafka.client import Consumer, KafkaError, KafkaPort, OffsetOutOfRange, Received
from headrace.log.kafka.messages import decode
from headrace.log.kafka.rule import Counted, Rule

RECEIVE_S = 0.5
UNPACKED_BYTES_MAX = 16 * 1024 * 1024
"""So much is unpacked at once, and the rest of what came later: a few bytes may hold very many."""


class Piece(NamedTuple):
    """Where one begins."""

    sequence: int
    offset: int
    epoch: int


BEGINNING = Piece(0, 0, 0)


class Bookmark(msgspec.Struct, frozen=True, array_like=True):
    """What a snapshot remembers of the journal: from which places on it can be read."""

    topic_id: str
    pieces: list[Piece]


class Pieces:
    """The pieces of a cell that are known, oldest first. Two threads use it: one adds, one cuts."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._known: list[Piece] = []
        self._sizes: list[int] = []
        """The bytes of each."""
        self._lock = threading.Lock()

    def add(self, epoch: int, sequence: int, offset: int, size: int) -> None:
        """A commit that counts."""
        with self._lock:
            newest = self._known[-1] if self._known else None
            if newest is None or newest.epoch != epoch or self._sizes[-1] >= self._bytes_max:
                self._known.append(Piece(sequence, offset, epoch))
                self._sizes.append(0)
            self._sizes[-1] += size

    @property
    def size(self) -> int:
        """Bytes of the newest."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def bytes(self) -> int:
        """Of all of them."""
        with self._lock:
            return sum(self._sizes)

    def __len__(self) -> int:
        return len(self._known)

    def __getitem__(self, position: int) -> Piece:
        return self._known[position]

    def since(self, sequence: int) -> list[Piece]:
        """The one that holds a sequence, and all behind it."""
        with self._lock:
            before = [number for number, piece in enumerate(self._known) if piece.sequence <= sequence]
            return self._known[before[-1] if before else 0 :]

    def cut(self, sequence: int) -> Piece | None:
        """Forget those that have only lower sequences; which is the oldest now, if any was forgotten."""
        with self._lock:
            kept = [number for number, piece in enumerate(self._known) if piece.sequence <= sequence]
            if not kept or kept[-1] == 0:
                return None
            self._known = self._known[kept[-1] :]
            self._sizes = self._sizes[kept[-1] :]
            return self._known[0]


class CellReader:
    """Reads a cell from a piece on. Used by one thread."""

    def __init__(
        self, kafka: KafkaPort, topic: str, cell: int, start: Piece, *, timeout_s: float, piece_bytes_max: int
    ) -> None:
        self._kafka = kafka
        self._topic = topic
        self._cell = cell
        self._timeout_s = timeout_s
        self._consumer: Consumer | None = None
        self.rule = Rule(start.epoch, start.sequence)
        self.offset = start.offset
        """Of the next message."""
        self.pieces = Pieces(piece_bytes_max)
        self.foreign = 0
        """Messages that no hub wrote."""
        self._came: deque[Received] = deque()
        """And was not looked at yet."""

    def read_to(self, end: int) -> Iterator[GoodFrame]:
        """The frames that count up to an offset, at least. Raises when nothing comes for too long."""
        deadline = time.monotonic() + self._timeout_s
        while self.offset < end:
            commits = self.receive(RECEIVE_S)
            if commits is not None:
                deadline = time.monotonic() + self._timeout_s
                for commit in commits:
                    yield from self.frames(commit)
            elif time.monotonic() > deadline:
                raise KafkaError(
                    f"{self._topic}/{self._cell} could not be read from offset {self.offset} to {end} in "
                    f"{self._timeout_s:g} s (log.kafka.timeout_s)"
                )

    def receive(self, timeout_s: float) -> list[Counted] | None:
        """Read on: the commits that count with what came, or with the first of it; None when nothing came."""
        if not self._came:
            self._came.extend(self._consume(timeout_s))
        if not self._came:
            return None
        commits, size = [], 0
        while self._came and size < UNPACKED_BYTES_MAX:
            offset, _, value = self._came.popleft()
            message = decode(value, offset)
            self.offset = offset + 1
            if message is None:
                self.foreign += 1
                continue
            size += len(message.body)
            if counted := self.rule.feed(offset, message):
                self.pieces.add(counted.epoch, counted.sequence, counted.offset, len(counted.body))
                commits.append(counted)
        return commits

    def _consume(self, timeout_s: float) -> list[Received]:
        if self._consumer is None:
            self._consumer = self._kafka.consumer(self._topic, self._cell, self.offset)
        try:
            return self._consumer.receive(timeout_s)
        except OffsetOutOfRange as error:
            if self.offset < self._kafka.bounds(self._topic, self._cell)[0]:
                raise CutMeanwhile(f"{self._topic}/{self._cell} was cut while it was read") from error
            raise Unrecoverable(
                f"{self._topic}/{self._cell} has no offset {self.offset} ({error}): the topic was cut, or deleted and "
                "created again; the hub does not start over without being told to"
            ) from error

    def frames(self, commit: Counted) -> Iterator[GoodFrame]:
        """The frames of a commit."""
        path = f"{self._topic}/{self._cell}"
        body, at = commit.body, 0
        for sequence in range(commit.sequence, commit.sequence + commit.frames):
            header = decode_header(body, at)
            if header is None or header.sequence != sequence or at + header.frame_bytes > len(body):
                raise Unrecoverable(f"frame {sequence} in the commit at offset {commit.offset} of {path} is damaged")
            middle = at + HEADER.size + header.directory_bytes
            directory = body[at + HEADER.size : middle]
            yield GoodFrame(sequence, directory, body[middle : middle + header.data_bytes], path, commit.offset)
            at += header.frame_bytes

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None
