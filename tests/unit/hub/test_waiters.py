"""Threads that wait for records: the bell, and who rings it."""

import asyncio
import threading

from headrace.errors import LogFailed
from headrace.hub.waiters import Bell, RecordWaiters
from headrace.log.batch import Batch
from headrace.testing import memory_hub

SOON_S = 60.0


def test_a_ring_that_nobody_waits_for_is_heard_once():
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_a_thread_that_waits_is_woken():
    bell, heard = Bell(), []
    waiting = threading.Thread(target=lambda: heard.append(bell.wait(SOON_S)))
    waiting.start()
    bell.ring()
    waiting.join(SOON_S)
    assert heard == [True]


def test_only_those_who_listen_to_a_place_are_rung():
    waiters = RecordWaiters()
    orders, both = Bell(), Bell()
    with waiters.listening([("orders", 0)], orders), waiters.listening([("orders", 0), ("paid", 0)], both):
        waiters.ring([("paid", 0)])
        assert (orders.wait(0), both.wait(0)) == (False, True)
        waiters.ring([("orders", 0), ("else", 0)])
        assert (orders.wait(0), both.wait(0)) == (True, True)
    waiters.ring([("orders", 0), ("paid", 0)])
    assert (orders.wait(0), both.wait(0)) == (False, False)


def test_what_will_never_come_rings_those_concerned():
    waiters = RecordWaiters()
    orders, paid = Bell(), Bell()
    with waiters.listening([("orders", 0)], orders), waiters.listening([("paid", 0)], paid):
        waiters.fail(LogFailed("gone"), lambda key: key[0] == "orders")
        assert (orders.wait(0), paid.wait(0)) == (True, False)


async def test_a_thread_hears_of_a_record_by_the_logs_writer():
    async with memory_hub() as hub:
        await hub.create_stream("orders")
        bell = Bell()
        with hub.new_records.listening([("orders", 0)], bell):
            await hub.append("orders", Batch.of([b"pear"]))
            assert await asyncio.to_thread(bell.wait, SOON_S)
