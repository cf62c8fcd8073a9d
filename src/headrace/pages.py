"""Lists in pages: what grows with use is never sent as a whole.

A request of such a list has `limit` and `after`. With one of them the answer is a `Page`; its `next` is what to ask
`after` for the rest. A caller that knows of neither gets the first entries as a plain list, and is told beside it
(HTTP: the header `Headrace-Next`; Flight: a second result) that there are more, and where they begin.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, Generic, TypeVar

import msgspec

from headrace.errors import BadRequest

Item = TypeVar("Item")
Place = list[int | str]
"""What the entries of a list are ordered by."""


class Listed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for a list: at most `limit` entries, behind those of the page whose `next` is `after`."""

    limit: int | None = None
    after: str | None = None

    @property
    def is_paged(self) -> bool:
        return self.limit is not None or self.after is not None

    def place(self) -> Place | None:
        """Where the page before ended."""
        if self.after is None:
            return None
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(self.after), type=Place)
        except ValueError as error:  # of base64, and of msgspec
            raise BadRequest(f"'after' is {self.after!r}, and not what a page had as its 'next'") from error


class Page(msgspec.Struct, Generic[Item], frozen=True):
    """Entries of a list. `next` says where the rest begins, and is asked for with `after`; null at the end."""

    items: list[Item]
    next: str | None


class FirstItems(list[Any]):
    """A page for a caller that did not ask for one."""

    next: str | None = None


def take(asked: Listed, items: Iterable[Item], place: Callable[[Item], Place], limit: int) -> Page[Item]:
    """The page that is asked for, of entries in the order of their places."""
    before = asked.place()
    try:
        rest = items if before is None else (item for item in items if place(item) > before)
        found = list(islice(rest, limit + 1))
    except TypeError as error:  # numbers and text cannot be compared
        raise BadRequest("'after' comes from another list") from error
    following = None
    if len(found) > limit:
        found.pop()
        following = base64.urlsafe_b64encode(msgspec.json.encode(place(found[-1]))).decode()
    return Page(found, following)
