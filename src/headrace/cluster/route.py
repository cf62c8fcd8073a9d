"""Who owns the cell, as far as this hub knows, and a way to wait for news. It belongs to one event loop."""

from __future__ import annotations

import asyncio
from typing import NamedTuple


class Owner(NamedTuple):
    """A hub that answers for the cell."""

    hub: str
    """Its name (`cluster.hub`)."""
    life: str
    """New with each start of its process."""
    epoch: int
    addresses: dict[str, str]
    """Listener → host:port, as others reach it."""


class Route:
    """The way to the owner. A higher epoch wins, so that late news changes nothing."""

    def __init__(self, life: str) -> None:
        self.life = life
        """Of this hub."""
        self.owner: Owner | None = None
        self.epoch = 0
        self._news = asyncio.Event()

    def claimed(self, owner: Owner) -> None:
        """A hub has taken the cell and serves it."""
        if owner.epoch > self.epoch:
            self.epoch = owner.epoch
            self._set(owner)

    def left(self, epoch: int) -> None:
        """The owner of that epoch has gone."""
        if epoch >= self.epoch:
            self.epoch = epoch
            self._set(None)

    def _set(self, owner: Owner | None) -> None:
        self.owner = owner
        self._news.set()
        self._news = asyncio.Event()

    async def news(self, timeout_s: float) -> None:
        """Returns when something has changed, or the time is over."""
        waiting = asyncio.ensure_future(self._news.wait())
        await asyncio.wait((waiting,), timeout=timeout_s)
        waiting.cancel()
