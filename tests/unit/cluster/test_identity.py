"""Topics that somebody changes, deletes or creates again, and hubs that are given another store: with Kafka in memory.

The brokers' own delays are in `tests/faults/test_kafka_topics.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from support.fake_cluster import Member
from support.until import until

from headrace.cluster import identity, node
from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadConfig, HeadraceError
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.topics import blobs_topic, create_missing, journal_topic, plans
from headrace.security.principal import EVERYTHING
from headrace.testing.kafka import FakeKafka

SETTINGS = KafkaSettings()
JOURNAL = journal_topic(SETTINGS)
Start = Callable[..., Awaitable[Member]]


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    monkeypatch.setattr(node, "LOOK_S", 0.02)
    monkeypatch.setattr(identity, "LOOK_S", 0.02)
    made = FakeKafka()
    create_missing(made, SETTINGS)
    return made


@pytest.fixture
async def start(kafka: FakeKafka, tmp_path: Path) -> AsyncIterator[Start]:
    started: list[Member] = []

    async def one(name: str, *settings: str) -> Member:
        member = Member(tmp_path, kafka, name, settings, ("http",), None)
        await member.start()
        started.append(member)
        return member

    yield one
    for member in started:
        with contextlib.suppress(HeadraceError):  # that of a hub which must not go on
            await member.leave()


async def follower_of(start: Start, name: str, *settings: str) -> Member:
    member = await start(name, *settings)
    await until(lambda: member.standby.node.turn.epoch == 1)
    return member


async def owner_of(start: Start, *settings: str) -> Member:
    member = await start("hub-1", *settings)
    await until(lambda: member.runtime is not None)
    await until(lambda: member.standby.node.log_note is not None)
    return member


def note_of(hub: Hub) -> str:
    return hub.health.report().notes.get("kafka", "")


def problems_metric(hub: Hub) -> float:
    found: float = hub.metrics.cluster.topic_problems._value.get()
    return found


def recreate(kafka: FakeKafka, name: str) -> None:
    kafka.delete_topic(name)
    create_missing(kafka, SETTINGS)


CHANGES = (
    (JOURNAL, "retention.ms", "3600000"),
    (JOURNAL, "retention.bytes", "1000"),
    (JOURNAL, "cleanup.policy", "compact"),
    (JOURNAL, "min.insync.replicas", "1"),
    (JOURNAL, "unclean.leader.election.enable", "true"),
    (JOURNAL, "max.message.bytes", "1000"),
    (blobs_topic(SETTINGS), "cleanup.policy", "delete"),
    (blobs_topic(SETTINGS), "unclean.leader.election.enable", "true"),
)


async def test_settings_that_are_changed_while_hubs_run_are_named(kafka: FakeKafka, start: Start) -> None:
    owner = await owner_of(start)
    follower = await follower_of(start, "hub-2")
    for topic, key, value in CHANGES:
        config = kafka.topics[topic].config
        before, config[key] = config[key], value
        await until(lambda key=key, value=value: f"{key} is {value}" in note_of(owner.hub))
        await until(lambda key=key: key in (follower.standby.base.health.report().notes.get("kafka") or ""))
        owner.hub.metrics.refresh()
        assert problems_metric(owner.hub) == 1
        status = await owner.hub.verbs.call("cluster.status", b"{}", EVERYTHING)
        assert [problem.command.split()[0] for problem in status.problems] == ["kafka-configs.sh"]
        assert owner.hub.health.report().ready, "it is no reason to take nothing"
        config[key] = before
        await until(lambda: not note_of(owner.hub))
    await owner.hub.create_stream("s")


async def test_a_journal_that_is_created_again_stops_an_idle_owner_and_its_follower(
    kafka: FakeKafka, start: Start, tmp_path: Path
) -> None:
    """Though there is no snapshot yet, and nobody writes: the topic is empty, and an empty log would look right."""
    owner = await owner_of(start)
    await owner.hub.create_stream("s")
    await owner.hub.append("s", Batch.of([b"a"]))
    follower = await follower_of(start, "hub-2")
    recreate(kafka, JOURNAL)
    await until(owner.standby.fenced.done)
    assert "created again" in owner.standby.fenced.result()
    with pytest.raises(Unrecoverable, match="created again|has no offset"):
        await follower.standby.owned()
    for name in ("hub-1", "hub-3"):  # the same one with what it had on its disk, and another
        with pytest.raises(Unrecoverable, match="created again"):
            await start(name)
    assert kafka.bounds(JOURNAL, 0) == (0, 0), "nobody began anew"


async def test_blobs_that_are_created_again_are_named_and_no_hub_starts(kafka: FakeKafka, start: Start) -> None:
    owner = await owner_of(start)
    recreate(kafka, blobs_topic(SETTINGS))
    await until(lambda: "headrace backup" in note_of(owner.hub))
    assert not owner.standby.fenced.done(), "it has everything still: somebody may take a backup"
    with pytest.raises(Unrecoverable, match=r"headrace\.blobs was deleted and created again"):
        await start("hub-2")


async def test_a_topic_that_is_gone_is_named(kafka: FakeKafka, start: Start) -> None:
    owner = await owner_of(start)
    kafka.delete_topic(blobs_topic(SETTINGS))
    await until(lambda: "there is no topic headrace.blobs any more" in note_of(owner.hub))


async def test_what_brokers_delete_of_the_journal_is_named(kafka: FakeKafka, start: Start) -> None:
    owner = await owner_of(start)
    await owner.hub.create_stream("s")
    kafka.delete_records(JOURNAL, 0, kafka.bounds(JOURNAL, 0)[1])
    await until(lambda: "brokers have deleted offsets" in note_of(owner.hub))


async def test_what_the_owner_before_has_cut_is_not_named(kafka: FakeKafka, start: Start) -> None:
    """The next one followed before it was cut, and has cut nothing yet."""
    small = ("log.segment_bytes=4KiB", "log.journal_file_bytes=4KiB", "log.journal_bytes_max=8KiB")
    owner = await owner_of(start, *small, "log.maintenance_interval_s=0.01")
    follower = await follower_of(start, "hub-2", *small, "log.maintenance_interval_s=3600")
    await owner.hub.create_stream("s")
    while kafka.bounds(JOURNAL, 0)[0] == 0:
        await owner.hub.append("s", Batch.of([bytes(100)] * 20))
    await until(lambda: follower.standby.node.turn.offset == kafka.bounds(JOURNAL, 0)[1])
    await owner.leave()
    await until(lambda: follower.runtime is not None)
    looks = follower.standby.node.identity
    assert looks.needed_from() > 0
    looks._looked_at = 0.0
    looks.look(None)
    assert looks.problems == []
    kafka.delete_records(JOURNAL, 0, looks.needed_from() + 1)
    await until(lambda: "brokers have deleted offsets" in note_of(follower.hub))


async def test_brokers_that_do_not_answer_say_nothing_about_topics(kafka: FakeKafka, start: Start) -> None:
    owner = await owner_of(start)
    kafka.topics[JOURNAL].config["min.insync.replicas"] = "1"
    await until(lambda: note_of(owner.hub))
    kafka.is_down = True
    looked = owner.standby.node.identity
    looked.look(None)
    assert looked.problems
    kafka.is_down = False


@pytest.mark.parametrize("other", ["local", "file", "kafka"])
async def test_a_hub_with_another_store_does_not_start(start: Start, tmp_path: Path, other: str) -> None:
    used = (tmp_path / "used").as_uri()
    stores = {"local": "local", "file": (tmp_path / "other").as_uri(), "kafka": "kafka"}
    await owner_of(start, f"log.kafka.store={used}")
    setting = f"log.kafka.store={stores[other]}"
    if other == "file":  # known only when it begins to follow
        wrong = await start("hub-2", setting)
        with pytest.raises(BadConfig, match="give all"):
            await wrong.standby.owned()
        await wrong.standby.close()
    else:
        with pytest.raises(BadConfig, match="give all"):
            await start("hub-2", setting)
    same = tmp_path / "elsewhere"
    same.symlink_to(tmp_path / "used")
    await follower_of(start, "hub-3", f"log.kafka.store={same.as_uri()}")  # the same store by another name


async def test_stores_that_differ_from_the_very_start(kafka: FakeKafka, start: Start, tmp_path: Path) -> None:
    """Two hubs that came before the log had an owner: the one that does not become it stops."""
    first = await start("hub-1", f"log.kafka.store={(tmp_path / 'a').as_uri()}")
    second = await start("hub-2", "log.kafka.store=kafka")
    await until(lambda: first.runtime is not None)
    with pytest.raises(BadConfig, match="give all the same"):
        await second.standby.owned()


def test_all_topics_are_looked_at() -> None:
    assert {topic for topic, _, _ in CHANGES} < {plan.name for plan in plans(SETTINGS)}
