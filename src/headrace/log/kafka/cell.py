"""A log on a cell of Kafka: how its parts are put together."""

from __future__ import annotations

import uuid

from headrace.config.sections import Log as LogSettings
from headrace.log import checkpoint, segment, snapshot
from headrace.log.clock import Clock
from headrace.log.disk import Disk
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.messages import Claim
from headrace.log.log import Log
from headrace.log.store import DirectoryStore, Store

FOLDERS = (segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY)


def journal_topic(prefix: str) -> str:
    return f"{prefix}.journal"


def new_claim(clock: Clock) -> Claim:
    """Of this process: with a name that no other ever has."""
    from headrace import __version__

    return Claim(f"hub-{uuid.uuid4()}", clock.now_us(), __version__)


def open_cell(disk: Disk, clock: Clock, settings: LogSettings, kafka: KafkaPort | None = None, cell: int = 0) -> Log:
    """Take a cell, and recover the log that it holds: blocks. The disk may be empty."""
    kafka = kafka or connect(settings.kafka)
    store, is_shared = _store(disk)
    journal = KafkaJournal(
        kafka,
        journal_topic(settings.kafka.prefix),
        cell,
        new_claim(clock),
        timeout_s=settings.kafka.timeout_s,
        piece_bytes_max=settings.journal_file_bytes,
        commits_max=settings.kafka.commits_max,
        cuts=is_shared,
        free_bytes=disk.free_bytes,
    )
    try:
        return Log(journal, store, clock, settings)
    except BaseException:
        journal.close()
        raise


def _store(disk: Disk) -> tuple[Store, bool]:
    """Where blobs are kept, and whether the next owner finds them there. If not, the journal stays whole."""
    for folder in FOLDERS:
        disk.make_dirs(folder)
    return DirectoryStore(disk), False
