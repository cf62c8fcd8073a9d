"""readyToReceive and onEvents: order, seq, repeats, filters, replacement, LIVE gaps, and positions."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support.until import until

from headrace.log.batch import Batch
from headrace.protocols.futoin import codec, push, service, session
from headrace.protocols.futoin.codec import Coding
from headrace.protocols.futoin.service import cursor_name

SEC = "evtuser:evtpass"
ONE_AT_A_TIME = {"push_window": 1}


def position(asgi: Any, component: str = "C") -> int:
    found: int = asgi.hub.cursor(cursor_name("evtuser", component), "events")
    return found


def ids(events: list[dict[str, Any]]) -> list[int]:
    return [int(event["id"]) for event in events]


async def fill(asgi: Any, count: int, type: str = "A") -> None:
    await asgi.hub.create_stream("events")
    await asgi.hub.append("events", Batch.of([b"%d" % number for number in range(count)], types=type))


class TestReliable:
    async def test_history_then_live(self, asgi: Any) -> None:
        await fill(asgi, 3)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, seq, events = await peer.group()
            assert (rid, seq, ids(events)) == ("S1", 0, [1, 2, 3])
            peer.confirm(rid)
            await until(lambda: position(asgi) == 3)
            await asgi.add(9)
            rid, seq, events = await peer.group()
            assert (rid, seq, ids(events)) == ("S2", 1, [4])
            assert events[0]["data"] == 9

    async def test_groups_of_a_thousand_with_a_window(self, asgi: Any) -> None:
        await fill(asgi, 3500)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            first, second = await peer.group(), await peer.group()
            assert [first[1], second[1]] == [0, 1]
            assert peer.from_app.empty()
            peer.confirm(second[0])
            for _ in range(20):
                await asyncio.sleep(0)
            assert peer.from_app.empty()  # the window is counted from the oldest group
            assert position(asgi) == 0
            peer.confirm(first[0])
            third, fourth = await peer.group(), await peer.group()
            assert ids(third[2])[0] == 2001
            assert ids(fourth[2]) == list(range(3001, 3501))
            await until(lambda: position(asgi) == 2000)

    @pytest.mark.parametrize("config", [ONE_AT_A_TIME], indirect=True)
    async def test_refused_group_comes_again_with_its_seq(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await fill(asgi, 2)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, seq, events = await peer.group()
            peer.refuse(rid)
            again_rid, again_seq, again = await peer.group()
            assert (again_rid, again_seq, again) == ("S2", seq, events)
            peer.confirm(again_rid, False)  # a boolean, and a refusal
            last_rid, last_seq, _ = await peer.group()
            assert (last_rid, last_seq) == ("S3", 0)
            assert position(asgi) == 0
            peer.confirm(last_rid)
            await until(lambda: position(asgi) == 2)
            assert asgi.hub.metrics.futoin.refused_groups._value.get() == 2

    @pytest.mark.parametrize("config", [{"push_timeout_s": 0.02, "push_window": 1}], indirect=True)
    async def test_unanswered_group_comes_again(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await fill(asgi, 2)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            first_rid, _, _ = await peer.group()
            rid, seq, events = await peer.group()
            assert (rid, seq, ids(events)) == ("S2", 0, [1, 2])
            peer.confirm(first_rid)  # too late: nobody waits for it any more
            peer.confirm(rid)
            await until(lambda: position(asgi) == 2)

    @pytest.mark.parametrize("config", [ONE_AT_A_TIME], indirect=True)
    async def test_repeated_group_is_the_same_however_the_log_is_read(self, asgi: Any, monkeypatch: Any) -> None:
        """A group that filled its message is read again in other pieces, as after sealing: no event may fall out."""
        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b'"%040d"' % number for number in range(2000)], types="A"))
        async with asgi.websocket() as peer:
            await peer.ready("C", minor=0)
            rid, _, events = await peer.group()
            assert 500 < len(events) < 1000
            monkeypatch.setattr(service, "READ_BYTES_MAX", 4000)
            peer.refuse(rid)
            rid, seq, again = await peer.group()
            assert (seq, ids(again)) == (0, ids(events))
            peer.confirm(rid)
            _, seq, more = await peer.group()
            assert (seq, ids(more)[0]) == (1, ids(events)[-1] + 1)

    async def test_refused_while_another_is_under_way(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await fill(asgi, 3000)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            first, second = await peer.group(), await peer.group()
            peer.refuse(first[0])
            peer.refuse(second[0])
            repeated = {group[1]: group for group in (await peer.group(), await peer.group())}
            assert ids(repeated[0][2]) == ids(first[2])
            assert ids(repeated[1][2]) == ids(second[2])
            peer.confirm(repeated[1][0])
            peer.confirm(repeated[0][0])
            third = await peer.group()
            assert (third[1], ids(third[2])[0]) == (2, 2001)

    async def test_starts_again_at_the_stored_position(self, asgi: Any) -> None:
        await fill(asgi, 1500)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            await peer.group()
            peer.confirm(rid)
            await until(lambda: position(asgi) == 1000)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, seq, events = await peer.group()
            assert (seq, ids(events)) == (0, list(range(1001, 1501)))

    async def test_last_confirmation_counts_though_the_peer_leaves_at_once(self, asgi: Any) -> None:
        await fill(asgi, 5)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            peer.confirm(rid)
        await until(lambda: position(asgi) == 5)

    async def test_needs_registration(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            reply = await peer.call("futoin.evt.push:1.1:readyToReceive", component="C")
            assert reply == {"e": "NotRegistered"}

    async def test_register_and_ready_in_one_breath(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            for function in ("registerConsumer", "readyToReceive"):
                peer.send({"f": f"futoin.evt.push:1.1:{function}", "p": {"component": "C"}, "sec": SEC, "rid": "C1"})
            assert [await peer.next(), await peer.next()] == [{"r": True, "rid": "C1"}] * 2

    async def test_polls_and_pushes_by_turns(self, asgi: Any) -> None:
        await fill(asgi, 4)
        await asgi.call("futoin.evt.poll:1.1:registerConsumer", component="C")
        await asgi.call("futoin.evt.poll:1.1:pollEvents", component="C", last_id="2")
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, events = await peer.group()
            assert ids(events) == [3, 4]
            peer.confirm(rid)
            await until(lambda: position(asgi) == 4)
            for number in range(3):
                await asgi.hub.append("events", Batch.one(b"%d" % number, type="A"))
                if number == 0:
                    rid, _, events = await peer.group()
                    assert ids(events) == [5]
        reply = await asgi.call("futoin.evt.poll:1.1:pollEvents", component="C", last_id="6")
        assert ids(reply["r"]) == [7]

    async def test_own_poll_moves_a_waiting_push(self, asgi: Any) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C", want=["NONE"])
            await until(lambda: asgi.hub.sessions.list("futoin")[0].details["receivers"][0]["position"] == 1)
            await asgi.hub.append("events", Batch.of([b"1"] * 3, types="A"))
            await asgi.call("futoin.evt.poll:1.1:pollEvents", component="C", last_id="4")
            await until(lambda: position(asgi) == 4)

    async def test_filter_counts_what_it_skips(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(push, "SKIP_SAVE_S", 0.001)
        await fill(asgi, 3, "A")
        await fill(asgi, 2, "B")
        async with asgi.websocket() as peer:
            await peer.ready("C", want=["B"])
            rid, seq, events = await peer.group()
            assert (seq, ids(events)) == (0, [4, 5])
            peer.confirm(rid)
            await until(lambda: position(asgi) == 5)
            await fill(asgi, 4, "A")
            await until(lambda: position(asgi) == 9)  # nothing wanted came, and nothing waits
            await fill(asgi, 1, "B")
            rid, seq, events = await peer.group()
            assert (seq, ids(events)) == (1, [10])

    async def test_new_ready_takes_the_place_of_the_old(self, asgi: Any) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as old, asgi.websocket() as new:
            await old.ready("C")
            await old.group()
            await new.ready("C")
            rid, seq, events = await new.group()
            assert (seq, ids(events)) == (0, [1])
            new.confirm(rid)
            await asgi.add(2)
            _, seq, events = await new.group()
            assert (seq, ids(events)) == (1, [2])
            assert old.from_app.empty()

    async def test_new_ready_on_the_same_connection(self, asgi: Any) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            await peer.group()
            await peer.ready("C")
            rid, seq, _ = await peer.group()
            assert (rid, seq) == ("S2", 0)

    async def test_several_components_and_users_at_once(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("C")
            await peer.ready("D", want=["B"])
            await peer.ready("C", sec="other:other:pass")
            await asgi.add(1, "A")
            await asgi.add(2, "B")
            seen = []
            while len(seen) < 5:
                rid, _, events = await peer.group()
                seen += ids(events)
                peer.confirm(rid)
            assert sorted(seen) == [1, 1, 2, 2, 2]

    @pytest.mark.parametrize("coding", [Coding.MESSAGEPACK, Coding.CBOR])
    async def test_pushed_in_the_coding_of_the_consumer(self, asgi: Any, coding: Coding) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            for function in ("registerConsumer", "readyToReceive"):
                call = f"futoin.evt.push:1.1:{function}"
                peer.send(codec.request(call, {"component": "C"}, "C1", SEC, coding))
                assert codec.decode_object(await peer.next_bytes(), coding)["r"] is True
            message = await peer.next_bytes()
            assert codec.coding_of(message) is coding
            fields = codec.decode_object(message, coding)
            assert fields["p"]["events"][0]["data"] == 0
            peer.send(codec.encode_object({"r": True, "rid": fields["rid"]}, coding))
            await until(lambda: position(asgi) == 1)

    async def test_version_of_the_receiver_is_that_of_the_call(self, asgi: Any) -> None:
        await asgi.hub.create_stream("events")
        await asgi.hub.append("events", Batch.of([b'"' + b"x" * 30_000 + b'"'] * 3, types="A"))
        for minor, groups in ((0, [2, 1]), (1, [3])):
            async with asgi.websocket() as peer:
                await peer.ready(f"C{minor}", minor=minor)
                for count in groups:
                    message = await peer.next_bytes()
                    fields = json.loads(message)
                    assert fields["f"] == f"futoin.evt.receiver:1.{minor}:onEvents"
                    assert len(fields["p"]["events"]) == count
                    assert len(message) <= (64 << 10 if minor == 0 else 8 << 20)
                    peer.confirm(fields["rid"])

    async def test_what_was_trimmed_is_not_waited_for(self, asgi: Any, monkeypatch: Any) -> None:
        """A consumer behind the first record that is kept, and none is kept: it rests until something comes."""
        reads = 0
        read = asgi.hub.read

        async def counted(*arguments: Any, **more: Any) -> Any:
            nonlocal reads
            reads += 1
            assert reads < 10, "a loop that nothing ends"
            return await read(*arguments, **more)

        await fill(asgi, 10)
        await asgi.call("futoin.evt.poll:1.1:registerConsumer", component="C")
        await asgi.hub.trim("events", 10)
        monkeypatch.setattr(push, "SKIP_SAVE_S", 0.001)
        monkeypatch.setattr(asgi.hub, "read", counted)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            await until(lambda: position(asgi) == 10)
            await asgi.add("new")
            _, seq, events = await peer.group()
            assert (seq, ids(events)) == (0, [11])
            assert peer.closed is None

    @pytest.mark.parametrize("config", [{"group_events_max": 5, "push_window": 2}], indirect=True)
    async def test_repeat_of_a_trimmed_group_takes_nothing_of_the_next(self, asgi: Any, monkeypatch: Any) -> None:
        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await fill(asgi, 10)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            first, second = await peer.group(), await peer.group()
            assert (ids(first[2]), ids(second[2])) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
            await asgi.hub.trim("events", 3)
            peer.refuse(first[0])
            rid, seq, again = await peer.group()
            assert (seq, ids(again)) == (0, [4, 5])
            await asgi.hub.trim("events", 10)
            peer.refuse(rid)
            _, seq, again = await peer.group()
            assert (seq, again) == (0, [])

    async def test_dropped_consumer_sees_its_connection_end(self, asgi: Any) -> None:
        """Otherwise it would wait for events that never come."""
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            peer.confirm(rid)
            await until(lambda: position(asgi) == 1)
            await asgi.hub.delete_cursor(cursor_name("evtuser", "C"), "events")
            await asgi.add(1)
            await until(lambda: peer.closed == 1011)
            assert peer.from_app.empty()

    async def test_last_confirmation_does_not_bring_a_dropped_consumer_back(self, asgi: Any) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            await asgi.hub.delete_cursor(cursor_name("evtuser", "C"), "events")
            peer.confirm(rid)
            await asgi.add(1)
            await until(lambda: peer.closed == 1011)
        assert asgi.hub.cursors() == []

    @pytest.mark.parametrize("config", [ONE_AT_A_TIME], indirect=True)
    async def test_deleted_stream_ends_the_connection(self, asgi: Any) -> None:
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            await asgi.hub.delete_stream("events")
            peer.confirm(rid)
            await until(lambda: peer.closed == 1011)

    async def test_a_bug_ends_the_connection(self, asgi: Any, monkeypatch: Any) -> None:
        await fill(asgi, 1)

        def broken(*_: Any) -> Any:
            raise RuntimeError("a bug")

        monkeypatch.setattr(push.Receiver, "_send", broken)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            await until(lambda: peer.closed == 1011)

    async def test_repeat_waits_when_the_log_cannot_be_read(self, asgi: Any, monkeypatch: Any) -> None:
        from headrace.errors import Busy

        monkeypatch.setattr(session, "BACK_OFF_FIRST_S", 0.001)
        await fill(asgi, 1)
        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            read = asgi.hub.read
            failures = [Busy("busy"), Busy("busy")]

            async def sometimes(*arguments: Any, **more: Any) -> Any:
                if failures:
                    raise failures.pop()
                return await read(*arguments, **more)

            monkeypatch.setattr(asgi.hub, "read", sometimes)
            peer.refuse(rid)
            rid, seq, events = await peer.group()
            assert (seq, ids(events)) == (0, [1])

    async def test_position_that_cannot_be_saved_is_no_disaster(self, asgi: Any, monkeypatch: Any) -> None:
        from headrace.errors import DiskFull

        await fill(asgi, 1)

        async def full(*_: Any, **__: Any) -> Any:
            raise DiskFull("no room")

        async with asgi.websocket() as peer:
            await peer.ready("C")
            rid, _, _ = await peer.group()
            monkeypatch.setattr(asgi.hub, "save_cursor", full)
            peer.confirm(rid)
            await asgi.add(2)
            _, seq, events = await peer.group()
            assert (seq, ids(events)) == (1, [2])


class TestLive:
    async def test_only_what_comes_from_now_on(self, asgi: Any) -> None:
        await fill(asgi, 5)
        async with asgi.websocket() as peer:
            await peer.ready("LIVE")
            await asgi.add("now")
            _rid, seq, events = await peer.group()
            assert (seq, ids(events), events[0]["data"]) == (0, [6], "now")

    async def test_goes_on_after_errors(self, asgi: Any) -> None:
        """The published LiveReceiver answers every group with an error."""
        async with asgi.websocket() as peer:
            await peer.ready("LIVE")
            for number in range(5):
                await asgi.add(number)
                rid, seq, events = await peer.group()
                assert (seq, ids(events)) == (number, [number + 1])
                peer.refuse(rid)

    @pytest.mark.parametrize("config", [{"live_backlog_events": 1000}], indirect=True)
    async def test_slow_consumer_gets_a_gap(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("LIVE")
            await asgi.add(0)
            first = await peer.group()
            await asgi.add(1)
            second = await peer.group()
            await fill(asgi, 2500)  # both slots are taken: 2500 wait
            peer.confirm(first[0])
            _, seq, events = await peer.group()
            assert seq == 4  # two groups were dropped
            assert ids(events) == list(range(2003, 2503))
            assert second[1] == 1
            assert asgi.hub.metrics.futoin.dropped_groups._value.get() == 2

    @pytest.mark.parametrize("config", [{"push_timeout_s": 0.02}], indirect=True)
    async def test_silent_consumer_is_not_waited_for(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("LIVE")
            for number in range(4):
                await asgi.add(number)
                assert (await peer.group())[1] == number

    async def test_filter(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("LIVE", want=["B"])
            await asgi.add(1, "A")
            await asgi.add(2, "B")
            _, seq, events = await peer.group()
            assert (seq, ids(events)) == (0, [2])

    async def test_new_ready_takes_the_place_of_the_old(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("LIVE", want=["A"])
            await peer.ready("LIVE", want=["B"])
            await asgi.add(1, "A")
            await asgi.add(2, "B")
            assert ids((await peer.group())[2]) == [2]

    async def test_leaves_no_trace(self, asgi: Any) -> None:
        async with asgi.websocket() as peer:
            await peer.ready("LIVE")
            await asgi.add(1)
            await peer.group()
        assert asgi.hub.cursors() == []


class TestUnderLoad:
    async def test_32_writers_and_a_reliable_poller(self, asgi: Any) -> None:
        await asgi.call("futoin.evt.poll:1.1:registerConsumer", component="C")
        writing = [asyncio.create_task(self.write(asgi, writer, 40)) for writer in range(32)]
        seen: list[dict[str, Any]] = []
        last = None
        while len(seen) < 32 * 40:
            params = {"component": "C", "last_id": last}
            events = (await asgi.call("futoin.evt.poll:1.1:pollEvents", **params))["r"]
            seen += events
            last = events[-1]["id"] if events else last
            await asyncio.sleep(0)
        self.check(seen, await asyncio.gather(*writing))

    async def test_32_writers_and_a_consumer_that_starts_meanwhile(self, asgi: Any) -> None:
        """The reference loses events that are added while readyToReceive is being answered."""
        writing = [asyncio.create_task(self.write(asgi, writer, 40)) for writer in range(32)]
        seen: list[dict[str, Any]] = []
        async with asgi.websocket() as peer:
            await peer.ready("C")
            while len(seen) < 32 * 40:
                rid, _, events = await peer.group()
                seen += events
                peer.confirm(rid)
        self.check(seen, await asyncio.gather(*writing))

    async def write(self, asgi: Any, writer: int, count: int) -> list[int]:
        async with asgi.websocket() as peer:
            call = "futoin.evt.gen:1.1:addEvent"
            return [int((await peer.call(call, type="A", data=[writer, number]))["r"]) for number in range(count)]

    def check(self, seen: list[dict[str, Any]], written: list[list[int]]) -> None:
        assert ids(seen) == list(range(1, len(seen) + 1))
        by_id = {int(event["id"]): event["data"] for event in seen}
        for writer, own in enumerate(written):
            assert own == sorted(own)
            assert [by_id[each] for each in own] == [[writer, number] for number in range(len(own))]

    async def test_added_while_idle(self, asgi: Any) -> None:
        """One event at a time to a consumer that has nothing to do: each must wake it."""
        async with asgi.websocket() as peer:
            await peer.ready("C")
            for number in range(100):
                adding = asyncio.create_task(asgi.add(number))
                rid, seq, events = await peer.group()
                assert (seq, [event["data"] for event in events]) == (number, [number])
                peer.confirm(rid)
                await adding
