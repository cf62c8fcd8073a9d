"""The process that seals large segments, as a strand: its socket is a pair of buffers, the memory that both share is
real. It may die in the middle of a segment, and it does when its hub dies.
"""

from __future__ import annotations

import mmap
import struct

import msgspec
import pyarrow as pa

from headrace.log import sealer
from headrace.log.sealer import ANSWER_WAIT_S, Order, Sealer, execute
from headrace.log.store import DirectoryStore
from headrace.testing.world.disk import WorldDisk
from headrace.testing.world.scheduler import Machine, Strand
from headrace.testing.world.world import World

DIES = 0.03
"""How often it dies over a segment."""
STUCK = 0.01
"""How often it says nothing more."""


class _Child(Machine):
    """A process that ends with the one that began it."""

    def __init__(self, parent: Machine) -> None:
        self._parent = parent
        self._was_killed = False
        super().__init__(f"{parent.name} sealer")
        self.errors = parent.errors

    @property
    def is_dead(self) -> bool:
        return self._was_killed or self._parent.is_dead

    @is_dead.setter
    def is_dead(self, value: bool) -> None:
        self._was_killed = value


class WorldSealer(Sealer):
    """What the log has of it."""

    def __init__(self, world: World, disk: WorldDisk) -> None:
        self._memory = sealer._Memory()
        self._socket = self._process = _Process(world, disk, self._memory.descriptor)  # type: ignore[assignment]
        self.pid = 0


class _Process:
    """Both ends of the socket, and the process behind it."""

    def __init__(self, world: World, disk: WorldDisk, descriptor: int) -> None:
        self._world = world
        self._scheduler = world.scheduler
        self._machine = _Child(world.threads.machine())
        self._store = DirectoryStore(disk)
        self._descriptor = descriptor
        self._answers = bytearray()
        self._waiting: Strand | None = None

    def sendall(self, message: bytes) -> None:
        if self._machine.is_dead:
            raise BrokenPipeError("it has ended")
        order = msgspec.msgpack.decode(message[4:], type=Order)
        self._scheduler.spawn(self._machine, "sealer", lambda: self._work(order))

    def _work(self, order: Order) -> None:
        fate = self._world.random.random()
        if fate < STUCK:
            self._world.tell(self._machine.name, "says nothing more")
            self._scheduler.park()
        memory = pa.py_buffer(mmap.mmap(self._descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ))
        answer = msgspec.msgpack.encode(execute(self._store, order, memory))
        if fate < STUCK + DIES:
            self._world.tell(self._machine.name, "dies")
            self.kill()
        else:
            self._answers += struct.pack("<I", len(answer)) + answer
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def recv(self, size: int) -> bytes:
        while not self._answers and not self._machine.is_dead:
            self._waiting = self._scheduler.current
            if not self._scheduler.park(ANSWER_WAIT_S):
                raise TimeoutError
        data = bytes(self._answers[:size])
        del self._answers[:size]
        return data

    def kill(self) -> None:
        self._machine.is_dead = True

    close = kill

    def shutdown(self, how: int) -> None:
        if self._waiting is not None:
            self._scheduler.wake(self._waiting)

    def wait(self, timeout_s: float | None = None) -> int:
        return 0
