"""Segments made by another process: the same files, and nothing lost when it dies."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from support.until import wait_until

from headrace.config import Log as LogSettings
from headrace.errors import DataDirectoryLocked
from headrace.log import ops, sealer
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.log.sealer import Body, Failed, Order, Sealed, Sealer, SealerGone, Sealing, execute
from headrace.log.segment import SegmentRef, write_segment
from headrace.log.store import DirectoryStore
from headrace.log.tail import TailEntry, pieces
from headrace.testing import FaultyDisk, MemoryDisk

SECOND_US = 1_000_000


def entries(count: int = 6, records: int = 50) -> list[TailEntry]:
    """Of all sizes: single records, some, and one large enough to be a record batch by itself."""
    made = []
    base = 0
    for number in range(count):
        payload = bytes([65 + number]) * 200
        batch = (
            Batch.one(payload, id=number) if number == 2 else Batch.of([payload] * records * (1 + 50 * (number == 4)))
        )
        made.append(TailEntry(base, batch.count, SECOND_US + number, batch.body, number))
        base += batch.count
    return made


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[OsDisk]:
    disk = OsDisk(tmp_path / "data")
    yield disk
    with contextlib.suppress(OSError):
        disk.close()


@pytest.fixture
def process(disk: OsDisk) -> Iterator[Sealer]:
    process = Sealer(*disk.handover())
    yield process
    if is_running(process.pid):
        process.close()


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_it_makes_the_same_files(disk: OsDisk, process: Sealer) -> None:
    here = write_segment(DirectoryStore(disk), "orders", 1, 0, pieces(entries()))
    there = process.seal("orders", 2, 0, entries())
    assert (here.first, here.next, here.bytes) == (there.first, there.next, there.bytes)
    one, other = (pa.ipc.open_file(pa.py_buffer(disk.read(ref.path))).read_all() for ref in (here, there))
    assert one.equals(other)
    later = [TailEntry(entry.base + 10_000, entry.count, 5, entry.body, 9) for entry in entries(records=400)]
    assert process.seal("orders", 2, 0, later).first == 10_000, "more than the memory that it had mapped"
    assert process.seal("orders", 2, 1, entries()).bytes == here.bytes


def test_what_the_disk_says_comes_back_as_it_was_said(disk: OsDisk, process: Sealer, tmp_path: Path) -> None:
    (tmp_path / "data" / "segments").write_text("in the way")
    with pytest.raises(FileExistsError) as raised:
        process.seal("orders", 1, 0, entries())
    assert raised.value.errno == errno.EEXIST
    (tmp_path / "data" / "segments").unlink()
    assert process.seal("orders", 1, 0, entries()).first == 0


def test_orders_are_executed_and_failures_reported() -> None:
    memory = MemoryDisk()
    bodies = [Body(entry.base, entry.count, entry.time_us, len(entry.body)) for entry in entries()]
    order = Order("orders", 3, 1, bodies)
    shared = pa.py_buffer(b"".join(bytes(entry.body) for entry in entries()))
    done = execute(DirectoryStore(memory), order, shared)
    assert isinstance(done, Sealed)
    assert done.path in memory.paths()
    full = FaultyDisk(MemoryDisk())
    full.room_bytes = 100
    failed = execute(DirectoryStore(full), order, shared)
    assert isinstance(failed, Failed)
    assert failed.errno == errno.ENOSPC


def test_the_process_does_one_order_after_the_other() -> None:
    """What runs in the process, in a thread: more memory is mapped when an order needs more."""
    memory = sealer._Memory()
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        disk = MemoryDisk()
        arguments = (DirectoryStore(disk), memory.descriptor, orders, theirs)
        threading.Thread(target=sealer.work, args=arguments, daemon=True).start()
        for number, records in enumerate((10, 10, 500)):
            tail = entries(records=records)
            memory.fill([entry.body for entry in tail])
            bodies = [Body(entry.base, entry.count, entry.time_us, len(entry.body)) for entry in tail]
            orders.put(msgspec.msgpack.encode(Order("s", 1, number, bodies)))
            answer = msgspec.msgpack.decode(sealer._receive(ours), type=Sealed | Failed)
            assert isinstance(answer, Sealed)
            assert answer.bytes == write_segment(DirectoryStore(MemoryDisk()), "s", 1, number, pieces(tail)).bytes
        memory.close()


def test_only_large_segments_are_made_elsewhere(disk: OsDisk) -> None:
    sealing = Sealing(DirectoryStore(disk), 10_000_000, idle_s=60)
    sealing.seal("s", 1, 0, entries(), 0)
    assert sealing.process is None
    sealing = Sealing(DirectoryStore(disk), 0, idle_s=60)
    sealing.seal("s", 1, 1, entries(), 0)
    assert sealing.process is None
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    sealing.seal("s", 1, 2, entries(), 0)
    assert sealing.process is not None
    assert sealing.apart == 1
    sealing.close()


def test_an_idle_process_ends_and_a_new_one_is_started(disk: OsDisk) -> None:
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    sealing.seal("s", 1, 0, entries(), 10 * SECOND_US)
    assert sealing.process is not None
    first = sealing.process.pid
    sealing.rest(70 * SECOND_US - 1)
    assert is_running(first)
    sealing.rest(70 * SECOND_US)
    assert not is_running(first)
    sealing.rest(200 * SECOND_US)
    sealing.seal("s", 1, 1, entries(), 300 * SECOND_US)
    assert sealing.process is not None
    sealing.close()


def test_a_process_that_is_started_while_the_log_ends_is_not_waited_for(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealing = Sealing(DirectoryStore(disk), 1, 60.0)
    start = sealing._start

    def start_and_end() -> Sealer:
        sealing.give_up()
        return start()

    monkeypatch.setattr(sealing, "_start", start_and_end)
    ref = sealing.seal("s", 1, 0, entries(), 0)
    assert (sealing.apart, sealing.process) == (0, None)
    assert disk.read(ref.path)


def test_memory_is_given_back_when_it_was_not_used_for_a_turn(disk: OsDisk) -> None:
    sealing = Sealing(DirectoryStore(disk), 1, 60.0)
    here = write_segment(DirectoryStore(disk), "orders", 1, 0, pieces(entries()))
    for turn, size in enumerate((6, 6, 5, 6)):
        made = sealing.seal("orders", 2 + turn, 0, entries(size), 0)
        assert sealing.process is not None
        memory = sealing.process._memory
        sealing.rest(1)
        assert os.fstat(memory.descriptor).st_size > 0, "it may be needed again at once"
        sealing.rest(2)
        assert os.fstat(memory.descriptor).st_size == 0
        sealing.rest(3)
        if size == 6:
            one, other = (pa.ipc.open_file(pa.py_buffer(disk.read(ref.path))).read_all() for ref in (here, made))
            assert one.equals(other)
    assert sealing.apart == 4
    sealing.close()


def test_a_process_that_dies_costs_nothing(disk: OsDisk, caplog: pytest.LogCaptureFixture) -> None:
    """The segment is made here; a new process is started, three times; then no more."""
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    for number in range(sealer.LIVES + 1):
        sealing.seal("s", 1, 2 * number, entries(), 0)
        if sealing.process is not None:
            os.kill(sealing.process.pid, signal.SIGKILL)
        ref = sealing.seal("s", 1, 2 * number + 1, entries(), 0)
        assert ref.bytes == disk.size(ref.path)
        assert sealing.process is None
    assert sealing.apart == sealer.LIVES
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == sealer.LIVES
    assert "by the hub itself from now on" in warnings[-1]


def test_an_answer_that_is_none_counts_as_death(disk: OsDisk, process: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealer, "_receive", lambda pipe: b"\xc1")
    with pytest.raises(SealerGone):
        process.seal("s", 1, 0, entries())


def test_a_process_that_stumbles_ends_instead_of_staying_silent(
    disk: OsDisk, capfd: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody thought of: the log must not wait for an answer that never comes."""
    process = Sealer(*disk.handover())
    with pytest.raises(SealerGone):
        process.seal("s", 1, 0, [TailEntry(0, 50, 1, b"no columns" * 100, 0)])
    process.close()
    assert "Traceback" in capfd.readouterr().err


def test_it_ends_also_when_nobody_reads_what_it_prints(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody, theirs = os.pipe()
    os.close(nobody)
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **options: popen(*args, stderr=theirs, **options))
    process = Sealer(*disk.handover())
    with pytest.raises(SealerGone):
        process.seal("s", 1, 0, [TailEntry(0, 50, 1, b"no columns" * 100, 0)])
    process.close()
    os.close(theirs)


def test_what_is_printed_when_python_starts_is_no_answer(
    disk: OsDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('good morning')")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = Sealer(*disk.handover())
    assert process.seal("s", 1, 0, entries()).first == 0
    process.close()


def test_an_import_path_may_be_anything(disk: OsDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/somewhere")])
    process = Sealer(*disk.handover())
    assert process.seal("s", 1, 0, entries()).first == 0
    process.close()


def test_an_answer_is_not_waited_for_without_end(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sealer, "ANSWER_WAIT_S", 5.0)
    monkeypatch.setattr(sealer, "CLOSE_WAIT_S", 3600.0)  # nor is its end: it is killed at once
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    sealing.seal("s", 1, 0, entries(), 0)
    assert sealing.process is not None
    pid = sealing.process.pid
    os.kill(pid, signal.SIGSTOP)
    sealing.process._socket.settimeout(0.05)
    ref = sealing.seal("s", 1, 1, entries(), 0)
    assert disk.size(ref.path) == ref.bytes
    assert "no answer for 5 s" in caplog.text
    assert not is_running(pid)


def test_a_process_that_cannot_be_started_is_not_needed(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    assert sealing.seal("s", 1, 0, entries(), 0).first == 0
    assert "no more processes" in caplog.text


def test_without_memory_to_share_the_segment_is_made_here(
    disk: OsDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(os, "ftruncate", refuse)
    sealing = Sealing(DirectoryStore(disk), 1000, idle_s=60)
    assert sealing.seal("s", 1, 0, entries(), 0).first == 0
    assert sealing.process is None
    assert "no memory" in caplog.text


def test_a_disk_in_memory_has_no_process() -> None:
    sealing = Sealing(DirectoryStore(MemoryDisk()), 1000, idle_s=60)
    assert isinstance(sealing.seal("s", 1, 0, entries(), 0), SegmentRef)
    assert sealing.process is None


def test_signals_for_the_hub_do_not_end_it(disk: OsDisk, process: Sealer) -> None:
    process.seal("s", 1, 0, entries())
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGTERM)
    assert process.seal("s", 1, 1, entries()).first == 0


def test_a_process_that_does_not_end_is_killed(disk: OsDisk, process: Sealer, monkeypatch: pytest.MonkeyPatch) -> None:
    process.seal("s", 1, 0, entries())
    monkeypatch.setattr(sealer, "CLOSE_WAIT_S", 0.01)
    os.kill(process.pid, signal.SIGSTOP)
    process.close()
    assert not is_running(process.pid)


def test_the_lock_is_held_as_long_as_the_process_may_write(disk: OsDisk, process: Sealer, tmp_path: Path) -> None:
    process.seal("s", 1, 0, entries())
    disk.close()
    with pytest.raises(DataDirectoryLocked):
        OsDisk(tmp_path / "data")
    process.close()
    OsDisk(tmp_path / "data").close()


LONELY = """
    import os, signal, sys
    from headrace.log.disk import OsDisk
    from headrace.log.sealer import Sealer
    sys.path[:0] = {paths!r}
    from test_sealer import entries
    disk = OsDisk({root!r})
    process = Sealer(*disk.handover())
    process.seal("s", 1, 0, entries())
    print(process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_goes_with_a_hub_that_is_killed_and_the_next_hub_can_start(tmp_path: Path) -> None:
    here = Path(__file__).parent
    code = textwrap.dedent(LONELY).format(paths=[str(here), str(here.parents[1])], root=str(tmp_path / "data"))
    hub = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert hub.returncode == -signal.SIGKILL, hub.stderr
    OsDisk(tmp_path / "data").close()  # waits until the lock is free
    wait_until(lambda: not is_running(int(hub.stdout)))


def test_a_log_seals_elsewhere_and_reads_what_was_sealed(tmp_path: Path) -> None:
    settings = LogSettings(segment_bytes=200_000, seal_apart_bytes=100_000)
    log = open_directory(OsDisk(tmp_path / "data"), SystemClock(), settings)
    log.submit([ops.CreateStream("s")])
    for number in range(10):
        log.submit([ops.Append("s", Batch.of([b"%d" % number * 100] * 500))])
    while log.commit_once():
        pass
    while log.maintain_once():
        pass
    process = log.maintenance.sealing.process
    assert process is not None
    assert log.maintenance.sealing.apart > 0
    found = [row for batch in log.scan("s", 0, 5_000) for row in batch.column("payload").to_pylist()]
    assert found == [b"%d" % number * 100 for number in range(10) for _ in range(500)]
    log.close()
    assert not is_running(process.pid)
    again = open_directory(OsDisk(tmp_path / "data"), SystemClock(), settings)
    assert again.bounds("s").next == 5_000
    again.close()


@pytest.mark.parametrize("ends", ["it fails", "it is to close", "it closes"])
def test_a_log_that_ends_does_not_wait_for_it(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = LogSettings(segment_bytes=20_000, seal_apart_bytes=10_000)
    log = open_directory(OsDisk(tmp_path / "data"), SystemClock(), settings)
    log.start(lambda outcomes, touched: None, lambda made: None)
    log.submit([ops.CreateStream("s")])
    append = ops.Append("s", Batch.of([b"x" * 100] * 500))
    log.submit([append])
    sealing = log.maintenance.sealing
    wait_until(lambda: sealing.apart > 0)
    asked = threading.Event()
    monkeypatch.setattr(sealer, "_send", lambda peer, order: asked.set())  # it hears of nothing, and says nothing
    log.submit([append])
    assert asked.wait(60)
    caplog.clear()
    began_s = time.monotonic()
    if ends == "it fails":
        log.fail("testing", OSError(errno.EIO, "the disk has failed"))
    elif ends == "it is to close":
        log.hasten()
        wait_until(lambda: log.maintenance.sealed_segments == log.maintenance.sealing.apart + 1)
    log.close()
    assert time.monotonic() - began_s < sealer.ANSWER_WAIT_S / 2
    assert not [record for record in caplog.records if record.name == sealer.logger.name]
    if ends != "it fails":
        again = open_directory(OsDisk(tmp_path / "data"), SystemClock(), settings)
        assert again.bounds("s").next == 1_000
        again.close()
