"""Consumers that read each stream by another protocol than it came in by. Each keeps its position at the hub."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from headrace import connect_async
from headrace.config.address import split_address
from headrace.demo.flows import Addresses, Flow
from headrace.demo.producers import GET_OR_CREATE, PUT, futoin_url
from headrace.protocols.futoin.client import Event, Receiver
from headrace.protocols.ockam.client import Consumer
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.ignite.binary import decode_string, encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.records import BUILT_IN_SCHEMAS, StreamListener, read_listener, write_listener

NAME = "demo"
SAVE_S = 1.0
GET = 1000
BYTE_ARRAY_HEAD = 5
"""Type code and length in front of a byte array's bytes."""


async def read_by_futoin(flow: Flow, addresses: Addresses) -> None:
    """A reliable FutoIn consumer: the hub pushes, confirmed groups are not pushed again. An event's id is index + 1."""

    async def handle(events: list[Event]) -> None:
        for event in events:
            flow.seen(event.id - 1, _words(event.data))

    await Receiver(futoin_url(addresses, flow.stream), handle=handle, component=NAME.upper()).run()


def _words(data: Any) -> str:
    if isinstance(data, dict) and list(data) == ["base64"]:
        return printable(base64.b64decode(data["base64"]))
    return json.dumps(data, ensure_ascii=False)


async def read_by_ockam(flow: Flow, addresses: Addresses) -> None:
    """An Ockam consumer: pulls, and saves its index when it has handled what it pulled."""
    async with Consumer(addresses["ockam"], flow.stream, client_id=NAME) as consumer:
        async for delivery in consumer:
            for message in delivery.messages:
                flow.seen(message.index, printable(message.data))


async def read_by_perper(flow: Flow, addresses: Addresses) -> None:
    """As a Perper agent does: the fabric tells the keys, the items are in the cache, a listener keeps the position."""
    ignite = await IgniteClient.connect(*split_address(addresses["ignite"]))
    fabric = await FabricClient.connect(*split_address(addresses["fabric"]))
    name = encode_string(f"{NAME}-{flow.name}")
    try:
        await ignite.request(GET_OR_CREATE, Configuration({0: "stream-listeners"}))
        stored = await ignite.request(GET, name, cache="stream-listeners")
        start = _position(stored)
        call = fabric.start("/perper.Fabric/StreamItems", {"stream": flow.stream, "startKey": start, "stride": 1})
        saved_s = time.monotonic()
        async for item in call:
            key = item.key
            value = await ignite.request(GET, encode_long(key), cache=flow.stream)
            flow.seen(key, printable(value[BYTE_ARRAY_HEAD:]))
            if time.monotonic() - saved_s > SAVE_S:
                saved_s = time.monotonic()
                await ignite.request(
                    PUT, name, write_listener(StreamListener(flow.stream, key + 1)), cache="stream-listeners"
                )
    finally:
        await fabric.close()
        await ignite.close()


def _position(stored: bytes | None) -> int:
    if stored is None or len(stored) <= 1:
        return 0
    return read_listener(stored, lambda type_id, schema: BUILT_IN_SCHEMAS.get((type_id, schema))).position


async def read_by_flight(flow: Flow, addresses: Addresses) -> None:
    """The SDK, with a cursor of the hub."""
    async with connect_async(addresses["flight"]) as hub:
        start = await hub.cursor(NAME, flow.stream).get() or 0
        async with await hub.follow(flow.stream, start) as reader:
            saved_s = time.monotonic()
            async for record in reader:
                text = decode_string(record.payload, 0, len(record.payload))[0]
                flow.seen(record.index, text or "")
                if time.monotonic() - saved_s > SAVE_S:
                    saved_s = time.monotonic()
                    await hub.cursor(NAME, flow.stream).save(record.index + 1)


def printable(data: bytes) -> str:
    """Text as it is; other bytes with what can be read of them."""
    text = data.decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() and letter != "\ufffd" else "·" for letter in text)


CONSUMERS = {
    "orders": read_by_futoin,
    "readings": read_by_perper,
    "clicks": read_by_ockam,
    "prices": read_by_flight,
    "calls": read_by_ockam,
    "counts": read_by_futoin,
}
