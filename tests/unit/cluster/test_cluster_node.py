"""Who is chosen, who waits, who is told: with Kafka in memory."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.until import until

from headrace.cluster.introductions import LISTENER
from headrace.cluster.node import CELL, Node, advertised
from headrace.cluster.notes import CellNote, HubNote, Notes
from headrace.cluster.status import look
from headrace.config import Cluster, Config, Log
from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.topics import cells_topic, create_missing
from headrace.testing.kafka import FakeKafka

ADDRESSES = {"http": "127.0.0.1:1", "flight": "127.0.0.1:2"}
OTHER = {"http": "127.0.0.1:3", "flight": "127.0.0.1:4"}


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    create_missing(made, KafkaSettings())
    return made


def new_node(kafka: FakeKafka, name: str, **settings: object) -> Node:
    return Node(Config(cluster=Cluster(hub=name), log=Log(kafka=KafkaSettings(**settings))), kafka)


async def test_one_is_chosen_and_the_next_when_it_leaves(kafka: FakeKafka) -> None:
    first, second = new_node(kafka, "a"), new_node(kafka, "b")
    await first.start(ADDRESSES)
    await until(lambda: first.turn.is_mine)
    await second.start(OTHER)
    heard: list[str] = []
    second.on_owner = lambda owner: heard.append(owner.hub)
    assert await first.serves(epoch=1) >= 0
    await until(lambda: heard == ["a"])
    assert second.route.owner is not None
    assert second.route.owner.addresses == ADDRESSES
    assert not second.turn.is_mine
    await first.close()
    await until(lambda: second.turn.is_mine)
    await second.serves(epoch=2)
    assert second.route.owner.life == second.life
    await second.close()


async def test_who_is_chosen_while_the_owner_leaves_waits_for_its_leave(kafka: FakeKafka) -> None:
    first, second = new_node(kafka, "a"), new_node(kafka, "b")
    await first.start(ADDRESSES)
    await until(lambda: first.turn.is_mine)
    await second.start(OTHER)
    await first.serves(epoch=1)
    second.turn.epoch, second.turn.has_left = 1, False  # as it would have read it
    await first.leaves()
    await until(lambda: second.chosen_at is not None)
    await until(lambda: second.route.owner is None)
    assert not second.turn.is_mine
    second.turn.has_left = True
    await until(lambda: second.turn.is_mine)
    await first.close()
    await second.close()


async def test_a_leaving_owner_that_never_leaves_is_not_waited_for_for_ever(kafka: FakeKafka) -> None:
    node = new_node(kafka, "b")
    node.notes.cells[CELL] = CellNote(CELL, 1, "a", "a-1", ADDRESSES, 0, is_leaving=True)
    node.turn.epoch, node.turn.has_left = 1, False
    now = asyncio.get_running_loop().time()
    assert node._must_wait(now)
    assert not node._must_wait(now - 1000)
    node.turn.epoch = 2
    assert not node._must_wait(now)


async def test_who_is_no_longer_chosen_does_not_claim(kafka: FakeKafka) -> None:
    node = new_node(kafka, "a")
    await node.start(ADDRESSES)
    await until(lambda: node.turn.is_mine)
    kafka.groups["headrace.hubs"][0].close()
    await until(lambda: not node.turn.is_mine)
    await node.close()
    assert node.turn.is_stopped


async def test_an_earlier_life_of_this_hub_is_no_owner(kafka: FakeKafka) -> None:
    """Who is started again at the same addresses must not pass connections on to itself."""
    first = new_node(kafka, "a")
    first.addresses = ADDRESSES
    await first.serves(epoch=3)
    again = new_node(kafka, "a")
    await again.start(ADDRESSES)
    await until(lambda: again.route.epoch == 3)
    assert again.route.owner is None
    other = new_node(kafka, "b")
    await other.start(OTHER)
    await until(lambda: other.route.owner is not None)
    for node in (first, again, other):
        await node.close()


async def test_status_tells_owner_follower_and_gone(kafka: FakeKafka) -> None:
    first, second = new_node(kafka, "a"), new_node(kafka, "b")
    await first.start(ADDRESSES)
    await until(lambda: first.turn.is_mine)
    await first.serves(epoch=7)
    second.follows = True  # as `Standby` would say
    await second.start(OTHER)
    notes = second.notes
    notes.publish(HubNote("c", "c-1", ADDRESSES, [], 0))
    notes.publish(HubNote("a", "a-0", ADDRESSES, [], 0))  # an earlier life of a hub that runs
    await until(lambda: {"a", "b", "c"} <= {note.hub for note in list(notes.hubs.values())} and CELL in notes.cells)
    await until(lambda: any(note.life == first.life for note in list(notes.hubs.values())))
    found = await asyncio.to_thread(look, kafka, KafkaSettings(), notes, "b", {"epoch": 7.0})
    assert [(hub.hub, hub.role) for hub in found.hubs] == [("a", "owner"), ("b", "follower"), ("c", "gone")]
    assert (found.asked, len(found.brokers)) == ("b", 3)
    (cell,) = found.cells
    assert (cell.cell, cell.epoch, cell.owner) == (CELL, 7, "a")
    kafka.groups["headrace.hubs"][0].close()  # the owner says nothing any more
    found = await asyncio.to_thread(look, kafka, KafkaSettings(), notes)
    assert found.cells[0].owner == ""
    await first.close()
    await second.close()
    kept = Notes(kafka, KafkaSettings(), lambda note: None)
    kept.read_all()
    assert set(kept.hubs) == {"c-1", "a-0"}, "who stops takes its note away"
    kept.close()


async def test_notes_that_nobody_understands_are_passed_over(kafka: FakeKafka) -> None:
    producer = kafka.producer(cells_topic(KafkaSettings()))
    for key, value in [
        (b"cell/0", b"\xc1"),
        (b"cell/0", msgspec.msgpack.encode(["x"])),
        (None, b"x"),
        (b"else/1", b""),
    ]:
        producer.send(0, value, key=key)
    seen: list[object] = []
    notes = Notes(kafka, KafkaSettings(), seen.append)
    notes.read_all()
    assert (notes.cells, notes.hubs, seen) == ({}, {}, [])
    notes.start()
    notes.publish(CellNote(0, 1, "a", "a-1", {}, 0))
    await until(lambda: seen)
    notes.close()


async def test_a_cluster_that_is_away_for_a_while_is_joined_later(kafka: FakeKafka) -> None:
    node = new_node(kafka, "a")
    await node.start(ADDRESSES)
    kafka.is_down = True
    await until(lambda: node.turn.is_mine)
    kafka.is_down = False
    await until(lambda: node.notes.hubs)
    await node.close()


def test_addresses_are_those_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "box")
    bound = {"http": "0.0.0.0:80", "flight": "10.0.0.1:70", "ockam": "[::]:40"}
    given = {"flight": "hub.example:7070", "absent": "x:1"}
    assert advertised(bound, given) == {"http": "box:80", "flight": "hub.example:7070", "ockam": "box:40"}
    door = {"http": "0.0.0.0:80", LISTENER: "0.0.0.0:5"}
    assert advertised(door, {})[LISTENER] == "box:5"
    assert advertised(door, {"http": "10.0.0.1:8080"})[LISTENER] == "10.0.0.1:5", "where the listeners are"
    assert advertised(door, {"http": "10.0.0.1:8080", LISTENER: "x:6"})[LISTENER] == "x:6"
