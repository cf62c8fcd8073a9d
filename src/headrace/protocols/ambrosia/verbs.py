"""The admin verbs about immortals: what `headrace immortal …` and `POST /api/v1/immortal.…` call."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Annotated, Any, Self

import msgspec

from headrace.errors import BadRequest, LimitExceeded
from headrace.hub.verbs import Nothing, Verbs
from headrace.log.ops import CheckpointInfo
from headrace.pages import Listed
from headrace.protocols.ambrosia.binding.keyed import read_state
from headrace.protocols.ambrosia.binding.methods import (
    ATTEMPT_METHOD,
    CANCEL_METHOD,
    CLOCK_METHOD,
    DEADLINE_METHOD,
    FULFIL_METHOD,
    OUTSIDE_METHOD,
    TIMER_METHOD,
)
from headrace.protocols.ambrosia.codec import BodyKind
from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator
from headrace.protocols.ambrosia.coordinator.debug_session import DebugSession
from headrace.protocols.ambrosia.coordinator.instance import Instance
from headrace.protocols.ambrosia.coordinator.outside import OUTSIDE
from headrace.protocols.ambrosia.coordinator.store import producer_of
from headrace.protocols.ambrosia.description import DescribedMessage, describe_messages
from headrace.protocols.ambrosia.lineage import Place
from headrace.protocols.ambrosia.settings import ImmortalSection

CHECKPOINT_SHOWN_BYTES_MAX = 64 << 20
OWN_WORDS = {
    OUTSIDE_METHOD: "effect done",
    DEADLINE_METHOD: "sleep begun",
    TIMER_METHOD: "timer due",
    ATTEMPT_METHOD: "effect failed",
    FULFIL_METHOD: "fulfil",
    CANCEL_METHOD: "cancel",
    CLOCK_METHOD: "clock",
}
"""What programs of `headrace.immortals` tell themselves, and others them, by numbers of our own."""


class NameRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One immortal."""

    name: str


class RegisterRequest(NameRequest, frozen=True):
    """Register an immortal, or give one other options."""

    options: ImmortalSection = ImmortalSection()


class LogRequest(NameRequest, frozen=True):
    """Logged messages from an index on; without one, the last `limit`."""

    start: int | None = None
    limit: int = 50


class ReplayRequest(NameRequest, frozen=True):
    """Serve a debugging binding from a checkpoint; without one, from the newest that there was. `until` is the first
    logged message that it does not get. With `tell_end` it is asked for a checkpoint when the log has been replayed;
    otherwise it is told nothing."""

    checkpoint: int | None = None
    until: Annotated[int, msgspec.Meta(ge=0)] | None = None
    upgrade: bool = False
    tell_end: bool = False


class EndReplayRequest(NameRequest, frozen=True):
    """A debugging session, named by its receive port as `immortal.replay` gave it."""

    receive: str


class StateRequest(NameRequest, frozen=True):
    """A checkpoint; of a keyed immortal also which instance, or none for the keys."""

    checkpoint: int
    key: str | None = None


class StateInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the last moment before a checkpoint in which no method waited; `since` messages came after it.
    `keys` are those of a keyed immortal, if no key was asked for."""

    checkpoint: int
    position: int
    time_us: int
    kind: str = ""
    state: Any = None
    since: int = 0
    timers: int = 0
    keys: list[str] | None = None


class Peer(msgspec.Struct, frozen=True):
    """What was accepted from one sender."""

    name: str
    calls: int
    impulses: int


class ImmortalInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An immortal as it stands."""

    name: str
    registered: bool
    state: str
    receive: str | None = None
    send: str | None = None
    committer: int | None = None
    version: int | None = None
    upgrade_version: int | None = None
    clock: bool = False
    """Whether its records begin with the time."""
    sequence: int = 0
    """The next sequence id."""
    log_first: int = 0
    log_next: int = 0
    pending: int = 0
    """Messages kept for an immortal that has not started."""
    undelivered: int = 0
    """Logged messages that the binding was not sent yet."""
    standbys: int = 0
    pairs: bool = False
    """Whether its programs may say which two sockets are one's own."""
    takes_checkpointers: bool = False
    """Whether one of its programs may say that it only takes checkpoints."""
    checkpointer: bool = False
    """Whether such a program is linked."""
    traces: bool = False
    """Whether its programs may say which message led to what."""
    described: bool = False
    """Whether its program has said what can be called of it."""
    senders: list[Peer] = []
    checkpoints: list[CheckpointInfo] = []
    last_error: str | None = None


class Answer(msgspec.Struct, frozen=True):
    """What a method answered to a call from outside: the beginning of it, and how long that took."""

    raised: bool
    text: str
    after_us: int


class LoggedMessage(DescribedMessage, frozen=True, kw_only=True):
    """One logged message, decoded."""

    index: int
    time_us: int
    sender: str | None
    name: str | None = None
    """Of the method, if the program has said what its methods are called; of our own, what it is about."""
    answer: Answer | None = None
    cause: Place | None = None
    """The message after which another immortal, or this one, said it: as a program of `headrace.immortals` says, and
    with other bindings the last that they had been sent."""
    led_to: tuple[Place, ...] = ()
    """The messages that were said after it."""


class DebugPorts(msgspec.Struct, frozen=True):
    """Where the debugging binding connects, and what it is served."""

    receive: str
    send: str
    checkpoint: int
    first: int
    next: int

    @classmethod
    def of(cls, session: DebugSession, **more: Any) -> Self:
        """Of a debugging session."""
        ports, info = session.ports, session.checkpoint
        return cls(ports.receive, ports.send, info.id, info.position, session.end, **more)


class DebuggingInfo(DebugPorts, frozen=True, kw_only=True):
    """A debugging session: waiting for its binding, replaying to it, or replayed."""

    name: str
    state: str
    position: int
    difference: str | None = None
    """What the binding says otherwise than it was said before, once all is replayed to one that is told the end."""


class ImmortalVerbs:
    """The handlers."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def register(self, verbs: Verbs) -> None:
        """Add the verbs to a hub."""
        add = verbs.register
        add("immortal.register", RegisterRequest, self.register_immortal, right="admin", summary="Register an immortal")
        add(
            "immortal.list",
            Listed,
            self.list_immortals,
            right="read",
            summary="All immortals and how they are",
            listed_by=lambda each: [each.name],
        )
        add("immortal.log", LogRequest, self.log, right="read", summary="Logged messages, decoded")
        add("immortal.state", StateRequest, self.state, right="read", summary="The state in a checkpoint")
        add("immortal.checkpoint", NameRequest, self.checkpoint, right="write", summary="Take a checkpoint now")
        add("immortal.hand-over", NameRequest, self.hand_over, right="write", summary="Let a standby take over now")
        add("immortal.replay", ReplayRequest, self.replay, right="admin", summary="Serve a debugging binding")
        add("immortal.debugging", Nothing, self.debugging, right="read", summary="Debugging sessions that are open")
        add("immortal.end-replay", EndReplayRequest, self.end_replay, right="admin", summary="End a debugging session")
        add("immortal.forget", NameRequest, self.forget, right="admin", summary="Remove an immortal and its log")

    async def register_immortal(self, request: RegisterRequest) -> ImmortalInfo:
        """Register, and say where the ports are."""
        await self._coordinator.register(request.name, request.options)
        return self._info(self._coordinator.find(request.name))

    async def list_immortals(self, request: Listed) -> Iterable[ImmortalInfo]:
        """All of them by name, those that were only called too."""
        return (self._info(instance) for _, instance in sorted(self._coordinator.instances.items()))

    async def state(self, request: StateRequest) -> StateInfo:
        """Of a program of `headrace.immortals`: others write their checkpoints as they like."""
        instance = self._coordinator.find(request.name)
        info = next((each for each in instance.checkpoints() if each.id == request.checkpoint), None)
        if info is None:
            raise BadRequest(f"immortal {request.name!r} has no checkpoint {request.checkpoint}")
        if info.size > CHECKPOINT_SHOWN_BYTES_MAX:
            raise LimitExceeded("bytes of a checkpoint to show", info.size, CHECKPOINT_SHOWN_BYTES_MAX, "no setting")
        blob = b"".join([piece async for piece in self._coordinator.hub.read_checkpoint(info.id)])
        found = await asyncio.to_thread(read_state, blob, request.key)
        if found is None:
            raise BadRequest(f"checkpoint {info.id} of {request.name!r} is in a form of its program's own")
        return StateInfo(checkpoint=info.id, position=info.position, time_us=info.time_us, **found)

    async def checkpoint(self, request: NameRequest) -> CheckpointInfo:
        """Take one and wait for it."""
        return await self._coordinator.checkpoint(request.name)

    async def hand_over(self, request: NameRequest) -> None:
        """Move it to the program that stands by."""
        await self._coordinator.hand_over(request.name)

    async def forget(self, request: NameRequest) -> None:
        """Remove it."""
        await self._coordinator.forget(request.name)

    async def replay(self, request: ReplayRequest) -> DebugPorts:
        """Open a port pair for a debugging binding."""
        opened = await self._coordinator.replay(
            request.name, request.checkpoint, request.until, request.upgrade, request.tell_end
        )
        return DebugPorts.of(opened)

    async def debugging(self, request: Nothing) -> list[DebuggingInfo]:
        """What has been opened by `immortal.replay` and not ended."""
        return [
            DebuggingInfo.of(
                session, name=name, state=session.state, position=session.position, difference=session.difference
            )
            for name, sessions in self._coordinator.debugging.items()
            for session in sessions
        ]

    async def end_replay(self, request: EndReplayRequest) -> None:
        """Its ports are free afterwards."""
        await self._coordinator.end_replay(request.name, request.receive)

    async def log(self, request: LogRequest) -> list[LoggedMessage]:
        """Messages in the order in which they were logged."""
        instance = self._coordinator.find(request.name)
        if instance.registration is None:
            raise BadRequest(f"immortal {request.name!r} was never registered: it has no log")
        hub = self._coordinator.hub
        bounds = hub.bounds(instance.names.log)
        start = max(bounds.first, bounds.next - request.limit) if request.start is None else request.start
        batch = await hub.read(instance.names.log, start, limit=request.limit, max_bytes=16 << 20)
        messages = [message for row in batch.to_pylist() for message in decoded_row(row)]
        if not messages:
            return []
        interface, lineage = self._coordinator.store.interface(request.name), self._coordinator.lineage
        causes, led_to = lineage.around(request.name, messages[0].index, messages[-1].index + 1)
        names = OWN_WORDS | {each.id: each.name for each in (interface.methods if interface is not None else ())}
        return [
            msgspec.structs.replace(
                message,
                name=names.get(message.method or 0),
                answer=self._answer(request.name, message),
                cause=causes.get(message.index),
                led_to=tuple(led_to.get(message.index, ())),
            )
            for message in messages
        ]

    def _answer(self, name: str, message: LoggedMessage) -> Answer | None:
        if message.caller != OUTSIDE or message.call_number is None:
            return None
        said = self._coordinator.outside.answer_to(name, message.call_number)
        if said is None:
            return None
        text = said.value.decode(errors="replace")
        return Answer(said.kind == BodyKind.EXCEPTION, text, max(0, said.time_us - message.time_us))

    def _info(self, instance: Instance) -> ImmortalInfo:
        hub, registration, link = self._coordinator.hub, instance.registration, instance.primary
        pending = 0
        if hub.has_stream(instance.names.pending):
            bounds = hub.bounds(instance.names.pending)
            pending = bounds.next - bounds.first
        if registration is None:
            return ImmortalInfo(name=instance.name, registered=False, state="unregistered", pending=pending)
        bounds = hub.bounds(instance.names.log)
        newest = instance.newest_checkpoint()
        position = link.feed.position if link is not None else newest.position if newest is not None else bounds.first
        counts = instance.queue.stored_counts()
        senders = [
            Peer(name, counts.get(producer_of(name, True), 0), counts.get(producer_of(name, False), 0))
            for name in sorted({producer.partition(":")[2] for producer in counts} - {""})
        ]
        return ImmortalInfo(
            name=instance.name,
            registered=True,
            state="absent" if link is None else link.session.state.value,
            receive=registration.receive,
            send=registration.send,
            committer=registration.committer,
            version=registration.version,
            upgrade_version=registration.upgrade_version,
            clock=registration.clock,
            sequence=instance.queue.next_sequence,
            log_first=bounds.first,
            log_next=bounds.next,
            pending=pending,
            undelivered=max(0, bounds.next - position),
            standbys=len(instance.standbys),
            pairs=True,
            takes_checkpointers=instance.has_standbys_of_ours,
            checkpointer=instance.checkpointer is not None,
            traces=True,
            described=self._coordinator.store.interface(instance.name) is not None,
            senders=senders,
            checkpoints=instance.checkpoints(),
            last_error=instance.last_error,
        )


def decoded_row(row: dict[str, Any]) -> list[LoggedMessage]:
    """The messages in a record of an immortal's log."""
    common = {
        "index": row["index"],
        "sequence": row["id"],
        "time_us": int(row["time"].timestamp() * 1_000_000),
        "sender": None if row["key"] is None else row["key"].decode(errors="replace"),
    }
    return [LoggedMessage(**common, **fields) for fields in describe_messages(row["payload"])]
