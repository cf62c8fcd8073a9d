"""The listeners on real sockets, with the embedded log on a disk in memory."""

from __future__ import annotations

import asyncio
import errno
import importlib
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest
from support.ockam_peer import Peer, hub_and_listener, multi_hop, peer_of, settings
from support.until import DEADLINE_S, until

from headrace.errors import DiskFull
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import StreamOptions
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.routing import RECORD_BYTES_MAX, Address, local
from headrace.protocols.ockam.server import serve
from headrace.testing import FaultyDisk, MemoryDisk, memory_hub

# --- push ---


@pytest.mark.parametrize("framing", ["legacy", "cbor"])
async def test_two_hundred_pipelined_pushes_are_one_append(framing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener, framing) as peer:
        address = await peer.create()
        appends: list[int] = []
        append = hub.append

        def spy(name: str, batch: Batch, **options: Any) -> Any:
            appends.append(batch.count)
            return append(name, batch, **options)

        monkeypatch.setattr(hub, "append", spy)
        requests = [codec.encode_request(codec.PushRequest(number, b"%d" % number)) for number in range(200)]
        peer.raw(b"".join(peer.frame(address, request) for request in requests))
        assert [await peer.response() for _ in requests] == [codec.PushConfirm(n, True, n) for n in range(200)]
        assert appends == [200]
        assert await peer.pull_all(address) == [(n, b"%d" % n) for n in range(200)]


async def test_two_publishers_interleaved() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as one, peer_of(listener) as two:
        address = await one.create()

        async def publish(peer: Peer, mark: bytes) -> list[int]:
            indexes = []
            for burst in range(20):
                confirms = await peer.push(address, *[mark + b"%d" % (burst * 5 + n) for n in range(5)])
                indexes += [confirm.index for confirm in confirms if isinstance(confirm, codec.PushConfirm)]
            return indexes

        a, b = await asyncio.gather(publish(one, b"a"), publish(two, b"b"))
        assert sorted(a + b) == list(range(200))
        assert a == sorted(a)
        assert b == sorted(b)
        records = dict(await one.pull_all(address))
        assert [records[index] for index in a] == [b"a%d" % n for n in range(100)]
        assert [records[index] for index in b] == [b"b%d" % n for n in range(100)]


class GatedDisk(MemoryDisk):
    """The journal cannot be written while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.waiting = threading.Event(), threading.Event()
        self.gate.set()

    def open_synced(self, path: str) -> Any:
        file = super().open_synced(path)
        write_at = file.write_at

        def gated(offset: int, pieces: Sequence[bytes]) -> None:
            if not self.gate.is_set():
                self.waiting.set()
                self.gate.wait(DEADLINE_S)
            write_at(offset, pieces)

        file.write_at = gated  # type: ignore[method-assign]
        return file


async def test_a_confirm_waits_for_the_disk() -> None:
    disk = GatedDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as peer, peer_of(listener) as other:
        address = await peer.create()
        disk.gate.clear()
        peer.send(address, codec.PushRequest(1, b"x"))
        await until(disk.waiting.is_set)
        await other.still_alive()  # a whole round trip through the same event loop
        assert not peer.has_received()
        assert hub.bounds("orders").next == 0
        disk.gate.set()
        assert await peer.response() == codec.PushConfirm(1, True, 0)


async def test_the_largest_record_round_trips_and_a_larger_one_is_refused() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        largest = bytes(RECORD_BYTES_MAX)
        confirms = await peer.push(address, b"first", largest + b"x", largest)
        assert confirms == [
            codec.PushConfirm(0, True, 0),
            codec.PushConfirm(1, False, 0),
            codec.PushConfirm(2, True, 1),
        ]
        assert await peer.pull_all(address) == [(0, b"first"), (1, largest)]


async def test_only_refused_pushes() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        assert await peer.push(address, bytes(RECORD_BYTES_MAX + 1)) == [codec.PushConfirm(0, False, 0)]
        assert hub.bounds("orders").next == 0


async def test_failed_appends_are_confirmed_with_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()

        def full(*args: Any, **options: Any) -> Any:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(DiskFull("no room"))
            return future

        with monkeypatch.context() as patch:
            patch.setattr(hub, "append", full)
            assert await peer.push(address, b"a", b"b") == [codec.PushConfirm(n, False, 0) for n in range(2)]
        assert await peer.push(address, b"c") == [codec.PushConfirm(0, True, 0)]


async def test_a_log_that_failed_says_so_in_every_reply() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with hub_and_listener(disk=disk) as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"durable")
        disk.fail_all("sync", errno.EIO)
        assert await peer.push(address, b"lost", b"lost too") == [codec.PushConfirm(n, False, 0) for n in range(2)]
        disk.heal()
        assert await peer.push(address, b"still refused") == [codec.PushConfirm(0, False, 0)]
        assert await peer.pull(address) == [(0, b"durable")]
        refused = await peer.ask("stream", codec.CreateRequest(codec.CREATE, "new"))
        assert isinstance(refused, codec.Error)
        peer.save_index("cl", "orders", 1)
        assert await peer.get_index("cl", "orders") == 0


async def test_a_full_disk_refuses_until_there_is_room() -> None:
    disk = FaultyDisk(MemoryDisk())
    async with hub_and_listener(disk=disk) as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        disk.fail_all("write", errno.ENOSPC)
        assert await peer.push(address, b"no room") == [codec.PushConfirm(0, False, 0)]
        disk.heal()
        assert await peer.push(address, b"room") == [codec.PushConfirm(0, True, 0)]
        assert await peer.pull(address) == [(0, b"room")]


async def test_an_empty_return_route_is_confirmed_on_the_same_connection() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        peer.send(address, codec.PushRequest(1, b"x"), back=())
        message = await peer.message()
        assert message.onward == ()
        assert codec.decode_response(message.payload) == codec.PushConfirm(1, True, 0)


async def test_each_request_is_answered_to_its_own_route() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        route = multi_hop()
        requests: list[tuple[bytes, codec.Request]] = [
            (address, codec.PushRequest(1, b"x")),
            (address, codec.PullRequest(1, 0, 1)),
            (b"stream", codec.CreateRequest(codec.CREATE, "orders")),
            (b"stream_index", codec.GetIndex(codec.INDEX, "c", "orders")),
            (b"stream", codec.PullRequest(1, 0, 1)),
        ]
        for to, request in requests:
            peer.send(to, request, back=route)
            assert (await peer.message()).onward == route


async def test_a_client_that_leaves_right_after_its_push() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as staying:
        address = await staying.create()
        async with peer_of(listener) as leaving:
            leaving.send(address, codec.PushRequest(1, b"kept"))
            await leaving.close()
        await hub.wait("orders", 0)
        assert await staying.pull(address) == [(0, b"kept")]


async def test_acknowledgement_by_a_cursor_holds_confirms_and_not_pulls() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await hub.create_stream("orders", options=StreamOptions(ack="processed:ockam:billing"))
        address = await peer.create()
        for number in range(2):
            peer.send(address, codec.PushRequest(number, b"%d" % number))
        assert await peer.pull(address) == [(0, b"0"), (1, b"1")]
        peer.save_index("billing", "orders", 2)
        assert [await peer.response(), await peer.response()] == [codec.PushConfirm(n, True, n) for n in range(2)]


async def test_confirms_that_will_never_come_do_not_outlive_their_connection() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as staying:
        await hub.create_stream("orders", options=StreamOptions(ack="processed:nobody"))
        address = await staying.create()
        async with peer_of(listener) as leaving:
            leaving.send(address, codec.PushRequest(1, b"x"))
            assert await leaving.pull(address) == [(0, b"x")]
            leaving.vanish()
        await until(lambda: len(hub.sessions) == 1)
        staying.send(address, codec.PushRequest(1, b"y"))
        assert len(await staying.pull(address)) == 2
        async with asyncio.timeout(DEADLINE_S):
            await listener.close()
        assert await staying.at_end()


async def test_a_peer_that_left_before_its_push_was_durable_is_not_waited_for() -> None:
    disk = GatedDisk()
    async with hub_and_listener(disk=disk) as (hub, listener):
        await hub.create_stream("orders", options=StreamOptions(ack="processed:nobody"))
        async with peer_of(listener) as leaving:
            address = await leaving.create()
            disk.gate.clear()
            leaving.send(address, codec.PushRequest(1, b"x"))
            await until(disk.waiting.is_set)
            leaving.vanish()
        await until(lambda: len(hub.sessions) == 0)
        disk.gate.set()
        await until(lambda: hub.bounds("orders").next == 1)
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})


async def test_an_acknowledgement_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await hub.create_stream("orders", options=StreamOptions(ack="processed:nobody"))
        address = await peer.create()

        async def fail(*args: Any) -> None:
            raise DiskFull("gone")

        monkeypatch.setattr(hub, "acknowledged", fail)
        assert await peer.push(address, b"x") == [codec.PushConfirm(0, False, 0)]


# --- what hurts the reference ---


async def test_create_sent_to_a_stream_leaves_it_alone() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"kept")
        assert await peer.ask(address, codec.CreateRequest(codec.CREATE, "orders")) == codec.Error("Invalid request")
        assert await peer.pull(address) == [(0, b"kept")]


async def test_a_name_that_is_not_utf8() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        peer.raw(peer.frame("stream", codec.encode_payload(codec.CREATE, b"\x01\x02\xff\xfe")))
        assert await peer.response() == codec.Error("Invalid request")
        await peer.still_alive()


async def test_heartbeats_empty_frames_and_unknown_addresses_are_silent() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        peer.raw(b"\x00\x00" + bytes.fromhex("000401000000") + peer.frame("nobody", b""))
        peer.raw(peer.frame((Address(1, b"127.0.0.1:1"), local("stream")), b""))
        await peer.still_alive()
        for reason in ("empty_frame", "heartbeat", "unknown_address", "not_local"):
            sample = hub.metrics.registry.get_sample_value("headrace_ockam_dropped_total", {"reason": reason})
            assert sample == 1, reason


async def test_other_hosts_are_never_dialled() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        dialled = asyncio.Event()
        trap = await asyncio.start_server(lambda reader, writer: dialled.set(), "127.0.0.1", 0)
        try:
            host, port = trap.sockets[0].getsockname()
            target = Address(1, f"{host}:{port}".encode())
            peer.raw(peer.frame((target, local("stream")), b"x", back=(target,)))
            peer.send("stream", codec.PullRequest(1, 0, 1), back=(target,))
            message = await peer.message()
            assert message.onward == (target,)
            assert not dialled.is_set()
        finally:
            trap.close()
            await trap.wait_closed()


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x04\x00\x00\x00\x00", b"\x00\x04\x03\x00\x00\x00", b"\x00\x05\x01\x00\x00\x00\x00", b"\x00\x01\x01"],
    ids=["version 0", "version 3", "trailing byte", "truncated"],
)
async def test_malformed_messages_close_this_connection_only(raw: bytes) -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as other, peer_of(listener) as peer:
        peer.raw(raw)
        assert await peer.at_end()
        await other.still_alive()


async def test_wire_version_2_is_answered_in_version_1() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        wire = peer.frame("stream", codec.encode_request(codec.CreateRequest(codec.CREATE, "s")))[3:]
        for tail in (b"\x00", b"\x01\x05trace"):
            traced = b"\x02" + wire + tail
            peer.raw(len(traced).to_bytes(2, "big") + traced)
            header = await peer.reader.readexactly(2)
            reply = await peer.reader.readexactly(int.from_bytes(header, "big"))
            assert reply[0] == 1


# --- the newer framing ---


async def test_a_large_record_over_the_newer_framing() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener, "cbor") as peer:
        address = await peer.create()
        record = bytes(range(256)) * 4000
        assert await peer.push(address, record, b"small") == [codec.PushConfirm(n, True, n) for n in range(2)]
        assert await peer.pull_all(address) == [(0, record), (1, b"small")]


async def test_a_peer_that_does_not_greet_is_dropped() -> None:
    async with hub_and_listener(settings(greeting_timeout_s=0.05)) as (_, listener):
        assert listener.cbor_address is not None
        host, port = listener.cbor_address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        async with asyncio.timeout(DEADLINE_S):
            assert await reader.read() == b"\x01"
        writer.close()


async def test_a_health_check_is_not_noisy(caplog: pytest.LogCaptureFixture) -> None:
    async with hub_and_listener() as (hub, listener):
        assert listener.cbor_address is not None
        for address in (listener.address, listener.cbor_address):
            host, port = address.split(":")
            _, writer = await asyncio.open_connection(host, int(port))
            await until(lambda: len(hub.sessions) == 1)
            writer.close()
            await until(lambda: len(hub.sessions) == 0)
        assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []


async def test_without_the_second_listener() -> None:
    async with hub_and_listener(settings(cbor_listen="off")) as (_, listener):
        assert listener.cbor_address is None


async def test_a_second_listener_that_cannot_start_stops_the_first() -> None:
    async with hub_and_listener() as (_, busy):
        assert busy.cbor_address is not None
        async with memory_hub(settings(cbor_listen=busy.cbor_address)) as hub:
            with pytest.raises(OSError, match="address already in use"):
                await serve(hub, "127.0.0.1:0")


# --- flow, sessions, rights ---


async def test_reading_stops_while_the_hub_is_congested(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer, peer_of(listener) as other:
        address = await peer.create()
        drained = asyncio.Event()
        with monkeypatch.context() as patch:
            patch.setattr(type(hub), "congested", property(lambda self: not drained.is_set()))
            patch.setattr(hub, "drained", drained.wait)
            assert await peer.push(address, b"goes through") == [codec.PushConfirm(0, True, 0)]
            peer.send(address, codec.PushRequest(2, b"waits"))
            await other.still_alive()
            assert not peer.has_received()
            assert hub.bounds("orders").next == 1
            drained.set()
            assert await peer.response() == codec.PushConfirm(2, True, 1)


async def test_a_peer_that_does_not_read_its_replies_is_not_read_from() -> None:
    async with hub_and_listener(settings(waiting_requests_max=4)) as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([bytes(1000)] * 60))
        pull = peer.frame(address, codec.encode_request(codec.PullRequest(1, 0, 60)))
        for _ in range(400):
            peer.raw(pull)
        served = 0
        while served < 400:
            assert hub.sessions.list("ockam")[0].details["waiting_requests"] <= 400
            response = await peer.response()
            assert isinstance(response, codec.PullResponse)
            assert len(response.messages) == 60
            served += 1


async def test_reading_stops_while_many_saves_wait_for_the_disk() -> None:
    disk = GatedDisk()
    config = settings(waiting_requests_max=50)
    async with hub_and_listener(config, disk) as (hub, listener), peer_of(listener) as peer, peer_of(listener) as other:

        def requests_read() -> object:
            return hub.sessions.list("ockam")[0].details["requests"]

        await peer.create()
        await hub.append("orders", Batch.of([b"x"] * 9))
        disk.gate.clear()
        save = peer.frame("stream_index", codec.encode_request(codec.SaveIndex(codec.INDEX, "c", "orders", 7)))
        peer.raw(save * 50)
        await until(lambda: requests_read() == 51)
        peer.raw(save * 1_000)
        for _ in range(5):
            await other.still_alive()  # time in which more would have been read
        stopped_at = requests_read()
        disk.gate.set()
        assert stopped_at == 51
        assert await peer.get_index("c", "orders") == 7
        assert requests_read() == 51 + 1_000 + 1


async def test_peers_that_reset_at_once() -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        for _ in range(10):
            with socket.create_connection(peer.writer.get_extra_info("peername")) as connected:
                connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await until(lambda: len(hub.sessions.list("ockam", ended=True)) == 10)
        await peer.still_alive()
    assert errors == []


async def test_a_get_sees_the_saves_of_a_connection_that_has_gone() -> None:
    """A consumer that starts again at once goes on where it was."""
    disk = GatedDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as other:
        await other.create()
        await hub.append("orders", Batch.of([b"x"] * 9))
        assert await other.get_index("billing", "orders") == 0
        async with peer_of(listener) as leaving:
            disk.gate.clear()
            leaving.save_index("billing", "orders", 7)
            await until(disk.waiting.is_set)
        other.send("stream_index", codec.GetIndex(codec.INDEX, "billing", "orders"))
        await until(lambda: len(hub.sessions) == 1)
        await other.still_alive()
        disk.gate.set()
        response = await other.response()
        assert isinstance(response, codec.Index)
        assert response.index == 7


async def test_sessions_are_visible() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        await peer.still_alive()
        (info,) = hub.sessions.list("ockam")
        assert info.details["framing"] == "legacy"
        assert info.details["last_error"] == "an empty stream name"


async def test_more_sessions_than_the_hub_may_have() -> None:
    config = settings()
    config = msgspec.structs.replace(config, limits=msgspec.structs.replace(config.limits, sessions_max=1))
    async with hub_and_listener(config) as (_, listener), peer_of(listener) as first:
        await first.still_alive()
        async with peer_of(listener) as second:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await second.still_alive()
        await first.still_alive()


async def test_stopping_ends_the_connections() -> None:
    async with hub_and_listener() as (_, listener), peer_of(listener) as peer:
        await peer.create()
        await listener.close()
        assert await peer.at_end()


async def test_stopping_does_not_wait_for_a_peer_that_does_not_read() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await hub.append("orders", Batch.of([bytes(1000)] * 60))
        peer.raw(peer.frame(address, codec.encode_request(codec.PullRequest(1, 0, 60))) * 1_000)
        await until(lambda: hub.sessions.list("ockam")[0].details["waiting_requests"] != 0)
        async with asyncio.timeout(DEADLINE_S):
            await listener.close()


async def test_replies_and_times_are_counted() -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"x")
        await peer.still_alive()
        sample = hub.metrics.registry.get_sample_value
        labels = {"protocol": "ockam"}
        assert sample("headrace_ack_seconds_count", labels) == 1
        assert sample("headrace_records_in_total", labels) == 1
        assert sample("headrace_peer_errors_total", labels | {"code": "invalid-request"}) == 1


async def test_an_error_of_our_own_ends_only_that_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hub_and_listener() as (hub, listener), peer_of(listener) as other, peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"x")

        async def broken(self: Hub, *args: Any, **options: Any) -> Any:
            raise ZeroDivisionError

        with monkeypatch.context() as patch:
            patch.setattr(hub, "read", broken)
            peer.send(address, codec.PullRequest(1, 0, 1))
            assert await peer.at_end()
        assert await other.pull(address) == [(0, b"x")]


@pytest.mark.parametrize(
    "scenario",
    [
        test_two_publishers_interleaved,
        test_each_request_is_answered_to_its_own_route,
        test_a_large_record_over_the_newer_framing,
        test_a_peer_that_does_not_read_its_replies_is_not_read_from,
        test_stopping_ends_the_connections,
        test_peers_that_reset_at_once,
    ],
)
def test_on_the_other_event_loop(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    if sys.platform == "win32":
        pytest.skip("uvloop does not exist for Windows")
    uvloop = importlib.import_module("uvloop")
    uvloop.run(scenario())
