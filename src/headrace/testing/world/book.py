"""What clients were promised, as they know it themselves: the book that the judge compares with the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

PARTITION = ";partition="


def place_of(name: str) -> tuple[str, int]:
    """Stream and partition: `parts;partition=2` is one of a stream's, as FutoIn and Perper call it."""
    stream, _, partition = name.partition(PARTITION)
    return stream, int(partition or 0)


class Written(NamedTuple):
    """What one producer did to one stream. Its records are numbered from 0: `name:number`."""

    producer: str
    stream: str
    once: bool
    """Its protocol stores each record once, whatever happens; others may store one twice that was not answered."""
    acked: dict[int, int | None]
    """Number → index, if the protocol tells it."""
    sent: set[int]
    elsewhere: list[str]
    """Names that its stream may have instead."""


class Register(NamedTuple):
    """A key with one writer: what it may hold."""

    cache: str
    key: str | int
    may_hold: set[bytes | None]


class Counter(NamedTuple):
    """A key that several raise by comparing and setting."""

    cache: str
    key: str
    raised: list[int]
    """Number of those that were answered, and of those that were not."""


class Found(list[str]):
    """What somebody saw that may not be."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        super().__init__()
        self._tell = tell

    def append(self, what: str) -> None:
        self._tell("WRONG", what)
        super().append(what)


class Book:
    """Everything that was promised in a world."""

    def __init__(self, tell: Callable[[str, str], None]) -> None:
        """`tell` puts what is found wrong into the story, where it happened."""
        self.written: list[Written] = []
        self.registers: list[Register] = []
        """Keys of Ignite caches."""
        self.rows: list[Register] = []
        """Keys of tables."""
        self.counters: list[Counter] = []
        self.banks: set[str] = set()
        """Caches whose accounts add up to the same, always."""
        self.cursors: dict[tuple[str, str], int] = {}
        """(cursor, stream) → where it stands at least."""
        self.seen: dict[tuple[str, int], str] = {}
        """(stream, index) → record, as any consumer saw it."""
        self.trimmed: dict[str, int] = {}
        """Stream → first index that a trim has left, at most."""
        self.retained: set[str] = set()
        """Streams of which retention may take what no cursor needs."""
        self.processed: dict[str, int] = {}
        """Streams whose records are acknowledged when a pipeline has passed them → how far it may have come."""
        self.wrong: list[str] = Found(tell)
        """What a client itself found wrong."""
        self.checks: list[Callable[[], str]] = []
        """Asked at the end; empty when all is well."""

    def producer(self, name: str, stream: str, *, once: bool) -> Written:
        written = Written(name, stream, once, {}, set(), [])
        self.written.append(written)
        return written

    def saw(self, stream: str, index: int, record: str) -> None:
        """A record has one place and one content, whoever looks, whenever."""
        known = self.seen.setdefault((stream, index), record)
        if known != record:
            self.wrong.append(f"{stream}/{index} was {known} and is {record}")

    def holds(self, register: Register, found: bytes | None) -> None:
        """The only writer of a key has read it."""
        if found not in register.may_hold:
            self.wrong.append(f"{register.key} holds {found!r}, and may hold {told(register)}")


def told(register: Register) -> list[str]:
    return sorted(map(repr, register.may_hold))
