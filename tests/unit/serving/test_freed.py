"""A connection that is gone leaves nothing that only the garbage collector can free: a crowd that comes and goes would
make it stop everybody for a look at everything, again and again."""

from __future__ import annotations

import asyncio
import gc
import importlib
import socket
import weakref

import pytest
from support.until import until

from headrace.config.address import split_address
from headrace.serving.runtime import LISTENERS
from headrace.testing import memory_hub

HALVES = {
    "wallaroo": b"\0\0\0",
    "ockam": b"\1",
    "ignite": b"\1\0",
    "fabric": b"PRI * HTTP/2.0",
    "http": b"GET / HTTP/1.1\r\n",
}


def test_every_listener_of_ours_is_tried() -> None:
    assert {*HALVES, "flight"} == set(LISTENERS)  # Flight's connections are gRPC's


@pytest.mark.parametrize("name", HALVES)
async def test_a_connection_that_is_gone_is_freed_at_once(name: str) -> None:
    module, _, function = LISTENERS[name].partition(":")
    async with memory_hub() as hub:
        listener = await getattr(importlib.import_module(module), function)(hub, "127.0.0.1:0")
        address = split_address(listener.address)
        gc.disable()
        try:
            with socket.create_connection(address) as peer:
                peer.sendall(HALVES[name])
                await until(lambda: len(hub.intake) == 1)
                (arrival,) = hub.intake._arrivals
                connection = weakref.ref(arrival.end.__self__)  # type: ignore[attr-defined]
                transport = weakref.ref(connection().transport)  # type: ignore[union-attr]
                del arrival
                await asyncio.sleep(0)
            await until(lambda: len(hub.intake) == 0)
            await until(lambda: connection() is None and transport() is None)
        finally:
            gc.enable()
        await listener.close()
