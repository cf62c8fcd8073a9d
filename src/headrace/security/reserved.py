"""What the hub keeps for itself: one name space with one rule. Only the part that owns a table or stream writes it,
only an `admin` reads it, and lists leave it out unless it is asked for. Cursors and producers may be owned as well.

Protocols name theirs in their descriptor. The rule is obeyed by `Principal.may`, which every way in asks; the owners
work inside the process and ask nobody.
"""

from __future__ import annotations

import fnmatch
import functools
import re

from headrace.errors import Forbidden
from headrace.protocols.descriptor import protocols

PIPELINES = {
    "spark/pipelines": "headrace.spark.hub.registry:read_definition",
    "spark/sinks": "headrace.spark.hub.sink_state:read_sink",
    "spark/commits": "headrace.spark.hub.staging_area:read_unfinished",
}
CONSOLE = {"console/mutes": "headrace.console.alarms:read_mute"}
STREAMS = ("console/history",)


@functools.cache
def own_tables() -> dict[str, str]:
    """Every table of the hub's own, with the "module:function" that reads a row; empty where any bytes will do."""
    return PIPELINES | CONSOLE | {name: reader for each in protocols() for name, reader in each.own_tables.items()}


@functools.cache
def _pattern() -> re.Pattern[str]:
    streams = [*STREAMS, *(name for each in protocols() for name in each.own_streams)]
    return re.compile("|".join([*map(fnmatch.translate, streams), *map(re.escape, own_tables())]))


@functools.lru_cache(maxsize=100_000)
def is_reserved(name: str) -> bool:
    """Whether a stream or table is the hub's own, or will be when it is made."""
    return _pattern().fullmatch(name) is not None


def is_own_cursor(cursor: str, stream: str) -> bool:
    """Whether the hub itself reads a stream with this cursor."""
    owned = (pair for each in protocols() for pair in each.own_cursors)
    return any(cursor == name and fnmatch.fnmatchcase(stream, pattern) for name, pattern in owned)


@functools.cache
def _own_producers() -> tuple[str, ...]:
    return tuple(pattern for each in protocols() for pattern in each.own_producers)


def check_producer(producer: str | None) -> None:
    """Refuse a caller's producer that is a protocol's own: its sequence is where a peer of that protocol goes on."""
    if producer is not None and any(fnmatch.fnmatchcase(producer, pattern) for pattern in _own_producers()):
        raise Forbidden(f"producer {producer!r} is one of the hub's own; choose another name")


def is_listed(name: str, asked: str, everything: bool) -> bool:
    """Whether a list shows a name: the hub's own only if that is what was asked for, or everything was."""
    return everything or name == asked or not is_reserved(name)
