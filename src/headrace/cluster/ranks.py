"""Which hubs keep up with the journal: so many as `cluster.standbys` says, and the same ones in everybody's eyes.

All hubs are members of the group. The owner has the cell; the others stand in the order of their names, which is also
the order in which the group chooses the next owner. So the first ones follow the journal, and the rest stay cold: they
pass clients on, and read the journal only when they are among the first, or are chosen themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.cluster.notes import HubNote

KEEPS_UP_BYTES = 16 * 1024 * 1024
"""Who is not further behind than this takes over about as quickly as one that has read everything."""


def should_follow(
    life: str, members: Iterable[str], owner: str, standbys: int, notes: Mapping[str, HubNote], follows: bool
) -> bool:
    """Whether the hub of that life is to read the journal. `members` are the lives in the group, `owner` is that of the
    owner. One that follows stops only when enough of those before it keep up."""
    before = sorted({each for each in members if each not in (owner, life) and each < life})
    if len(before) < standbys:
        return True
    if not follows:
        return False
    return sum(_keeps_up(notes.get(each)) for each in before) < standbys


def _keeps_up(note: HubNote | None) -> bool:
    return note is not None and note.follows and note.lag_bytes <= KEEPS_UP_BYTES
