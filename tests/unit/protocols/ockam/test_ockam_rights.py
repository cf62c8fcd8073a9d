"""Who may do what over a protocol without a login."""

from __future__ import annotations

import asyncio

import msgspec
from support.ockam_peer import hub_and_listener, peer_of, with_anonymous

from headrace.config import Grant, User
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.addresses import AddressBook
from headrace.protocols.ockam.routing import LegacyFraming
from headrace.protocols.ockam.server import Connection, Service
from headrace.testing import MemoryDisk


async def test_callers_without_a_name_may_be_refused() -> None:
    async with hub_and_listener(with_anonymous("none")) as (_, listener), peer_of(listener) as peer:
        assert await peer.at_end()


async def test_readers_may_only_read() -> None:
    disk = MemoryDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as peer:
        address = await peer.create()
        await peer.push(address, b"x")
    async with hub_and_listener(with_anonymous("reader"), disk) as (hub, listener), peer_of(listener) as peer:
        assert await peer.pull(address) == [(0, b"x")]
        assert await peer.push(address, b"y") == [codec.PushConfirm(0, False, 0)]
        refused = await peer.ask("stream", codec.CreateRequest(codec.CREATE, "new"))
        assert isinstance(refused, codec.Error)
        assert "may not write" in refused.reason
        assert hub.bounds("orders").next == 1


async def test_a_get_by_a_reader_holds_nothing_back_from_retention() -> None:
    disk = MemoryDisk()
    async with hub_and_listener(disk=disk) as (hub, listener), peer_of(listener) as peer:
        await peer.create()
        assert await peer.get_index("billing", "orders") == 0
    async with hub_and_listener(with_anonymous("reader"), disk) as (hub, listener), peer_of(listener) as peer:
        assert await peer.get_index("billing", "orders") == 0
        assert await peer.get_index("new", "orders") == 0
        assert [cursor.name for cursor in hub.cursors()] == ["ockam:billing"]


async def test_a_stream_without_a_name_needs_the_right_to_write_it_too() -> None:
    config = with_anonymous("pusher")
    grants = {"pusher": [Grant(rights=["write"], streams=["orders"])]}
    config = msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, roles=grants))
    for refusing in (with_anonymous("reader"), config):
        async with hub_and_listener(refusing) as (hub, listener), peer_of(listener) as peer:
            for protocol, partitions in ((codec.CREATE, None), (codec.CREATE_PARTITIONED, 2)):
                refused = await peer.ask("stream", codec.CreateRequest(protocol, None, partitions))
                assert isinstance(refused, codec.Error)
                assert "may not write stream 'generated_" in refused.reason
            assert hub.streams() == []


async def test_writers_may_not_pull_what_they_may_not_read() -> None:
    disk = MemoryDisk()
    async with hub_and_listener(disk=disk) as (_, listener), peer_of(listener) as peer:
        address = await peer.create()
    config = with_anonymous("pusher")
    grants = {"pusher": [Grant(rights=["write"], streams=["orders"])]}
    config = msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, roles=grants))
    async with hub_and_listener(config, disk) as (_, listener), peer_of(listener) as peer:
        assert await peer.push(address, b"x") == [codec.PushConfirm(0, True, 0)]
        refused = await peer.ask(address, codec.PullRequest(1, 0, 1))
        assert isinstance(refused, codec.Error)
        assert "may not read" in refused.reason
        peer.send("stream_index", codec.GetIndex(codec.INDEX, "c", "orders"))
        await peer.still_alive()


async def test_the_user_of_a_client_certificate() -> None:
    config = with_anonymous("none")
    users = {"device-7": User(roles=["writer"])}
    config = msgspec.structs.replace(config, security=msgspec.structs.replace(config.security, users=users))
    async with hub_and_listener(config) as (hub, _):
        service = Service(hub, hub.config.ockam, await AddressBook.open(hub, 10))

        class Transport(asyncio.Transport):
            """One on which TLS has verified a client certificate."""

            closed = False

            def __init__(self, name: str) -> None:
                subject = ((("organizationName", "x"),), (("commonName", name),))
                super().__init__({"peername": ("127.0.0.1", 1), "peercert": {"subject": subject}})

            def close(self) -> None:
                self.closed = True

        for name, refused in [("device-7", False), ("stranger", True)]:
            connection, transport = Connection(service, LegacyFraming()), Transport(name)
            connection.connection_made(transport)
            assert transport.closed is refused
            connection.connection_lost(None)
