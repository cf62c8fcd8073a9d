"""SQL at once: DuckDB over the hub's Arrow data, for the rights of whoever asks (`engine.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.serving.listener import Listener


async def start(hub: Hub) -> Listener:
    """Register the verbs; the server calls this while it starts. No process is started before the first query."""
    from headrace.serving.listener import Listener
    from headrace.sql.engine import Engine
    from headrace.sql.verbs import SqlVerbs

    SqlVerbs(hub).register()
    return Listener("", Engine.of(hub).close)
