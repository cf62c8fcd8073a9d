"""What the requests of several nouns share: structs and checks.

A request is one struct, JSON on the wire, bytes as base64. One with a field that is not listed is refused, so that a
misspelt one is never silently ignored.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.errors import BadRequest
from headrace.log.ops import Bounds
from headrace.pages import Listed


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The base of all requests."""


class StreamName(Asked, frozen=True):
    """Names a stream."""

    stream: str


class PartitionOf(Asked, frozen=True):
    """One partition, or with null all of them."""

    stream: str
    partition: int | None = None


class Moment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A time, in microseconds since 1970."""

    time_us: int


class Index(msgspec.Struct, frozen=True):
    """An index, or null."""

    index: int | None


class Done(msgspec.Struct, frozen=True):
    """It is done, and durable."""


def check_at_least(name: str, value: int, minimum: int) -> None:
    """Refuse a number below the minimum."""
    if value < minimum:
        raise BadRequest(f"{name!r} is {value}, below {minimum}")


def check_between(name: str, value: int, minimum: int, maximum: int) -> None:
    """Refuse a number outside the bounds, which are included."""
    if not minimum <= value <= maximum:
        raise BadRequest(f"{name!r} is {value}, outside {minimum} to {maximum}")


def index_of(position: int | Literal["earliest", "latest"], bounds: Bounds) -> int:
    """The index that a position means in a partition with these bounds."""
    if isinstance(position, int):
        return position
    return bounds.first if position == "earliest" else bounds.next


def first_number(asked: Listed) -> int:
    """Of the place where the page before ended: an id, or 0. What comes from another list is refused later."""
    place = asked.place()
    return place[0] if place and isinstance(place[0], int) else 0


def is_shown(stream: str, pattern: str, everything: bool) -> bool:
    """Whether the caller of the verb sees a stream in a list."""
    from headrace.security import is_listed

    return is_listed(stream, pattern, everything) and may_read(stream)


def may_read(stream: str) -> bool:
    """Whether the caller of the verb may read a stream."""
    from headrace.security import current  # here: the SDK loads the nouns for their structs, and needs no security

    return current().may("read", stream)
