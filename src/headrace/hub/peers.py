"""Who is behind a connection that another hub of the cluster has passed on.

To the hub that owns the log such a connection comes from the hub that passed it on. That hub has told beforehand whom
it brings (`headrace.cluster.introductions`). Listeners ask here for the address that counts: where wrong passwords are
counted, what `headrace session ls` shows, what stands in the log.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from headrace.config.address import join_address, split_address

MAPPED = "::ffff:"
"""How IPv6 writes an IPv4 address: the same machine."""

REDIRECT_AGAIN_S = 60.0
REDIRECTED_MAX = 10_000
"""Clients that are remembered to have been sent elsewhere."""


class Introduced(NamedTuple):
    """A client that came through another hub."""

    client: str
    """Its address, as that hub sees it."""
    hub: str
    """The name of that hub."""


def address_from(name: tuple[str, int] | tuple[str, int, int, int]) -> str:
    """A socket's name as an address, the same one by IPv4 and by IPv6."""
    return join_address(str(name[0]).removeprefix(MAPPED), name[1])


class Peers:
    """Those that were introduced, by the address from which their connections come. Asked from any thread."""

    def __init__(self, now_s: Callable[[], float] | None = None) -> None:
        self.own: dict[str, str] = {}
        """Listener → address of this hub for clients that are to come straight here (`cluster.forward`)."""
        self._introduced: dict[str, Introduced] = {}
        self._redirected: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._now_s = now_s or time.monotonic

    def introduce(self, near: str, introduced: Introduced) -> None:
        """A connection from `near` is, or will be, that client's."""
        self._introduced[near] = introduced

    def forget(self, near: str) -> None:
        """The connection from there has ended."""
        self._introduced.pop(near, None)

    def client(self, near: str) -> str:
        """The address of whoever is behind a connection from `near`: that itself, if no hub stands between."""
        found = self._introduced.get(near)
        return near if found is None else found.client

    def through(self, near: str) -> str | None:
        """The name of the hub between, if there is one."""
        found = self._introduced.get(near)
        return None if found is None else found.hub

    def better(self, near: str, listener: str) -> str | None:
        """The address at which whoever comes from `near` would reach this hub without another between."""
        return self.own.get(listener) if near in self._introduced else None

    def redirect(self, near: str, listener: str) -> str | None:
        """The same for a protocol that ends the connection with it: once a minute for a client's machine, since that
        address may lead through another hub again."""
        address = self.better(near, listener)
        if address is None:
            return None
        client, now_s = (listener, split_address(self.client(near))[0]), self._now_s()
        if now_s < self._redirected.get(client, 0.0):
            return None
        self._redirected[client] = now_s + REDIRECT_AGAIN_S
        self._redirected.move_to_end(client)
        if len(self._redirected) > REDIRECTED_MAX:
            self._redirected.popitem(last=False)
        return address

    def __len__(self) -> int:
        return len(self._introduced)
