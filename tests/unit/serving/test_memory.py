"""Memory goes back to the machine once after each burst, and only then."""

from __future__ import annotations

import asyncio
import itertools
import queue
import subprocess
import sys
import threading

import pytest
from support.until import until, wait_until

from headrace.serving import memory
from headrace.serving.memory import find_trim, trim_when_quiet


async def test_trimmed_once_after_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.001)
    values = [0.0, 0.0, 5.0, 9.0, 9.0, 9.0, 9.0, 12.0, 12.0, 12.0]
    seen: list[float] = []
    trims: list[float] = []
    finished = asyncio.Event()

    def activity() -> float:
        seen.append(values[min(len(seen), len(values) - 1)])
        if len(seen) > len(values) + 3:
            finished.set()
        return seen[-1]

    def trim(pad: int) -> int:
        trims.append(seen[-1])
        return 1

    task = asyncio.create_task(trim_when_quiet(activity, trim))
    await asyncio.wait_for(finished.wait(), 60)
    task.cancel()
    assert trims == [9.0, 12.0]


async def test_what_has_grown_much_is_trimmed_although_others_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.001)
    resident, trims, turns = [100 << 20], [0], [0]

    def activity() -> float:
        turns[0] += 1
        return float(turns[0])

    def trim(pad: int) -> int:
        trims[0] += 1
        return 1

    async def some_turns() -> None:
        at = turns[0]
        await until(lambda: turns[0] > at + 5)

    task = asyncio.create_task(trim_when_quiet(activity, trim, lambda: resident[0]))
    await some_turns()
    resident[0] += memory.MUCH_BYTES - 1
    await some_turns()
    assert trims == [0]
    resident[0] += 1
    await until(lambda: trims[0])
    resident[0] += memory.MUCH_BYTES  # more than was found in use
    await until(lambda: trims[0] > 1)
    task.cancel()


async def test_what_did_not_go_is_tried_again_and_again_more_and_more_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.0001)
    resident, looks = 100 << 20, 0
    trims: list[int] = []

    def activity() -> float:
        nonlocal looks
        looks += 1
        return float(looks)

    def trim(pad: int) -> int:
        nonlocal resident
        trims.append(looks)
        if len(trims) == 4:
            resident = 110 << 20  # what was in use is freed at last
        return 1

    task = asyncio.create_task(trim_when_quiet(activity, trim, lambda: resident))
    await until(lambda: looks > 5)
    resident += memory.MUCH_BYTES
    await until(lambda: len(trims) == 4)
    at = looks
    await until(lambda: looks > at + 200)
    task.cancel()
    assert len(trims) == 4  # and then there is nothing to do
    pauses = [later - sooner for sooner, later in itertools.pairwise(trims)]
    assert pauses == sorted(pauses)
    assert pauses[-1] > pauses[0]


async def test_what_was_in_use_is_tried_again_soon_when_the_process_becomes_smaller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "QUIET_S", 0.0001)
    resident, looks = 100 << 20, 0
    trims: list[int] = []

    def activity() -> float:
        nonlocal looks
        looks += 1
        return float(looks)

    def trim(pad: int) -> int:
        trims.append(looks)
        return 1

    task = asyncio.create_task(trim_when_quiet(activity, trim, lambda: resident))
    await until(lambda: looks > 5)
    resident += 2 * memory.MUCH_BYTES
    await until(lambda: len(trims) > 7)  # which takes long: by now it is tried most seldom
    await until(lambda: looks > trims[-1] + 5)
    tried, at = len(trims), looks
    resident -= memory.LESS_BYTES
    await until(lambda: len(trims) > tried)
    task.cancel()
    assert trims[tried] < at + 10


async def test_without_a_trim_there_is_nothing_to_do() -> None:
    await trim_when_quiet(lambda: 1.0, None)


def test_this_machine_has_one_or_says_none() -> None:
    trim = find_trim()
    assert trim is None or trim(0) in (0, 1)


def test_the_pieces_of_large_messages_are_given_back_at_once() -> None:
    trims: list[int] = []
    pauses: queue.SimpleQueue[float] = queue.SimpleQueue()
    go_on = threading.Semaphore(0)

    def pause(seconds: float) -> None:
        pauses.put(seconds)
        assert go_on.acquire(timeout=60)

    gives_back = memory.GivesBack(lambda pad: trims.append(pad) or 1, pause)
    gives_back.after(memory.PIECES_BYTES - 1)
    for _ in range(memory.PIECES_BYTES // memory.LARGE_BYTES + 1):
        gives_back.after(memory.LARGE_BYTES - 1)
    assert not trims
    gives_back.after(memory.LARGE_BYTES)
    assert pauses.get(timeout=60) == memory.PIECES_S
    assert trims == [0]
    gives_back.after(memory.PIECES_BYTES)
    assert trims == [0]  # so soon after
    go_on.release()
    assert pauses.get(timeout=60) == memory.PIECES_S
    assert trims == [0, 0]  # and yet nothing is left
    go_on.release()
    assert pauses.get(timeout=60) == memory.LAST_S
    assert trims == [0, 0]
    go_on.release()
    wait_until(lambda: not gives_back._is_at_work)
    assert trims == [0, 0, 0]  # what was still in use then
    gives_back.after(memory.PIECES_BYTES)
    assert pauses.get(timeout=60) == memory.PIECES_S
    go_on.release()
    assert pauses.get(timeout=60) == memory.LAST_S
    gives_back.after(memory.PIECES_BYTES)  # before the last one: it goes on
    go_on.release()
    assert pauses.get(timeout=60) == memory.PIECES_S
    assert trims == [0] * 5
    go_on.release(2)
    memory.GivesBack(None).after(memory.PIECES_BYTES)


@pytest.mark.skipif(find_trim() is None, reason="the C library is not glibc")
def test_what_a_large_message_leaves_goes_back_at_once() -> None:
    """Also when a larger one was freed before: then glibc by itself would keep it."""
    program = """
import ctypes, os, sys
from headrace.serving.memory import keep_large_apart
if sys.argv[1:]:
    keep_large_apart()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def resident() -> int:
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20
libc.free(libc.malloc(30 << 20))
before = resident()
pieces = [libc.malloc(20 << 20) for _ in range(4)]
for piece in pieces:
    ctypes.memset(piece, 1, 20 << 20)
held = libc.malloc(200 << 10)
for piece in pieces:
    libc.free(piece)
print(resident() - before)
"""
    left = [
        int(subprocess.run([sys.executable, "-c", program, *more], capture_output=True, text=True, check=True).stdout)
        for more in ((), ("apart",))
    ]
    assert left[0] > 60 > 20 > left[1]
