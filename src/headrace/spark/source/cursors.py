"""A completed batch moves its cursor at once.

A listener moves the cursors that the sources name as soon as Spark reports a batch as done, which is when Spark has
noted it and will not read those records again: only then may retention take them. The source's own `commit` is a last
resort: Spark calls it a batch late, and never for the last one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from headrace.errors import HeadraceError
from headrace.spark.hub_client import Access, access_to, open_port
from headrace.spark.source.offsets import NextIndexes, cursor_positions

logger = logging.getLogger("headrace.spark")
WAIT_S = 30.0


class CursorMover(StreamingQueryListener):  # type: ignore[misc]
    """Moves the cursors that the sources of any query name."""

    def __init__(self, spark: Any = None) -> None:
        self._access: dict[str, Access] = {}
        self._spark = spark
        self._ports: dict[str, Any] = {}
        self._last: dict[tuple[str, str], NextIndexes] = {}
        self._lock = threading.Lock()

    def onQueryStarted(self, event: Any) -> None:
        """A token that only a source was given is needed here too."""
        for access in accesses_of(self._spark, str(event.id)):
            self.know(access)

    def know(self, access: Access) -> None:
        """From now on, go to that hub in this way."""
        with self._lock:
            if self._access.get(access.address) != access:
                self._access[access.address] = access
                self._ports.pop(access.address, None)

    def onQueryTerminated(self, event: Any) -> None:
        """Nothing to do: each batch was reported by itself."""

    def onQueryProgress(self, event: Any) -> None:
        self.moved([source.endOffset for source in event.progress.sources])

    def moved(self, end_offsets: list[str]) -> None:
        """Move the cursors to these offsets; an unreachable hub is said and not fatal: the next batch tries again."""
        for (hub, cursor), positions in cursor_positions(end_offsets).items():
            with self._lock:
                if self._last.get((hub, cursor)) == positions:
                    continue
                port = self._ports.setdefault(hub, open_port(self._access.get(hub, hub), WAIT_S))
                try:
                    port.move_cursor(cursor, positions)
                    self._last[hub, cursor] = positions
                except HeadraceError as error:
                    logger.warning("cursor %s at %s was not moved: %s", cursor, hub, error)


def accesses_of(spark: Any, query_id: str) -> list[Access]:
    """How the sources of a query reach their hubs, from their options; a token is never part of an offset.

    Only Spark itself knows the options of its sources, and not where a session is remote (Connect): there it takes
    `session(token=…)` or HEADRACE_TOKEN.
    """
    accesses = []
    try:
        plan = spark.streams.get(query_id)._jsq.streamingQuery().analyzedPlan()
        leaves = plan.collectLeaves()
        for number in range(leaves.size()):
            options = leaves.apply(number).extraOptions()
            hub, token, ca = (options.get(name) for name in ("hub", "token", "ca"))
            if token or ca:
                accesses.append(access_to(hub, token, ca))
    except Exception as error:  # whatever another version of Spark calls these things
        logger.debug("the options of query %s are not known: %s", query_id, error)
    return accesses


_listening: dict[str, CursorMover] = {}


def is_remote(spark: Any) -> bool:
    """Whether Spark runs elsewhere, and this process only speaks to it (Spark Connect)."""
    return not hasattr(spark, "sparkContext")


def session_name(spark: Any) -> str:
    """What tells one session of this process from another."""
    return str(spark.session_id if is_remote(spark) else spark.sparkContext.applicationId)


def listen(spark: Any, access: Access | None = None) -> CursorMover:
    """Let completed batches of this session move cursors; once per session."""
    name = session_name(spark)
    if name not in _listening:
        mover = _listening[name] = CursorMover(spark)
        if is_remote(spark):
            _listen_remotely(spark, mover)
        else:
            spark.streams.addListener(mover)
    if access is not None:
        _listening[name].know(access)
    return _listening[name]


def _listen_remotely(spark: Any, mover: CursorMover) -> None:
    """The client of Spark Connect takes events from the server in a thread of its own, with two faults.

    A program does not end while that thread runs; one that is started by a daemon is a daemon too, and does not keep
    it. And for each event the thread needs the lock that `removeListener` holds while it waits for the thread to end:
    with an event on its way, both wait for ever. So the thread hands them out without it.
    """
    bus = spark.streams._sqlb
    bus._query_event_handler = partial(_hand_out, bus)
    adding = threading.Thread(target=spark.streams.addListener, args=(mover,), daemon=True)
    adding.start()
    adding.join()


def _hand_out(bus: Any, results: Iterable[Any]) -> None:
    """What the server says of queries, until it says no more, to all listeners."""
    methods = {
        QueryProgressEvent: "onQueryProgress",
        QueryIdleEvent: "onQueryIdle",
        QueryTerminatedEvent: "onQueryTerminated",
    }
    try:
        for result in results:
            for message in result["streaming_query_listener_events_result"].events:
                event = bus.deserialize(message)
                for listener in list(bus._listener_bus):
                    _call(getattr(listener, methods[type(event)]), event)
    except Exception as error:  # the session ends, the program does, or the server has gone
        logger.info("no more progress events from queries: %s; sources move their cursors one batch late", error)


def _call(method: Callable[[Any], None], event: Any) -> None:
    try:
        method(event)
    except Exception as error:  # one listener does not stop the others
        logger.warning("a listener failed: %s", error)


def stop_listening(spark: Any) -> None:
    """Before a session ends: the JVM would complain about a listener that is gone."""
    mover = _listening.pop(session_name(spark), None)
    if mover is not None:
        spark.streams.removeListener(mover)
