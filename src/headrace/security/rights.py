"""Rights follow the users: whatever changes in the users or in the authorities that vouch for clients reaches everyone
who is signed in within a second.

Every principal that the door lets in is held here, weakly, and renewed when something has changed. Whoever holds it
sees the new rights with the next question; whoever watches it is told. The files are looked at twice a second, and at
once when the hub itself has changed them.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections.abc import Callable

from headrace.security.passwords import SecurityError
from headrace.security.policy import Security
from headrace.security.principal import Principal
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.security")

LOOK_S = 0.5


class Rights:
    """Everyone who is signed in at one hub."""

    def __init__(self, security: Security, ended: Callable[[], None] = lambda: None) -> None:
        """`ended` is called for each sign-in that no longer holds, for metrics."""
        self._security = security
        self._ended = ended
        self._held: weakref.WeakKeyDictionary[Principal, None] = weakref.WeakKeyDictionary()  # in the order they came
        self._lock = threading.Lock()  # some are let in by threads of a server
        self._known = security.standing()
        self._watchers: dict[object, Callable[[], object]] = {}
        security.on_change = self.look

    def hold(self, principal: Principal) -> bool:
        """Keep a principal true from now on. False if they are not known any more: a password takes a while to check,
        and what was true before may have changed meanwhile."""
        with self._lock:
            self._held[principal] = None
        try:
            principal.renew()
        except SecurityError:
            principal.end()
        return principal.refusal is None

    def watch(self, changed: Callable[[], object]) -> Callable[[], None]:
        """Have `changed` called after every change, whomever it concerns. The result ends that."""
        key = object()
        self._watchers[key] = changed

        def unwatch() -> None:
            self._watchers.pop(key, None)

        return unwatch

    def look(self) -> None:
        """In the event loop: if users or authorities have changed, let everyone know whom it concerns."""
        known = self._security.standing()
        if known == self._known:
            return
        self._known = known
        with self._lock:
            held = list(self._held)
        for principal in held:
            self._renew(principal)
        for changed in list(self._watchers.values()):
            _tell(changed)

    def _renew(self, principal: Principal) -> None:
        held_before = principal.refusal is None
        try:
            watchers = principal.renew()
        except SecurityError:  # the log has been told; nobody is let in by a file that cannot be read
            watchers = principal.end()
        if held_before and principal.refusal is not None:
            self._ended()
            logger.info("a sign-in is no longer valid", extra=fields(user=principal.name, uses=len(watchers)))
        for changed in watchers:
            _tell(changed)

    async def follow(self) -> None:
        """Look from time to time, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:  # the next look may go better; without one, nobody would ever be turned away
                logger.exception("could not check the users for changes")


def _tell(changed: Callable[[], object]) -> None:
    try:
        changed()
    except Exception:
        logger.exception("could not notify a session that rights have changed")
