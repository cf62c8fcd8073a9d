"""The power of all brokers fails at once: what `flush.messages=1` on the journal's topic buys.

One broker stands for all of them: with one replica nobody else has what its disk has not. Its data is on a file system
in a file, and a copy of that file is what a power cut would leave.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka_brokers import START_QUICKLY, Brokers, sharing
from support.kafka import need_jars
from test_programs import find
from unit.log.helpers import do, payloads

from headrace.config import Kafka
from headrace.config import Log as LogSettings
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

IMAGE_BYTES = 256 * 1024 * 1024
RECORDS = 30


class Disk:
    """A file system in a file, mounted where a broker keeps everything."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = folder / "disk.img"
        self.mounted = folder / "disk"
        self.mounted.mkdir()
        with self._file.open("wb") as made:
            made.truncate(IMAGE_BYTES)
        subprocess.run([str(find("mkfs.ext4")), "-q", "-F", str(self._file)], check=True)
        self._mount("loop,commit=86400")  # nothing but a sync of somebody reaches the file

    def _mount(self, options: str) -> None:
        subprocess.run([find("mount") or "mount", "-o", options, str(self._file), str(self.mounted)], check=True)

    def sync(self) -> None:
        """Settings and the like, which were there for long: nobody else has synced them."""
        subprocess.run(["sync", "-f", str(self.mounted)], check=True)

    def copy(self) -> Path:
        """What is on the platter at this moment."""
        copied = self._folder / "copy.img"
        subprocess.run(["cp", "--sparse=always", str(self._file), str(copied)], check=True)
        return copied

    def put(self, copied: Path) -> None:
        """The disk is that copy from now on."""
        self.close()
        self._file = copied
        self._mount("loop")

    def close(self) -> None:
        subprocess.run([find("umount") or "umount", str(self.mounted)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    made = Disk(tmp_path)
    yield made
    made.close()


def opened(settings: Kafka, folder: Path) -> Log:
    """The log, by a hub with an empty disk."""
    return open_cell(OsDisk(folder), SystemClock(), LogSettings(backend="kafka", kafka=settings, disk_reserve_bytes=0))


WRITER = """
import sys
from pathlib import Path
from faults.test_kafka_power import opened
from headrace.config import Kafka
from headrace.log import ops
from headrace.log.batch import Batch
from unit.log.helpers import do
log = opened(Kafka(servers=sys.argv[1], replication=1, store="local"), Path(sys.argv[2]))
do(log, ops.CreateStream("s"))
for number in range(int(sys.argv[3])):
    do(log, ops.Append("s", Batch.one(b"%d" % number)))
    print(number, flush=True)
sys.stdin.read()
"""


def writer(settings: Kafka, folder: Path) -> subprocess.Popen[bytes]:
    """A hub that writes, and says what was acknowledged."""
    command = [sys.executable, "-c", WRITER, settings.servers, str(folder), str(RECORDS)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


@pytest.mark.needs("mounts")
def test_with_flushed_messages_a_power_cut_loses_nothing(disk: Disk, tmp_path: Path) -> None:
    need_jars()
    cluster = Brokers(disk.mounted / "cluster", 1, options=(*START_QUICKLY, *sharing()))
    (broker,) = cluster.brokers
    settings = Kafka(servers=cluster.servers, replication=1, store="local", timeout_s=60)
    expected = [b"%d" % number for number in range(RECORDS)]
    try:
        cluster.start()
        disk.sync()
        kafka = connect(settings)
        create_missing(kafka, settings, flush=True)
        kafka.close()
        with writer(settings, tmp_path / "first") as hub:
            assert hub.stdout is not None
            acknowledged = [hub.stdout.readline() for _ in range(RECORDS)]
            broker.signal(signal.SIGSTOP)
            copied = disk.copy()
            hub.kill()
        assert acknowledged == [b"%d\n" % number for number in range(RECORDS)]
        broker.kill()
        disk.put(copied)
        cluster.start()
        log = opened(settings, tmp_path / "second")
        assert payloads(log, "s") == expected
        do(log, ops.Append("s", Batch.one(b"more")))
        log.close()
    finally:
        cluster.stop()
