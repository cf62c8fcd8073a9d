"""Notes that hubs leave for each other in the topic `PREFIX.cells`: who owns the cell, and where each hub is reached.

They are hints: a note may be old. Only a claim in the journal makes an owner. The topic is compacted: the last note
under a key counts, and an empty one takes it away. One note is more than a hint: which topics and which store the log
was begun in (`identity.py`).

    key    cell/<number>    MessagePack of `CellNote`
           hub/<life>       MessagePack of `HubNote`
           log/<number>     MessagePack of `LogNote`
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import msgspec

from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.client import KafkaError, KafkaPort, Received
from headrace.log.kafka.topics import cells_topic
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.cluster")

POLL_S = 0.5
CLOSE_S = 5.0
Note = TypeVar("Note", bound=msgspec.Struct)


class CellNote(msgspec.Struct, frozen=True):
    """Who serves a cell."""

    cell: int
    epoch: int
    hub: str
    life: str
    addresses: dict[str, str]
    updated_us: int
    takeover_s: float = 0.0
    """From being chosen to serving."""
    is_leaving: bool = False
    """The owner stops: it finishes what is under way, and takes nothing more."""


class HubNote(msgspec.Struct, frozen=True):
    """A hub that runs, or did."""

    hub: str
    life: str
    addresses: dict[str, str]
    cells: list[int]
    """That it owns."""
    updated_us: int
    lag_bytes: int = 0
    """About how much of the journal it has yet to read, as a follower."""
    version: str = ""
    key: bytes = b""
    """What it seals its introductions with (`headrace.cluster.introductions`)."""
    follows: bool = True
    """It reads the journal as it grows, or owns it. Earlier versions did, all of them."""


class LogNote(msgspec.Struct, frozen=True):
    """What a cell is kept in, left by its first owner."""

    cell: int
    journal: str
    """The id of the topic: new each time a topic is created."""
    blobs: str
    store: str
    """`log.kafka.store`."""


class Notes:
    """All notes, as they come in. A thread reads them; `on_note` is told, in that thread."""

    def __init__(
        self, kafka: KafkaPort, settings: KafkaSettings, on_note: Callable[[CellNote | HubNote], None]
    ) -> None:
        self.cells: dict[int, CellNote] = {}
        self.hubs: dict[str, HubNote] = {}
        """By life."""
        self.logs: dict[int, LogNote] = {}
        self.offset = 0
        """Of the next note."""
        self._kafka = kafka
        self._topic = cells_topic(settings)
        self._on_note = on_note
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cluster notes", daemon=True)
        self._lock = threading.Lock()
        self._producer = kafka.producer(self._topic)

    def start(self) -> None:
        """Read what is there, and go on reading."""
        self._thread.start()

    def read_all(self) -> None:
        """What is there now, and no more: blocks."""
        first, end = self._kafka.bounds(self._topic, 0)
        consumer = self._kafka.consumer(self._topic, 0, first)
        try:
            while first < end:
                for received in consumer.receive(POLL_S):
                    self._take(received)
                    first = received.offset + 1
        finally:
            consumer.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except KafkaError as error:
                logger.warning("the notes of other hubs cannot be read", extra=fields(error=str(error)))
                self._stopping.wait(POLL_S)

    def _follow(self) -> None:
        consumer = self._kafka.consumer(self._topic, 0, self._kafka.bounds(self._topic, 0)[0])
        try:
            while not self._stopping.is_set():
                for received in consumer.receive(POLL_S):
                    self._take(received)
        finally:
            consumer.close()

    def _take(self, received: Received) -> None:
        kind, _, name = (received.key or b"").decode(errors="replace").partition("/")
        note: CellNote | HubNote | None = None
        if kind == "cell":
            note = _decoded(received.value, CellNote)
            if note is not None:
                self.cells[note.cell] = note
        elif kind == "hub":
            note = _decoded(received.value, HubNote)
            if note is None:
                self.hubs.pop(name, None)
            else:
                self.hubs[name] = note
        elif kind == "log":
            log = _decoded(received.value, LogNote)
            if log is not None:
                self.logs[log.cell] = log
        if note is not None:
            self._on_note(note)
        self.offset = max(self.offset, received.offset + 1)

    def end(self) -> int:
        """The offset behind the last note that there is: blocks. 0 when it cannot be learned."""
        try:
            return self._kafka.bounds(self._topic, 0)[1]
        except KafkaError as error:
            logger.warning("it is not known whether there are more notes", extra=fields(error=str(error)))
            return 0

    def publish(self, note: CellNote | HubNote | LogNote, timeout_s: float = CLOSE_S) -> None:
        """Leave a note, or say in the log that it could not be left: blocks."""
        match note:
            case CellNote():
                key = f"cell/{note.cell}"
            case HubNote():
                key = f"hub/{note.life}"
            case LogNote():
                key = f"log/{note.cell}"
        self._send(key, msgspec.msgpack.encode(note), timeout_s)

    def withdraw(self, life: str) -> None:
        """Take the note of a hub away: blocks."""
        self._send(f"hub/{life}", None, CLOSE_S)

    def _send(self, key: str, value: bytes | None, timeout_s: float) -> None:
        outcome: list[KafkaError | None] = []
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._producer.send(0, value, lambda _, error: outcome.append(error), key.encode())
            while not outcome and time.monotonic() < deadline:
                self._producer.poll(0.1)
        problem = outcome[0] if outcome else "no answer"
        if problem is not None:
            logger.warning("a note for the other hubs was not stored", extra=fields(note=key, error=str(problem)))

    def close(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_S)
        self._producer.close()


def _decoded(value: bytes | None, kind: type[Note]) -> Note | None:
    """A note, or None for one that was taken away or that nobody here understands."""
    if not value:
        return None
    try:
        return msgspec.msgpack.decode(value, type=kind)
    except msgspec.DecodeError:
        return None
