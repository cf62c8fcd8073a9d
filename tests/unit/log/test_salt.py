"""Payloads that are frames: behind a torn header a search never believes what a client wrote."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from unit.log.helpers import SMALL, do, maintain, payloads

from headrace.config import Log as LogSettings
from headrace.errors import Damaged
from headrace.log import frame, journal, ops
from headrace.log.batch import Batch
from headrace.log.frame import HEADER, PLAIN, Salt, encode_event, encode_records, encode_salted_frame, random_salt
from headrace.log.journal import FileJournal
from headrace.log.log import Log
from headrace.log.store import DirectoryStore
from headrace.testing import FakeClock, MemoryDisk

VICTIM = 1
"""The id of the stream that the forger is after."""
BODY = Batch.one(b"forged").body
DIRECTORIES = {
    "mark": b"",
    "records": encode_records(VICTIM, 0, 1, 0, 7, b"honest", 10**6, len(BODY)),
    "created": encode_event(frame.StreamCreated(77, "forged", "stream", ops.StreamOptions(), 7, [0])),
    "grown": encode_event(frame.StreamGrown(VICTIM, [0])),
    "options": encode_event(frame.OptionsChanged(VICTIM, ops.StreamOptions(retention_bytes=1))),
    "deleted": encode_event(frame.StreamDeleted(VICTIM, [0])),
    "trimmed": encode_event(frame.StreamTrimmed(VICTIM, 0, 3)),
    "cursor": encode_event(frame.CursorSaved("reader", VICTIM, 0, 10**6, 7)),
    "cursor gone": encode_event(frame.CursorDeleted("reader", VICTIM, 0)),
    "producer": encode_event(frame.ProducerSet(VICTIM, 0, "honest", 10**6)),
    "checkpoint": encode_event(frame.CheckpointAdded(9, VICTIM, 0, 0, 7, {})),
    "checkpoint gone": encode_event(frame.CheckpointDropped(1)),
}
Tear = Callable[[bytes, int], bytes]


def no_header(data: bytes, at: int) -> bytes:
    return data[:at] + bytes(HEADER.size) + data[at + HEADER.size :]


def no_magic(data: bytes, at: int) -> bytes:
    return data[:at] + b"\xff" + data[at + 1 :]


def no_crc(data: bytes, at: int) -> bytes:
    return data[: at + 20] + bytes(4) + data[at + 24 :]


def open_log(disk: MemoryDisk, new_salt: Callable[[], Salt]) -> Log:
    settings = LogSettings(**{**SMALL, "journal_file_bytes": 60_000, "journal_bytes_max": 120_000})
    files = FileJournal(disk, settings.journal_file_bytes, 2, new_salt)
    return Log(files, DirectoryStore(disk), FakeClock(), settings)


def forged(directory: bytes, sequence: int, salt: Salt) -> bytes:
    """The frame that is to be believed, and one that vouches for all before it, at every distance from a multiple of 8:
    wherever the payload lies, one pair lies as frames do."""
    bodies = (BODY,) if directory.startswith(b"\1") else ()
    believed = b"".join(encode_salted_frame(salt, sequence, sequence, directory, *bodies))
    voucher = b"".join(encode_salted_frame(salt, sequence + 1, sequence + 1, b""))
    return b"".join((believed + voucher).ljust(1 + len(believed + voucher), b"\xee") for _ in range(8))


def image(log: Log) -> object:
    streams = [(info.name, info.partitions, info.options) for info in log.streams()]
    if "victim" not in [name for name, *_ in streams]:
        return streams
    try:
        held: object = payloads(log, "victim")
    except Damaged as damage:
        held = str(damage)
    return (
        streams,
        log.bounds("victim"),
        held,
        [(cursor.name, cursor.index) for cursor in log.cursors()],
        log.producers("victim"),
        [info.id for info in log.checkpoints()],
    )


def honest(log: Log) -> None:
    do(log, ops.CreateStream("victim"))
    do(log, ops.CreateStream("mine"))
    for number in range(5):
        do(log, ops.Append("victim", Batch.one(b"%d" % number), 0, "honest", number))
    do(log, ops.SaveCursor("reader", "victim", 2))
    blob = log.begin_checkpoint("victim")
    blob.finish()
    do(log, ops.RegisterCheckpoint(blob.id, "victim", 1, 0, {}))


def attacked(
    directory: bytes, tear: Tear, new_salt: Callable[[], Salt], salt: Callable[[Log], Salt]
) -> tuple[object, Log]:
    """What a log held before a payload of frames was written and its own header torn; and the log after that."""
    disk = MemoryDisk()
    log = open_log(disk, new_salt)
    honest(log)
    before, at = image(log), log.journal.position.size
    sequence = log.journal.next_sequence
    path = journal.journal_files(disk)[-1]
    do(log, ops.Append("mine", Batch.one(forged(directory, sequence + 1, salt(log)))))
    disk.put(path, tear(disk.read(path), at))
    return before, open_log(disk.after_kill(), new_salt)


@pytest.mark.parametrize("tear", [no_header, no_magic, no_crc])
@pytest.mark.parametrize("kind", DIRECTORIES)
def test_frames_in_a_payload_never_count(kind: str, tear: Tear) -> None:
    before, log = attacked(DIRECTORIES[kind], tear, random_salt, lambda log: PLAIN)
    assert image(log) == before
    assert [found.kind for found in log.recovered.findings] in ([], ["torn-tail"])


@pytest.mark.parametrize("kind", DIRECTORIES)
def test_without_a_salt_they_would(kind: str) -> None:
    """So the test above can fail: what the forger knows is all that a file of an earlier version has."""
    before, log = attacked(DIRECTORIES[kind], no_magic, lambda: PLAIN, lambda log: PLAIN)
    assert log.recovered.damage
    assert image(log) != before


def test_salts_of_earlier_files_help_nobody() -> None:
    """As from an old backup: each file has its own."""
    known: list[Salt] = []

    def remembered() -> Salt:
        known.append(random_salt())
        return known[-1]

    disk = MemoryDisk()
    log = open_log(disk, remembered)
    honest(log)
    log.close()
    log = open_log(disk, remembered)
    before = image(log)
    do(log, ops.Append("mine", Batch.one(b"first of the new file")))
    at, sequence = log.journal.position.size, log.journal.next_sequence
    [*_, path] = journal.journal_files(disk)
    do(log, ops.Append("mine", Batch.one(forged(DIRECTORIES["deleted"], sequence + 1, known[0]))))
    disk.put(path, no_header(disk.read(path), at))
    log = open_log(disk.after_kill(), random_salt)
    assert image(log) == before
    assert not log.recovered.damage


@pytest.mark.parametrize("salted", [True, False])
def test_what_an_earlier_file_left_counts_for_nothing(salted: bool) -> None:
    """A file that is written over is full of a client's frames with sequences that are still to come."""
    new_salt = random_salt if salted else lambda: PLAIN
    disk = MemoryDisk()
    log = open_log(disk, new_salt)
    honest(log)
    for _ in range(40):
        do(log, ops.Append("mine", Batch.one(forged(DIRECTORIES["deleted"], 10**6, PLAIN) * 9)))
        maintain(log)
    assert isinstance(log.journal, FileJournal)
    before, path = image(log), journal.journal_files(disk)[-1]
    assert disk.size(path) > log.journal.position.size + 1_000, "no file was written over"
    at = log.journal.position.size
    do(log, ops.Append("victim", Batch.one(b"torn")))
    disk.put(path, no_magic(disk.read(path), at))
    log = open_log(disk.after_kill(), new_salt)
    assert (image(log) == before) is salted
