"""Queries in real time, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hubs import ThreadHub
from support.until import wait_until

BATCH = "5 seconds"  # as short as Spark allows
WAIT_S = 300.0
Start = Callable[..., Any]


def results(hub: ThreadHub, name: str, to: str = "") -> list[bytes]:
    to = to or f"{name}=out"
    return hub.payloads(to) if hub.hub.streams(to) else []


def wait_for(hub: ThreadHub, name: str, count: int, query: Any = None, to: str = "") -> None:
    def there() -> bool:
        assert query is None or query.isActive, query.exception()
        return len(results(hub, name, to)) >= count

    wait_until(there, f"{count} results", WAIT_S)


def failure(query: Any) -> str:
    wait_until(lambda: not query.isActive, "the query to fail", WAIT_S)
    return str(query.exception())
