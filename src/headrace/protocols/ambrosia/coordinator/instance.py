"""One immortal inside the hub: its log, what arrives for it, and the bindings that are linked to it."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable
from itertools import compress
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from headrace.errors import DiskFull, HeadraceError, LogFailed, UnknownStream
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.ops import Append, CheckpointInfo, Delete, Op, SaveCursor, SetProducer
from headrace.protocols.ambrosia.call_reader import Calls, label_of_call
from headrace.protocols.ambrosia.codec import Call, RpcType, Type, encode, frame
from headrace.protocols.ambrosia.coordinator.call_queue import CallQueue, LoggedRecord
from headrace.protocols.ambrosia.coordinator.inbox import Inbox
from headrace.protocols.ambrosia.coordinator.store import (
    CURSOR,
    IMPULSE_PREFIX,
    INITIAL_LABEL,
    INITIAL_TABLE,
    SEQUENCE_PRODUCER,
    Registration,
    Store,
    StreamNames,
    producer_of,
)
from headrace.protocols.ambrosia.lineage import Lineage
from headrace.protocols.ambrosia.settings import Ambrosia

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.coordinator.link import Link

logger = logging.getLogger("headrace.ambrosia")
MOVE_COUNT_MAX: Final = 10_000
MOVE_BYTES_MAX: Final = 4 << 20
RETRY_S: Final = 0.5
OnFailed = Callable[[str, BaseException], None]


class Instance:
    """An immortal, or a name that calls were sent to before anybody registered it (`registration` None)."""

    def __init__(
        self,
        hub: Hub,
        store: Store,
        name: str,
        registration: Registration | None,
        on_failed: OnFailed,
        lineage: Lineage,
    ) -> None:
        self.hub = hub
        self.store = store
        self.name = name
        self.names = StreamNames(name)
        self.registration = registration
        self._lineage = lineage
        self.queue = CallQueue(
            hub, self.names, lambda sender: store.forgotten(sender, name), self._logged, self._failed
        )
        self.primary: Link | None = None
        self.standbys: list[Link] = []
        self.checkpointer: Link | None = None
        """A binding that follows and takes the checkpoints."""
        self.storing = asyncio.Lock()
        """While a checkpoint is made to count, and what it replaces is removed."""
        self.last_error: str | None = None
        self.absent_bytes = 0
        self._on_failed = on_failed
        self._records_in = hub.metrics.protocol.of("ambrosia").records_in
        self._inbox_task: asyncio.Task[None] | None = None
        self._starting: asyncio.Task[None] | None = None
        self._backlog_bytes_max = hub.config.section(Ambrosia).backlog_bytes_max
        self._room = asyncio.Event()
        self._running = asyncio.Event()
        self._is_closed = False

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Make sure of the streams, and go on where the last process stopped."""
        if self.registration is None:
            await self.hub.create_stream(self.names.pending)
            self.queue.release(to_log=False)
            return
        await self._create_streams()
        self.queue.clock = self._now_us if self.registration.clock else None
        self.queue.next_sequence = self.queue.stored_sequence()
        if self.registration.started:
            self._begin()
            return
        self.queue.release(to_log=False)
        if self.newest_checkpoint() is not None:  # the last process ended between that and the end of the first start
            try:
                await self.ensure_started()
            except DiskFull as error:  # it is tried again when a binding links
                self.last_error = str(error)
                logger.warning("immortal %s: it is not started yet: %s", self.name, error)

    async def open_when_possible(self) -> None:
        """The same for a name that somebody calls: calls wait while the disk has no room."""
        while self.registration is None and not self._is_closed:
            try:
                return await self.open()
            except DiskFull as error:
                self.last_error = str(error)
                await asyncio.sleep(RETRY_S)

    async def register(self, registration: Registration) -> None:
        """A name that was only called so far becomes an immortal, or an immortal gets other options. Nothing of it
        counts before it is durable."""
        if self.registration is None:
            await self._create_streams()  # first: whoever sees a registration may use them
        elif self._starting is not None:
            await asyncio.wait([self._starting])  # it notes that it has started, under the old options
            registration.started = self.registration.started
        await self.store.save(registration)
        self.registration = registration
        self.queue.clock = self._now_us if registration.clock else None
        if not self.queue.to_log:
            await self.open()

    async def _create_streams(self) -> None:
        for stream in (self.names.log, self.names.pending, self.names.inbox):
            await self.hub.create_stream(stream)

    async def ensure_started(self) -> None:
        """Start, unless that is done or under way. It goes on when the link that asked for it is lost."""
        assert self.registration is not None
        if self.registration.started:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        """Log the InitialMessage as record 0, behind the time where that is told, then what has waited for it, and go
        on with the log.

        Each step is a transaction that can be done again from where it stopped, after a crash too, or when the disk had
        no room.
        """
        registration = self.registration
        assert registration is not None
        self.queue.hold()
        await self.queue.settled()
        try:
            await self._log_initial()
            await self._move_pending()
            await self.store.save(msgspec.structs.replace(registration, started=True))
        except HeadraceError:
            self.queue.release(to_log=False)
            raise
        registration.started = True
        self._begin()

    async def _log_initial(self) -> None:
        initial = self.store.initial(self.name)
        if initial is not None:
            message = frame(Type.INITIAL_MESSAGE, initial)
            clock = self.queue.time_now(0)
            sequence = len(clock)
            record = Batch.one(message, id=sequence, type=INITIAL_LABEL, key=self.name.encode())
            await self.hub.transact(
                [
                    *clock,
                    Append(self.names.log, record),
                    SetProducer(self.names.log, SEQUENCE_PRODUCER, sequence + 1),
                    Delete(INITIAL_TABLE, self.name.encode()),
                ]
            )
            self.queue.next_sequence = sequence + 1

    def _begin(self) -> None:
        self.queue.release(to_log=True)
        self.queue.pending_bytes = 0
        self.made_room()
        self._inbox_task = asyncio.ensure_future(self._follow_inbox())

    async def _move_pending(self) -> None:
        pending = self.names.pending
        bounds = self.hub.bounds(pending)
        position = max(bounds.first, self.hub.cursor(CURSOR, pending) or 0)
        known = await self._known_pending()
        while position < bounds.next:
            batch = await self.hub.read(pending, position, limit=MOVE_COUNT_MAX, max_bytes=MOVE_BYTES_MAX)
            position += len(batch)
            batch = _without_known(batch, known)
            count = len(batch)
            sequence = self.queue.next_sequence
            ids = pa.array(np.full(count, sequence, np.int64))
            moved = pa.RecordBatch.from_pydict(
                {name: batch.column(name) for name in ("payload", "type", "key")} | {"id": ids}
            )
            new: list[Op] = []
            if count:
                new = [*self.queue.time_now(sequence), Append(self.names.log, Batch.from_arrow(moved))]
            sequence += bool(count)
            await self.hub.transact(
                [
                    *new,
                    SetProducer(self.names.log, SEQUENCE_PRODUCER, sequence),
                    SaveCursor(CURSOR, pending, position),
                ]
            )
            self.queue.next_sequence = sequence
        await self.hub.trim(pending, position)

    async def _known_pending(self) -> dict[str, int]:
        """How many of the calls of each sender that wait in `pending` an import has brought into the log already."""
        logged = self.hub.producers(self.names.log)
        if not any(producer.startswith(producer_of("", True)) for producer in logged):
            return {}
        first_pending = await self.first_pending()
        return {sender: logged.get(producer_of(sender, True), 0) - first + 1 for sender, first in first_pending.items()}

    async def first_pending(self) -> dict[str, int]:
        """The number of the first call of each sender that waits in `pending`: the last has what its counter says."""
        pending = self.names.pending
        bounds = self.hub.bounds(pending)
        start = max(bounds.first, self.hub.cursor(CURSOR, pending) or 0)
        waiting = await asyncio.to_thread(self._count_pending, start, bounds.next)
        counters = self.hub.producers(pending)
        return {sender: counters.get(producer_of(sender, True), count) - count + 1 for sender, count in waiting.items()}

    def _count_pending(self, start: int, end: int) -> Counter[str]:
        """By sender. Blocks on the disk."""
        counts: Counter[str] = Counter()
        for batch in self.hub.scan(self.names.pending, start, end, columns=["type", "key"]):
            numbered = [_is_numbered(label) for label in batch.column("type").to_pylist()]
            counts.update(
                key.decode() for key in compress(batch.column("key").to_pylist(), numbered) if key is not None
            )
        return counts

    async def close(self) -> None:
        """Stop following the inbox; links are closed by whoever closes this."""
        self._is_closed = True
        tasks = [task for task in (self._inbox_task, self._starting) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- links --------------------------------------------------------------------------------------------------

    def links(self) -> list[Link]:
        """All bindings that are linked now."""
        return [link for link in (self.primary, *self.standbys, self.checkpointer) if link is not None]

    @property
    def has_standbys_of_ours(self) -> bool:
        """Whether several programs of `headrace.immortals` may be linked at a time."""
        return self.registration is not None and self.registration.clock and self.registration.standby

    def may_follow(self, takes_checkpoints: bool) -> bool:
        """Whether another binding may follow the log: never while an upgrade is to come, which it would miss."""
        registration = self.registration
        if registration is None or registration.upgrade_version > registration.version:
            return False
        return self.checkpointer is None if takes_checkpoints else registration.standby

    def follows(self, link: Link, takes_checkpoints: bool) -> None:
        """A binding follows from now on."""
        if takes_checkpoints:
            self.checkpointer = link
        else:
            self.standbys.append(link)

    def delivers(self, link: Link) -> None:
        """A binding is, or becomes again, one that processes messages as they come."""
        if link is self.primary:
            self._running.set()

    @property
    def running_now(self) -> Link | None:
        """The same, if there is one."""
        return self.primary if self._running.is_set() else None

    async def running(self) -> Link:
        """The binding that processes messages as they come, once there is one."""
        while (link := self.running_now) is None:  # it may be gone before whoever waits hears of it
            await self._running.wait()
        return link

    async def standby_within(self, max_age_s: float) -> tuple[Link, float] | None:
        """The standby that has been sent most of the log, if it lacks nothing that is older than that; and its age, the
        time since the first message that it lacks was logged."""
        if not self.standbys:
            return None
        link = max(self.standbys, key=lambda each: each.feed.position)
        position = link.feed.position
        if position >= self.hub.bounds(self.names.log).next:
            return link, 0.0
        missing = await self.hub.read(self.names.log, position, limit=1)
        logged_us = int(missing.column("time")[0].as_py().timestamp() * 1e6)
        age_s = max(0.0, (self._now_us() - logged_us) / 1e6)
        return (link, age_s) if age_s <= max_age_s and not link.closed else None

    @staticmethod
    def _now_us() -> int:
        return time.time_ns() // 1000

    def unlink(self, link: Link) -> None:
        """A binding is gone. A standby takes over; otherwise the immortal waits for the next binding."""
        if link is not self.primary:
            for other in self.links():
                other.was_followed = True
        if link in self.standbys:
            self.standbys.remove(link)
        if link is self.checkpointer:
            self.checkpointer = None
        if link is self.primary:
            self._running.clear()
            self.primary = self.standbys.pop(0) if self.standbys else None
            self.absent_bytes = 0
            if self.primary is not None:
                logger.info("immortal %s: a standby takes over", self.name)
                self.primary.promote()

    # --- arrivals -----------------------------------------------------------------------------------------------

    def _logged(self, records: list[LoggedRecord]) -> None:
        self._records_in.inc(sum(record.count for record in records))
        for record in records:
            for place, count, origin in record.origins:
                self._lineage.logged(self.name, record.first + place, count, origin)
        if self.primary is None:
            self.absent_bytes += sum(len(record.payload) for record in records)
        else:
            self.primary.feed.offer(records)
        for link in (*self.standbys, self.checkpointer):
            if link is not None:
                link.feed.offer(records)

    def _failed(self, error: BaseException) -> None:
        self._on_failed(f"the log did not take calls for {self.name}: {error}", error)

    @property
    def backlog_bytes(self) -> int:
        """What waits for a binding that is not there."""
        return self.queue.pending_bytes + self.absent_bytes

    @property
    def full(self) -> bool:
        """Whether those who call this immortal have to wait."""
        return self.queue.full or self.backlog_bytes > self._backlog_bytes_max

    def made_room(self) -> None:
        """Let senders that wait for this immortal go on."""
        self._room.set()

    async def wait_for_room(self) -> None:
        """Until calls for this immortal may come again."""
        while self.queue.full:
            await self.queue.flushed()
        while self.backlog_bytes > self._backlog_bytes_max:
            self._room.clear()
            await self._room.wait()

    async def _follow_inbox(self) -> None:
        """Records that other protocols append to the inbox become impulses, each exactly once."""
        while True:
            try:
                await self._take_from_inbox()
            except (LogFailed, UnknownStream) as error:
                self._inbox_failed(f"{error}")
                return
            except HeadraceError as error:  # a full disk, for one: it goes on from the cursor when there is room
                self._inbox_failed(f"{error}")
                await asyncio.sleep(RETRY_S)

    async def _take_from_inbox(self) -> None:
        inbox = self.names.inbox
        async for batch in self.hub.follow(inbox, self.hub.cursor(CURSOR, inbox) or 0):
            calls = self._impulses(batch)
            after = int(batch.column("index")[len(batch) - 1].as_py()) + 1
            if not calls:
                await self.hub.save_cursor(CURSOR, inbox, after)
            for place, run in enumerate(calls, 1):
                self.queue.add(None, run, None, (SaveCursor(CURSOR, inbox, after),) if place == len(calls) else ())
            self.queue.commit()
            await self.queue.flushed()

    def _inbox_failed(self, reason: str) -> None:
        if self.last_error != f"inbox: {reason}":  # said once, however often it is tried again
            self.last_error = f"inbox: {reason}"
            logger.error("immortal %s: %s", self.name, self.last_error)

    def _impulses(self, batch: pa.RecordBatch) -> list[Calls]:
        assert self.registration is not None
        bytes_max = self.hub.config.log.record_bytes_max
        runs: list[Calls] = []
        names = ("index", "type", "key", "payload")
        interface = self.store.interface(self.name)
        is_keyed = interface is not None and interface.keyed
        inbox = Inbox(self.registration.inbox_method, described=interface is not None, keyed=is_keyed)
        for index, kind, key, payload in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            method, arguments = inbox.call(kind, key, payload)
            message = encode(Call(method, RpcType.IMPULSE, arguments))
            if len(message) > bytes_max:
                self._inbox_failed(
                    f"record {index} is left out: its message of {len(message)} bytes is above "
                    f"log.record_bytes_max = {bytes_max}"
                )
                continue
            label = label_of_call(method, RpcType.IMPULSE)
            if not runs or runs[-1].label != label:
                runs.append(Calls(b"", label, replayable=False))
            runs[-1].parts.append(message)
            runs[-1].lengths.append(len(message))
        return runs

    # --- checkpoints --------------------------------------------------------------------------------------------

    def checkpoints(self) -> list[CheckpointInfo]:
        """The stored checkpoints, oldest first."""
        return self.hub.checkpoints(self.names.log)

    def newest_checkpoint(self) -> CheckpointInfo | None:
        """The one that a recovery starts from."""
        return next(reversed(self.checkpoints()), None)

    async def checkpoint_stored(self) -> None:
        """Drop checkpoints beyond those kept, and the log before the oldest kept one that nobody else still reads."""
        assert self.registration is not None
        kept = self.registration.checkpoints_kept
        stored = self.checkpoints()
        if not kept or len(stored) <= kept:
            return
        for info in stored[:-kept]:
            await self.hub.delete_checkpoint(info.id)
        needed = [info.position for info in stored[-kept:]]
        needed += [cursor.index for cursor in self.hub.cursors(stream=self.names.log)]
        await self.hub.trim(self.names.log, min(needed))


def checkpoint_meta(sent: dict[str, int], version: int, sequence: int | None) -> dict[str, str]:
    """What is noted with a checkpoint: what the binding had said to whom, the version of its code, and the sequence id
    of the next record."""
    meta = {"sent": json.dumps(sent), "version": str(version)}
    return meta if sequence is None else meta | {"sequence": str(sequence)}


def _is_numbered(label: str | None) -> bool:
    """Whether a call of a sender counts: impulses are not said again."""
    return label is not None and label != INITIAL_LABEL and not label.startswith(IMPULSE_PREFIX)


def _without_known(batch: pa.RecordBatch, known: dict[str, int]) -> pa.RecordBatch:
    """A batch of `pending` without the calls of each sender that the log has already; `known` says how many more."""
    if all(count <= 0 for count in known.values()):
        return batch
    keep = []
    for label, key in zip(batch.column("type").to_pylist(), batch.column("key").to_pylist(), strict=True):
        sender = "" if key is None else key.decode()
        is_known = _is_numbered(label) and known.get(sender, 0) > 0
        known[sender] = known.get(sender, 0) - is_known
        keep.append(not is_known)
    return batch.filter(pa.array(keep, pa.bool_()))


def state_version(info: CheckpointInfo) -> int:
    """The version of the code that a checkpoint's state is for."""
    return int(info.meta.get("version", "0"))
