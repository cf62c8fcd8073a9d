"""The open sessions of all listeners, and the last ones that ended: what people see in the CLI and the console."""

from __future__ import annotations

import itertools
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from headrace.errors import LimitExceeded

STREAMS_SHOWN_MAX = 32
"""A session may use more streams; these many are remembered, for people who look."""


class SessionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One session as it was at the moment of asking."""

    id: int
    protocol: str
    peer: str
    opened_us: int
    closed_us: int | None = None
    reason: str | None = None
    writes: list[str] = []
    reads: list[str] = []
    details: dict[str, Any] = {}


class Session:
    """The handle a server keeps while a peer is connected."""

    def __init__(
        self, owner: Sessions, id: int, protocol: str, peer: str, describe: Callable[[], Mapping[str, object]]
    ):
        self.id = id
        self.protocol = protocol
        self.peer = peer
        self.opened_us = owner.now_us()
        self._describe = describe
        self._owner = owner
        self._uses: dict[Literal["read", "write"], dict[str, None]] = {"read": {}, "write": {}}

    def uses(self, right: Literal["read", "write"], stream: str) -> None:
        """Remember that the peer reads a stream or writes to it. Cheap enough for every request."""
        names = self._uses[right]
        if stream not in names and len(names) < STREAMS_SHOWN_MAX:
            names[stream] = None

    def info(self) -> SessionInfo:
        """What `headrace session ls` shows now. A `describe` that fails does not hide the others."""
        try:
            details = dict(self._describe())
        except Exception as error:
            details = {"describe": f"failed: {error!r}"}
        return SessionInfo(
            id=self.id,
            protocol=self.protocol,
            peer=self.peer,
            opened_us=self.opened_us,
            writes=list(self._uses["write"]),
            reads=list(self._uses["read"]),
            details=details,
        )

    def forget(self) -> None:
        """It has ended: whoever described it can be freed without a search for cycles."""
        self._describe = dict

    def close(self, reason: str | None = None) -> None:
        """Note the end. Further calls do nothing, so that every way out of a server may call it."""
        self._owner.ended(self, reason)


class Sessions:
    """All sessions. One event loop uses it; nothing here blocks."""

    def __init__(
        self,
        *,
        open_max: int = 10_000,
        ended_kept: int = 200,
        now_us: Callable[[], int] = lambda: time.time_ns() // 1000,
        changed: Callable[[str, int], None] = lambda protocol, change: None,
    ) -> None:
        """`changed(protocol, +1 or -1)` is called for metrics."""
        self.now_us = now_us
        self._open: dict[int, Session] = {}
        self._ended: deque[SessionInfo] = deque(maxlen=ended_kept)
        self._open_max = open_max
        self._ids = itertools.count(1)
        self._changed = changed

    def open(self, protocol: str, peer: str, describe: Callable[[], Mapping[str, object]]) -> Session:
        """A new session. `describe` returns state, credits, last error and the like when someone looks."""
        if len(self._open) >= self._open_max:
            raise LimitExceeded("open sessions", len(self._open) + 1, self._open_max, "limits.sessions_max")
        session = Session(self, next(self._ids), protocol, peer, describe)
        self._open[session.id] = session
        self._changed(protocol, 1)
        return session

    def ended(self, session: Session, reason: str | None) -> None:
        """Move a session from the open to the ended ones."""
        if self._open.pop(session.id, None) is None:
            return
        info = session.info()
        self._ended.append(msgspec.structs.replace(info, closed_us=self.now_us(), reason=reason))
        session.forget()
        self._changed(session.protocol, -1)

    def list(self, protocol: str | None = None, *, ended: bool = False) -> list[SessionInfo]:
        """The open sessions, oldest first; with `ended`, the last ones that ended instead, newest first."""
        infos = list(reversed(self._ended)) if ended else [session.info() for session in self._open.values()]
        return [info for info in infos if protocol is None or info.protocol == protocol]

    def counts(self) -> dict[str, int]:
        """How many are open, by protocol."""
        return dict(Counter(session.protocol for session in self._open.values()))

    def __len__(self) -> int:
        return len(self._open)
