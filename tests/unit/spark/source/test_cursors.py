"""Listening to the queries of a Spark Connect server, with Spark's own client and a server that is made up."""

from __future__ import annotations

import json
import queue
import threading
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyspark.sql.connect.proto as pb2
import pytest
from pyspark.sql.connect.streaming.query import StreamingQueryManager
from pyspark.sql.streaming.listener import StreamingQueryListener

from headrace.spark.source.cursors import listen, stop_listening

WAIT_S = 60.0


def result(**fields: Any) -> dict[str, Any]:
    return {"streaming_query_listener_events_result": pb2.StreamingQueryListenerEventsResult(**fields)}


def idle() -> dict[str, Any]:
    said = {"id": str(uuid4()), "runId": str(uuid4()), "timestamp": "2026-11-18T10:00:00.000Z"}
    kind = pb2.StreamingQueryEventType.QUERY_IDLE_EVENT
    return result(events=[pb2.StreamingQueryListenerEvent(event_type=kind, event_json=json.dumps(said))])


class FakeClient:
    """Speaks for a server: `results` is what it has to say, None ends it."""

    def __init__(self) -> None:
        self.results: queue.Queue[Any] = queue.Queue()

    def execute_command_as_iterator(self, command: Any) -> Any:
        yield result(listener_bus_listener_added=True)
        for one in iter(self.results.get, None):
            if isinstance(one, Exception):
                raise one
            yield one

    def execute_command(self, command: Any) -> None:
        """To remove the listener. There is always one more event on its way."""
        self.results.put(idle())
        self.results.put(None)


class Hears(StreamingQueryListener):
    def __init__(self, error: Exception | None = None) -> None:
        self.heard: queue.Queue[Any] = queue.Queue()
        self.error = error

    def onQueryStarted(self, event: Any) -> None: ...

    def onQueryProgress(self, event: Any) -> None: ...

    def onQueryTerminated(self, event: Any) -> None: ...

    def onQueryIdle(self, event: Any) -> None:
        self.heard.put(event)
        if self.error is not None:
            raise self.error


@pytest.fixture
def spark() -> Any:
    made = SimpleNamespace(client=FakeClient(), session_id=str(uuid4()))
    made.streams = StreamingQueryManager(made)
    return made


def test_stopping_waits_for_no_event_and_the_thread_keeps_no_program_alive(spark: Any) -> None:
    before = set(threading.enumerate())
    listen(spark)
    (thread,) = set(threading.enumerate()) - before
    assert thread.daemon
    stopping = threading.Thread(target=stop_listening, args=(spark,), daemon=True)
    stopping.start()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert not thread.is_alive()


def test_every_listener_hears_all_until_the_server_has_gone(spark: Any) -> None:
    before = set(threading.enumerate())
    listen(spark)
    (thread,) = set(threading.enumerate()) - before
    bad, good = Hears(ValueError("no")), Hears()
    spark.streams.addListener(bad)
    spark.streams.addListener(good)
    spark.client.results.put(idle())
    spark.client.results.put(idle())
    for listener in (bad, good):
        for _ in range(2):
            listener.heard.get(timeout=WAIT_S)
    spark.client.results.put(ConnectionError("gone"))
    thread.join(WAIT_S)
    assert not thread.is_alive()
