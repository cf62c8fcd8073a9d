"""The published agent library, perper 0.8.0rc1, unmodified, in processes of its own."""

from __future__ import annotations

import importlib.metadata
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyignite import Client
from support.perper_agents import HubThread, agent
from support.until import wait_until

from headrace.log.batch import Batch

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared() -> Iterator[HubThread]:
    with HubThread() as hub:
        yield hub


def test_version() -> None:
    assert importlib.metadata.version("perper") == "0.8.0rc1"


CALLS = """
async def init():
    say("sum", await call("Add", 1, 2))
    say("pair", await call("Pair", "a"))
    say("nothing", await call("Nothing"))
    try:
        await call("Fail", "bang")
    except Exception as error:
        say("error", error)
    say("many", sorted(await asyncio.gather(*[call("Add", number, 0) for number in range(20)])) == list(range(20)))
    set_state("counter", 41)
    say("state", get_state("counter") + 1, get_state("absent", "default"))
    remove_state("counter")
    say("removed", get_state("counter"))
    other, result = await start_agent(AGENT)
    say("other", other.agent == AGENT, await call_agent(other, "WhoAmI") == other.instance)
    await destroy_agent(other)
    say("done")

def fail(text):
    raise ValueError(text)

AGENT = os.environ["AGENT"]
asyncio.run(perper.run(AGENT, {
    "Init": init, "Add": lambda a, b: a + b, "Pair": lambda a: (a, 2), "Nothing": lambda: None, "Fail": fail,
    "WhoAmI": lambda: get_agent().instance,
}, use_deploy_init=True))
"""


def test_calls_errors_and_states(shared: HubThread, tmp_path: Path) -> None:
    with agent(tmp_path, CALLS, shared.ignite, shared.fabric, AGENT=f"calls{uuid.uuid4().hex}") as running:
        running.wait_for("done")
        assert running.values("sum") == ["3"]
        assert running.values("pair") == ["('a', 2)"]
        assert running.values("nothing") == ["None"]
        assert running.values("error") == ["Execution failed with error: bang"]
        assert running.values("many") == ["True"]
        assert running.values("state") == ["42 default"]
        assert running.values("removed") == ["None"]
        assert running.values("other") == ["True True"]
    # every call removed its execution, and the instance was removed with its agent
    wait_until(lambda: shared.call(lambda: shared.hub.table_size("executions")) == 0)


STREAMS = """
from pyignite import GenericObjectMeta
from pyignite.datatypes import IntObject, String

async def read(stream, count):
    found = []
    async for item in enumerate_stream(stream):
        found.append(item)
        if len(found) == count:
            break
    return found

async def init():
    packed = start_stream("Count", 6, packed=True)
    say("packed", packed.stream, await read(replay_stream(packed), 6))
    ticks = start_stream("Ticks", 4)
    say("ticks", ticks.stream, await read(ticks, 4))
    kept = start_stream("Count", 5, packed=True, ephemeral=False)
    say("kept", kept.stream, await read(replay_stream(kept), 5))
    say("again", kept.stream, await read(replay_stream(kept), 5))
    say("from 3", kept.stream, await read(replay_stream(kept, replay_from=3), 2))
    action = start_stream("Note", action=True)
    say("action", action.stream, await call("Noted"))
    blank = create_blank_stream(packed=True)
    for key in range(3):
        fabric_service.get().write_stream_item(blank.stream, key, {"key": key}["key"] * 10)
    say("blank", blank.stream, await read(replay_stream(blank), 3))
    declared, start = declare_stream("Count", packed=True)
    start(2)
    say("declared", declared.stream, await read(replay_stream(declared), 2))
    mapped = start_stream("Map", replay_stream(kept), packed=True)
    say("mapped", mapped.stream, await read(replay_stream(mapped), 5))
    fields = {"name": "java.lang.String", "weight": "java.lang.Integer"}
    indexed = create_blank_stream(packed=True, ephemeral=False, index=("Fruit", fields))
    for key, name in enumerate(("pear", "fig", "plum")):
        fabric_service.get().write_stream_item(indexed.stream, key, Fruit(name, key * 10))
    found = query_stream(indexed, "Fruit", "WHERE weight >= ? ORDER BY _KEY DESC", 10)
    say("queried", indexed.stream, [(item.name, item.weight) async for item in found])
    say("done")

class Fruit(metaclass=GenericObjectMeta, schema={"name": String, "weight": IntObject}):
    pass

async def count(limit):
    for number in range(limit):
        yield (number, number)

async def ticks(limit):
    for number in range(limit):
        yield f"tick {number}"
        await asyncio.sleep(0.005)

noted = asyncio.Event()

async def note():
    noted.set()
    yield 1

async def was_noted():
    await noted.wait()
    return "ran without a reader"

async def map_stream(stream):
    key = 0
    async for item in enumerate_stream(stream):
        yield (key, item * item)
        key += 1

AGENT = os.environ["AGENT"]
asyncio.run(perper.run(AGENT, {
    "Init": init, "Count": count, "Ticks": ticks, "Note": note, "Noted": was_noted, "Map": map_stream,
}, use_deploy_init=True))
"""


def test_streams(shared: HubThread, tmp_path: Path) -> None:
    with agent(tmp_path, STREAMS, shared.ignite, shared.fabric, AGENT=f"streams{uuid.uuid4().hex}") as running:
        running.wait_for("done")
        name_of, items_of = {}, {}
        labels = ("packed", "ticks", "kept", "again", "from 3", "action", "blank", "declared", "mapped", "queried")
        for label in labels:
            name_of[label], _, items_of[label] = running.values(label)[0].partition(" ")
        assert items_of["packed"] == str(list(range(6)))
        assert items_of["ticks"] == str([f"tick {number}" for number in range(4)])
        assert items_of["kept"] == items_of["again"] == str(list(range(5)))
        assert items_of["from 3"] == "[3, 4]"
        assert items_of["action"] == "ran without a reader"
        assert items_of["blank"] == "[0, 10, 20]"
        assert items_of["declared"] == "[0, 1]"
        assert items_of["mapped"] == "[0, 1, 4, 9, 16]"
        assert items_of["queried"] == "[('plum', 20), ('fig', 10)]"

    def size(label: str) -> int:
        bounds = shared.call(lambda: shared.hub.bounds(name_of[label]))
        return bounds.next - bounds.first

    # an ephemeral stream is empty once its last listener left; a persistent one keeps all of it
    wait_until(lambda: size("packed") == 0)
    wait_until(lambda: size("ticks") == 0)
    assert size("kept") == 5
    ids = shared.run(shared.hub.read(name_of["kept"], 0)).column("id").to_pylist()
    assert ids == [0, 1, 2, 3, 4]


LISTEN = """
async def init():
    stream = perper.model.PerperStream(stream=os.environ["STREAM"], startIndex=0, stride=1, localToData=False)
    found = []
    items = enumerate_stream_with_keys(stream)
    async for key, item in items:
        found.append((key, bytes(item)))
        say("got", key)
        if len(found) == 4:
            break
    await items.aclose()
    say("found", found)

asyncio.run(perper.run("listener", {"Init": init}, use_deploy_init=True))
"""


def test_a_stream_of_another_protocol_is_listened_to_as_bytes(shared: HubThread, tmp_path: Path) -> None:
    name = f"orders-{uuid.uuid4()}"

    async def write(*payloads: bytes) -> None:
        await shared.hub.create_stream(name)
        await shared.hub.append(name, Batch.of(payloads))

    shared.run(write(b"a", b"b"))
    with agent(tmp_path, LISTEN, shared.ignite, shared.fabric, STREAM=name) as running:
        running.wait_for("got 1")
        listening = shared.call(lambda: [(c.name.startswith(name), c.index) for c in shared.hub.cursors(stream=name)])
        assert listening == [(True, 1)]
        shared.run(write(b"c", b"d"))
        assert running.wait_for("found") == f"found {[(0, b'a'), (1, b'b'), (2, b'c'), (3, b'd')]}"
    wait_until(lambda: not shared.call(lambda: shared.hub.cursors(stream=name)))


WORKER = """
def work(number):
    say("worked", number)
    return os.environ["WORKER"]

async def slow(seconds):
    say("slow begins")
    await asyncio.sleep(seconds)
    return os.environ["WORKER"]

say("ready")
asyncio.run(perper.run(os.environ["AGENT"], {"Work": work, "Slow": slow}))
"""
CALLER = """
async def main():
    perper.run_notebook(agent="caller", instance="caller-1")
    worker = perper.model.PerperAgent(agent=os.environ["AGENT"], instance="any")
    say("calling")
    if os.environ["WHAT"] == "work":
        answers = await asyncio.gather(*[call_agent(worker, "Work", number) for number in range(60)])
        say("answers", len(answers), " ".join(sorted(set(answers))))
    else:
        say("slow", await call_agent(worker, "Slow", float(os.environ["SECONDS"])))

asyncio.run(main())
"""


def test_several_workers_share_the_calls(shared: HubThread, tmp_path: Path) -> None:
    name = f"shared{uuid.uuid4().hex}"
    where = (tmp_path, WORKER, shared.ignite, shared.fabric)
    with agent(*where, WORKER="one", AGENT=name) as one, agent(*where, WORKER="two", AGENT=name) as two:
        one.wait_for("ready")
        two.wait_for("ready")
        wait_until(
            lambda: sum(s.details["calls"].get(RESERVED, 0) > 0 for s in shared.hub.sessions.list("fabric")) == 2
        )
        with agent(tmp_path, CALLER, shared.ignite, shared.fabric, AGENT=name, WHAT="work") as caller:
            assert caller.wait_for("answers") == "answers 60 one two"
        done = sorted(int(number) for worker in (one, two) for number in worker.values("worked"))
        assert done == list(range(60))  # each exactly once


RESERVED = "/perper.Fabric/ReservedExecutions"


def test_a_killed_worker_gives_its_execution_back(shared: HubThread, tmp_path: Path) -> None:
    name = f"killed{uuid.uuid4().hex}"
    where = (tmp_path, WORKER, shared.ignite, shared.fabric)
    asked = {"AGENT": name, "WHAT": "slow", "SECONDS": "1.5"}
    with (
        agent(*where, WORKER="first", AGENT=name) as first,
        agent(tmp_path, CALLER, shared.ignite, shared.fabric, **asked) as caller,
    ):
        first.wait_for("slow begins")
        with agent(*where, WORKER="second", AGENT=name) as second:
            second.wait_for("ready")
            first.process.kill()  # SIGKILL, in the middle of the call
            second.wait_for("slow begins")
            assert caller.wait_for("slow") == "slow second"
            assert second.values("slow begins") == [""]


def test_the_hub_shows_what_agents_see(shared: HubThread, tmp_path: Path) -> None:
    """State written by an agent is read by a plain Ignite client: the cache named by the instance."""
    source = """
    async def init():
        set_state("answer", 42)
        say("instance", get_agent().instance)

    asyncio.run(perper.run("stateful", {"Init": init}, use_deploy_init=True))
    """
    with agent(tmp_path, source, shared.ignite, shared.fabric) as running:
        instance = running.wait_for("instance").split()[1]
    client = Client()
    with client.connect("127.0.0.1", shared.ignite_port):
        assert client.get_cache(instance).get("answer") == 42
