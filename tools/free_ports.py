"""Ports for programs that must be told theirs before they listen: brokers, a hub that has pipelines, Spark's masters.

A port that the system gave and that was let go again is soon given to somebody else. These are below those that Linux,
macOS and Windows give out by themselves, and nobody else who asks here gets one while this process lives.
"""

from __future__ import annotations

import contextlib
import random
import socket

FIRST, LAST = 10_000, 32_767
HOST = "127.0.0.1"


def free_ports(count: int) -> list[int]:
    """As many, all different."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(FIRST, LAST + 1), LAST + 1 - FIRST):
        if len(found) == count:
            return found
        if _is_free(port) and _take(port):
            found.append(port)
    raise RuntimeError(f"only {len(found)} ports between {FIRST} and {LAST} are free; {count} are needed")


def free_port() -> int:
    return free_ports(1)[0]


def free_address() -> str:
    """One of this machine."""
    return f"{HOST}:{free_port()}"


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as probe:
        probe.bind((HOST, port))
        return True
    return False


def _take(port: int) -> bool:
    """The same number of UDP, which nobody else here uses, says that the port is taken until this process ends."""
    with socket.socket(type=socket.SOCK_DGRAM) as mark:
        try:
            mark.bind((HOST, port))
        except OSError:
            return False
        mark.detach()
        return True
