"""The data directory: whose it is, what it lies on, and every byte in it that has a checksum."""

from __future__ import annotations

import fcntl
import os
import pwd
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

from headrace.doctor.finding import Finding, Progress, fail, ok, warn
from headrace.errors import DataDirectoryLocked, HeadraceError, NameTaken
from headrace.log import doctor as log_doctor
from headrace.log.disk import LOCK
from headrace.log.place import holds_log, older_log
from headrace.log.report import Finding as LogFinding
from headrace.security.reserved import own_tables
from headrace.units import format_bytes, format_seconds

MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
OVER_NETWORK = re.compile(r"nfs\d?|cifs|smb\d?|smbfs|9p|ceph|glusterfs|lustre|fuse\..*|virtiofs|vboxsf|drvfs")
UNSAFE_OPTIONS = frozenset({"nobarrier", "barrier=0"})
UNRECOVERABLE = "unrecoverable"
CLOCK_BEHIND_S = 1.0
"""So far behind the newest record a clock may be: two commits may be that close to a small step."""


def existing(path: Path) -> Path:
    """The path, or what there is of it."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def process_using(data: Path) -> int | None:
    """The process that has the directory open as its hub's."""
    try:
        descriptor = os.open(data / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        owner = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
        return int(owner) if owner.isdigit() else None
    finally:
        os.close(descriptor)


def check_place(data: Path) -> Iterator[Finding]:
    """Owner, rights and file system."""
    place = existing(data)
    if not place.is_dir():
        yield fail("place", f"{place} is not a directory", "name another directory with --data")
        return
    yield _rights(data, place)
    yield from _readable_secrets(data)
    yield _file_system(place)


def _rights(data: Path, place: Path) -> Finding:
    status = place.stat()
    owner, me = _user_name(status.st_uid), _user_name(os.geteuid())
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        advice = f"run as {owner}, or give it away: chown -R {me} {place}"
        return fail("place", f"{place} belongs to {owner}, and {me} may not write to it", advice)
    if place != data.absolute():
        return ok("place", f"{data} does not exist yet and can be made in {place}")
    if status.st_uid != os.geteuid():
        advice = f"run the hub as {owner}; files that {me} makes there, {owner} may not be able to read"
        return warn("place", f"{data} belongs to {owner}, and this is {me}", advice)
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        may = "write to" if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else "look into"
        return warn("place", f"others than {owner} may {may} {data}", f"chmod go= {data}")
    return ok("place", f"{data} belongs to {owner}, who alone may look into it")


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _readable_secrets(data: Path) -> Iterator[Finding]:
    users = data / "users.json"
    if users.exists() and users.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        yield warn("place", f"others than its owner may read {users}", f"chmod 600 {users}")


def _file_system(place: Path) -> Finding:
    mount = _mount_of(place)
    if mount is None:
        return ok("file system", "this system does not tell what the directory lies on")
    kind, options = mount
    if "ro" in options:
        return fail("file system", f"{place} is mounted read-only ({kind})", "mount it for writing, or use another")
    if kind in IN_MEMORY:
        advice = "use a directory on a disk; this is for tests"
        return fail("file system", f"{place} is in memory ({kind}): nothing in it survives a restart", advice)
    if OVER_NETWORK.fullmatch(kind):
        advice = "use a local disk: syncs and locks are only as good as the other side's"
        return warn("file system", f"{place} is not on a disk of this machine ({kind})", advice)
    if kind == "overlay":
        return warn("file system", f"{place} is a container's own layer and goes with it", "mount a volume there")
    if unsafe := sorted(UNSAFE_OPTIONS & options):
        text = f"{place} is mounted with {', '.join(unsafe)}: syncs promise nothing"
        return warn("file system", text, "mount it without")
    return ok("file system", f"{place} is on {kind}")


def _mount_of(path: Path) -> tuple[str, set[str]] | None:
    """Kind and options of the file system that a path lies on."""
    try:
        lines = MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    best: tuple[int, str, set[str]] | None = None
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\(\d{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        if path == Path(point) or Path(point) in path.parents:
            kind, _, super_options = right.split(" ", 2)
            options = {*left.split()[5].split(","), *super_options.split(",")}
            if best is None or len(point) >= best[0]:  # of two mounts on one point the later one is seen
                best = (len(point), kind, options)
    return None if best is None else best[1:]


def check_data(data: Path, progress: Progress = lambda text: None, now_us: int | None = None) -> Iterator[Finding]:
    """Everything on disk that has a checksum; damaged records are named by stream, partition and index."""
    older = older_log(data)
    if older is not None:
        has_both = holds_log(data)
        text = f"{older} holds {'another' if has_both else 'a'} log, of an earlier `make up` or `make run`"
        yield (warn if has_both else fail)("data", text, "docs/upgrade.md says how to move it, or name it with --data")
    if not holds_log(data):
        yield ok("data", f"{data} holds no log yet; a hub will make one")
        return
    try:
        report = log_doctor.examine(data, lambda done, total: progress(f"segment {done} of {total}"), wrong_with_row)
    except DataDirectoryLocked:
        text = f"{data} is in use by a running hub (process {process_using(data)}), so its checksums were not read"
        yield warn("data", text, "stop that hub and look again, or back it up: a backup is checked as it is made")
        return
    except OSError as error:
        yield fail("data", f"{data} cannot be read: {error}", "look at its owner and rights, and at the disk")
        return
    except HeadraceError as error:
        yield fail("data", str(error), "restore from a backup")
        return
    text = (
        f"{len(report.streams)} partitions of streams and tables, {report.segments} segments, {report.journal_files} "
        f"journal files ({format_bytes(report.journal_bytes)}), {report.checkpoints} checkpoints: all read and checked"
    )
    if not any(finding.kind == UNRECOVERABLE for finding in report.findings):
        yield ok("data", text)
    yield from map(data_finding, report.findings)
    for name in sorted({each.stream for each in report.streams if each.kind != "table"} & own_tables().keys()):
        yield Finding(
            "data", "fail", str(NameTaken(name)), "the part that needs the table is not served until then", name
        )
    if report.strangers:
        text = f"belonging to no stream: {', '.join(report.strangers)}"
        yield warn("data", text, "move them away if you know that nothing needs them")
    yield from _clock_beside_records(report.last_time_us, time.time_ns() // 1000 if now_us is None else now_us)


def wrong_with_row(table: str, key: bytes, value: bytes) -> str | None:
    """What the owner of a table of the hub's own would say of a row."""
    reader = own_tables().get(table)
    try:
        if reader:
            resolve_name(reader)(key, value)
    except Exception as error:
        return str(error)
    return None


def data_finding(damage: LogFinding) -> Finding:
    text = f"{damage.text} ({damage.path})" if damage.path else damage.text
    if damage.kind == "unreadable-row":
        advice = (
            "a hub starts without it; the verb `table.drop-row` removes it, and what it was about can be made again"
        )
        return Finding("data", "warn", text, advice, damage.stream)
    if not damage.is_damage:
        return ok("data", f"{text}: never acknowledged, the next start repairs it")
    if damage.kind == UNRECOVERABLE:
        return fail("data", text, "use the version that wrote it or a newer one, or restore from a backup")
    advice = "restore from a backup, or read on behind it"
    if damage.kind == "damaged-records" and damage.stream:
        return Finding("data", "fail", text, advice, damage.stream, damage.partition, damage.first, damage.last)
    return Finding("data", "fail", text, advice, damage.stream or None)


def _clock_beside_records(last_us: int, now_us: int) -> Iterator[Finding]:
    if not last_us:
        return
    behind_s = (last_us - now_us) / 1e6
    if behind_s > CLOCK_BEHIND_S:
        text = f"the clock is {format_seconds(behind_s)} behind the newest record"
        yield warn("clock", text, "set the clock; until it has caught up, new records all get that record's time")
    else:
        yield ok("clock", f"the newest record is {format_seconds(max(0.0, -behind_s))} old")
