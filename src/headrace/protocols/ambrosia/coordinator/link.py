"""The server's side of one binding: both sockets around a `Session`. What the session says is done here."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from headrace.config.address import join_address
from headrace.errors import HeadraceError
from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.call_reader import Calls, Event, Malformed, MessageReader
from headrace.protocols.ambrosia.codec import AttachTo, Blob, Checkpoint, InitialMessage, Signal, Type
from headrace.protocols.ambrosia.coordinator.checkpoint_upload import CheckpointUpload
from headrace.protocols.ambrosia.coordinator.instance import Instance, checkpoint_meta
from headrace.protocols.ambrosia.coordinator.outside import OUTSIDE
from headrace.protocols.ambrosia.coordinator.record_feed import RecordFeed
from headrace.protocols.ambrosia.coordinator.repeats import Repeats
from headrace.protocols.ambrosia.lineage import PREFIX, Origin, Place, read_mark
from headrace.protocols.ambrosia.pairing import takes_checkpoints
from headrace.protocols.ambrosia.session import Action, Input, Session, State
from headrace.protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator

logger = logging.getLogger("headrace.ambrosia")
EVENTS_AT_ONCE: Final = 500
"""What a large message holds is dealt with in pieces, and others have their turn between them."""
RECOVERS: Final = (Input.CONNECTED_RECOVER, Input.CONNECTED_UPGRADE)
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
        self.feed: RecordFeed = RecordFeed(
            coordinator.hub, instance.names.log, instance.registration, send, self._want_checkpoint_by_size
        )
        self.closed = False
        self.held_back = False
        """Whether the binding is not read, because something else has to catch up first."""
        self.sent: dict[str, int] = {}
        """How many replayable calls the binding has sent to each destination."""
        self.counts = {"calls": 0, "duplicates": 0, "discarded": 0, "checkpoints": 0}
        self.on_close: Callable[[], None] = lambda: None
        self.on_hold: Callable[[bool], None] = lambda is_held_back: None
        self.on_replayed: Callable[[], None] = lambda: None
        self.on_discarded: Callable[[Calls], None] = lambda calls: None
        self.on_skipped: Callable[[], None] = lambda: None
        """A checkpoint came that is not kept."""
        self._hub = coordinator.hub
        self._receive = receive
        self._send = send
        self._reader = MessageReader(coordinator.limits)
        self._reads_apart = False
        self._later: list[bytes] = []
        self._feeding = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._routes: dict[bytes, Instance] = {b"": instance}
        self._marks = False  # whether it says what calls were made after, and what it said last
        self._after: tuple[int, int] | None = None
        self._repeats = Repeats(coordinator.hub, instance.name)
        self._called: dict[Instance, None] = {}  # since the link began; what is repeated may not be durable yet either
        self._touched: dict[Instance, None] = {}  # of those, the ones that were handed something new
        self._fresh: dict[Instance, None] = {}  # by the bytes being read now
        self._initial: bytes | None = None
        self._upload: CheckpointUpload | None = None  # until its checkpoint counts
        self._incoming: CheckpointUpload | None = None  # until its last byte has come; None while a blob is read away
        self._asked_at: tuple[int, int | None] = (0, 0)  # position and sequence id
        self.was_followed = False
        """By one that is gone again."""
        self._stored_checkpoint: CheckpointInfo | None = None
        self._replay_end = 0
        self.next_checkpoint: asyncio.Future[CheckpointInfo | None] = asyncio.get_running_loop().create_future()
        """The next checkpoint that becomes durable; None when the link is lost before."""
        peer = receive.get_extra_info("peername")
        address = join_address(peer[0], peer[1]) if peer else "?"
        self._shown = self._hub.sessions.open("ambrosia", address, self.describe)
        self._shown.uses("read", instance.names.log)

    def describe(self) -> dict[str, object]:
        """What `headrace session ls` shows."""
        return {
            "immortal": self.instance.name,
            "state": self.session.state.value,
            "position": self.feed.position,
            "records": self.feed.sent_records,
            "held_back": self.held_back,
            **self.counts,
        }

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the rest of their message."""
        return self._reader.buffered_bytes

    # --- start and end ------------------------------------------------------------------------------------------

    def start(self, how: Input, checkpoint: CheckpointInfo | None, end: int | None = None) -> None:
        """Begin one of the start-up cases, from a stored checkpoint if there is one. A replay goes up to `end`, or to
        the end of the log."""
        self._stored_checkpoint = checkpoint
        self._replay_end = self._hub.bounds(self.instance.names.log).next if end is None else end
        self.feed.position = self._replay_end
        if checkpoint is not None:
            self.sent = json.loads(checkpoint.meta.get("sent", "{}"))
            self.feed.position = checkpoint.position
            sequence = checkpoint.meta.get("sequence", "")  # the first versions did not note it
            self.feed.sequence = int(sequence) if sequence.isdecimal() else None
        logger.info("immortal %s: %s", self.instance.name, how.value)
        if how in RECOVERS and not self.registration.started:  # its first start was interrupted after checkpoint 1
            self._spawn(self.instance.ensure_started())
        self.input(how)

    def promote(self) -> None:
        """The primary is lost: this standby takes over once it has been sent all that is logged."""
        self._spawn(self._take_over(self._hub.bounds(self.instance.names.log).next))

    async def _take_over(self, end: int) -> None:
        await self.feed.reached(end)
        self.input(Input.PRIMARY_LOST)

    def close(self, reason: str, *, failed: bool = False) -> None:
        """End the link. The log keeps all that was taken in; the immortal waits for a binding to recover it."""
        if self.closed:
            return
        self.closed = True
        self.session.handle(Input.LINK_LOST)
        self._reader.release()
        (logger.warning if failed else logger.info)("immortal %s: link closed: %s", self.instance.name, reason)
        self._receive.abort()
        self._send.abort()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        if self._upload is not None:
            self.coordinator.spawn(self._upload.abort())
            self._upload = None
        if failed:
            self.instance.last_error = reason
            self._hub.metrics.protocol.of("ambrosia").peer_error("closed")
            self.coordinator.metrics.links_closed.inc()
        self.next_checkpoint.set_result(None)
        self.instance.unlink(self)
        self._shown.close(reason)
        self.on_close()
        self.on_hold = lambda is_held_back: None
        self.feed.end()

    def _spawn(self, work: Later) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if self.closed:
            return
        if isinstance(error, (HeadraceError, RemoteProtocolError)):
            self.close(str(error), failed=True)
        elif error is not None:
            logger.error("immortal %s: internal error", self.instance.name, exc_info=error)
            self.close(f"internal error: {error!r}", failed=True)

    # --- what comes in ------------------------------------------------------------------------------------------

    def data(self, data: bytes) -> None:
        """Bytes from the binding. A large message is read beside the event loop, and what follows it waits."""
        if self._reads_apart:
            self._later.append(data)
        elif self._reader.completes_large(data):
            self._reads_apart = True
            self._receive.pause_reading()
            self._spawn(self._read_apart(data))
        else:
            self._events(self._reader.feed(data))

    async def _read_apart(self, data: bytes) -> None:
        events = await self._hub.intake.apart(lambda: self._reader.feed(data))
        for start in range(0, len(events), EVENTS_AT_ONCE):
            self._events(events[start : start + EVENTS_AT_ONCE])
            await asyncio.sleep(0)
            if self.closed:
                return
        self._reads_apart = False
        later, self._later = b"".join(self._later), []
        if later:
            self.data(later)
        if not self._reads_apart and not self.held_back:
            self._receive.resume_reading()

    def _events(self, events: list[Event]) -> None:
        try:
            for event in events:
                if self.closed:
                    return
                self._event(event)
        except (RemoteProtocolError, HeadraceError) as error:
            self.close(str(error), failed=True)
            return
        finally:
            for destination in self._fresh:
                destination.queue.commit()
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
                self.on_discarded(event)
        elif isinstance(event, Blob):
            if self._incoming is not None:
                self._incoming.add(event.data, event.last)
                if event.last:
                    self._incoming = None
        elif isinstance(event, Checkpoint):
            self.input(Input.CHECKPOINT)
        elif isinstance(event, AttachTo):
            attaches = Action.ATTACH in self.session.handle(Input.ATTACH_TO)
            if takes_checkpoints(event.destination) and self is not self.instance.checkpointer:
                raise RemoteProtocolError("a checkpointer said so too late: it was taken for another binding")
            if event.destination.startswith(PREFIX):
                self._marks, self._after = True, read_mark(event.destination)
            elif attaches and not event.destination.startswith(b"@"):  # the outside, or the mark of a pair of sockets
                self._find(event.destination)
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
            if action in SLOW_ACTIONS:
                self._spawn(self._perform_slowly(actions[number:]))
                return
            if action in ACTIONS:
                ACTIONS[action](self)

    async def _perform_slowly(self, actions: tuple[Action, ...]) -> None:
        await SLOW_ACTIONS[actions[0]](self)
        if not self.closed:
            self._perform(actions[1:])

    # --- calls --------------------------------------------------------------------------------------------------

    def _find(self, destination: bytes) -> Instance:
        instance = self._routes.get(destination)
        if instance is None:
            instance = self._routes[destination] = self.coordinator.destination(destination, self.instance.name)
        return instance

    def forget_routes(self) -> None:
        """An immortal was forgotten: look names up again."""
        self._routes = {b"": self.instance}

    def _route(self, calls: Calls) -> None:
        """Number the calls, drop those the destination has already, and hand over the rest.

        A recovering binding sends again what it sent since its checkpoint, in the same order; the count at the
        checkpoint plus the place since then is a call's number for ever.
        """
        if calls.destination == OUTSIDE.encode():
            self.coordinator.outside.answered(self.instance.name, calls)
            return
        destination = self._find(calls.destination)
        sender = self.instance.name
        queue = destination.queue
        count = calls.count
        self._called[destination] = None
        self.counts["calls"] += count
        self.coordinator.metrics.calls.inc(count)
        known = queue.count_of(sender, calls.replayable)
        if calls.replayable:
            last = self.sent.get(destination.name, 0) + count
            self.sent[destination.name] = last
            repeated = min(count, max(0, known - (last - count)))
            if repeated:
                self.counts["duplicates"] += repeated
                self.coordinator.metrics.duplicates.inc(repeated)
                if self.coordinator.settings.compare_repeats:
                    self._repeats.add(destination, last - count + 1, calls, repeated)
                if repeated == count:
                    return
                calls = calls.without_first(repeated)
        else:
            last = known + count
        self._touched[destination] = self._fresh[destination] = None
        self._shown.uses("write", destination.names.log)
        queue.add(sender, calls, last, origin=self._origin(destination.name, calls))

    def _origin(self, destination: str, calls: Calls) -> Origin | None:
        """What these calls were made after: what the binding says, or else the last message that it was sent."""
        after = self.feed.position - 1
        if self._marks:
            index = None if self._after is None else self.feed.index_of(*self._after)
            if index is None:
                return None
            after = index
        place, name_of = Place(self.instance.name, after), self.coordinator.store.method_name
        return self.coordinator.lineage.origin(place, destination, calls, lambda: name_of(destination, calls.label))

    def _hold_back(self) -> None:
        """Stop reading while the log, a destination or the checkpoint has more than it can take."""
        if self.held_back:
            return
        full = self._hub.congested or self._repeats.full or (self._upload is not None and self._upload.full)
        if full or any(destination.full for destination in self._touched):
            self.held_back = True
            self.on_hold(True)
            self._receive.pause_reading()
            self._spawn(self._read_again())

    async def _read_again(self) -> None:
        if self._upload is not None:
            await self._upload.wait_for_room()
        await self._repeats.compare()
        for destination in list(self._touched):
            await destination.wait_for_room()
        await self._hub.drained()
        self.held_back = False
        self.on_hold(False)
        if not self._reads_apart:
            self._receive.resume_reading()

    # --- what goes out ------------------------------------------------------------------------------------------

    def _want_checkpoint_by_size(self) -> None:
        """Called whenever records were sent. Where a checkpointer is linked, the primary takes one only if that one has
        not: once as much again was sent."""
        bytes_max = self.registration.checkpoint_log_bytes
        if self is self.instance.primary and self.instance.checkpointer is not None:
            bytes_max *= 2
        if self.feed.sent_bytes >= bytes_max:
            self.want_checkpoint()

    def want_checkpoint(self) -> None:
        """Ask for a checkpoint, unless one is on its way or it is not the time."""
        if self.session.state in (State.RUNNING, State.FOLLOWING):
            self.input(Input.CHECKPOINT_WANTED)

    def _ask(self, kind: Type) -> None:
        """Ask for a checkpoint: it stands for all records sent before, and none is sent until it has come."""
        self.feed.hold()
        self._asked_at = self.feed.position, self.feed.sequence
        self.feed.sent_bytes = 0
        self.feed.send_signal(kind)

    async def _send_stored_checkpoint(self) -> None:
        assert self._stored_checkpoint is not None
        await self.feed.send_checkpoint(self._stored_checkpoint)

    async def _replay(self) -> None:
        await self.feed.replay(self._replay_end)
        logger.info("immortal %s: replayed up to index %d", self.instance.name, self._replay_end)
        self.input(Input.REPLAYED)
        self.on_replayed()

    def _deliver(self) -> None:
        self.instance.delivers(self)
        self.feed.release()
        if not self._feeding:
            self._feeding = True
            self._spawn(self.feed.run())

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _receive_checkpoint(self) -> None:
        self._upload = self._incoming = CheckpointUpload(self._hub, self.instance.names.log, dict(self.sent))
        self._spawn(self._upload.complete())  # a disk that refuses closes the link, even if nobody stores it yet

    async def _store(self) -> None:
        """Everything the binding sent before the checkpoint has to be durable before the checkpoint counts:
        no recovery from it would send that again."""
        upload = self._upload
        assert upload is not None
        called = list(self._called)
        await upload.complete()
        await asyncio.gather(*(destination.queue.flushed() for destination in called))
        await self.coordinator.outside.flushed(self.instance)
        await self._repeats.compare()
        is_recovered = self._stored_checkpoint is not None and self.session.state is State.STORING
        was_alone = not self.was_followed and self.instance.links() == [self]
        if is_recovered and not self.counts["checkpoints"] and was_alone:
            self._tell_missing_calls()  # nobody who follows can have said what this one has not come to
        if self._initial is not None:
            await self.coordinator.store.keep_initial(self.instance.name, self._initial)
            self._initial = None
        position, sequence = self._asked_at
        upgraded = self.session.state is State.UPGRADE_STORING
        version = self.registration.upgrade_version if upgraded else self.registration.version
        meta = checkpoint_meta(upload.sent, version, sequence)
        async with self.instance.storing:
            newest = self.instance.newest_checkpoint()
            if newest is not None and newest.position > position:  # the log before that one may be gone
                self._upload = None
                await upload.abort()
                info = newest
            else:
                info = await upload.commit(position, meta)
                self._upload = None
                self._stored(upload.size)
                await self.instance.checkpoint_stored()
        self.next_checkpoint.set_result(info)
        self.next_checkpoint = asyncio.get_running_loop().create_future()
        self.input(Input.STORED)

    def _stored(self, size: int) -> None:
        self.counts["checkpoints"] += 1
        self.coordinator.metrics.checkpoints.inc()
        self.coordinator.metrics.checkpoint_bytes.inc(size)
        if self is self.instance.checkpointer and self.instance.primary is not None:
            self.instance.primary.feed.sent_bytes = self.feed.sent_bytes

    def _tell_missing_calls(self) -> None:
        """Say so if the binding has not said all again that it had said before: its next calls, which bear those
        numbers, will be taken for them."""
        name = self.instance.name
        for destination in self.coordinator.instances.values():
            missing = destination.queue.durable_count(name) - self.sent.get(destination.name, 0)
            if missing > 0:
                self.instance.last_error = (
                    f"{missing} of the calls to {destination.name} were not sent again in the recovery: "
                    f"the code was changed without an upgrade, and as many of its next calls will not be delivered"
                )
                logger.error("immortal %s: %s", name, self.instance.last_error)

    async def _finish_upgrade(self) -> None:
        self.registration.version = self.registration.upgrade_version
        await self.coordinator.store.save(self.registration)


ACTIONS: Final[dict[Action, Callable[[Link], None]]] = {
    Action.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT: lambda link: link._ask(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT),
    Action.SEND_TAKE_CHECKPOINT: lambda link: link._ask(Type.TAKE_CHECKPOINT),
    Action.SEND_UPGRADE_TAKE_CHECKPOINT: lambda link: link._ask(Type.UPGRADE_TAKE_CHECKPOINT),
    Action.SEND_UPGRADE_SERVICE: lambda link: link.feed.send_signal(Type.UPGRADE_SERVICE),
    Action.SEND_BECOMING_PRIMARY: lambda link: link.feed.send_signal(Type.BECOMING_PRIMARY),
    Action.RECEIVE: Link._receive_checkpoint,
    Action.SKIP: lambda link: link.on_skipped(),
    Action.DELIVER: Link._deliver,
}
SLOW_ACTIONS: Final[dict[Action, Callable[[Link], Later]]] = {
    Action.SEND_STORED_CHECKPOINT: Link._send_stored_checkpoint,
    Action.REPLAY: Link._replay,
    Action.STORE: Link._store,
    Action.LOG_INITIAL: lambda link: link.instance.ensure_started(),
    Action.FINISH_UPGRADE: Link._finish_upgrade,
}
"""Those that take time."""
