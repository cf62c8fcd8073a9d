"""The Immortal Coordinator of all immortals of a hub: who there is, who is linked, and where a call goes."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from headrace.config.address import is_loopback
from headrace.errors import BadRequest, Busy, HeadraceError, LimitExceeded, LogFailed, Unauthenticated
from headrace.hub import Hub
from headrace.log.ops import CheckpointInfo, Op, SetProducer
from headrace.protocols.ambrosia.coordinator.debug_session import DebugSession
from headrace.protocols.ambrosia.coordinator.instance import Instance, state_version
from headrace.protocols.ambrosia.coordinator.link import Link
from headrace.protocols.ambrosia.coordinator.outside import OutsideCalls
from headrace.protocols.ambrosia.coordinator.ports import Guest, MakeLink, PortPair
from headrace.protocols.ambrosia.coordinator.store import (
    IMMORTALS_TABLE,
    Registration,
    Store,
    check_name,
    producer_of,
    registration_of,
)
from headrace.protocols.ambrosia.lineage import Lineage
from headrace.protocols.ambrosia.metrics import AmbrosiaMetrics
from headrace.protocols.ambrosia.session import Input, State
from headrace.protocols.ambrosia.settings import Ambrosia, ImmortalSection, Sockets
from headrace.protocols.errors import RemoteProtocolError
from headrace.security import current
from headrace.security.admission import Certificate, Trusted

logger = logging.getLogger("headrace.ambrosia")
PROTOCOL: Final = "ambrosia"
MESSAGE_OVERHEAD_BYTES: Final = 16
DEBUGGING_MAX: Final = 16
TAKES_CHECKPOINTS: Final = frozenset(
    {State.RUNNING, State.CHECKPOINTING, State.STORING}
    | {State.FOLLOWING, State.FOLLOWING_CHECKPOINTING, State.FOLLOWING_STORING}
)


class UnknownImmortal(BadRequest):
    """Nobody registered that name, and nobody called it."""

    code = "unknown-immortal"


class Coordinator:
    """All immortals of one hub."""

    def __init__(self, hub: Hub) -> None:
        settings = hub.config.section(Ambrosia)
        message_bytes_max = min(settings.message_bytes_max, hub.config.log.record_bytes_max - MESSAGE_OVERHEAD_BYTES)
        self.hub = hub
        self.settings = settings
        self.limits = msgspec.structs.replace(settings, message_bytes_max=message_bytes_max)
        self.store = Store(hub)
        self.lineage = Lineage(hub.tracing)
        self.outside = OutsideCalls(hub, settings, message_bytes_max, self.lineage)
        self.instances: dict[str, Instance] = {}
        self.ports: dict[str, PortPair] = {}
        self.debugging: dict[str, list[DebugSession]] = {}
        self.importing: set[str] = set()
        self._registering = asyncio.Lock()
        self.metrics = hub.metrics.section(AmbrosiaMetrics)
        self._tasks: set[asyncio.Task[None]] = set()
        self._failing = self._is_closing = False
        hub.metrics.before_scrape(self._refresh_gauges)

    # --- life ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Take up everything that is stored, then what the configuration adds."""
        await self.store.open()
        await self.outside.open()
        for registration in self.store.registrations():
            await self._open_stored(registration.name, registration)
        for info in self.hub.streams("immortal/*/pending"):
            name = unquote(info.name.split("/")[1])
            if name not in self.instances:
                await self._open_stored(name, None)
        for name, section in self.settings.immortals.items():
            await self.register(name, section)
        for instance in list(self.instances.values()):
            if instance.registration is not None and instance.name not in self.ports:
                await self._open_stored_ports(instance, instance.registration)

    async def close(self) -> None:
        """End all links and free all ports."""
        self._is_closing = True  # ports go one after the other: whoever comes meanwhile is not linked any more
        self.outside.close()
        for link in self.links():
            link.close("the hub stops")
        for ports in self.ports.values():
            await ports.close()
        for sessions in list(self.debugging.values()):
            for session in list(sessions):
                await session.close()
        for instance in self.instances.values():
            await instance.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something that outlives the link it is about."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("immortals: %s", error, exc_info=None if isinstance(error, HeadraceError) else error)

    def links(self) -> list[Link]:
        """All links but those of debugging sessions."""
        return [link for instance in self.instances.values() for link in instance.links()]

    async def _open_stored(self, name: str, registration: Registration | None) -> None:
        """Whatever is stored, the hub starts."""
        try:
            await self._open_instance(name, registration)
        except LogFailed:
            raise
        except HeadraceError as error:
            value = self.hub.get(IMMORTALS_TABLE, name.encode()) or b""
            self.hub.set_aside.note(IMMORTALS_TABLE, name.encode(), value, error)

    async def _open_instance(self, name: str, registration: Registration | None) -> Instance:
        instance = Instance(self.hub, self.store, name, registration, self.log_refused, self.lineage)
        self.instances[name] = instance
        try:
            await instance.open()
        except HeadraceError:
            del self.instances[name]
            raise
        return instance

    def log_refused(self, reason: str, error: BaseException) -> None:
        """A commit failed. Close every link: recovering bindings say again what was lost, and nothing else can."""
        logger.error("immortals: %s", reason)
        for link in self.links():
            link.close(reason, failed=True)
        for instance in self.instances.values():
            instance.queue.drop(error)
        if not self._failing:
            self._failing = True
            self.spawn(self._start_over())

    async def _start_over(self) -> None:
        """Read the counters again, once no commit is under way that could still move them; nobody is linked before."""
        while under_way := [instance for instance in self.instances.values() if instance.queue.under_way]:
            await under_way[0].queue.settled()
        for instance in self.instances.values():
            instance.queue.start_over()
        self._failing = False
        for ports in self.ports.values():
            ports.pair_up()

    # --- immortals ----------------------------------------------------------------------------------------------

    def find(self, name: str) -> Instance:
        """An immortal by its name."""
        instance = self.instances.get(name)
        if instance is None:
            raise UnknownImmortal(f"there is no immortal {name!r}; `headrace immortal ls` names all of them")
        return instance

    async def register(self, name: str, section: ImmortalSection) -> Registration:
        """Register an immortal, or change the options of one. Its committer id stays what it was."""
        async with self._registering:
            return await self._register(name, section)

    async def _register(self, name: str, section: ImmortalSection) -> Registration:
        instance = self.instances.get(name)
        if name in self.importing:
            raise Busy(f"immortal {name!r} is being imported")
        if instance is None or instance.registration is None:
            check_name(name, self.settings.name_bytes_max)
        known = None if instance is None else instance.registration
        next_sequence = 0 if instance is None else instance.queue.next_sequence
        registration = registration_of(name, section, known, next_sequence)
        if instance is not None and instance.registration == registration and name in self.ports:
            return registration  # nothing changes: a binding that is quicker than its coordinator's command stays
        is_new, old = instance is None, self.ports.get(name)
        if instance is None:  # nothing is noted before it is sure that it can be served: every start would fail on it
            instance = await self._open_instance(name, None)
        for link in instance.links():
            link.close("registered again with other options")
        try:
            await self._open_ports(instance, registration)
        except BadRequest:
            if is_new:
                await self.forget(name)
            raise
        try:
            await instance.register(registration)
        except HeadraceError:
            if instance.registration is not registration:  # it was refused, and all is as before
                await self.ports[name].close()
                await self._open_again(instance, old)
            raise
        finally:  # not before its streams are there: a binding that is quicker waits for them
            if name in self.ports:
                self.ports[name].serve()
        return registration

    async def _open_again(self, instance: Instance, old: PortPair | None) -> None:
        """The ports from before. Another program may have taken them meanwhile."""
        self.ports.pop(instance.name, None)
        if old is None:
            return
        try:
            await old.open()
        except OSError as error:
            instance.last_error = f"no port on {old.receive} and {old.send} any more; register it again: {error}"
            logger.error("immortal %s: %s", instance.name, instance.last_error)
        else:
            self.ports[instance.name] = old
            old.serve()

    async def _open_ports(self, instance: Instance, registration: Registration) -> None:
        """Bind the ports of a registration, and write into it which they are. If they cannot be bound, those that were
        bound before are again."""
        old = self.ports.get(instance.name)
        if old is not None:
            await old.close()
        link = functools.partial(self._link, instance)
        ports = self._port_pair(instance, registration.sockets, registration.receive, registration.send, link)
        ports.expects_marks = lambda: instance.has_standbys_of_ours
        try:
            await ports.open()
        except OSError as error:
            await self._open_again(instance, old)
            raise BadRequest(
                f"immortal {instance.name!r} cannot listen on {registration.receive} and {registration.send}: "
                f"{error.strerror or error}"
            ) from error
        self.ports[instance.name] = ports
        registration.receive, registration.send = ports.receive, ports.send

    async def _open_stored_ports(self, instance: Instance, registration: Registration) -> None:
        """Somebody else may have the ports by now. That is no reason for the whole hub not to start."""
        try:
            await self._open_ports(instance, registration)
        except (BadRequest, ValueError, OverflowError) as error:
            instance.last_error = f"{error}; register it again with others"
            logger.error("%s", instance.last_error)
        else:
            self.ports[instance.name].serve()
        await self.store.save(registration)

    def _port_pair(self, instance: Instance, sockets: Sockets, receive: str, send: str, link: MakeLink) -> PortPair:
        tls = self.hub.security.tls(PROTOCOL)
        return PortPair(
            instance.name,
            sockets,
            receive,
            send,
            link,
            lambda peer: self._admitted(instance, peer),
            tls,
            self.hub.intake,
        )

    def _admitted(self, instance: Instance, transport: asyncio.Transport) -> Guest | None:
        """Whoever connects, if they may be this immortal's binding. No name is said on the wire: where there are users,
        a client certificate must give one, or the binding must be on this machine and that be enough."""
        peer = transport.get_extra_info("peername")
        where = f"{peer} for immortal {instance.name}"
        is_local = self.settings.trust_local and peer and is_loopback(str(peer[0]))
        try:
            shown = Trusted() if is_local else Certificate(transport)
            guest = Guest(self.hub, self.hub.admission.admit_now(PROTOCOL, where, shown), instance.names.log, transport)
        except Unauthenticated:
            return None
        if not guest.may_stay():
            self.hub.admission.refused(PROTOCOL, where)
            return None
        return guest

    def _link(
        self, instance: Instance, receive: asyncio.Transport, send: asyncio.Transport, takes_checkpoints: bool
    ) -> Link | None:
        registration = instance.registration
        if self._failing or self._is_closing or registration is None:
            return None
        checkpoint = instance.newest_checkpoint()
        if takes_checkpoints or instance.primary is not None:
            if checkpoint is None or not instance.may_follow(takes_checkpoints):
                return None
            link = Link(self, instance, receive, send)
            instance.follows(link, takes_checkpoints)
            link.start(Input.CONNECTED_CHECKPOINTER if takes_checkpoints else Input.CONNECTED_STANDBY, checkpoint)
            return link
        link = instance.primary = Link(self, instance, receive, send)
        instance.absent_bytes = 0
        instance.made_room()
        link.start(self._start_up(instance, registration, checkpoint), checkpoint)
        return link

    def _start_up(self, instance: Instance, registration: Registration, checkpoint: CheckpointInfo | None) -> Input:
        if checkpoint is None:
            registration.version = registration.upgrade_version  # what starts anew has nothing to upgrade
            return Input.CONNECTED_NEW
        if state_version(checkpoint) > registration.version:
            # The upgraded state became durable and the note of it did not: upgrading it once more would ruin it.
            registration.version = state_version(checkpoint)
            registration.upgrade_version = max(registration.upgrade_version, registration.version)
            self.spawn(self.store.save(registration))
        upgrade = registration.upgrade_version > registration.version
        return Input.CONNECTED_UPGRADE if upgrade else Input.CONNECTED_RECOVER

    async def forget(self, name: str) -> None:
        """Remove an immortal with its log, checkpoints and all that waits for it, and its counters elsewhere.

        Calls that other immortals made before stay counted: they will not reach a later immortal of this name.
        """
        instance = self.find(name)
        await self._note_calls_to(instance)  # while nothing has happened: a full disk refuses it
        ports = self.ports.pop(name, None)
        if ports is not None:
            await ports.close()
        for session in list(self.debugging.pop(name, [])):
            await session.close()
        for link in instance.links():
            link.close("forgotten")
        await instance.close()
        instance.queue.hold()
        await instance.queue.settled()
        await self._note_calls_to(instance)
        await self._remove(instance)  # before the name is free: calls to it make streams of the same names
        del self.instances[name]
        for link in self.links():
            link.forget_routes()
        instance.queue.drop()
        instance.queue.pending_bytes = instance.absent_bytes = 0
        instance.made_room()

    async def _note_calls_to(self, instance: Instance) -> None:
        for sender in list(self.instances.values()):
            count = instance.queue.count_of(sender.name)
            if sender is not instance and count > self.store.forgotten(sender.name, instance.name):
                await self.store.forget_peer(sender.name, instance.name, count)

    async def _remove(self, instance: Instance) -> None:
        existing = {info.name for info in self.hub.streams(kind=None)}
        names = instance.names
        await self.store.forget_immortal(instance.name)
        await self.outside.forget(instance.name)
        self.lineage.forget(instance.name)
        for stream in (names.log, names.pending, names.inbox):
            if stream in existing:
                await self.hub.delete_stream(stream)
        resets: list[Op] = []
        for other in self.instances.values():
            if other is not instance:
                other.queue.forget_sender(instance.name)
                for stream in (name for name in (other.names.log, other.names.pending) if name in existing):
                    resets += [SetProducer(stream, producer_of(instance.name, kind), None) for kind in (True, False)]
        if resets:  # whether or not they are counted yet: a commit that counts them may be under way
            await self.hub.transact(resets)

    async def checkpoint(self, name: str) -> CheckpointInfo:
        """Ask the binding for a checkpoint, and wait until it is durable."""
        instance = self.find(name)
        link = instance.checkpointer or instance.primary
        if link is None or link.session.state not in TAKES_CHECKPOINTS:
            raise BadRequest(f"immortal {name!r} has no running binding that could take a checkpoint")
        taken = asyncio.shield(link.next_checkpoint)
        if link is instance.checkpointer:  # what was logged before is to be in it
            reached = asyncio.ensure_future(link.feed.reached(self.hub.bounds(instance.names.log).next))
            await asyncio.wait((reached, taken), return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            taken = asyncio.shield(link.next_checkpoint)
        if not link.closed:
            link.want_checkpoint()
        info = await taken
        if info is None:
            raise BadRequest(f"immortal {name!r}: the binding was lost before the checkpoint was whole")
        return info

    async def hand_over(self, name: str) -> None:
        """Let the first standby take over from the binding that runs, and wait until it has."""
        instance = self.find(name)
        if instance.primary is None or not instance.standbys:
            raise BadRequest(
                f"immortal {name!r} has no standby that could take over: register it with `standby`, and start its "
                "program a second time"
            )
        successor = instance.standbys[0]
        await successor.feed.reached(self.hub.bounds(instance.names.log).next)
        instance.primary.close("handed over to a standby")
        if await instance.running() is not successor:
            raise BadRequest(f"immortal {name!r}: the standby was lost before it had taken over")

    async def replay(
        self, name: str, checkpoint: int | None, until: int | None, upgrade: bool, tells_end: bool
    ) -> DebugSession:
        """Open a port pair on which a debugging binding is served from a checkpoint: it can change nothing."""
        instance = self.find(name)
        stored = instance.checkpoints()
        candidates = [info for info in stored if checkpoint in (None, info.id)]
        if not candidates or instance.registration is None:
            what = "a checkpoint" if checkpoint is None else f"checkpoint {checkpoint}"
            kept = ", ".join(str(info.id) for info in stored) or "none"
            raise BadRequest(f"immortal {name!r} has not {what}; kept are: {kept}")
        if until is not None:
            candidates = _before(name, candidates, until, self.hub.bounds(instance.names.log).next)
        sessions = self.debugging.setdefault(name, [])
        if len(sessions) >= DEBUGGING_MAX:
            raise Busy(f"immortal {name!r} has {DEBUGGING_MAX} debugging sessions open already")
        how = Input.CONNECTED_WHAT_IF if upgrade else Input.CONNECTED_DEBUG
        session = DebugSession(self, instance, candidates[-1], until, tells_end)
        opener = current()

        def link(receive: asyncio.Transport, send: asyncio.Transport, _: bool) -> Link:
            made = Link(self, instance, receive, send)
            made.on_close = lambda: self._end_debugging(sessions, session)
            session.serve(made, how)
            return made

        any_port = f"{self.settings.host}:0"
        session.ports = self._port_pair(instance, "listen", any_port, any_port, link)
        await session.ports.open()
        session.ports.serve()
        sessions.append(session)
        session.unwatch = opener.watch(lambda: None if opener.may("admin") else self._abandon(name, session))
        return session

    def _abandon(self, name: str, session: DebugSession) -> None:
        """Whoever opened it may not do so any more."""
        if session in self.debugging.get(name, []):
            self.spawn(self.end_replay(name, session.ports.receive))

    def _end_debugging(self, sessions: list[DebugSession], session: DebugSession) -> None:
        """One binding per debugging session: its ports go with it."""
        if session in sessions:
            sessions.remove(session)
            self.spawn(session.ports.close())

    async def end_replay(self, name: str, receive: str) -> None:
        """End the debugging session with that receive port."""
        sessions = self.debugging.get(name, [])
        session = next((session for session in sessions if session.ports.receive == receive), None)
        if session is None:
            raise BadRequest(f"immortal {name!r} has no debugging session at {receive!r}")
        sessions.remove(session)
        await session.close()

    # --- routing ------------------------------------------------------------------------------------------------

    def destination(self, name: bytes, sender: str) -> Instance:
        """Where a call goes. A name that nobody registered gets a place where calls wait for it."""
        try:
            text = name.decode()
        except UnicodeDecodeError:
            raise RemoteProtocolError(f"the destination {name!r} is not UTF-8") from None
        instance = self.instances.get(text)
        if instance is None:
            unknown = sum(instance.registration is None for instance in self.instances.values())
            limit = self.settings.destinations_max
            if unknown >= limit:
                raise LimitExceeded("names called but not registered", unknown + 1, limit, "ambrosia.destinations_max")
            instance = self.instances[text] = Instance(self.hub, self.store, text, None, self.log_refused, self.lineage)
            self.spawn(instance.open_when_possible())
            logger.info("immortal %s calls %s, which is not registered; the calls are kept", sender, text)
        return instance

    # --- metrics ------------------------------------------------------------------------------------------------

    def _refresh_gauges(self) -> None:
        states = Counter(
            "unregistered" if instance.registration is None else "absent" if instance.primary is None else "linked"
            for instance in self.instances.values()
        )
        for state in ("linked", "absent", "unregistered"):
            self.metrics.immortals.labels(state=state).set(states[state])
        self.metrics.answers.set(self.outside.answers)


def _before(name: str, checkpoints: list[CheckpointInfo], until: int, end: int) -> list[CheckpointInfo]:
    """Those from which a replay reaches message `until`."""
    found = [info for info in checkpoints if info.position <= until]
    if until > end:
        raise BadRequest(f"immortal {name!r} has logged messages below {end}, none up to {until}")
    if not found:
        raise BadRequest(
            f"immortal {name!r} has no checkpoint before message {until}: from {checkpoints[0].position} on"
        )
    return found
