"""Sealing in a process of its own, for segments that are worth it.

Making a segment takes thousands of small steps. Beside a busy event loop each of them is a turn at Python's lock that
somebody waits for: under full load sealing slowed everything down by a quarter or more, while a core was idle.

    log ──► memory that both have: the bodies of the records, one behind the other
        ──► socket: size:u32, MessagePack of `Order`
        ◄── socket: size:u32, MessagePack of `Sealed` or `Failed`

The process lives as long as its socket is open. When the log closes it, or dies, the process is gone at once, in the
middle of whatever it does, as a log that is killed would be. Until then it holds the data directory's lock too, so that
no other hub can start while it may still put a segment in place.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec
import pyarrow as pa

from headrace.log.clock import has_passed
from headrace.log.disk import OsDisk, SyncFailed, is_final
from headrace.log.segment import SegmentRef, write_segment
from headrace.log.store import DirectoryStore, Store
from headrace.log.tail import TailEntry, pieces

logger = logging.getLogger(__name__)

LIVES = 3
"""So often a process that died is replaced; then segments are made here."""
ANSWER_WAIT_S = 60.0
"""A process that takes longer for a segment is taken for dead, and ended."""
CLOSE_WAIT_S = 10.0
WRITTEN_BYTES = 1 << 20
"""Small bodies are gathered until there are so many."""
_SIZE = struct.Struct("<I")


class Body(msgspec.Struct, frozen=True, array_like=True):
    """A tail entry; its bytes are in the shared memory, behind those of the entries before it."""

    base: int
    count: int
    time_us: int
    size: int


class Order(msgspec.Struct, frozen=True, array_like=True):
    """Make a segment of these."""

    stream: str
    stream_id: int
    partition: int
    bodies: list[Body]
    tag: str = ""
    """Of the store, for the segment's name."""


class Sealed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """It is in its place."""

    first: int
    next: int
    path: str
    bytes: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """What the disk said."""

    errno: int
    text: str
    is_final: bool


class SealerGone(Exception):
    """The process does not answer any more."""


class Sealing:
    """Makes segments of tails: large ones elsewhere when it can, the others here. Used by one thread."""

    def __init__(self, store: Store, apart_bytes: int, idle_s: float) -> None:
        self._store = store
        self._place = store.handover() if hasattr(os, "memfd_create") else None
        self._apart_bytes = apart_bytes
        self._idle_us = int(idle_s * 1_000_000)
        self._used_us = 0
        self._lives = LIVES
        self._has_given_up = False
        self.process: Sealer | None = None
        self.apart = 0
        """How many segments were made elsewhere."""
        self._rested_apart = 0

    def seal(
        self, stream: str, stream_id: int, partition: int, entries: Sequence[TailEntry], now_us: int
    ) -> SegmentRef:
        if self._is_worth_it(entries):
            with contextlib.suppress(SealerGone):
                ref = self._seal_apart(stream, stream_id, partition, entries, now_us)
                return ref._replace(path=self._store.publish(ref.path))
        return write_segment(self._store, stream, stream_id, partition, pieces(entries), self._store.tag)

    def _is_worth_it(self, entries: Sequence[TailEntry]) -> bool:
        if self._place is None or not self._lives or not self._apart_bytes:
            return False
        return sum(len(entry.body) for entry in entries) >= self._apart_bytes

    def _seal_apart(
        self, stream: str, stream_id: int, partition: int, entries: Sequence[TailEntry], now_us: int
    ) -> SegmentRef:
        try:
            self.process = self.process or self._start()
            if self._has_given_up:  # meanwhile: whoever did so has not seen this process
                raise SealerGone("nobody waits for it any more")
            ref = self.process.seal(stream, stream_id, partition, entries, self._store.tag)
        except SealerGone as gone:
            self.close()
            if self._has_given_up:
                raise
            self._lives -= 1
            after = "a new one will be started" if self._lives else "segments are made by the hub itself from now on"
            logger.warning("the process that seals segments has ended (%s); nothing is lost, and %s", gone, after)
            raise
        self._used_us = now_us
        self.apart += 1
        return ref

    def _start(self) -> Sealer:
        assert self._place is not None
        try:
            return Sealer(*self._place)
        except OSError as error:
            raise SealerGone(f"it could not be started: {error}") from error

    def rest(self, now_us: int) -> None:
        """Give memory back that was not used since the last call, and let a process go that has had nothing to do for
        a while."""
        if self.process is None:
            return
        if has_passed(self._idle_us, self._used_us, now_us):
            self.close()
        elif self.apart == self._rested_apart:
            self.process.release()
        self._rested_apart = self.apart

    def give_up(self) -> None:
        """The log ends: whoever waits for the process waits no longer, and segments are made here. From any thread."""
        self._lives, self._has_given_up = 0, True
        if (process := self.process) is not None:
            process.cut_off()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None


class Sealer:
    """The process, seen from the log."""

    def __init__(self, root: str, lock: int) -> None:
        with contextlib.ExitStack() as undo:
            self._memory = _Memory()
            undo.callback(self._memory.close)
            self._socket, theirs = socket.socketpair()
            undo.callback(self._socket.close)
            self._socket.settimeout(ANSWER_WAIT_S)
            with theirs:
                self._process = self._start(root, lock, self._memory.descriptor, theirs.fileno())
            undo.pop_all()
        self.pid = self._process.pid

    @staticmethod
    def _start(root: str, *descriptors: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, root, *map(str, descriptors)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(str(path) for path in sys.path if path)},
            process_group=0,  # Ctrl-C is for the hub, which ends this one
        )

    def seal(
        self, stream: str, stream_id: int, partition: int, entries: Sequence[TailEntry], tag: str = ""
    ) -> SegmentRef:
        """Raises what the disk said to the process, as an `OSError`; or `SealerGone`."""
        bodies = [Body(entry.base, entry.count, entry.time_us, len(entry.body)) for entry in entries]
        try:
            self._memory.fill([entry.body for entry in entries])
            _send(self._socket, Order(stream, stream_id, partition, bodies, tag))
            answer = msgspec.msgpack.decode(_receive(self._socket), type=Sealed | Failed)
        except TimeoutError as error:
            self._process.kill()
            raise SealerGone(f"no answer for {ANSWER_WAIT_S:.0f} s") from error
        except (OSError, EOFError, msgspec.MsgspecError) as error:
            raise SealerGone(str(error)) from error
        if isinstance(answer, Failed):
            raise (SyncFailed if answer.is_final else OSError)(answer.errno, answer.text)
        return SegmentRef(answer.first, answer.next, answer.path, answer.bytes)

    def release(self) -> None:
        """The memory that both map; the next segment takes it again."""
        self._memory.release()

    def cut_off(self) -> None:
        """It is killed, and what waits for its answer goes on: a process that waits for its disk dies when it can."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Returns when the process is gone, and the lock is ours alone."""
        self._socket.close()
        try:
            self._process.wait(CLOSE_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._memory.close()


class _Memory:
    """Memory that another process may map, by its descriptor. Here it is a file that is written to: whatever is missing
    is an error then, and not the hub's death."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("headrace-bodies")
        self._size = 0

    def fill(self, bodies: list[bytes]) -> None:
        size = sum(map(len, bodies))
        if size > self._size:
            self._size = size + size // 4
            os.ftruncate(self.descriptor, self._size)
        os.lseek(self.descriptor, 0, os.SEEK_SET)
        with open(self.descriptor, "wb", WRITTEN_BYTES, closefd=False) as file:
            file.writelines(bodies)

    def release(self) -> None:
        """The process keeps its map: it looks at no more of it than was filled again."""
        if self._size:
            self._size = 0
            os.ftruncate(self.descriptor, 0)

    def close(self) -> None:
        os.close(self.descriptor)


def _send(peer: socket.socket, message: msgspec.Struct) -> None:
    encoded = msgspec.msgpack.encode(message)
    peer.sendall(_SIZE.pack(len(encoded)) + encoded)


def _receive(peer: socket.socket) -> bytes:
    return _receive_exactly(peer, _SIZE.unpack(_receive_exactly(peer, _SIZE.size))[0])


def _receive_exactly(peer: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        data = peer.recv(size - len(received))
        if not data:
            raise EOFError("its connection has ended")
        received += data
    return bytes(received)


# -- in the process --------------------------------------------------------------------------------------------------


def execute(store: Store, order: Order, memory: pa.Buffer) -> Sealed | Failed:
    at = 0
    entries = []
    for body in order.bodies:
        data = memory.slice(at, body.size)
        at += body.size
        entries.append(
            TailEntry(body.base, body.count, body.time_us, data.to_pybytes() if body.count == 1 else data, 0)
        )
    try:
        ref = write_segment(store, order.stream, order.stream_id, order.partition, pieces(entries), order.tag)
    except OSError as error:
        return Failed(error.errno or 0, error.strerror or str(error), is_final(error))
    return Sealed(*ref)


def work(store: Store, descriptor: int, orders: queue.SimpleQueue[bytes], log: socket.socket) -> None:
    memory = pa.py_buffer(b"")
    while True:
        order = msgspec.msgpack.decode(orders.get(), type=Order)
        if sum(body.size for body in order.bodies) > memory.size:
            memory = pa.py_buffer(mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ))
        _send(log, execute(store, order, memory))


def end_after(stumble: threading.ExceptHookArgs) -> None:
    """The log waits for an answer: an error that nobody thought of has to end the process, not only its thread."""
    try:
        threading.__excepthook__(stumble)
    finally:
        os._exit(1)


def main() -> None:
    """Do what the log says until it is gone; then end at once, whatever is under way."""
    threading.excepthook = end_after
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the hub
        signal.signal(number, signal.SIG_IGN)
    root, (lock, memory, connection) = sys.argv[1], map(int, sys.argv[2:])
    orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    store, log = DirectoryStore(OsDisk(root, lock=lock)), socket.socket(fileno=connection)
    threading.Thread(target=work, args=(store, memory, orders, log), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            orders.put(_receive(log))
    os._exit(0)


if __name__ == "__main__":
    main()
