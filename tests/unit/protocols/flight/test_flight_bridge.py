"""Calls that give up while the loop works for them."""

import asyncio
import threading

import pyarrow.flight as flight
import pytest
from support.until import until

from headrace.errors import Closed
from headrace.protocols.flight.bridge import Bridge
from headrace.protocols.flight.gets import Caller


class Leaving:
    """The context of a client that has gone, noticed only after something has happened."""

    def __init__(self, happened=None):
        self._happened = happened

    def is_cancelled(self):
        if self._happened is not None:
            assert self._happened.wait(60)
        return True


async def test_what_was_opened_for_a_client_that_has_gone_is_closed():
    opened = threading.Event()
    closed = []

    async def begin():
        opened.set()
        return "place"

    with pytest.raises(flight.FlightCancelledError):
        await asyncio.to_thread(Bridge(asyncio.get_running_loop()).open, begin, Leaving(happened=opened), closed.append)
    await until(lambda: closed)
    assert closed == ["place"]


async def test_what_is_opened_after_its_client_has_gone_is_closed_too():
    opened = []
    closed = []

    async def begin():
        opened.append("place")
        return "place"

    def give_up():  # while the loop stands still
        with pytest.raises(flight.FlightCancelledError):
            bridge.open(begin, Leaving(), closed.append)

    bridge = Bridge(asyncio.get_running_loop())
    giving_up = threading.Thread(target=give_up)
    giving_up.start()
    giving_up.join()
    for _ in range(20):  # turns of the loop, however long each takes
        await asyncio.sleep(0)
    assert closed == opened


async def test_what_is_opened_for_a_client_that_waits_is_its_own():
    closed = []

    async def begin():
        return "place"

    class Waiting:
        def is_cancelled(self):
            return False

    assert await asyncio.to_thread(Bridge(asyncio.get_running_loop()).open, begin, Waiting(), closed.append) == "place"
    assert closed == []


async def test_whether_a_reader_has_gone_is_not_looked_at_for_each_batch(monkeypatch):
    """gRPC may have to wait to answer, and all of Python waits with it."""
    looks = []

    class Gone:
        def is_cancelled(self):
            looks.append(None)
            return True

    bridge = Bridge(asyncio.get_running_loop())
    monkeypatch.setattr("headrace.protocols.flight.gets.CANCEL_POLL_S", 3600.0)
    caller = Caller(bridge, Gone())
    for _ in range(100):
        caller.check()
    assert not looks
    monkeypatch.setattr("headrace.protocols.flight.gets.CANCEL_POLL_S", 0.0)
    with pytest.raises(flight.FlightCancelledError):
        caller.check()
    bridge.stop()
    with pytest.raises(Closed):
        Caller(bridge, Gone()).check()
    assert len(looks) == 1
