"""One WebSocket: requests of the peer, calls of ours to it, and the order in which bytes leave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, cast

from headrace.errors import HeadraceError
from headrace.hub.turns import Pace
from headrace.protocols.futoin import codec, interface
from headrace.protocols.futoin.codec import Answer, Coding, Deviation, Request, Rid
from headrace.protocols.futoin.credentials import Caller
from headrace.protocols.futoin.dispatch import Dispatcher
from headrace.protocols.futoin.errors import INVALID_REQUEST, SECURITY_ERROR, PeerError
from headrace.protocols.futoin.interface import LIVE, MIB, SERVICE_RESTART, UNHEARD, Call
from headrace.protocols.futoin.push import Answered, LiveReceiver, Receiver, ReliableReceiver
from headrace.protocols.futoin.session import Channel, Endpoint

logger = logging.getLogger("headrace.futoin")

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

POLICY_VIOLATION = 1008
MESSAGE_TOO_BIG = 1009
INTERNAL_ERROR = 1011
OUTGOING_MAX = 1024
"""Messages waiting to be written; above it nothing more is read from the peer."""
OUTGOING_BYTES_MAX = 8 * MIB
"""The same in bytes. Above half of it no further list of events is made for the peer."""
LISTS_AT_ONCE = 4
"""Lists being made for replies to one peer, and as many for its groups: each may have 8 MiB."""


class Connection:
    """What is under way with one peer."""

    def __init__(
        self, dispatcher: Dispatcher, endpoint: Endpoint, channel: Channel, receive: Receive, send: Send
    ) -> None:
        self._dispatcher = dispatcher
        self._endpoint = endpoint
        self._channel = channel
        self._receive = receive
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._bytes_max = dispatcher.settings.message_bytes_max
        self._calls_max = dispatcher.settings.calls_max
        self._outgoing: deque[bytes] = deque()
        self._outgoing_bytes = 0
        self._replies = asyncio.Semaphore(LISTS_AT_ONCE)
        self._groups = asyncio.Semaphore(LISTS_AT_ONCE)
        self._written = asyncio.Event()
        self._to_write = asyncio.Event()
        self._closed = False
        self._is_finishing = False
        self._has_said_goodbye = False
        self._is_hearing = False
        self._under_way = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._writer: asyncio.Task[None] | None = None
        self._rids = 0
        self._calls: dict[str, tuple[Answered, asyncio.TimerHandle]] = {}
        self._receiving: dict[str, Receiver] = {}
        self._unwatch: dict[str, Callable[[], None]] = {}
        self._user = ""
        self._last_error = ""
        self._session = dispatcher.hub.sessions.open("futoin", channel.peer, self._describe)

    def _describe(self) -> dict[str, object]:
        receivers = sorted(self._receiving.values(), key=lambda receiver: receiver.component == LIVE)
        return {
            "stream": self._endpoint.stream,
            "user": self._user,
            "calls": self._under_way,
            "to_write": len(self._outgoing),
            "receivers": [receiver.describe() for receiver in receivers],
            "last_error": self._last_error,
        }

    async def run(self) -> None:
        """Serve the peer until it leaves."""
        writer = self._writer = self._loop.create_task(self._write())
        self._tasks.add(writer)
        writer.add_done_callback(self._tasks.discard)
        pace = Pace(self._dispatcher.hub.intake.turns)
        try:
            while not writer.done():
                await pace.keep()
                event = await self._receive()
                if event["type"] == "websocket.disconnect":
                    return
                data = event.get("bytes")
                if data is None:
                    data = event["text"].encode()
                if len(data) > self._bytes_max:
                    await self._say_goodbye(MESSAGE_TOO_BIG)
                    return
                if self._is_finishing:
                    continue
                self._is_hearing = True
                await self._message(bytes(data))
                self._is_hearing = False
                self._written.set()
                if self._is_behind(self._calls_max, OUTGOING_MAX, OUTGOING_BYTES_MAX):
                    await self._catch_up()
        finally:
            self.close(None)

    def finish(self) -> None:
        """The hub stops: take nothing more, answer what is under way, and say so."""
        if not self._is_finishing:
            self._is_finishing = True
            for receiver in self._receiving.values():
                receiver.close()
            task = self._loop.create_task(self._finish())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _finish(self) -> None:
        while self._is_written_to and (self._is_hearing or self._under_way or self._outgoing_bytes):
            await self._more_written()
        await self._say_goodbye(SERVICE_RESTART, UNHEARD)

    async def _say_goodbye(self, code: int, reason: str = "") -> None:
        """Close the WebSocket, once: two may have a reason to, and HTTP's server takes a second close for a mistake."""
        if not self._has_said_goodbye:
            self._has_said_goodbye = True
            with contextlib.suppress(OSError):  # the peer has left
                await self._send({"type": "websocket.close", "code": code, "reason": reason})

    def close(self, reason: str | None) -> None:
        """Forget everything under way. Further calls do nothing."""
        if self._closed:
            return
        self._closed = True
        for receiver in self._receiving.values():
            receiver.close()
            self._dispatcher.receivers.leave(receiver)
        for unwatch in self._unwatch.values():
            unwatch()
        for _, timer in self._calls.values():
            timer.cancel()
        self._calls.clear()
        for task in self._tasks:
            task.cancel()
        self._writer = None  # its end knows this connection
        self._session.close(reason)

    # -- what the peer says ----------------------------------------------------------------------------------------

    async def _message(self, data: bytes) -> None:
        coding = codec.coding_of(data)
        rid = caller = None
        try:
            message = codec.decode(data, coding)
            if isinstance(message, Deviation) and message.is_answer:
                self._answered(codec.answer(message.fields))
                return
            rid = message.rid
            if isinstance(rid, str) and rid.startswith("S"):
                return  # ours to give (FTN3): an answer to nothing we asked, as executors see it
            caller = await self._dispatcher.caller(message, data, coding, self._channel)
            call = self._dispatcher.checked(message, caller, self._channel, self._endpoint)
            request = cast(Request, message)
            if call.function == "addEvent" and caller is not None:
                self._session.uses("write", self._endpoint.stream)
                await self._add(request, caller, coding)
            elif call.function == "pollEvents":
                self._session.uses("read", self._endpoint.stream)
                self._begin(self._poll(call, request, caller, coding))
            else:
                # Quick ones are done before the next message is read: whoever registers and says that it is ready in
                # one breath finds itself registered.
                await self._perform(call, request, caller, coding)
        except codec.Undecodable:
            self._failed(PeerError(INVALID_REQUEST, "Missing req.f"), None, Coding.JSON, None)
        except Exception as error:
            self._failed(error, rid, coding, caller)

    async def _add(self, request: Request, caller: Caller, coding: Coding) -> None:
        """No task for each: the reply is written when the append's callback comes."""
        params = cast(interface.AddEvent, request.p)
        service = self._dispatcher.service
        payload = await self._dispatcher.payload(params, coding)
        if not service.is_ready(self._endpoint):
            await service.prepare(self._endpoint, caller.principal)
        if self._dispatcher.hub.congested:
            await self._dispatcher.hub.drained()
        self._user = caller.user
        self._under_way += 1
        service.add(self._endpoint, params.type, payload, functools.partial(self._added, request.rid, coding, caller))

    def _added(self, rid: Rid | None, coding: Coding, caller: Caller, index: int, error: BaseException | None) -> None:
        self._under_way -= 1
        if error is None:
            self._write_soon(codec.result(str(index + 1), rid, coding, caller.sign))
        else:
            self._failed(error, rid, coding, caller)

    def _begin(self, work: Any) -> None:
        self._under_way += 1
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self._tasks.discard(task)
        self._written.set()

    async def _poll(self, call: Call, request: Request, caller: Caller | None, coding: Coding) -> None:
        async with self._room(self._replies):
            await self._perform(call, request, caller, coding)

    async def _perform(self, call: Call, request: Request, caller: Caller | None, coding: Coding) -> None:
        try:
            if caller is not None:  # asked again: it may have waited for the peer to take what it was sent
                self._check_right(call, caller)
            if call.function == "readyToReceive" and caller is not None:
                await self._dispatcher.service.prepare(self._endpoint, caller.principal)
                self._ready(call, request, caller, coding)
                return
            value = await self._dispatcher.perform(call, request.p, caller, self._endpoint, coding)
            self._write_soon(codec.result(value, request.rid, coding, None if caller is None else caller.sign))
        except Exception as error:
            self._failed(error, request.rid, coding, caller)

    def _failed(self, error: BaseException, rid: Rid | None, coding: Coding, caller: Caller | None) -> None:
        self._last_error = str(error)
        self._write_soon(self._dispatcher.failure(error, rid, coding, caller))

    # -- pushing ---------------------------------------------------------------------------------------------------

    def _ready(self, call: Call, request: Request, caller: Caller, coding: Coding) -> None:
        """FTN18 3.3.2 readyToReceive: the reply goes first, then the groups."""
        params = cast(interface.ReadyToReceive, request.p)
        self._user = caller.user
        self._session.uses("read", self._endpoint.stream)
        reply = codec.result(True, request.rid, coding, caller.sign)
        is_live = params.component == LIVE
        receiver = (LiveReceiver if is_live else ReliableReceiver)(
            self._dispatcher.service,
            self._endpoint,
            self,
            call,
            coding,
            None if params.want is None else frozenset(params.want),
            caller.user,
            params.component,
        )
        key = LIVE if is_live else f"{caller.user}:{params.component}"
        if not is_live:
            self._dispatcher.receivers.take_place(receiver)
        elif key in self._receiving:
            self._receiving[key].close()
        self._receiving[key] = receiver
        self._unwatch.pop(key, lambda: None)()
        self._unwatch[key] = caller.principal.watch(functools.partial(self._rights_changed, call, caller))
        self._write_soon(reply)
        receiver.start(self._push_ended)

    def _check_right(self, call: Call, caller: Caller) -> None:
        if caller.principal.refusal is not None:
            raise PeerError(SECURITY_ERROR, str(caller.principal.refusal))
        self._dispatcher.service.check_right(Caller(caller.principal), call.function, self._endpoint.stream)

    def _rights_changed(self, call: Call, caller: Caller) -> None:
        """A consumer may do something else than before. Requests say each time who asks; what is pushed ends with the
        connection, since the protocol has no other word for it, and with it what was not sent yet."""
        try:
            self._check_right(call, caller)
        except PeerError as error:
            for receiver in self._receiving.values():
                receiver.close()
            self._outgoing.clear()
            self._last_error = str(error)
            self._begin(self._say_goodbye(POLICY_VIOLATION, str(error)))

    def _push_ended(self) -> None:
        """Pushing cannot go on: the protocol has no word for that, so the consumer must see its connection end."""
        self._begin(self._say_goodbye(INTERNAL_ERROR))

    def next_rid(self) -> str:
        """The next id of a call of ours: S, as the side that accepted the connection (FTN3)."""
        self._rids += 1
        return f"S{self._rids}"

    def call(self, rid: str, message: bytes, answered: Answered) -> None:
        """Call the peer; `answered` gets its answer, or None when none came in time."""
        timer = self._loop.call_later(self._dispatcher.settings.push_timeout_s, self._timed_out, rid)
        self._calls[rid] = (answered, timer)
        self._write_soon(message)

    def _timed_out(self, rid: str) -> None:
        answered, _ = self._calls.pop(rid)
        answered(None)

    def _answered(self, answer: Answer | None) -> None:
        # An answer to nothing we asked is dropped, as executors do.
        if answer is None or answer.rid not in self._calls:
            return
        answered, timer = self._calls.pop(answer.rid)
        timer.cancel()
        answered(answer)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write_soon(self, message: bytes) -> None:
        self._outgoing.append(message)
        self._outgoing_bytes += len(message)
        self._to_write.set()

    async def _write(self) -> None:
        outgoing = self._outgoing
        pace = Pace(self._dispatcher.hub.intake.turns)
        try:
            while True:
                for _ in range(len(outgoing)):
                    message = outgoing.popleft()
                    # Binary frames, for JSON too: what published clients and servers send.
                    await self._send({"type": "websocket.send", "bytes": message})
                    self._outgoing_bytes -= len(message)
                    await pace.keep()
                self._written.set()
                if outgoing:
                    await asyncio.sleep(0)
                    continue
                self._to_write.clear()
                await self._to_write.wait()
        except (OSError, HeadraceError, RuntimeError) as error:
            logger.debug("a peer disconnected during a write: %s", error)
        finally:
            self._written.set()  # nothing will be written any more: nobody may wait for it

    def room(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Where a group of events is made, once the peer has taken what was sent."""
        return self._room(self._groups)

    @contextlib.asynccontextmanager
    async def _room(self, turns: asyncio.Semaphore) -> AsyncIterator[None]:
        """A few lists at a time: a peer that asks for many and takes none does not fill the memory."""
        async with turns:
            while self._outgoing_bytes > OUTGOING_BYTES_MAX // 2:
                await self._more_written()
            yield

    def _is_behind(self, calls: int, messages: int, size: int) -> bool:
        return self._under_way >= calls or len(self._outgoing) >= messages or self._outgoing_bytes >= size

    async def _catch_up(self) -> None:
        """Wait until half of what is under way is done: the peer's own pace becomes its limit."""
        while self._is_written_to and self._is_behind(
            self._calls_max // 2 + 1, OUTGOING_MAX // 2 + 1, OUTGOING_BYTES_MAX // 2 + 1
        ):
            await self._more_written()

    @property
    def _is_written_to(self) -> bool:
        return self._writer is not None and not self._writer.done()

    async def _more_written(self) -> None:
        self._written.clear()
        await self._written.wait()
