"""A real `headrace up` under load, killed with SIGKILL and started again: what was acknowledged is there."""

from __future__ import annotations

import gc
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import pytest
from perper.protocol.cache import StreamListener
from pyignite import Client, GenericObjectMeta
from pyignite.datatypes import IntObject, String
from pyignite.datatypes.prop_codes import PROP_NAME, PROP_QUERY_ENTITIES
from support.forked_hub import ForkedHub
from support.perper_agents import agent
from support.until import DEADLINE_S, wait_until

from headrace.config.address import split_address

# pyignite leaves its socket to the garbage collector when the server dies under it.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


class Thing(
    metaclass=GenericObjectMeta, type_name="Thing", schema=OrderedDict([("name", String), ("number", IntObject)])
):
    pass


@pytest.fixture
def up(tmp_path: Path) -> Iterator[ForkedHub]:
    with ForkedHub(tmp_path, only=("ignite", "fabric")) as hub:
        yield hub


def port(up: ForkedHub) -> int:
    return split_address(up.addresses["ignite"])[1]


def put_until_it_breaks(port: int, name: str, acknowledged: list[int], begun: threading.Event) -> None:
    client = Client(timeout=60)
    with client.connect("127.0.0.1", port):
        cache = client.get_cache(name)
        for number in range(1_000_000):
            try:
                if not cache.put_if_absent(number, f"value {number}"):
                    raise AssertionError(f"{number} was there already")
            except OSError:
                return
            acknowledged.append(number)
            if number == 50:
                begun.set()


def test_nothing_acknowledged_is_lost(up: ForkedHub) -> None:
    client = Client()
    with client.connect("127.0.0.1", port(up)):
        client.create_cache("table")
        client.create_cache({PROP_NAME: "stream", PROP_QUERY_ENTITIES: []})
        client.get_cache("table").put("thing", Thing(name="kept", number=7))
    acknowledged: dict[str, list[int]] = {"table": [], "stream": []}
    begun = {name: threading.Event() for name in acknowledged}
    writers = [
        threading.Thread(target=put_until_it_breaks, args=(port(up), name, acknowledged[name], begun[name]))
        for name in acknowledged
    ]
    for writer in writers:
        writer.start()
    for event in begun.values():
        assert event.wait(DEADLINE_S)
    up.kill()
    for writer in writers:
        writer.join(DEADLINE_S)
        assert not writer.is_alive()
    gc.collect()
    up.start()
    fresh = Client()
    with fresh.connect("127.0.0.1", port(up)):
        assert {"executions", "stream-listeners", "table", "stream"} <= set(fresh.get_cache_names())
        thing = fresh.get_cache("table").get("thing")  # by a client that never saw the type
        assert (thing.name, thing.number) == ("kept", 7)
        for name, numbers in acknowledged.items():
            cache = fresh.get_cache(name)
            found = cache.get_all(numbers)
            assert found == {number: f"value {number}" for number in numbers}
            # at most the one put that was under way is there beyond those
            assert cache.get_size() - len(numbers) - (name == "table") in (0, 1)
            assert cache.put_if_absent(numbers[-1], "again") is False


def test_streams_that_everybody_has_left_are_emptied(up: ForkedHub) -> None:
    """Killed right after the last listener left: before, during or after the clean-up, the streams end up empty."""
    names = [f"left-{number}" for number in range(20)]
    client = Client()
    with client.connect("127.0.0.1", port(up)):
        listeners = client.get_or_create_cache("stream-listeners")
        for name in (*names, "listened", "never"):
            client.create_cache({PROP_NAME: name, PROP_QUERY_ENTITIES: []})
            cache = client.get_cache(name)
            for key in range(3):
                cache.put_if_absent(key, f"item {key}")
            if name != "never":
                listeners.put(f"{name}-listener", StreamListener(stream=name, position=-(2**63)))
        listeners.remove_keys([f"{name}-listener" for name in names])
        up.kill()
    gc.collect()
    up.start()
    fresh = Client()
    with fresh.connect("127.0.0.1", port(up)):
        wait_until(lambda: not any(fresh.get_cache(name).get_size() for name in names))
        for name in ("listened", "never"):
            assert dict(fresh.get_cache(name).scan()) == {key: f"item {key}" for key in range(3)}


WORKER = """
def work(number):
    say("worked", number)
    return number + 1

say("ready")
asyncio.run(perper.run("survivor", {"Work": work}))
"""


def test_executions_streams_and_listeners_survive(up: ForkedHub, tmp_path: Path) -> None:
    """Unfinished executions are offered again after a restart, finished ones are not."""
    asking = """
    import asyncio, sys
    from perper.application.connection import establish_connection
    async def main():
        fabric = establish_connection()
        for number in (1, 2):
            fabric.create_execution(f"Work-{number}", "survivor", "any", "Work", [number])
        fabric.write_execution_result("Work-2", ["done before"])
        fabric.create_stream("kept")
        fabric.set_stream_listener_position("kept-persist", "kept", fabric.LISTENER_PERSIST_ALL)
        for key in range(4):
            fabric.write_stream_item("kept", key, f"item {key}")
        say("asked")
        await asyncio.sleep(3600)
    asyncio.run(main())
    """
    with agent(tmp_path, asking, up.addresses["ignite"], up.addresses["fabric"]) as asker:
        asker.wait_for("asked")
        up.kill()
    up.start()
    reading = """
    async def main():
        perper.run_notebook(agent="reader", instance="reader-1")
        fabric = fabric_service.get()
        await fabric.wait_execution_finished("Work-1")
        say("results", fabric.read_execution_result("Work-1"), fabric.read_execution_result("Work-2"))
        await fabric.wait_listener_attached("kept")
        stream = perper.model.PerperStream(stream="kept", startIndex=0, stride=1, localToData=False)
        found = []
        async for item in enumerate_stream(stream):
            found.append(item)
            if len(found) == 4:
                break
        say("found", found)
    asyncio.run(main())
    """
    with (
        agent(tmp_path, WORKER, up.addresses["ignite"], up.addresses["fabric"]) as worker,
        agent(tmp_path, reading, up.addresses["ignite"], up.addresses["fabric"]) as reader,
    ):
        assert reader.wait_for("results") == "results [2] ['done before']"
        assert reader.wait_for("found") == f"found {[f'item {key}' for key in range(4)]}"
        assert worker.values("worked") == ["1"]
