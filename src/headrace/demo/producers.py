"""Small live producers, one for each protocol, with the protocol's own client. An acknowledgement means on disk."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

from headrace import connect_async
from headrace.config.address import split_address
from headrace.demo.flows import LEDGER, TILL, Addresses, Flow
from headrace.protocols.ambrosia.binding.declaring import interface_of
from headrace.protocols.ambrosia.client import Host, Immortal, call, impulse, proxy_of
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam.client import Publisher
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.wallaroo.client import Connector

PAUSE_S = 0.1
ANSWER_S = 30.0
FRUIT = ("apple", "pear", "quince", "plum", "fig")
PAGES = ("/", "/shop", "/basket", "/help")
"""A Perper listener at this position keeps a stream's items from being cleaned up."""
GET_OR_CREATE, PUT_IF_ABSENT, PUT, SIZE = 1054, 1002, 1001, 1020


def futoin_url(addresses: Addresses, stream: str) -> str:
    """Where FutoIn serves a stream."""
    return f"ws://{addresses['http']}/futoin/{stream}"


async def produce_orders(flow: Flow, addresses: Addresses) -> None:
    """A Wallaroo connector: numbered messages, continues after what the hub has."""
    async with Connector(addresses["wallaroo"], program="demo") as connector:
        stream = await connector.stream(flow.stream)
        while True:
            order = {"item": random.choice(FRUIT), "count": random.randint(1, 9)}
            with flow.sending():
                await stream.send(json.dumps(order).encode(), event_time=time.time_ns() // 1000)
                await stream.flush()
            await asyncio.sleep(PAUSE_S)


async def produce_readings(flow: Flow, addresses: Addresses) -> None:
    """An Ockam publisher."""
    async with Publisher(addresses["ockam"], flow.stream) as publisher:
        celsius = 20.0
        while True:
            celsius += random.uniform(-0.3, 0.3)
            with flow.sending():
                await publisher.publish(f"{celsius:.2f} °C".encode())
            await asyncio.sleep(PAUSE_S)


async def produce_clicks(flow: Flow, addresses: Addresses) -> None:
    """A FutoIn event generator."""
    async with await FutoinClient.connect(futoin_url(addresses, flow.stream)) as client:
        while True:
            with flow.sending():
                await client.add("CLICK", {"page": random.choice(PAGES), "visitor": random.randint(1, 99)})
            await asyncio.sleep(PAUSE_S)


async def produce_prices(flow: Flow, addresses: Addresses) -> None:
    """An Ignite thin client that adds items to a Perper stream."""
    client = await IgniteClient.connect(*split_address(addresses["ignite"]))
    try:
        await client.request(GET_OR_CREATE, Configuration({0: flow.stream, 200: []}))
        number = await client.request(SIZE, b"", cache=flow.stream)
        while True:
            price = f"{random.choice(FRUIT)} {random.uniform(1, 5):.2f}"
            with flow.sending():
                await client.request(PUT_IF_ABSENT, encode_long(number), encode_string(price), cache=flow.stream)
            number += 1
            await asyncio.sleep(PAUSE_S)
    finally:
        await client.close()


class Ledger(Immortal):
    """Keeps the books; its log is the stream that others read."""

    total: int = 0
    booked: int = 0

    @call
    def book(self, amount: int) -> int:
        self.total += amount
        self.booked += 1
        return self.booked


class Till(Immortal):
    """Takes money from the outside world and has every payment booked."""

    taken: int = 0
    booked: int = 0

    def __init__(self, answered: asyncio.Event) -> None:
        self._answered = answered

    @impulse
    async def take(self, amount: int) -> None:
        self.taken += 1
        self.booked = await self.peer(proxy_of(Ledger), LEDGER).book(amount)
        self._answered.set()  # for the outside world in this process; nothing here depends on it


def host(factory: Any, name: str, addresses: Addresses) -> Host:
    """An immortal at the ports that the hub opened for it."""
    receive, send = addresses[f"ambrosia.{name}.receive"], addresses[f"ambrosia.{name}.send"]
    return Host(factory, name=name, receive=receive, send=send)


async def _describe(addresses: Addresses) -> None:
    """The console and the command line then know the methods by their names."""
    async with connect_async(addresses["flight"]) as hub:
        for name, kind in ((LEDGER, Ledger), (TILL, Till)):
            await hub.call("immortal.describe", {"name": name, "interface": interface_of(kind)})


async def produce_calls(flow: Flow, addresses: Addresses) -> None:
    """Two immortals: the outside world pays at the till, the till calls the ledger."""
    answered = asyncio.Event()
    await _describe(addresses)
    ledger, till = host(Ledger, LEDGER, addresses), host(lambda: Till(answered), TILL, addresses)
    async with asyncio.TaskGroup() as group:
        group.create_task(ledger.run())
        group.create_task(till.run())
        group.create_task(_pay(flow, till, answered))


async def _pay(flow: Flow, till: Host, answered: asyncio.Event) -> None:
    while True:
        await till.wait_primary()
        answered.clear()
        with flow.sending():
            till.itself.take(random.randint(1, 50))
            await asyncio.wait_for(answered.wait(), ANSWER_S)
        await asyncio.sleep(PAUSE_S)


PRODUCERS = {
    "orders": produce_orders,
    "readings": produce_readings,
    "clicks": produce_clicks,
    "prices": produce_prices,
    "calls": produce_calls,
}
