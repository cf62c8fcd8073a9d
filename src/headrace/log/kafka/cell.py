"""A log on a cell of Kafka: how its parts are put together."""

from __future__ import annotations

import uuid
from functools import partial

from headrace.config.sections import Kafka as KafkaSettings
from headrace.config.sections import Log as LogSettings
from headrace.log import checkpoint, segment, snapshot
from headrace.log.cached_store import CACHE, CachedStore
from headrace.log.clock import Clock
from headrace.log.disk import Disk, OsDisk
from headrace.log.kafka.belonging import check_store, patiently
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.messages import Claim
from headrace.log.kafka.topic_store import TopicStore
from headrace.log.kafka.topics import blobs_topic, journal_topic, require_journal
from headrace.log.kafka.turn import Turn
from headrace.log.log import Log
from headrace.log.store import DirectoryStore, Store
from headrace.log.uri_store import open_uri

LOCAL = "local"
IN_KAFKA = "kafka"
"""Values of `log.kafka.store` that are no URI."""
FREE_FACTOR = 4
"""The cache leaves so many times `log.disk_reserve_bytes` free: with less than that, appends are refused."""
FOLDERS = (segment.DIRECTORY, snapshot.DIRECTORY, checkpoint.DIRECTORY)


def new_claim(clock: Clock) -> Claim:
    """Of this process: with a name that no other ever has."""
    from headrace import __version__

    return Claim(f"hub-{uuid.uuid4()}", clock.now_us(), __version__)


def open_cell(
    disk: Disk,
    clock: Clock,
    settings: LogSettings,
    kafka: KafkaPort | None = None,
    cell: int = 0,
    *,
    claim: Claim | None = None,
    turn: Turn | None = None,
    knows_store: bool = False,
) -> Log:
    """Take a cell, and recover the log that it holds: blocks, with a `turn` until it comes. The disk may be empty. With
    `knows_store` hubs have kept blobs already, elsewhere as far as the settings say."""
    kafka = kafka or connect(settings.kafka)
    require_journal(kafka, settings.kafka)
    claim = claim or new_claim(clock)
    store = open_store(disk, settings, kafka, claim.hub, cell, marks=True, is_known=knows_store)
    journal = KafkaJournal(
        kafka,
        journal_topic(settings.kafka),
        cell,
        claim,
        timeout_s=settings.kafka.timeout_s,
        piece_bytes_max=settings.journal_file_bytes,
        commits_max=settings.kafka.commits_max,
        compression=settings.kafka.compression,
        cuts=store.is_shared,
        free_bytes=disk.free_bytes,
        turn=turn,
        lease_s=settings.kafka.lease_s if settings.kafka.strict_reads else None,
    )
    try:
        return Log(journal, store, clock, settings)
    except BaseException:  # the disk is the caller's, still
        journal.close()
        if isinstance(store, CachedStore):
            store.close_remote()
        raise


def open_store(
    disk: Disk,
    settings: LogSettings,
    kafka: KafkaPort,
    hub: str,
    cell: int,
    *,
    marks: bool = False,
    is_known: bool = False,
) -> Store:
    """Where blobs are kept. The next owner finds them in a shared one; where it does not, the journal stays whole.
    `marks` and `is_known` are about whose it is (`belonging.py`)."""
    if settings.kafka.store == LOCAL:
        for folder in FOLDERS:
            disk.make_dirs(folder)
        return DirectoryStore(disk)
    remote = _remote(settings.kafka, kafka, cell, marks=marks, is_known=is_known)
    return CachedStore(
        DirectoryStore(_cache(disk)),
        remote,
        settings.kafka.cache_bytes,
        f"-{hub}",
        disk.local_path(""),
        free_bytes_min=FREE_FACTOR * settings.disk_reserve_bytes,
        patience_s=settings.kafka.timeout_s,
    )


def _cache(disk: Disk) -> Disk:
    """A folder of its own: whatever is in it may be removed. It has the lock of the data directory."""
    handover = disk.handover()
    if handover is None:
        return disk
    root, lock = handover
    disk.make_dirs(CACHE)
    return OsDisk(f"{root}/{CACHE}", lock=lock)


def _remote(settings: KafkaSettings, kafka: KafkaPort, cell: int, *, marks: bool, is_known: bool) -> Store:
    if settings.store == IN_KAFKA:
        return TopicStore(kafka, blobs_topic(settings), cell, settings.timeout_s, settings.compression)
    store = open_uri(settings.store, str(cell))
    journal = kafka.topic(journal_topic(settings))
    if journal is not None:
        check = partial(check_store, store, settings.store, journal, marks=marks, is_known=is_known)
        patiently(check, settings.timeout_s)
    return store
