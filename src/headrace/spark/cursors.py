"""A completed batch moves its cursor at once.

A listener moves the cursors that the sources name as soon as Spark reports a batch as done, which is when Spark has
noted it and will not read those records again: only then may retention take them. The source's own `commit` is a last
resort: Spark calls it a batch late, and never for the last one.
"""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.errors import HeadraceError
from headrace.spark.port import open_port

logger = logging.getLogger("headrace.spark")
WAIT_S = 30.0


def positions_to_move(end_offsets: list[str]) -> dict[tuple[str, str], dict[str, list[int]]]:
    """(hub, cursor) → stream → next indexes, from the end offsets that Spark reports."""
    found: dict[tuple[str, str], dict[str, list[int]]] = {}
    for text in end_offsets:
        try:
            offset = json.loads(text)
        except (TypeError, ValueError):
            continue
        if not isinstance(offset, dict) or not offset.get("cursor") or "streams" not in offset:
            continue
        where = found.setdefault((offset["hub"], offset["cursor"]), {})
        for stream, one in offset["streams"].items():
            where[stream] = one["next"]
    return found


class CursorMover(StreamingQueryListener):  # type: ignore[misc]
    """Moves the cursors that the sources of any query name."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._ports: dict[str, Any] = {}
        self._last: dict[tuple[str, str], dict[str, list[int]]] = {}
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryIdle(self, event: Any) -> None:
        """Nothing to do."""

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do: each batch was reported by itself."""

    def onQueryProgress(self, event: Any) -> None:
        self.moved([source.endOffset for source in event.progress.sources])

    def moved(self, end_offsets: list[str]) -> None:
        """Move the cursors to these offsets; an unreachable hub is said and not fatal: the next batch tries again."""
        for (hub, cursor), positions in positions_to_move(end_offsets).items():
            with self._lock:
                if self._last.get((hub, cursor)) == positions:
                    continue
                port = self._ports.setdefault(hub, open_port(hub, self._token, WAIT_S))
                try:
                    port.move_cursor(cursor, positions)
                    self._last[hub, cursor] = positions
                except HeadraceError as error:
                    logger.warning("cursor %s at %s was not moved: %s", cursor, hub, error)


_listening: dict[str, CursorMover] = {}


def _name(spark: Any) -> str:
    return str(spark.sparkContext.applicationId) if hasattr(spark, "sparkContext") else str(id(spark))


def listen(spark: Any, token: str | None = None) -> None:
    """Let completed batches of this session move cursors; once per session."""
    if _name(spark) not in _listening:
        mover = _listening[_name(spark)] = CursorMover(token)
        spark.streams.addListener(mover)


def stop_listening(spark: Any) -> None:
    """Before a session ends: the JVM would complain about a listener that is gone."""
    mover = _listening.pop(_name(spark), None)
    if mover is not None:
        spark.streams.removeListener(mover)
