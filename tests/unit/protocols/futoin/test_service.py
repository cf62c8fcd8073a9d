"""addEvent, registerConsumer and pollEvents on a hub: the semantics of FTN18 2.2 and 3.3."""

from __future__ import annotations

import asyncio
import functools
import gc
import json
from typing import Any

import msgspec
import pytest
from support.until import until

from headrace.config import Config, Futoin, Log
from headrace.errors import Damaged, DiskFull, LogFailed
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.protocols.futoin import service as service_module
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.interface import CALLS, PollEvents
from headrace.protocols.futoin.service import cursor_name
from headrace.testing import memory_hub
from headrace.units import MIB

REGISTER = "futoin.evt.poll:1.1:registerConsumer"
POLL = "futoin.evt.poll:1.1:pollEvents"
ADD = "futoin.evt.gen:1.1:addEvent"


async def poll(asgi: Any, component: str = "C", last_id: int | None = None, want: Any = None, **more: Any) -> list[int]:
    call = more.pop("call", POLL)
    last = None if last_id is None else str(last_id)
    reply = await asgi.call(call, component=component, last_id=last, want=want, **more)
    return [int(event["id"]) for event in reply["r"]]


def position(asgi: Any, component: str = "C", user: str = "evtuser") -> int | None:
    found: int | None = asgi.hub.cursor(cursor_name(user, component), "events")
    return found


class TestAdding:
    async def test_ids_count_from_one(self, asgi: Any) -> None:
        assert [await asgi.add(data) for data in (None, 5, "x")] == [1, 2, 3]

    async def test_record(self, asgi: Any) -> None:
        await asgi.http(
            b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"A_B","data":{"x": 1.0}},"sec":"evtuser:evtpass"}'
        )
        records = await asgi.hub.read("events", 0)
        assert records.column("type").to_pylist() == ["A_B"]
        assert records.column("payload").to_pylist() == [b'{"x": 1.0}']

    async def test_adds_of_one_turn_become_one_append(self, asgi: Any) -> None:
        await asgi.add(0)
        commits = asgi.hub.metrics.log.commits._value.get()
        ids = await asyncio.gather(*(asgi.add(number) for number in range(50)))
        assert sorted(ids) == list(range(2, 52))
        assert asgi.hub.metrics.log.commits._value.get() - commits <= 3

    async def test_adds_of_one_turn_may_be_more_than_one_append_takes(self) -> None:
        """Nobody is refused for what others add at the same time."""
        async with memory_hub(Config(log=Log(batch_bytes_max=200_000))) as hub:
            service = service_module.Service(hub)
            place = service_module.Endpoint("events")
            await hub.create_stream("events")
            added: list[asyncio.Future[int]] = [asyncio.get_running_loop().create_future() for _ in range(7)]

            def told(future: asyncio.Future[int], index: int, error: BaseException | None) -> None:
                if error is None:
                    future.set_result(index)
                else:
                    future.set_exception(error)

            for number, future in enumerate(added):
                service.add(place, "A", b"%d" % number * 60_000, functools.partial(told, future))
            assert await asyncio.gather(*added) == list(range(7))
            records = [(await hub.read("events", number, limit=1)).column("payload")[0].as_py() for number in range(7)]
            assert [int(record[:1]) for record in records] == list(range(7))

    async def test_largest_event(self, asgi: Any) -> None:
        limit = asgi.hub.config.futoin.message_bytes_max - 2048
        assert await asgi.add("x" * (limit - 2)) == 1
        reply = await asgi.call(ADD, type="A", data="x" * (limit - 1))
        assert reply["e"] == "InvalidRequest"
        await asgi.call(REGISTER, component="C")
        for call in (POLL, "futoin.evt.poll:1.0:pollEvents"):
            assert await poll(asgi, call=call) == [1]  # what can be added can be read in every version

    @pytest.mark.parametrize(
        ("error", "name"), [(DiskFull("no room"), "InternalError"), (LogFailed("dead"), "InternalError")]
    )
    async def test_what_the_log_refuses(self, asgi: Any, monkeypatch: Any, error: Exception, name: str) -> None:
        await asgi.add(0)

        def refuse(*_: Any, **__: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(error)
            return future

        monkeypatch.setattr(asgi.hub, "append", refuse)
        reply = await asgi.call(ADD, type="A", data=1)
        assert reply["e"] == name
        assert str(error) in reply["edesc"]

    async def test_append_that_raises_or_is_cancelled(self, asgi: Any, monkeypatch: Any) -> None:
        await asgi.add(0)

        def raise_at_once(*_: Any, **__: Any) -> Any:
            raise ValueError("a bug")

        def cancelled(*_: Any, **__: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.cancel()
            return future

        monkeypatch.setattr(asgi.hub, "append", raise_at_once)
        assert (await asgi.call(ADD, type="A", data=1))["e"] == "InternalError"
        monkeypatch.setattr(asgi.hub, "append", cancelled)
        with pytest.raises(asyncio.CancelledError):
            await asgi.call(ADD, type="A", data=1)

    async def test_acknowledged_when_processed(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events", options=StreamOptions(ack="processed:spark"))
        adding = asyncio.create_task(asgi.add(1))
        await asgi.hub.wait("events", 0)
        assert not adding.done()
        await asgi.hub.save_cursor("spark", "events", 1)
        assert await adding == 1

    async def test_waits_while_the_hub_is_congested(self, asgi: Any, monkeypatch: Any) -> None:
        await asgi.add(0)
        drained = asyncio.Event()
        monkeypatch.setattr(type(asgi.hub), "congested", property(lambda hub: not drained.is_set()))
        monkeypatch.setattr(asgi.hub, "drained", drained.wait)
        adding = asyncio.create_task(asgi.add(1))
        await asyncio.sleep(0)
        assert not adding.done()
        drained.set()
        assert await adding == 2


class TestStreams:
    async def test_created_when_first_named(self, asgi: Any) -> None:
        assert await asgi.add(1, path="/new") == 1
        assert asgi.hub.stream("new").options.retention_cursors is False

    @pytest.mark.parametrize("config", [{"discard": True}], indirect=True)
    async def test_created_to_discard(self, asgi: Any) -> None:
        await asgi.add(1)
        assert asgi.hub.stream("events").options.retention_cursors is True

    async def test_a_table_is_no_event_stream(self, asgi: Any) -> None:
        await asgi.hub.create_table("prices")
        calls = {ADD: {"type": "A", "data": 1}, REGISTER: {"component": "C"}, POLL: {"component": "LIVE"}}
        for function, params in calls.items():
            assert (await asgi.call(function, path="/prices", **params))["e"] == "UnknownInterface"
        assert asgi.hub.cursors() == []

    @pytest.mark.parametrize("config", [{"create_streams": False}], indirect=True)
    async def test_not_created(self, asgi: Any) -> None:
        assert (await asgi.call(ADD, type="A", data=1))["e"] == "UnknownInterface"
        assert (await asgi.call(POLL, component="LIVE"))["e"] == "UnknownInterface"
        await asgi.hub.create_stream("events")
        assert await asgi.add(1) == 1

    async def test_reader_creates_nothing(self, asgi: Any) -> None:
        assert (await asgi.call(REGISTER, "reader:r", component="C"))["e"] == "UnknownInterface"
        await asgi.add(1)
        assert await asgi.call(REGISTER, "reader:r", component="C") == {"r": True}

    async def test_bad_name(self, asgi: Any) -> None:
        assert (await asgi.call(ADD, type="A", data=1, path="/a%01b"))["e"] == "InvalidRequest"


class TestRights:
    @pytest.mark.parametrize(
        ("sec", "call", "params", "allowed"),
        [
            ("reader:r", ADD, {"type": "A", "data": 1}, False),
            ("reader:r", POLL, {"component": "LIVE"}, True),
            ("adder:a", ADD, {"type": "A", "data": 1}, True),
            ("adder:a", POLL, {"component": "LIVE"}, False),
            ("poller:p", POLL, {"component": "LIVE"}, True),
            ("poller:p", ADD, {"type": "A", "data": 1}, False),
            ("adder:a", "futoin.ping:1.0:ping", {"echo": 1}, True),
        ],
    )
    async def test_by_function(self, asgi: Any, sec: str, call: str, params: dict[str, Any], allowed: bool) -> None:
        await asgi.add(0)
        reply = await asgi.call(call, sec, **params)
        assert ("r" in reply) is allowed
        if not allowed:
            assert reply["e"] == "Unauthorized"

    async def test_by_stream(self, asgi: Any) -> None:
        await asgi.add(0, path="/other")
        assert (await asgi.call(ADD, "adder:a", "/other", type="A", data=1))["e"] == "Unauthorized"
        assert (await asgi.call(POLL, "poller:p", "/other", component="LIVE"))["e"] == "Unauthorized"


class TestRegistering:
    async def test_new_consumer_begins_at_the_oldest_event(self, asgi: Any) -> None:
        for number in range(5):
            await asgi.add(number)
        await asgi.hub.trim("events", 2)
        assert await asgi.call(REGISTER, component="C") == {"r": True}
        assert position(asgi) == 2
        assert await poll(asgi) == [3, 4, 5]

    async def test_again_changes_nothing(self, asgi: Any) -> None:
        await asgi.add(1)
        await asgi.call(REGISTER, component="C")
        await poll(asgi, last_id=1)
        assert await asgi.call(REGISTER, component="C") == {"r": True}
        assert position(asgi) == 1

    async def test_live_is_reserved(self, asgi: Any) -> None:
        reply = await asgi.call(REGISTER, component="LIVE")
        assert reply == {"e": "LiveNotAllowed", "edesc": "Live consumer should not register"}
        assert await asgi.call(REGISTER, component="Live") == {"r": True}

    async def test_consumers_are_users_and_components(self, asgi: Any) -> None:
        await asgi.add(1)
        await asgi.call(REGISTER, component="C")
        assert await asgi.call(POLL, component="c") == {"e": "NotRegistered"}
        assert await asgi.call(POLL, "other:other:pass", component="C") == {"e": "NotRegistered"}
        await asgi.call(REGISTER, component="D")
        assert await poll(asgi, "C", 1) == []
        assert await poll(asgi, "D") == [1]

    async def test_consumers_hold_back_retention(self, asgi: Any) -> None:
        await asgi.add(1)
        await asgi.call(REGISTER, component="C")
        cursors = asgi.hub.cursors("futoin:*", "events")
        assert [(cursor.name, cursor.lag) for cursor in cursors] == [("futoin:evtuser:C", 1)]


class TestPolling:
    @pytest.fixture(autouse=True)
    async def five_events(self, asgi: Any) -> None:
        for number, kind in enumerate("ABABA"):
            await asgi.add(number, kind)
        await asgi.call(REGISTER, component="C")

    async def test_shown_again_until_confirmed(self, asgi: Any) -> None:
        assert await poll(asgi) == [1, 2, 3, 4, 5]
        assert await poll(asgi) == [1, 2, 3, 4, 5]
        assert await poll(asgi, last_id=3) == [4, 5]
        assert position(asgi) == 3

    async def test_never_goes_back(self, asgi: Any) -> None:
        await poll(asgi, last_id=4)
        assert await poll(asgi, last_id=1) == [5]
        assert await poll(asgi) == [5]

    async def test_a_log_that_fails_meanwhile_leaves_no_error_that_nobody_heard(
        self, asgi: Any, monkeypatch: Any
    ) -> None:
        """The events cannot be read, and later the position cannot be saved. Found by seed 617743 of the world."""
        loop = asyncio.get_running_loop()
        seen: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: seen.append(context))
        saving = [loop.create_future()]

        async def failing(name: str, start: int, **more: Any) -> Any:
            raise LogFailed("the disk failed")

        monkeypatch.setattr("headrace.protocols.futoin.dispatch.logger.disabled", True)  # what is logged is kept
        monkeypatch.setattr(asgi.hub, "transact", lambda operations: saving[0])
        monkeypatch.setattr(asgi.hub, "read", failing)
        reply = await asgi.call(POLL, component="C", last_id="2")
        assert reply["e"] == "InternalError"
        saving.pop().set_exception(LogFailed("the disk failed"))
        await asyncio.sleep(0)
        monkeypatch.undo()
        gc.collect()
        assert seen == []

    async def test_live_goes_anywhere(self, asgi: Any) -> None:
        assert await poll(asgi, "LIVE", 4) == [5]
        assert await poll(asgi, "LIVE", 1) == [2, 3, 4, 5]
        assert await poll(asgi, "LIVE") == [1, 2, 3, 4, 5]

    async def test_below_what_is_kept(self, asgi: Any) -> None:
        await asgi.hub.delete_cursor(cursor_name("evtuser", "C"), "events")
        await asgi.hub.trim("events", 3)
        assert await poll(asgi, "LIVE", 1) == [4, 5]
        assert await poll(asgi, "LIVE") == [4, 5]

    async def test_beyond_the_end_counts_as_the_end(self, asgi: Any) -> None:
        assert await poll(asgi, last_id=999_999_999_999_999_999) == []
        assert position(asgi) == 5
        await asgi.add(9)
        assert await poll(asgi) == [6]

    async def test_filter(self, asgi: Any) -> None:
        assert await poll(asgi, want=["B"]) == [2, 4]
        assert await poll(asgi, want=["A", "B", "A"]) == [2, 3, 4, 5]

    async def test_filtered_events_before_the_first_match_are_delivered(self, asgi: Any) -> None:
        await poll(asgi, want=["B"])
        assert position(asgi) == 1
        await poll(asgi, last_id=4, want=["B"])
        assert position(asgi) == 5

    @pytest.mark.parametrize("want", [[], ["NONE"]])
    async def test_nothing_wanted_moves_to_the_end(self, asgi: Any, want: list[str]) -> None:
        assert await poll(asgi, want=want) == []
        assert position(asgi) == 5

    async def test_position_is_durable_with_the_reply(self, asgi: Any, monkeypatch: Any) -> None:
        saved = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(asgi.hub, "transact", lambda operations: saved)
        polling = asyncio.create_task(poll(asgi, last_id=2))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not polling.done()
        saved.set_result([2])
        assert await polling == [3, 4, 5]

    @pytest.mark.parametrize("config", [{"group_events_max": 2}], indirect=True)
    async def test_group_size(self, asgi: Any) -> None:
        assert await poll(asgi) == [1, 2]
        assert await poll(asgi, last_id=2) == [3, 4]
        assert await poll(asgi, want=["B"], last_id=2) == [4]

    async def test_events_of_other_protocols(self, asgi: Any) -> None:
        await asgi.hub.append("events", Batch.of([b"\xff", b'{"j":1}'], types=["text/plain", None]))
        reply = await asgi.call(POLL, component="LIVE", last_id="5", want=["RAW"])
        shown = [(event["type"], event["data"]) for event in reply["r"]]
        assert shown == [("RAW", {"base64": "/w=="}), ("RAW", {"j": 1})]


class TestKnownJson:
    """Payloads are looked at once: when they are added, or when they are first read."""

    async def test_added_here(self, asgi: Any) -> None:
        await asgi.add({"a": 1})
        service = asgi.app._dispatcher.service
        assert service.known_json(service_module.Endpoint("events")).covers(0, 1)
        await asgi.hub.append("events", Batch.of([b"text", b"2"]))
        assert await poll(asgi, "LIVE") == [1, 2, 3]
        assert not service.known_json(service_module.Endpoint("events")).covers(1, 2)

    async def test_read_here(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b"1", b"2"]))
        service = asgi.app._dispatcher.service
        for _ in range(2):
            assert await poll(asgi, "LIVE") == [1, 2]
            assert service.known_json(service_module.Endpoint("events")).covers(0, 2)

    async def test_memory_is_bounded(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(service_module, "KNOWN_STREAMS_MAX", 2)
        for name in ("a", "b", "c", "d"):
            assert await asgi.add(1, path=f"/{name}") == 1
        service = asgi.app._dispatcher.service
        assert len(service._adders) <= 2
        assert len(service._known_json) <= 2


class TestCachedLists:
    """Full lists are made once for all who ask; lists that can still grow are not kept."""

    @pytest.fixture(autouse=True)
    async def many_events(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b"1"] * 1500, types=["A", "B", "C"] * 500))

    def cache(self, asgi: Any) -> Any:
        return asgi.app._dispatcher.service._lists

    async def test_full_lists_are_kept(self, asgi: Any, monkeypatch: Any) -> None:
        first = await poll(asgi, "LIVE")
        assert len(self.cache(asgi)) == 1
        monkeypatch.setattr(asgi.hub, "read", None)
        assert await poll(asgi, "LIVE") == first == list(range(1, 1001))

    async def test_lists_at_the_end_are_not(self, asgi: Any) -> None:
        assert len(await poll(asgi, "LIVE", 1000)) == 500
        await asgi.hub.append("events", Batch.one(b"1", type="A"))
        assert len(await poll(asgi, "LIVE", 1000)) == 501
        assert len(self.cache(asgi)) == 0

    async def test_told_apart_by_filter_and_version(self, asgi: Any) -> None:
        everything = await poll(asgi, "LIVE")
        await asgi.hub.append("events", Batch.of([b"1"] * 1500, types="A"))
        only = await poll(asgi, "LIVE", want=["A"])
        assert len(only) == 1000
        assert only != everything
        assert await poll(asgi, "LIVE", want=["A"]) == only
        assert await poll(asgi, "LIVE", call="futoin.evt.poll:1.0:pollEvents") == everything[:1000]
        assert await poll(asgi, "LIVE") == everything

    async def test_what_was_trimmed_is_not_shown_again(self, asgi: Any) -> None:
        await poll(asgi, "LIVE")
        await asgi.hub.trim("events", 10)
        assert (await poll(asgi, "LIVE"))[0] == 11

    async def test_what_was_deleted_is_not_shown_again(self, asgi: Any) -> None:
        await poll(asgi, "LIVE")
        await asgi.hub.delete_stream("events")
        await asgi.hub.create_stream("events")
        assert await poll(asgi, "LIVE") == []
        await asgi.hub.append("events", Batch.one(b"9", type="A"))
        assert len(await poll(asgi, "LIVE")) == 1

    async def test_reliable_consumers_move_on_with_cached_lists(self, asgi: Any) -> None:
        for component in ("C", "D"):
            await asgi.call(REGISTER, component=component)
            assert len(await poll(asgi, component)) == 1000
            assert len(await poll(asgi, component, 1000)) == 500
            assert position(asgi, component) == 1000


class TestLimits:
    async def test_a_thousand_events(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b"1"] * 1500, types="A"))
        await asgi.call(REGISTER, component="C")
        assert len(await poll(asgi)) == 1000
        assert await poll(asgi, last_id=1000) == list(range(1001, 1501))

    @pytest.mark.parametrize(
        ("call", "limit"), [("futoin.evt.poll:1.0:pollEvents", 64 << 10), ("futoin.evt.poll:1.1:pollEvents", 8 << 20)]
    )
    async def test_bytes_by_version(self, asgi: Any, call: str, limit: int) -> None:
        await asgi.hub.create_stream("events")
        payload = b'"' + b"x" * 20_000 + b'"'
        for _ in range(5):
            await asgi.hub.append("events", Batch.of([payload] * 100, types="A"))
        seen = 0
        while True:
            message = {
                "f": call,
                "p": {"component": "LIVE", "last_id": str(seen) if seen else None},
                "sec": "evtuser:evtpass",
            }
            _, _, body = await asgi.http(json.dumps(message).encode())
            assert len(body) <= limit
            events = json.loads(body)["r"]
            if not events:
                break
            assert [int(event["id"]) for event in events] == list(range(seen + 1, seen + 1 + len(events)))
            seen += len(events)
        assert seen == 500

    async def test_too_big_for_the_version_is_left_out_and_counted(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b"1", b'"' + b"x" * 100_000 + b'"', b"3"], types="A"))
        await asgi.call(REGISTER, component="C")
        assert await poll(asgi, call="futoin.evt.poll:1.0:pollEvents") == [1, 3]
        assert asgi.hub.metrics.protocol.skipped.labels(protocol="futoin")._value.get() == 1
        assert await poll(asgi) == [1, 2, 3]

    async def test_filter_looks_through_everything(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(service_module, "READ_ROWS_FILTERED", 100)
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b"1"] * 1000, types="A"))
        await asgi.hub.append("events", Batch.one(b"2", type="B"))
        await asgi.call(REGISTER, component="C")
        assert await poll(asgi, want=["B"]) == [1001]
        assert position(asgi) == 1000

    async def test_damaged_events_are_stepped_over(self, asgi: Any, monkeypatch: Any) -> None:
        for number in range(5):
            await asgi.add(number)
        read = asgi.hub.read

        async def damaged(name: str, start: int, **more: Any) -> Any:
            if start <= 2:
                if start == 0:
                    return await read(name, 0, **{**more, "limit": 1})
                raise Damaged(name, 0, 1, 2)
            return await read(name, start, **more)

        monkeypatch.setattr(asgi.hub, "read", damaged)
        assert await poll(asgi, "LIVE") == [1, 4, 5]
        assert asgi.hub.metrics.futoin.damaged._value.get() == 2


def ids_in(shown: Any) -> list[int]:
    return [int(event["id"]) for event in msgspec.json.decode(shown)]


class TestDiscarding:
    """FTN18 2.3.1: kept "until the last registred consumer reliably reads it"."""

    @pytest.mark.parametrize("segment_bytes", [1, 64 * MIB], ids=["sealed", "unsealed"])
    async def test_kept_for_the_slowest_consumer(self, segment_bytes: int) -> None:
        futoin = Futoin(insecure=True, discard=True)
        log = Log(segment_bytes=segment_bytes, maintenance_interval_s=0.01, merge_segments_min=1000)
        async with memory_hub(Config(futoin=futoin, log=log)) as hub:
            service = service_module.Service(hub)
            place = service_module.Endpoint("events")
            await hub.create_stream("events", options=StreamOptions(retention_cursors=True))
            for component in ("FAST", "SLOW"):
                await service.register(place, "u", component)
            for number in range(50):
                await hub.append("events", Batch.one(b"%d" % number, type="A"))
            call = CALLS[POLL]
            await service.poll(place, "u", PollEvents("FAST", "50"), call, Coding.JSON)
            await service.poll(place, "u", PollEvents("SLOW", "20"), call, Coding.JSON)
            await until(lambda: hub.bounds("events").first == 20)
            shown = await service.poll(place, "u", PollEvents("SLOW"), call, Coding.JSON)
            assert ids_in(shown) == list(range(21, 51))
            await service.poll(place, "u", PollEvents("SLOW", "50"), call, Coding.JSON)
            await until(lambda: hub.bounds("events").first == 50)
            shown = await service.poll(place, "u", PollEvents("LIVE"), call, Coding.JSON)
            assert ids_in(shown) == []
