"""Headrace: one durable log, five published stream protocols, Spark built in.

import headrace

with headrace.connect("127.0.0.1:7070") as hub:
    hub.create("orders")
    hub.append("orders", {"fruit": "pear", "count": 3})
    for record in hub.follow("orders"):
        print(record.index, record.json())
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import (
        Appended,
        AsyncClient,
        AsyncReader,
        AsyncWriter,
        Client,
        Reader,
        Record,
        Writer,
        connect,
        connect_async,
    )
    from headrace.errors import HeadraceError
    from headrace.log.ops import StreamOptions

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "AsyncClient",
    "AsyncReader",
    "AsyncWriter",
    "Client",
    "HeadraceError",
    "Reader",
    "Record",
    "StreamOptions",
    "Writer",
    "__version__",
    "connect",
    "connect_async",
]

# Name → module. Arrow takes a while to import, so each comes when it is first used: `headrace --help` stays quick.
_HOMES = {
    "HeadraceError": "headrace.errors",
    "StreamOptions": "headrace.log.ops",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    import importlib

    found = getattr(importlib.import_module(_HOMES.get(name, "headrace.client")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
