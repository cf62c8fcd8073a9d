"""A data directory of an earlier version: it opens as it is, and the same work still makes the same bytes.

`old_directory.json` was made by version 6ebe321, the last one before journal and store had ports: `scripted` on a disk
in memory, and all its files.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path

import pyarrow as pa
import pytest
from unit.log.helpers import do, fill, maintain, open_log, payloads

from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.doctor import examine_disk
from headrace.log.journal import scan
from headrace.log.log import Log
from headrace.log.proof import PROOF
from headrace.log.segment import METADATA_KEY
from headrace.testing import FakeClock, MemoryDisk

SALT = re.compile("-[0-9a-f]{16}(?=.journal)")
FILES = Path(__file__).with_name("old_directory.json")
SETTINGS = {"segment_bytes": 1_500, "journal_file_bytes": 3_000, "journal_bytes_max": 6_000, "journal_spares_max": 2}


def scripted(log: Log) -> None:
    """All that leaves a trace on disk."""
    do(log, ops.CreateStream("orders", 2, ops.StreamOptions(labels={"team": "shop"})))
    do(log, ops.CreateStream("gone"))
    do(log, ops.CreateStream("prices", kind="table"))
    fill(log, "gone", 3)
    do(log, ops.DeleteStream("gone"))
    do(log, ops.CreateStream("gone"))
    blob = log.begin_checkpoint("orders")
    blob.write(b"state of the shop")
    blob.finish()
    do(log, ops.RegisterCheckpoint(blob.id, "orders", 2, blob.size, {"by": "shop"}))
    for round in range(8):
        fill(log, "orders", 12, start=12 * round)
        do(log, ops.Append("orders", Batch.of([b"x", b"y"], types="pair", keys=[b"k", None]), 1, "p", round))
        do(log, ops.Put("prices", b"pear", b"%d" % round), ops.SaveCursor("reader", "orders", 3 * round))
        maintain(log)
    do(log, ops.Trim("orders", 4))
    do(log, ops.Append("gone", Batch.one(b"behind the others", id=7)))


def old_directory() -> MemoryDisk:
    disk = MemoryDisk()
    for path, data in json.loads(FILES.read_text()).items():
        disk.put(path, zlib.decompress(base64.b85decode(data)))
    return disk


def test_an_old_directory_opens_as_it_is() -> None:
    disk = old_directory()
    assert examine_disk(disk).findings == []
    log = open_log(disk, **SETTINGS)
    assert log.recovered.findings == []
    assert log.recovered.segments > 0
    assert log.stream("orders").options.labels == {"team": "shop"}
    assert payloads(log, "orders") == [str(number).encode().ljust(50, b".") for number in range(4, 96)]
    assert payloads(log, "orders", 1) == [b"x", b"y"] * 8
    assert log.bounds("gone") == (3, 4), "no index is used again"
    assert payloads(log, "gone") == [b"behind the others"]
    assert dict(log.table_items("prices")) == {b"pear": b"7"}
    assert (log.cursor("reader", "orders"), log.producer("orders", "p", 1)) == (21, 7)
    [checkpoint] = log.checkpoints()
    assert (checkpoint.position, checkpoint.meta) == (2, {"by": "shop"})
    assert b"".join(log.read_checkpoint(checkpoint.id)) == b"state of the shop"


def test_the_same_work_makes_the_same_files() -> None:
    old, new = old_directory(), MemoryDisk()
    log = open_log(new, FakeClock(), **SETTINGS)
    scripted(log)
    log.mark()  # as a stop does; that leaves a final snapshot besides, which is new
    new.unlink(PROOF)  # there was none
    named = {SALT.sub("", path): path for path in new.paths()}  # before version 3 journal files had no salt
    assert list(named) == old.paths()
    one, other = ([(each.sequence, each.directory, each.data) for each in scan(disk)] for disk in (new, old))
    assert one == other
    for path in new.paths():
        if path.startswith("journal/"):
            assert new.size(path) == old.size(SALT.sub("", path))
        elif path.endswith(".arrow"):  # Arrow itself may lay them out another way
            one, other = (pa.ipc.open_file(pa.py_buffer(disk.read(path))) for disk in (new, old))
            assert one.read_all().equals(other.read_all())
            assert one.schema.metadata[METADATA_KEY] == other.schema.metadata[METADATA_KEY]
        else:
            assert new.read(path) == old.read(path), path


@pytest.mark.parametrize("kind", ["journal/", ".spare", "segments/", "snapshots/", "checkpoints/"])
def test_files_of_every_kind_are_looked_at(kind: str) -> None:
    assert [path for path in old_directory().paths() if kind in path]
