"""A cell to be moved, checked or copied as a whole: its journal and its store, without a hub."""

from __future__ import annotations

from typing import Self

from headrace.config.sections import Log as LogSettings
from headrace.log.clock import Clock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import new_claim, open_store
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.topics import hubs_group, journal_topic
from headrace.log.store import Store


class WholeCell:
    """A connection to the brokers; as a context it is closed at the end."""

    def __init__(
        self, settings: LogSettings, clock: Clock, tag: str, kafka: KafkaPort | None = None, cell: int = 0
    ) -> None:
        """`tag` takes the place of a hub in the names of new blobs."""
        self._settings = settings
        self._clock = clock
        self._tag = tag
        self._kafka = kafka or connect(settings.kafka)
        self._cell = cell

    def journal(self, *, claims: bool) -> KafkaJournal:
        """Not read yet. Without `claims` it is only looked at."""
        return KafkaJournal(
            self._kafka,
            journal_topic(self._settings.kafka),
            self._cell,
            new_claim(self._clock),
            timeout_s=self._settings.kafka.timeout_s,
            piece_bytes_max=self._settings.journal_file_bytes,
            compression=self._settings.kafka.compression,
            claims=claims,
        )

    def store(self, disk: OsDisk) -> Store:
        """With its cache on a disk, which it owns then."""
        return open_store(disk, self._settings, self._kafka, self._tag, self._cell)

    def hubs(self) -> list[str]:
        """The names of the hubs in the group."""
        lives = [member.client for member in self._kafka.members(hubs_group(self._settings.kafka))]
        return sorted(life.rpartition("-")[0] or life for life in lives)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kafka.close()
