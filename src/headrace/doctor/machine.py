"""The machine: room and speed of the disk, the clock, and the limits that a hub meets first."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import resource
import shutil
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

from headrace.config import Config
from headrace.doctor.data import existing
from headrace.doctor.finding import Finding, fail, ok, warn
from headrace.units import MIB, format_bytes, format_seconds

SYNC_WRITES = 100
SYNC_WRITE_BYTES = 4096
SYNC_P99_SLOW_S = 0.05
SYNC_P50_SUSPICIOUS_S = 10e-6
"""No disk that waits for its medium, or for a battery, answers faster than this."""
LARGE_WRITES = 32
LARGE_WRITE_BYTES = MIB
OPEN_FILES_SPARE = 1024
"""For segments, the journal, listeners and Python itself."""
BASE_MEMORY_BYTES = 256 * MIB
"""An idle hub with all protocols loaded, and some air."""
MAPPINGS_SPARE = 8192
CLOCK_WATCH_S = 0.25
CLOCK_STEP_S = 0.02
CLOCK_ERROR = 5
"""What adjtimex(2) answers when nothing keeps the clock right."""
TIMEX_BYTES = 256
CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
MAPPINGS = Path("/proc/sys/vm/max_map_count")


def check_room(data: Path, config: Config) -> Iterator[Finding]:
    """Room on the disk, beside what a hub keeps free."""
    free = shutil.disk_usage(existing(data)).free
    reserve = config.log.disk_reserve_bytes
    text = f"{format_bytes(free)} free; appends are refused below {format_bytes(reserve)}"
    if free < reserve:
        yield fail("room", text, "make room, or set retention on streams; reads continue meanwhile")
    elif free < 10 * reserve:
        yield warn("room", text, "make room soon, or set retention on streams")
    else:
        yield ok("room", text)


def check_speed(data: Path) -> Iterator[Finding]:
    """How long a durable write takes, the floor of every acknowledgement, and how much large ones hold."""
    folder = existing(data)
    try:
        times = sorted(sync_times(folder, SYNC_WRITE_BYTES, SYNC_WRITES))
        large_s = sum(sync_times(folder, LARGE_WRITE_BYTES, LARGE_WRITES))
    except OSError as error:
        advice = "look at the owner and rights of the directory, and at the disk"
        yield fail("disk", f"{folder} cannot be written to: {error.strerror}", advice)
        return
    p50, p99 = times[len(times) // 2], times[-1 - len(times) // 100]
    text = (
        f"a durable write of {format_bytes(SYNC_WRITE_BYTES)} takes {p50 * 1e3:.2f} ms (p50), {p99 * 1e3:.2f} ms "
        f"(p99, {len(times)} writes); {LARGE_WRITES * LARGE_WRITE_BYTES / large_s / 1e6:.0f} MB/s in pieces of 1 MiB"
    )
    if p50 < SYNC_P50_SUSPICIOUS_S:
        advice = "look whether the disk, its controller or the virtual machine only pretends to sync"
        yield warn("disk", f"{text}: faster than a disk can be", advice)
    elif p99 > SYNC_P99_SLOW_S:
        yield warn("disk", text, "expect acknowledgements to take as long; use a faster disk, or one less busy")
    else:
        yield ok("disk", text)


def sync_times(folder: Path, size: int, count: int | None = None) -> Generator[float]:
    """Seconds of each write with its fdatasync, at the end of a growing file, as the journal does it."""
    data = os.urandom(size)  # not zeros: file systems that compress would cheat
    file = folder / f".headrace-doctor-{os.getpid()}"
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
    try:
        for _ in itertools.count() if count is None else range(count):
            began = time.perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            yield time.perf_counter() - began
    finally:
        os.close(descriptor)
        file.unlink()


def check_clock(
    wall_ns: Callable[[], int] = time.time_ns,
    monotonic_ns: Callable[[], int] = time.monotonic_ns,
    synchronised: Callable[[], bool | None] = lambda: clock_synchronised(),
) -> Iterator[Finding]:
    """Whether the clock runs as steadily as the machine's own, and whether something keeps it right."""
    began = wall_ns() - monotonic_ns()
    time.sleep(CLOCK_WATCH_S)
    step_s = (wall_ns() - monotonic_ns() - began) / 1e9
    if abs(step_s) > CLOCK_STEP_S:
        text = f"the clock jumped by {'-' if step_s < 0 else ''}{format_seconds(abs(step_s))} within {CLOCK_WATCH_S} s"
        yield warn(
            "clock", text, "let one service set it, by slewing: records' times never go back, but they stand still"
        )
        return
    state = synchronised()
    if state is False:
        advice = "let chrony or systemd-timesyncd keep it: retention by age and reads by time go by this clock"
        yield warn("clock", "the clock runs steadily, and nothing keeps it right", advice)
    else:
        kept = "and is kept right" if state else "; whether something keeps it right, this system does not tell"
        yield ok("clock", f"the clock runs steadily {kept}".replace(" ;", ";"))


def clock_synchronised() -> bool | None:
    """What the kernel says of its clock; None where it does not say."""
    with contextlib.suppress(OSError, AttributeError):
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))
        return None if state < 0 else bool(state != CLOCK_ERROR)
    return None


def check_limits(config: Config) -> Iterator[Finding]:
    """Open files, memory and mappings."""
    yield _open_files(config)
    yield _memory(config)
    yield from _mappings(config)


def _open_files(config: Config) -> Finding:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)  # a hub asks for all of them when it starts
    needed = config.limits.sessions_max + config.log.open_segments_max + OPEN_FILES_SPARE
    if hard == resource.RLIM_INFINITY or hard >= needed:
        return ok("limits", f"{'unlimited' if hard == resource.RLIM_INFINITY else hard} open files (ulimit -Hn)")
    text = f"{hard} open files (ulimit -Hn); {config.limits.sessions_max} sessions (limits.sessions_max) need {needed}"
    advice = f"LimitNOFILE={needed} in the unit, or `ulimit -n {needed}` as root, or lower limits.sessions_max"
    return warn("limits", text, advice)


def _memory(config: Config) -> Finding:
    available, source = memory_bytes()
    section = config.log
    needed = BASE_MEMORY_BYTES + section.tail_bytes_max + section.queue_bytes_max
    text = (
        f"{format_bytes(available)} of memory ({source}); tails and queue may take "
        f"{format_bytes(section.tail_bytes_max + section.queue_bytes_max)}, tables and protocols come on top"
    )
    advice = "lower log.tail_bytes_max and log.queue_bytes_max, or give it more"
    if available < needed:
        return fail("limits", text, advice)
    return warn("limits", text, advice) if available < 2 * needed else ok("limits", text)


def memory_bytes() -> tuple[int, str]:
    """The memory that this process may use, and what bounds it."""
    bounds = [(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "the machine's")]
    with contextlib.suppress(OSError, ValueError):
        bounds.append((int(CGROUP_MEMORY.read_text()), "the container's or unit's limit"))
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        bounds.append((soft, "ulimit -v"))
    return min(bounds)


def _mappings(config: Config) -> Iterator[Finding]:
    try:
        allowed = int(MAPPINGS.read_text())
    except (OSError, ValueError):
        return
    needed = config.log.open_segments_max + MAPPINGS_SPARE
    text = f"{allowed} memory maps (vm.max_map_count); {config.log.open_segments_max} segments are kept mapped"
    if allowed < needed:
        yield warn("limits", text, f"sysctl vm.max_map_count={2 * needed}, or lower log.open_segments_max")
    else:
        yield ok("limits", text)
