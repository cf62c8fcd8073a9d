import asyncio
import base64
import json
from typing import Any

import pytest

from headrace.config import Grant
from headrace.errors import BadRequest, Forbidden, UnknownStream
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.security import EVERYTHING, Principal
from headrace.spark.hub import dead_letters
from headrace.spark.hub.dead_letters import LETTER_TYPE, SUFFIX, DeadLetters
from headrace.testing import memory_hub


def envelope(payload: bytes, **fields: Any) -> bytes:
    return json.dumps({"payload": base64.b64encode(payload).decode(), "stream": "orders", **fields}).encode()


async def with_letters(hub: Hub) -> None:
    DeadLetters(hub).register()
    await hub.create_stream("orders", partitions=2)
    await hub.create_stream("orders.dead")
    full = envelope(
        b"\xff\x00",
        reason="not JSON",
        partition=1,
        index=7,
        time="2026-01-02T03:04:05.678Z",
        event_time="1970-01-01T00:00:01.5Z",
        id=2**63 - 1,
        type="paid",
        key=base64.b64encode(b"shop").decode(),
    )
    for batch in (
        Batch.one(full, type=LETTER_TYPE),
        Batch.one(b"plain", type="too old", key=b"k", id=5, event_time=9),
        Batch.one(b"{broken", type=LETTER_TYPE),
        Batch.one(envelope(b"last"), type=LETTER_TYPE),
    ):
        await hub.append("orders.dead", batch)


async def test_letters_are_opened() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        found = await hub.verbs.call("dead.list", {"stream": "orders.dead"}, EVERYTHING)
        assert [one.reason for one in found] == ["not JSON", "too old", LETTER_TYPE, ""]
        first = found[0]
        assert (first.index, first.stream, first.partition) == (0, "orders", 1)
        assert (first.payload, first.type, first.key, first.id) == (b"\xff\x00", "paid", b"shop", 2**63 - 1)
        assert first.event_time_us == 1_500_000
        assert (found[1].payload, found[1].stream, found[1].event_time_us) == (b"plain", "orders", 9)
        assert found[2].payload == b"{broken"
        assert len(await hub.verbs.call("dead.list", {"stream": "orders.dead", "limit": 2}, EVERYTHING)) == 2


async def test_redriven_records_are_as_they_were_and_leave_in_the_same_step() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        done = await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 3}, EVERYTHING)
        assert (done.count, done.streams) == (3, ["orders"])
        [record] = (await hub.read("orders", 0, partition=1)).to_pylist()
        assert (record["payload"], record["type"], record["key"]) == (b"\xff\x00", "paid", b"shop")
        assert record["id"] == 2**63 - 1
        assert record["event_time"].timestamp() == 1.5
        assert (await hub.read("orders", 0)).column("payload").to_pylist() == [b"plain", b"{broken"]
        bounds = hub.bounds("orders.dead")
        assert (bounds.first, bounds.next) == (3, 4)
        with pytest.raises(BadRequest, match="no letters"):
            await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 3}, EVERYTHING)


async def test_all_or_none() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        await hub.append("orders.dead", Batch.one(envelope(b"x", stream="gone"), type=LETTER_TYPE))
        with pytest.raises(UnknownStream):
            await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 99}, EVERYTHING)
        await hub.append("orders.dead", Batch.one(envelope(b"x", partition=9), type=LETTER_TYPE))
        await hub.create_stream("gone")
        with pytest.raises(BadRequest, match="partition 9"):
            await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 99}, EVERYTHING)
        assert hub.bounds("orders.dead").first == 0
        assert hub.bounds("orders").next == hub.bounds("orders", 1).next == hub.bounds("gone").next == 0


async def test_a_letter_gives_no_right_that_the_caller_has_not() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        clerk = Principal("clerk", (), (Grant(rights=["read", "admin"], streams=["*.dead"]),))
        with pytest.raises(Forbidden, match="may not write to stream 'orders'"):
            await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 99}, clerk)
        with pytest.raises(Forbidden):
            await hub.verbs.call("dead.list", {"stream": "other.dead"}, Principal("x", (), ()))


@pytest.mark.parametrize("stream", ["orders", SUFFIX])
async def test_only_streams_of_dead_letters(stream: str) -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        with pytest.raises(BadRequest, match="not a stream of dead letters"):
            await hub.verbs.call("dead.list", {"stream": stream}, EVERYTHING)
        with pytest.raises(BadRequest, match="limit"):
            await hub.verbs.call("dead.list", {"stream": "orders.dead", "limit": 0}, EVERYTHING)


async def test_letters_go_into_another_stream_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "LETTERS_MAX", 3)
    async with memory_hub() as hub:
        await with_letters(hub)
        asked = {"stream": "orders.dead", "before": 99, "into": "again"}
        first = await hub.verbs.call("dead.redrive", asked, EVERYTHING)
        assert (first.count, first.streams, first.left) == (3, ["again"], 1)
        assert (await hub.verbs.call("dead.redrive", asked, EVERYTHING)).left == 0
        assert (await hub.read("again", 0)).column("payload").to_pylist() == [
            b"\xff\x00",
            b"plain",
            b"{broken",
            b"last",
        ]
        assert hub.bounds("orders").next == hub.bounds("orders", 1).next == 0


async def test_a_stream_into_which_nobody_may_write_is_not_made() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        clerk = Principal("clerk", (), (Grant(rights=["read", "admin"], streams=["*.dead"]),))
        with pytest.raises(Forbidden, match="may not write to stream 'again'"):
            await hub.verbs.call("dead.redrive", {"stream": "orders.dead", "before": 99, "into": "again"}, clerk)
        assert hub.streams("again") == []


async def test_a_stream_of_another_name_may_hold_letters_and_nothing_else() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        await hub.create_stream("graveyard", partitions=2)
        await hub.append("graveyard", Batch.one(envelope(b"x"), type=LETTER_TYPE), partition=1)
        asked = {"stream": "graveyard", "before": 1, "partition": 1}
        assert (await hub.verbs.call("dead.redrive", asked, EVERYTHING)).count == 1
        assert hub.bounds("graveyard", 1).first == 1
        await hub.append("graveyard", Batch.one(b"plain", type="other"), partition=1)
        with pytest.raises(BadRequest, match="not a stream of dead letters"):
            await hub.verbs.call("dead.redrive", asked | {"before": 2}, EVERYTHING)


async def test_letters_that_two_people_send_again_at_once_are_sent_once() -> None:
    async with memory_hub() as hub:
        await with_letters(hub)
        asked = {"stream": "orders.dead", "before": hub.bounds("orders.dead").next}
        twice = (hub.verbs.call("dead.redrive", asked, EVERYTHING) for _ in range(2))
        first, second = await asyncio.gather(*twice, return_exceptions=True)
        assert first.count == 4
        assert isinstance(second, BadRequest)
        assert sum(hub.bounds("orders", partition).next for partition in (0, 1)) == 4
