"""The server's side of one binding: both sockets around a `Session`. What the session says is done here."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from headrace.config.address import join_address
from headrace.errors import HeadraceError
from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.call_reader import (
    Calls,
    CheckpointData,
    CheckpointStart,
    Event,
    Malformed,
    MessageReader,
)
from headrace.protocols.ambrosia.codec import AttachTo, InitialMessage, Signal, Type
from headrace.protocols.ambrosia.coordinator.checkpoint_upload import BlobSink
from headrace.protocols.ambrosia.coordinator.feeder import Feeder
from headrace.protocols.ambrosia.coordinator.inbound import Logged
from headrace.protocols.ambrosia.coordinator.instance import Instance, sent_counts
from headrace.protocols.ambrosia.session import Action, Input, Session, State
from headrace.protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator

logger = logging.getLogger("headrace.ambrosia")
Later = Coroutine[Any, Any, None]


class Link:
    """One binding, linked until one of its sockets is lost or it breaks the protocol."""

    def __init__(
        self,
        coordinator: Coordinator,
        instance: Instance,
        receive: asyncio.Transport,
        send: asyncio.Transport,
    ) -> None:
        assert instance.registration is not None
        self.coordinator = coordinator
        self.instance = instance
        self.registration = instance.registration
        self.session = Session()
        self.reader = MessageReader(coordinator.limits)
        self.closed = False
        self.failed = False
        peer = receive.get_extra_info("peername")
        self.peer = join_address(peer[0], peer[1]) if peer else "?"
        self.sent: dict[str, int] = {}
        self.attached: set[str] = set()
        self.counts = {"calls": 0, "duplicates": 0, "discarded": 0, "checkpoints": 0}
        self._receive = receive
        self._send = send
        self._hub = coordinator.hub
        self._feeder = Feeder(self._hub, instance.names.log, self.registration, send, self._want_checkpoint_by_size)
        self._feeding = False
        self._routes: dict[bytes, Instance] = {b"": instance}
        self._called: set[Instance] = set()  # since the link began; what is repeated may not be durable yet either
        self._touched: set[Instance] = set()  # of those, the ones that were handed something new
        self._fresh: set[Instance] = set()  # by the bytes being read now
        self._initial: bytes | None = None
        self._sink: BlobSink | None = None  # until its checkpoint counts
        self._incoming: BlobSink | None = None  # until its last byte has come; None while a blob is read away
        self._checkpoint: CheckpointInfo | None = None
        self._checkpoint_position = 0
        self._checkpoint_sequence: int | None = 0
        self._replay_end = 0
        self._reading = True
        self._tasks: set[asyncio.Task[None]] = set()
        self._stored_waiters: list[asyncio.Future[CheckpointInfo | None]] = []
        self.on_close: Callable[[], None] = lambda: None
        self._shown = self._hub.sessions.open("ambrosia", self.peer, self.describe)
        self._shown.uses("read", instance.names.log)
        self._actions: dict[Action, Callable[[], None]] = {
            Action.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT: lambda: self._ask(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT),
            Action.SEND_TAKE_CHECKPOINT: lambda: self._ask(Type.TAKE_CHECKPOINT),
            Action.SEND_UPGRADE_TAKE_CHECKPOINT: lambda: self._ask(Type.UPGRADE_TAKE_CHECKPOINT),
            Action.SEND_UPGRADE_SERVICE: lambda: self._feeder.send_signal(Type.UPGRADE_SERVICE),
            Action.SEND_BECOMING_PRIMARY: lambda: self._feeder.send_signal(Type.BECOMING_PRIMARY),
            Action.RECEIVE: self._receive_blob,
            Action.DELIVER: self._deliver,
        }
        self._slow_actions: dict[Action, Callable[[], Later]] = {
            Action.SEND_STORED_CHECKPOINT: self._send_stored_checkpoint,
            Action.REPLAY: self._replay,
            Action.STORE: self._store,
            Action.LOG_INITIAL: self.instance.ensure_started,
            Action.FINISH_UPGRADE: self._finish_upgrade,
        }

    def describe(self) -> dict[str, object]:
        """What `headrace session ls` shows."""
        return {
            "immortal": self.instance.name,
            "state": self.session.state.value,
            "position": self._feeder.position,
            "records": self._feeder.sent_records,
            "held_back": self.held_back,
            **self.counts,
        }

    @property
    def position(self) -> int:
        """The index of the next log record to send."""
        return self._feeder.position

    @property
    def held_back(self) -> bool:
        """Whether the binding is not read, because something else has to catch up first."""
        return not self._reading

    # --- start and end ------------------------------------------------------------------------------------------

    def start(self, how: Input, checkpoint: CheckpointInfo | None) -> None:
        """Begin one of the start-up cases, from a stored checkpoint if there is one."""
        self._checkpoint = checkpoint
        end = self._hub.bounds(self.instance.names.log).next
        self._replay_end = end
        self._feeder.position = end if checkpoint is None else checkpoint.position
        if checkpoint is not None:
            self.sent = sent_counts(checkpoint)
            self._feeder.sequence = _stored_sequence(checkpoint)
        logger.info("immortal %s: %s", self.instance.name, how.value)
        self.input(how)

    def promote(self) -> None:
        """The primary is lost: this standby takes over once it has been sent all that is logged."""
        self._spawn(self._take_over(self._hub.bounds(self.instance.names.log).next))

    async def _take_over(self, end: int) -> None:
        await self._feeder.reached(end)
        self.input(Input.PRIMARY_LOST)

    def close(self, reason: str, *, failed: bool = False) -> None:
        """End the link. The log keeps all that was taken in; the immortal waits for a binding to recover it."""
        if self.closed:
            return
        self.closed = True
        self.failed = failed
        self.session.handle(Input.LINK_LOST)
        (logger.warning if failed else logger.info)("immortal %s: link closed: %s", self.instance.name, reason)
        self._receive.abort()
        self._send.abort()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._sink is not None:
            self.coordinator.spawn(self._sink.abort())
            self._sink = None
        if failed:
            self.coordinator.count_closed(reason)
        self._tell_waiters(None)
        self.instance.unlink(self, reason)
        self._shown.close(reason)
        self.on_close()

    def _spawn(self, work: Later) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or self.closed:
            return
        error = task.exception()
        if isinstance(error, (HeadraceError, RemoteProtocolError)):
            self.close(str(error), failed=True)
        elif error is not None:
            logger.error("immortal %s: internal error", self.instance.name, exc_info=error)
            self.close(f"internal error: {error!r}", failed=True)

    # --- what comes in ------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """Bytes from the binding."""
        try:
            for event in self.reader.feed(data):
                if self.closed:
                    return
                self._event(event)
        except (RemoteProtocolError, HeadraceError) as error:
            self.close(str(error), failed=True)
            return
        finally:
            for destination in self._fresh:
                destination.inbound.commit()
            self._fresh.clear()
        if not self.closed:
            self._hold_back()

    def _event(self, event: Event) -> None:
        if isinstance(event, Calls):
            actions = self.session.handle(Input.CALLS if event.replayable else Input.IMPULSES)
            if actions[0] is Action.ROUTE:
                self._route(event)
            else:
                self.counts["discarded"] += event.count
        elif isinstance(event, CheckpointData):
            if self._incoming is not None:
                self._incoming.add(event.data, event.last)
                if event.last:
                    self._incoming = None
        elif isinstance(event, CheckpointStart):
            self.input(Input.CHECKPOINT)
        elif isinstance(event, AttachTo):
            if Action.ATTACH in self.session.handle(Input.ATTACH_TO):
                self.attached.add(self._find(event.destination).name)
        elif isinstance(event, InitialMessage):
            self._initial = event.data
            self.input(Input.INITIAL_MESSAGE)
        elif isinstance(event, Signal):
            self.input(Input.TAKE_CHECKPOINT)
        elif isinstance(event, Malformed):
            raise RemoteProtocolError(event.reason)

    def input(self, what: Input) -> None:
        """Tell the session, and do what it says."""
        if not self.closed:
            self._perform(self.session.handle(what))

    def _perform(self, actions: tuple[Action, ...]) -> None:
        """Carry actions out in order; from the first one that takes time on, in a task."""
        for number, action in enumerate(actions):
            if action in self._slow_actions:
                self._spawn(self._perform_slowly(actions[number:]))
                return
            if action in self._actions:
                self._actions[action]()

    async def _perform_slowly(self, actions: tuple[Action, ...]) -> None:
        await self._slow_actions[actions[0]]()
        if not self.closed:
            self._perform(actions[1:])

    # --- calls --------------------------------------------------------------------------------------------------

    def _find(self, destination: bytes) -> Instance:
        found = self._routes.get(destination)
        if found is None:
            found = self._routes[destination] = self.coordinator.destination(destination, self)
        return found

    def forget_routes(self) -> None:
        """An immortal was forgotten: look names up again."""
        self._routes = {b"": self.instance}

    def _route(self, calls: Calls) -> None:
        """Number the calls, drop those the destination has already, and hand over the rest.

        A recovering binding sends again what it sent since its checkpoint, in the same order; the count at the
        checkpoint plus the place since then is a call's number for ever.
        """
        destination = self._find(calls.destination)
        sender = self.instance.name
        inbound = destination.inbound
        count = calls.count
        self._called.add(destination)
        self.counts["calls"] += count
        self.coordinator.metrics.calls.inc(count)
        if calls.replayable:
            known = inbound.count_of(sender, self.coordinator.floor(sender, destination.name))
            last = self.sent.get(destination.name, 0) + count
            self.sent[destination.name] = last
            repeated = min(count, max(0, known - (last - count)))
            if repeated:
                self.counts["duplicates"] += repeated
                self.coordinator.metrics.duplicates.inc(repeated)
                if repeated == count:
                    return
                calls = calls.without_first(repeated)
            inbound.accepted[sender] = last
        else:
            inbound.impulses[sender] = inbound.impulses_of(sender) + count
        self._touched.add(destination)
        self._fresh.add(destination)
        self._shown.uses("write", destination.names.log)
        inbound.add(sender, calls)

    def _hold_back(self) -> None:
        """Stop reading while the log, a destination or the checkpoint has more than it can take."""
        if not self._reading:
            return
        full = self._hub.congested or (self._sink is not None and self._sink.full)
        limit = self.coordinator.backlog_bytes_max
        for destination in self._touched:
            full = full or destination.inbound.full or destination.backlog_bytes > limit
        if full:
            self._reading = False
            self._receive.pause_reading()
            self._spawn(self._read_again())

    async def _read_again(self) -> None:
        if self._sink is not None:
            await self._sink.wait_for_room()
        for destination in list(self._touched):
            await destination.wait_for_room(self.coordinator.backlog_bytes_max)
        await self._hub.drained()
        self._reading = True
        self._receive.resume_reading()

    # --- what goes out ------------------------------------------------------------------------------------------

    def offer(self, records: list[Logged]) -> None:
        """Records of this immortal that have just become durable."""
        self._feeder.offer(records)

    def pause_writing(self) -> None:
        """The send socket is full."""
        self._feeder.pause()

    def resume_writing(self) -> None:
        """The send socket has room."""
        self._feeder.resume()

    def _want_checkpoint_by_size(self) -> None:
        """Called whenever records were sent."""
        full = self._feeder.sent_bytes >= self.registration.checkpoint_log_bytes
        if full and self.session.state is State.RUNNING:
            self.input(Input.CHECKPOINT_WANTED)

    def _ask(self, kind: Type) -> None:
        """Ask for a checkpoint: it stands for all records sent before, and none is sent until it has come."""
        self._feeder.hold()
        self._checkpoint_position = self._feeder.position
        self._checkpoint_sequence = self._feeder.sequence
        self._feeder.sent_bytes = 0
        self._feeder.send_signal(kind)

    async def _send_stored_checkpoint(self) -> None:
        assert self._checkpoint is not None
        await self._feeder.send_checkpoint(self._checkpoint)

    async def _replay(self) -> None:
        await self._feeder.replay(self._replay_end)
        logger.info("immortal %s: replayed up to index %d", self.instance.name, self._replay_end)
        self.input(Input.REPLAYED)

    def _deliver(self) -> None:
        self._feeder.release()
        if not self._feeding:
            self._feeding = True
            self._spawn(self._feeder.run())

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _receive_blob(self) -> None:
        self._sink = self._incoming = BlobSink(self._hub, self.instance.names.log, dict(self.sent))
        self._spawn(self._sink.complete())  # a disk that refuses closes the link, even if nobody stores it yet

    async def _store(self) -> None:
        """Everything the binding sent before the checkpoint has to be durable before the checkpoint counts:
        no recovery from it would send that again."""
        sink = self._sink
        assert sink is not None
        called = list(self._called)
        await sink.complete()
        await asyncio.gather(*(destination.inbound.flushed() for destination in called))
        if self._initial is not None:
            await self.coordinator.store.keep_initial(self.instance.name, self._initial)
            self._initial = None
        position = self._checkpoint_position
        upgraded = self.session.state is State.UPGRADE_STORING
        version = self.registration.upgrade_version if upgraded else self.registration.version
        meta = {"sent": json.dumps(sink.sent), "version": str(version)}
        if self._checkpoint_sequence is not None:
            meta["sequence"] = str(self._checkpoint_sequence)
        info = await sink.commit(position, meta)
        self._sink = None
        self.counts["checkpoints"] += 1
        self.coordinator.count_checkpoint(sink.size)
        await self.instance.checkpoint_stored()
        self._tell_waiters(info)
        self.input(Input.STORED)

    def next_checkpoint(self) -> asyncio.Future[CheckpointInfo | None]:
        """The next checkpoint that becomes durable; None when the link is lost before."""
        future: asyncio.Future[CheckpointInfo | None] = asyncio.get_running_loop().create_future()
        self._stored_waiters.append(future)
        return future

    def _tell_waiters(self, info: CheckpointInfo | None) -> None:
        waiters, self._stored_waiters = self._stored_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(info)

    async def _finish_upgrade(self) -> None:
        self.registration.version = self.registration.upgrade_version
        await self.coordinator.store.save(self.registration)


def _stored_sequence(checkpoint: CheckpointInfo) -> int | None:
    """The sequence id behind a checkpoint; None for one of a version that did not note it."""
    noted = checkpoint.meta.get("sequence", "")
    return int(noted) if noted.isdecimal() else None
