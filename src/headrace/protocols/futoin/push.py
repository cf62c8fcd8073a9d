"""Pushing events to consumers that called readyToReceive: one task for each, reading the log from its own position.

History and live are the same read from one position, so nothing added while a consumer starts can be missed. Memory is
bounded: a group exists only while it is being sent; what is under way is remembered as a range of indexes and read
again if it must be repeated.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from headrace.errors import HeadraceError
from headrace.protocols.futoin import codec
from headrace.protocols.futoin.codec import Answer, Coding
from headrace.protocols.futoin.interface import ENVELOPE_BYTES, EVENTS_MAX, Call
from headrace.protocols.futoin.lists import Selection
from headrace.protocols.futoin.service import Service, cursor_name
from headrace.protocols.futoin.session import Delivery, Endpoint, Group, LiveDelivery

logger = logging.getLogger("headrace.futoin")

SKIP_SAVE_S = 1.0
"""How often a consumer that nothing matches has its position saved."""

Answered = Callable[[Answer | None], None]


class Peer(Protocol):
    """The consumer's end of a connection."""

    def next_rid(self) -> str: ...

    def call(self, rid: str, message: bytes, answered: Answered) -> None:
        """Send a call; `answered` gets the answer, or None when none came in time."""

    def room(self) -> AbstractAsyncContextManager[None]:
        """Entered when the peer has taken what was sent: a group is made within."""


@dataclass(eq=False)
class Receiver:
    """What both ways of pushing share: reading groups and sending them."""

    service: Service
    endpoint: Endpoint
    peer: Peer
    call: Call
    coding: Coding
    want: frozenset[str] | None
    user: str
    component: str

    def __post_init__(self) -> None:
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, object]:
        """What the session shows."""
        raise NotImplementedError

    def start(self, ended: Callable[[], None]) -> None:
        """Begin to push; `ended` is called if this cannot go on."""
        self._task = asyncio.get_running_loop().create_task(self._guarded(ended))

    async def _guarded(self, ended: Callable[[], None]) -> None:
        try:
            await self._run()
        except HeadraceError as error:  # stream deleted, consumer dropped, hub closing, log failed
            logger.info("push of %s ended: %s", self.endpoint.stream, error)
            ended()
        except Exception:
            logger.exception("push of %s failed", self.endpoint.stream)
            ended()

    async def _run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Stop at once; what is under way is forgotten."""
        if self._task is not None:
            self._task.cancel()

    def _selection(self, start: int) -> Selection:
        return Selection(self.endpoint, start, self.want, self.coding, self.call.push_bytes_max - ENVELOPE_BYTES)

    def _end(self) -> int:
        return self.service.hub.bounds(*self.endpoint).next

    def _send(self, seq: int, events: Any, count: int, answered: Answered) -> None:
        rid = self.peer.next_rid()
        self.peer.call(rid, codec.on_events(seq, events, rid, self.call.minor, self.coding), answered)
        self.service.metrics.groups.inc()
        self.service.records_out.inc(count)

    async def _until(self, ready: Callable[[], bool]) -> None:
        while not ready():
            self._changed.clear()
            await self._changed.wait()


class ReliableReceiver(Receiver):
    """A registered consumer: groups in order from its cursor, which moves when the consumer says it has them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cursor = cursor_name(self.user, self.component)
        self.delivery = Delivery(self._stored(), self.service.settings.push_window)
        self._saved = self.delivery.position
        self._saving: asyncio.Task[None] | None = None
        self._repeats: set[asyncio.Task[None]] = set()
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    def _stored(self) -> int:
        return self.service.position(self.endpoint, self.user, self.component)

    def describe(self) -> dict[str, object]:
        delivery = self.delivery
        return {
            "component": self.component,
            "state": delivery.phase.value,
            "in_flight": delivery.in_flight,
            "position": delivery.position,
            "next_seq": delivery.next_seq,
        }

    def close(self) -> None:
        super().close()
        self.delivery.close()
        for timer in self._pauses.values():
            timer.cancel()
        for task in self._repeats:
            task.cancel()

    async def _run(self) -> None:
        hub = self.service.hub
        delivery = self.delivery
        while True:
            await self._until(lambda: delivery.may_send)
            async with self.peer.room():
                delivery.advance(self._stored())
                event_list = await self.service.event_list(self._selection(delivery.next), self._end())
                if not delivery.may_send:  # a group was refused while the log was read
                    continue
                if event_list.count:
                    seq = delivery.send(event_list.next).seq
                    self._send(seq, event_list.events, event_list.count, functools.partial(self._answered, seq))
                    continue
            if event_list.next > delivery.next:
                delivery.skip(event_list.next)
                self._save_later(SKIP_SAVE_S)
            else:
                await hub.wait(self.endpoint.stream, delivery.next, self.endpoint.partition)

    def _answered(self, seq: int, answer: Answer | None) -> None:
        # FTN18 2.2.2: "Consumer responses with success only after events are reliably scheduled". The result is a
        # boolean: false is read as "not taken".
        if answer is not None and answer.error is None and answer.value is True:
            if self.delivery.confirm(seq):
                self._save_later(0)
        else:
            self._refused(seq)
        self._changed.set()

    def _refused(self, seq: int) -> None:
        pause_s = self.delivery.refuse(seq)
        if pause_s is None:
            return
        self.service.metrics.refused_groups.inc()
        loop = asyncio.get_running_loop()
        self._pauses[seq] = loop.call_later(pause_s, self._pause_over, seq)

    def _pause_over(self, seq: int) -> None:
        del self._pauses[seq]
        group = self.delivery.repeat(seq)
        self._changed.set()
        if group is not None:
            task = asyncio.get_running_loop().create_task(self._repeat(group))
            self._repeats.add(task)
            task.add_done_callback(self._repeats.discard)

    async def _repeat(self, group: Group) -> None:
        """The same events under the same seq, read again."""
        answered = functools.partial(self._answered, group.seq)
        try:
            async with self.peer.room():
                page = await self.service.page(self._selection(group.first), group.next, whole=True)
                self._send(group.seq, page.events, len(page.events), answered)
        except HeadraceError as error:
            logger.info("a group of %s cannot be sent again yet: %s", self.endpoint.stream, error)
            answered(None)

    def _save_later(self, pause_s: float) -> None:
        """Move the cursor; while one move is being made durable, the next ones become one."""
        if self._saving is None:
            self._saving = asyncio.get_running_loop().create_task(self._save(pause_s))

    async def _save(self, pause_s: float) -> None:
        """Outlives the connection: what a consumer confirmed last is saved even if it left at once."""
        if pause_s:
            await asyncio.sleep(pause_s)
        try:
            while self._saved < self.delivery.position:
                self._stored()  # a dropped consumer does not come back
                position = self.delivery.position
                stream, partition = self.endpoint
                await self.service.hub.save_cursor(self._cursor, stream, position, partition)
                self._saved = position
        except HeadraceError as error:
            logger.warning("the position of consumer %s was not saved: %s", self._cursor, error)
        finally:
            self._saving = None


class LiveReceiver(Receiver):
    """The reserved component LIVE: what is added from now on, dropped where the consumer cannot keep up."""

    def __post_init__(self) -> None:
        super().__post_init__()
        settings = self.service.settings
        backlog_max = max(settings.live_backlog_events, EVENTS_MAX)
        self.delivery = LiveDelivery(self._end(), settings.live_window, backlog_max, EVENTS_MAX)

    def describe(self) -> dict[str, object]:
        delivery = self.delivery
        return {
            "component": "LIVE",
            "state": "live",
            "in_flight": delivery.in_flight,
            "next_seq": delivery.next_seq,
            "dropped_groups": delivery.dropped,
        }

    async def _run(self) -> None:
        hub = self.service.hub
        delivery = self.delivery
        while True:
            await self._until(lambda: delivery.may_send)
            async with self.peer.room():
                end = self._end()
                dropped = delivery.drop_backlog(end)
                if dropped:
                    self.service.metrics.dropped_groups.inc(dropped)
                event_list = await self.service.event_list(self._selection(delivery.next), end)
                if event_list.count:
                    seq = delivery.send(event_list.next)
                    self._send(seq, event_list.events, event_list.count, functools.partial(self._answered, seq))
                    continue
            if event_list.next > delivery.next:
                delivery.skip(event_list.next)
            else:
                await hub.wait(self.endpoint.stream, delivery.next, self.endpoint.partition)

    def _answered(self, seq: int, answer: Answer | None) -> None:
        # The published LiveReceiver answers every group with an error although it has taken it.
        self.delivery.finish(seq)
        self._changed.set()


class Receivers:
    """Who receives what. A new readyToReceive of the same consumer takes the place of the old one."""

    def __init__(self) -> None:
        self._reliable: dict[tuple[Endpoint, str, str], Receiver] = {}

    def take_place(self, receiver: Receiver) -> None:
        key = self._key(receiver)
        if key in self._reliable:
            self._reliable[key].close()
        self._reliable[key] = receiver

    def leave(self, receiver: Receiver) -> None:
        key = self._key(receiver)
        if self._reliable.get(key) is receiver:
            del self._reliable[key]

    def close(self) -> None:
        for receiver in list(self._reliable.values()):
            with contextlib.suppress(Exception):
                receiver.close()
        self._reliable.clear()

    @staticmethod
    def _key(receiver: Receiver) -> tuple[Endpoint, str, str]:
        return receiver.endpoint, receiver.user, receiver.component
