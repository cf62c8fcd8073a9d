"""How many hubs read the journal (`cluster.standbys`), and which: whole hubs in one process, with Kafka in memory."""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from support.fake_cluster import Member
from support.until import until

from headrace.cluster import node
from headrace.cluster.notes import HubNote
from headrace.cluster.ranks import KEEPS_UP_BYTES, should_follow
from headrace.cluster.status import look
from headrace.config.sections import Kafka as KafkaSettings
from headrace.log.kafka.topics import create_missing
from headrace.testing.kafka import FakeKafka

Start = Callable[..., Awaitable[Member]]


def note(life: str, lag_bytes: int = 0, *, follows: bool = True) -> HubNote:
    return HubNote(life, life, {}, [], 0, lag_bytes, follows=follows)


def follows_of(members: str, owner: str, standbys: int, notes: dict[str, HubNote], following: str = "") -> str:
    """Who is to follow."""
    return "".join(
        life
        for life in members
        if life != owner and should_follow(life, members, owner, standbys, notes, life in following)
    )


def test_the_first_ones_follow_in_the_order_of_their_names() -> None:
    assert follows_of("dbca", "b", 2, {}) == "ca"
    assert follows_of("dbca", "", 2, {}) == "ba"
    assert follows_of("dbca", "a", 0, {}) == ""
    assert follows_of("ab", "a", 5, {}) == "b"
    assert should_follow("a", [], "", 1, {}, False), "the first hub of all is in no group yet"


def test_who_follows_stops_when_those_before_it_keep_up() -> None:
    assert follows_of("abc", "a", 1, {}, following="c") == "bc", "nothing is known of b"
    assert follows_of("abc", "a", 1, {"b": note("b", follows=False)}, following="c") == "bc"
    assert follows_of("abc", "a", 1, {"b": note("b", KEEPS_UP_BYTES + 1)}, following="c") == "bc"
    assert follows_of("abc", "a", 1, {"b": note("b", KEEPS_UP_BYTES)}, following="c") == "b"


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    monkeypatch.setattr(node, "LOOK_S", 0.02)
    made = FakeKafka()
    create_missing(made, KafkaSettings())
    return made


@pytest.fixture
async def start(kafka: FakeKafka, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Member] = []

    async def one(name: str, standbys: int = 1) -> Member:
        member = Member(tmp_path, kafka, name, (f"cluster.standbys={standbys}",), ("http",), None)
        started.append(member)
        await member.start()
        return member

    yield one
    for member in started:
        await member.leave()


def roles(kafka: FakeKafka, member: Member) -> dict[str, str]:
    found = look(kafka, KafkaSettings(), member.standby.node.notes)
    return {hub.hub: hub.role for hub in found.hubs}


async def test_one_follows_one_stays_cold_and_they_change_places(kafka: FakeKafka, start: Start) -> None:
    first = await start("hub-1")
    await until(lambda: first.runtime is not None)
    second, third = await start("hub-2"), await start("hub-3")
    await until(lambda: roles(kafka, first) == {"hub-1": "owner", "hub-2": "follower", "hub-3": "cold"})
    await until(lambda: third.standby.node.route.owner is not None)
    assert third.standby._role() == "cold beside cell 0, which hub-1 owns"
    assert not third.standby.node.lag_bytes
    third.standby._measure()
    assert third.standby.base.metrics.cluster.follows._value.get() == 0
    assert gc.isenabled(), "a hub may follow for weeks"

    await first.hub.create_stream("s")
    await first.leave()
    await until(lambda: second.runtime is not None)
    await until(lambda: roles(kafka, second) == {"hub-2": "owner", "hub-3": "follower"})

    again = await start("hub-1")
    await until(lambda: roles(kafka, second) == {"hub-1": "follower", "hub-2": "owner", "hub-3": "cold"})
    await second.leave()
    # The group in memory chooses who has been there longest: a cold one.
    await until(lambda: third.runtime is not None)
    assert [stream.name for stream in third.hub.streams()] == ["s"]
    await until(lambda: roles(kafka, third) == {"hub-1": "follower", "hub-3": "owner"})
    assert not again.standby.node.turn.is_mine


async def test_with_none_a_hub_reads_when_it_is_chosen(kafka: FakeKafka, start: Start) -> None:
    first = await start("hub-1", standbys=0)
    await until(lambda: first.runtime is not None)
    second = await start("hub-2", standbys=0)
    await until(lambda: roles(kafka, first) == {"hub-1": "owner", "hub-2": "cold"})
    await first.leave()
    await until(lambda: second.runtime is not None)
    steps = ["may claim", "followed", "claimed", "recovered", "listening"]
    assert list(second.standby.node.turn.step_seconds()) == steps
