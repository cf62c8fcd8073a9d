"""Someone known, and what they may do now.

A principal is live: whoever holds one asks `may` each time and has the answer of this moment. `rights.py` keeps it true
to the users. What goes on without asking, such as a feed, watches it.

right   what it allows
read    read and follow records, tables and checkpoints; look at streams, cursors, sessions
write   append, create streams, move own cursors, put into tables
admin   delete, trim, set options, reset cursors of others, users, settings; read what the hub keeps for itself
"""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import functools
from collections.abc import Callable, Iterator
from typing import Literal

from headrace.config import Grant
from headrace.errors import Unauthenticated
from headrace.security.reserved import is_own_cursor, is_reserved

Right = Literal["read", "write", "admin"]

BUILT_IN_ROLES: dict[str, list[Grant]] = {
    "admin": [Grant(rights=["read", "write", "admin"])],
    "writer": [Grant(rights=["read", "write"])],
    "reader": [Grant(rights=["read"])],
}


class Principal:
    """Someone known, with what they may do."""

    __slots__ = ("__weakref__", "_ended", "_grants", "_renewal", "_watchers", "name", "roles")

    def __init__(
        self,
        name: str,
        roles: tuple[str, ...],
        grants: tuple[Grant, ...],
        renewal: Callable[[], Principal | None] | None = None,
    ) -> None:
        """`renewal` finds out who this would be if they came now; without one, nothing changes."""
        self.name = name
        self.roles = roles
        self._ended = False
        self._grants = grants
        self._renewal = renewal
        self._watchers: dict[object, Callable[[], object]] = {}

    @property
    def refusal(self) -> Unauthenticated | None:
        """What to tell them once their sign-in no longer holds. From then on they may do nothing."""
        if not self._ended:
            return None
        return Unauthenticated(f"the sign-in of {self.name!r} no longer holds; sign in again")

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Have `changed` called in the event loop when they may do something else than before, or nothing any more.
        The result ends that."""
        key = object()
        self._watchers[key] = changed

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def renew(self) -> list[Callable[[], object]]:
        """Take the rights that they would get now. Those who have to be told of it, if anything is different."""
        if self._renewal is None or self._ended:
            return []
        now = self._renewal()
        if now is None:
            return self.end()
        if (now.name, now.roles, now._grants) == (self.name, self.roles, self._grants):
            return []
        self.name, self.roles, self._grants = now.name, now.roles, now._grants
        return list(self._watchers.values())

    def end(self) -> list[Callable[[], object]]:
        """Their sign-in no longer holds. Those who have to be told of it."""
        self._ended = True
        self.roles, self._grants = (), ()
        return list(self._watchers.values())

    def may(self, right: Right, stream: str | None = None, *, verb: str | None = None) -> bool:
        """Whether they may, `right` being what they want to do with `stream`; without a stream, with all of them.
        What the hub keeps for itself nobody writes, and only admins read."""
        if stream is None or not is_reserved(stream):
            return self.granted(right, stream, verb=verb)
        return right == "read" and all(self.granted(each, stream, verb=verb) for each in ("read", "admin"))

    def may_move(self, cursor: str, stream: str, right: Right = "write", *, verb: str | None = None) -> bool:
        """Whether they may move a cursor, or forget it. A cursor is its reader's, so a stream of the hub's own can have
        those of admins; the hub's own cursors nobody moves."""
        return not is_own_cursor(cursor, stream) and self.may(
            "read" if is_reserved(stream) else right, stream, verb=verb
        )

    def granted(self, right: Right, stream: str | None = None, *, verb: str | None = None) -> bool:
        """Whether their roles grant `right` on `stream`, whoever that belongs to; for the part that owns it."""
        for grant in self._grants:
            if right in grant.rights and _verb_matches(grant, verb):
                patterns = grant.streams
                if "*" in patterns or (stream is not None and any(_matches(stream, pattern) for pattern in patterns)):
                    return True
        return False

    def may_some(self, right: Right, *, verb: str | None = None) -> bool:
        """Whether `right` is granted on at least some streams."""
        return any(right in grant.rights and grant.streams and _verb_matches(grant, verb) for grant in self._grants)

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, roles={self.roles!r})"


@functools.lru_cache(maxsize=100_000)
def _matches(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


def _verb_matches(grant: Grant, verb: str | None) -> bool:
    return verb is None or "*" in grant.verbs or any(_matches(verb, pattern) for pattern in grant.verbs)


EVERYTHING = Principal("local", ("admin",), tuple(BUILT_IN_ROLES["admin"]))
_current: contextvars.ContextVar[Principal] = contextvars.ContextVar("principal", default=EVERYTHING)


def current() -> Principal:
    """Whoever the running verb acts for. Code inside the process that nobody called acts for itself and may do all."""
    return _current.get()


@contextlib.contextmanager
def acting_as(principal: Principal) -> Iterator[None]:
    """Run a block for `principal`."""
    token = _current.set(principal)
    try:
        yield
    finally:
        _current.reset(token)
