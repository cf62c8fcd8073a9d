"""Queries in real time, for tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hubs import ThreadHub
from support.until import wait_until

BATCH = "5 seconds"  # as short as Spark allows
WAIT_S = 300.0
Start = Callable[..., Any]


def results(hub: ThreadHub, name: str) -> list[bytes]:
    return hub.payloads(f"{name}=out") if hub.hub.streams(f"{name}=out") else []


def wait_for(hub: ThreadHub, name: str, count: int, query: Any = None) -> None:
    def there() -> bool:
        assert query is None or query.isActive, query.exception()
        return len(results(hub, name)) >= count

    wait_until(there, f"{count} results", WAIT_S)


def failure(query: Any) -> str:
    wait_until(lambda: not query.isActive, "the query to fail", WAIT_S)
    return str(query.exception())
