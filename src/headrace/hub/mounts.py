"""Where parts hang their web applications on the one HTTP port."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from typing import Any

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiApp = Callable[
    [AsgiScope, Callable[[], Awaitable[AsgiMessage]], Callable[[AsgiMessage], Awaitable[None]]], Awaitable[None]
]
Upgrade = Callable[[str, Mapping[str, str], asyncio.Transport, bytes], None]
"""Takes over a connection: the path, the headers, and what came behind them."""


class Mounts:
    """Prefix → ASGI application (HTTP and WebSocket). The longest matching prefix wins.

    A mounted application sees `root_path` set to its prefix, as ASGI says, and does its own authentication with
    `hub.admission`.
    """

    RESERVED = ("/api", "/metrics", "/health")

    def __init__(self) -> None:
        self._apps: dict[str, AsgiApp] = {}
        self.upgrades: dict[str, Upgrade] = {}
        """What a client can have a connection become, by the name in its `Upgrade` header; besides WebSockets."""
        self.traced: list[str] = []
        self.websocket_bytes_max = 0
        """The largest WebSocket message that an application takes."""

    def mount(self, prefix: str, app: AsgiApp, *, traced: bool = False, websocket_bytes_max: int = 0) -> None:
        """Serve `app` under `prefix`: `/x` also serves `/x/…`; the empty prefix serves what is left. To be
        called before HTTP listens."""
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ValueError(f"mount prefix {prefix!r} must begin with a slash and not end with one")
        if any(prefix == reserved or prefix.startswith(reserved + "/") for reserved in self.RESERVED):
            raise ValueError(f"mount prefix {prefix!r} belongs to the admin API")
        if prefix in self._apps:
            raise ValueError(f"mount prefix {prefix!r} is taken")
        self._apps[prefix] = app
        self.traced += [prefix] * traced
        self.websocket_bytes_max = max(self.websocket_bytes_max, websocket_bytes_max)

    def unmount(self, prefix: str) -> None:
        """Stop serving `prefix`."""
        self._apps.pop(prefix, None)

    def find(self, path: str) -> tuple[str, AsgiApp] | None:
        """The prefix and application for `path`."""
        for prefix in sorted(self._apps, key=len, reverse=True):
            if path == prefix or path.startswith(prefix + "/"):
                return prefix, self._apps[prefix]
        return None

    def __iter__(self) -> Iterator[str]:
        return iter(self._apps)
