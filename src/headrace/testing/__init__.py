"""For users' own tests: an in-memory hub, a clock that stands still, disks that lose, tear and fail, and brokers.

async with headrace.testing.memory_hub() as hub:
    await hub.create_stream("orders")
    await hub.append("orders", Batch.one(b"1 pear"))
"""

from __future__ import annotations

from headrace.testing.clock import FakeClock
from headrace.testing.disk import FaultyDisk, MemoryDisk
from headrace.testing.hub import memory_hub
from headrace.testing.kafka import FakeKafka, Fault
from headrace.testing.log import MemoryJournal, MemoryStore
from headrace.testing.served import ServedHub, served_hub

__all__ = [
    "FakeClock",
    "FakeKafka",
    "Fault",
    "FaultyDisk",
    "MemoryDisk",
    "MemoryJournal",
    "MemoryStore",
    "ServedHub",
    "memory_hub",
    "served_hub",
]
