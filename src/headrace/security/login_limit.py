"""Guessing is slow: whoever fails to log in too often is held back for a while, without a look at the next guess.

Failures are counted for each pair of address and user, and ten times as many for the address alone, so that neither one
password of many users nor many passwords of one can be tried quickly. A user who comes from elsewhere is not held back
by someone else's failures. An attempt counts as a failure until it has succeeded, so a burst gets no further than one
after the other.
"""

from __future__ import annotations

import ipaddress
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from headrace.errors import HeadraceError
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.security")

ADDRESS_FACTOR = 10
KEYS_MAX = 10_000
"""Addresses and pairs remembered; the ones heard of longest ago go first."""
IPV6_NETWORK_BITS = 64

Key = tuple[str, str | None]


class TooManyLogins(HeadraceError):
    """Too many failed logins from one address; it may try again in a while (`security.login_window_s`)."""

    code = "too-many-logins"
    status = 429

    def __init__(self, wait_s: float) -> None:
        self.wait_s = math.ceil(wait_s)
        super().__init__(f"too many failed logins from your address; try again in {self.wait_s} s")


class LoginLimiter:
    """The failures of one hub. Used in its event loop only."""

    def __init__(
        self,
        failures_max: int,
        window_s: float,
        held_back: Callable[[], None] = lambda: None,
        now_s: Callable[[], float] = lambda: time.monotonic(),
    ) -> None:
        self._failures_max = failures_max
        self._window_s = window_s
        self._held_back = held_back
        self._now_s = now_s
        self._failures: OrderedDict[Key, tuple[int, float]] = OrderedDict()
        """How many, and until when they count."""

    def begin(self, peer: str, user: str | None) -> None:
        """Before an attempt; raises when there were too many. `user` is None where there is no name, as with tokens."""
        keys = _keys(peer, user)
        now_s = self._now_s()
        for key in keys:
            count, until_s = self._failures.get(key, (0, 0.0))
            if until_s > now_s and count >= self._allowed(key):
                self._held_back()
                raise TooManyLogins(until_s - now_s)
        for key in keys:
            self._count(key, now_s)

    def succeeded(self, peer: str, user: str | None) -> None:
        """The attempt was none of a stranger's: it does not count, and neither do slips before it."""
        for key in _keys(peer, user):
            count, until_s = self._failures.get(key, (1, 0.0))
            if key[1] is not None or count <= 1:
                self._failures.pop(key, None)
            else:
                self._failures[key] = (count - 1, until_s)

    def _allowed(self, key: Key) -> int:
        return self._failures_max if key[1] is not None else ADDRESS_FACTOR * self._failures_max

    def _count(self, key: Key, now_s: float) -> None:
        count, until_s = self._failures.pop(key, (0, 0.0))
        if until_s <= now_s:
            count, until_s = 0, now_s + self._window_s
        self._failures[key] = (count + 1, until_s)
        if count + 1 == self._allowed(key):
            who = {} if key[1] is None else {"user": key[1]}
            logger.warning("logins held back", extra=fields(peer=key[0], failures=count + 1, **who))
        while len(self._failures) > KEYS_MAX:
            self._failures.popitem(last=False)


def _keys(peer: str, user: str | None) -> list[Key]:
    place = network_of(peer)
    return [(place, None)] if user is None else [(place, user), (place, None)]


def network_of(peer: str) -> str:
    """What counts as one address of a peer, with or without its port: an IPv4 address, or an IPv6 network, since a
    host has as many addresses there as it likes."""
    address = _parsed(peer) or _parsed(peer.rpartition(":")[0])
    if address is None:
        return peer
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, IPV6_NETWORK_BITS), strict=False))
    return str(address)


def _parsed(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return None
