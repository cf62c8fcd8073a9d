"""Which copies of an entry a client means: a hub has one."""

from __future__ import annotations

from enum import IntEnum

from headrace.protocols.perper.errors import Refused


class PeekMode(IntEnum):
    """Which copies of an entry a client means."""

    ALL = 0
    NEAR = 1
    PRIMARY = 2
    BACKUP = 3
    ONHEAP = 4
    OFFHEAP = 5


def peeks_at_entries(modes: bytes) -> bool:
    """Whether what a client wants to see are the entries of one node that has no near cache and no backups, and keeps
    nothing on a heap: Ignite answers the other combinations with nothing."""
    if any(mode not in tuple(PeekMode) for mode in modes):
        raise Refused("Ouch! Argument cannot be null: peekMode")
    if PeekMode.ALL in modes:
        return True
    elsewhere = PeekMode.NEAR in modes or PeekMode.BACKUP in modes
    return (PeekMode.PRIMARY in modes or not elsewhere) and (PeekMode.OFFHEAP in modes or PeekMode.ONHEAP not in modes)
