"""Where parts hang their web applications on the one HTTP port."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from typing import Any

AsgiScope = MutableMapping[str, Any]
AsgiMessage = MutableMapping[str, Any]
AsgiApp = Callable[
    [AsgiScope, Callable[[], Awaitable[AsgiMessage]], Callable[[AsgiMessage], Awaitable[None]]], Awaitable[None]
]


class Mounts:
    """Prefix → ASGI application (HTTP and WebSocket). The longest matching prefix wins.

    A mounted application sees `root_path` set to its prefix, as ASGI says, and does its own authentication with
    `hub.security.from_authorization`.
    """

    RESERVED = ("/api", "/metrics", "/health")

    def __init__(self) -> None:
        self._apps: dict[str, AsgiApp] = {}

    def mount(self, prefix: str, app: AsgiApp) -> None:
        """Serve `app` under `prefix`: `/futoin` also serves `/futoin/…`; the empty prefix serves what is left."""
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ValueError(f"mount prefix {prefix!r} must begin with a slash and not end with one")
        if any(prefix == reserved or prefix.startswith(reserved + "/") for reserved in self.RESERVED):
            raise ValueError(f"mount prefix {prefix!r} belongs to the admin API")
        if prefix in self._apps:
            raise ValueError(f"mount prefix {prefix!r} is taken")
        self._apps[prefix] = app

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
