"""An asyncio client for FutoIn event streams, over one WebSocket.

    async with await Client.connect("wss://hub/futoin/orders", "shop:secret") as client:
        event_id = await client.add("ORDER", {"number": 7})

    receiver = Receiver("wss://hub/futoin/orders", "billing:secret", component="BILLING", handle=handle)
    await receiver.run()          # reconnects, keeps the order, gives every event once per process

It speaks to any FTN18 executor, not only to Headrace.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake

from headrace.protocols.futoin import codec, mac
from headrace.protocols.futoin.codec import Answer, Coding, Deviation
from headrace.protocols.futoin.errors import (
    DEFENSE_REJECTED,
    INTERNAL_ERROR,
    INVALID_REQUEST,
    SECURITY_ERROR,
    UNKNOWN_INTERFACE,
    FutoinError,
    PeerError,
)
from headrace.protocols.futoin.interface import (
    EVENT_LIST_BYTES_MAX,
    LIVE,
    RECEIVER,
    SERVICE_RESTART,
    UNHEARD,
    OnEvents,
)

logger = logging.getLogger("headrace.futoin.client")

POLL_DELAY_MIN_S = 0.01
POLL_DELAY_MAX_S = 1.0
RECONNECT_MIN_S = 0.1
RECONNECT_MAX_S = 10.0
RESTART_S = 10.0
"""So long a hub that stopped in order is looked for, or another in its place."""
PARKED_MAX = 64
"""Groups that may arrive before their turn; an executor that sends further ahead is refused."""

CONNECTION_LOST = "CommError"
PASSING = frozenset((CONNECTION_LOST, DEFENSE_REJECTED, INTERNAL_ERROR))
"""What an executor that is busy, stopping or out of disk says: another time it may go well."""


class Event(NamedTuple):
    """An event as it arrived; ids are numbers here."""

    id: int
    type: str
    data: Any
    ts: str


class Signer(NamedTuple):
    """Credentials of a user that signs its messages (FTN8.1 `-smac`)."""

    user: str
    key: bytes
    algorithm: str = "HS256"

    @classmethod
    def from_base64(cls, user: str, key: str, algorithm: str = "HS256") -> Signer:
        return cls(user, base64.b64decode(key), algorithm)

    def sec(self, message: dict[str, Any]) -> str:
        """What goes into the request."""
        return f"-smac:{self.user}:{self.algorithm}:{mac.sign(self.key, mac.SMAC_ALGORITHMS[self.algorithm], message)}"

    def is_genuine(self, reply: dict[str, Any]) -> bool:
        """Whether the reply is signed by the same key."""
        return _is_signed(self.key, self.algorithm, reply)


class MasterSigner(NamedTuple):
    """Credentials of a user that signs its messages with keys made from a Master Secret (FTN8.2 `-mmac`), for the
    executor of this global id; another `parameter`, such as the date, makes another key."""

    id: str
    key: bytes
    global_id: str
    parameter: str = ""
    algorithm: str = "HS256"
    strategy: str = "HKDF256"

    @property
    def _derived(self) -> bytes:
        return mac.derive(self.key, mac.KEY_STRATEGIES[self.strategy], self.global_id, self.parameter)

    def sec(self, message: dict[str, Any]) -> str:
        """What goes into the request."""
        signature = mac.sign(self._derived, mac.SMAC_ALGORITHMS[self.algorithm], message)
        return f"-mmac:{self.id}:{self.algorithm}:{self.strategy}:{self.parameter}:{signature}"

    def is_genuine(self, reply: dict[str, Any]) -> bool:
        """Whether the reply is signed by the same key."""
        return _is_signed(self._derived, self.algorithm, reply)


def _is_signed(key: bytes, algorithm: str, reply: dict[str, Any]) -> bool:
    signature = reply.get("sec")
    return isinstance(signature, str) and mac.verify(key, mac.SMAC_ALGORITHMS[algorithm], reply, signature)


Credentials = str | Signer | MasterSigner | None
OnGroup = Callable[[int, list[Event]], Awaitable[None]]


class RemoteError(FutoinError):
    """What the executor answered instead of a result."""


class Client:
    """The endpoint of one stream, over one connection at a time.

    A hub that stops in order answers what it has heard, and closes with a word for that. Then the client connects
    again, and sends there what has no answer. After any other end nobody knows what was heard, and calls fail.
    """

    def __init__(
        self,
        connection: ClientConnection,
        credentials: Credentials,
        coding: Coding,
        again: Callable[[], Awaitable[ClientConnection]] | None = None,
    ) -> None:
        """`again` opens another connection to the same place."""
        self._connection = connection
        self._again = again
        self.connections = 1
        self._credentials = credentials
        self._coding = coding
        self._rids = 0
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._sent: dict[str, bytes] = {}
        """Requests that have no answer yet."""
        self._on_group: OnGroup | None = None
        self._groups: set[asyncio.Task[None]] = set()
        self.closed = asyncio.Event()
        self._reader = asyncio.get_running_loop().create_task(self._read())

    @classmethod
    async def connect(
        cls,
        url: str,
        credentials: Credentials = None,
        *,
        coding: Coding = Coding.JSON,
        restart_s: float = RESTART_S,
        **options: Any,
    ) -> Client:
        """Connect to `ws://` or `wss://`; `options` go to `websockets` (`ssl=`, `open_timeout=` and so on). A hub that
        stops in order is looked for again for `restart_s`."""

        async def open_one() -> ClientConnection:
            return await connect(url, compression=None, max_size=EVENT_LIST_BYTES_MAX, **options)

        async def open_again() -> ClientConnection:
            deadline = asyncio.get_running_loop().time() + restart_s
            while True:
                try:
                    return await open_one()
                except (OSError, InvalidHandshake, TimeoutError):
                    if asyncio.get_running_loop().time() > deadline:
                        raise
                    await asyncio.sleep(RECONNECT_MIN_S)

        return cls(await open_one(), credentials, coding, open_again if restart_s > 0 else None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave. Calls still under way fail with CommError."""
        await self._connection.close()
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._lost()

    # -- the functions of FTN18 ------------------------------------------------------------------------------------

    async def add(self, type: str, data: Any) -> int:
        """Add an event; its id, once the executor has it durably. Not repeated if it may have been heard."""
        return int(await self.call("futoin.evt.gen:1.1:addEvent", {"type": type, "data": data}))

    async def register(self, component: str) -> None:
        """Register a reliable consumer; doing it again changes nothing."""
        await self.call("futoin.evt.poll:1.1:registerConsumer", {"component": component})

    async def poll(self, component: str, last_id: int | None = None, want: list[str] | None = None) -> list[Event]:
        """Events after `last_id`, which everything up to is thereby confirmed."""
        params = {"component": component, "last_id": str(last_id) if last_id else None, "want": want}
        events = await self.call("futoin.evt.poll:1.1:pollEvents", params)
        return [_event(fields) for fields in events]

    async def ping(self, echo: int) -> int:
        """FTN4."""
        answer: int = (await self.call("futoin.evt.gen:1.1:ping", {"echo": echo}))["echo"]
        return answer

    async def ready_to_receive(self, component: str, on_group: OnGroup, want: list[str] | None = None) -> None:
        """Have groups pushed to `on_group(seq, events)`; a group is confirmed when it returns."""
        self._on_group = on_group
        await self.call("futoin.evt.push:1.1:readyToReceive", {"component": component, "want": want})

    async def follow(
        self, component: str, last_id: int | None = None, want: list[str] | None = None
    ) -> AsyncIterator[list[Event]]:
        """Poll for ever, with a delay that grows while nothing comes. A list is confirmed when the next is wanted."""
        delay_s = POLL_DELAY_MIN_S
        while True:
            events = await self.poll(component, last_id, want)
            if events:
                delay_s = POLL_DELAY_MIN_S
                last_id = events[-1].id
                yield events
            else:
                await asyncio.sleep(delay_s)
                delay_s = min(delay_s * 2, POLL_DELAY_MAX_S)

    # -- messages --------------------------------------------------------------------------------------------------

    async def call(self, function: str, params: dict[str, Any]) -> Any:
        """Call any function; raises `RemoteError` with the FutoIn name of what went wrong."""
        self._rids += 1
        rid = f"C{self._rids}"
        if self.closed.is_set():
            raise RemoteError(CONNECTION_LOST, "the connection is closed")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[rid] = future
        try:
            self._sent[rid] = request = self._request(function, params, rid)
            with contextlib.suppress(ConnectionClosed):  # what becomes of it is up to `_read`
                await self._connection.send(request)
            return await future
        finally:
            self._waiting.pop(rid, None)
            self._sent.pop(rid, None)

    def _request(self, function: str, params: dict[str, Any], rid: str) -> bytes:
        credentials = self._credentials
        if isinstance(credentials, Signer | MasterSigner):
            # What is signed is what the peer decodes, so numbers must have been through the coding.
            unsigned = codec.decode_object(codec.request(function, params, rid, None, self._coding), self._coding)
            credentials = credentials.sec(unsigned)
        return codec.request(function, params, rid, credentials, self._coding)

    async def _read(self) -> None:
        try:
            while True:
                with contextlib.suppress(ConnectionClosed):
                    async for message in self._connection:
                        self._received(message.encode() if isinstance(message, str) else message)
                if not await self._found_again():
                    return
        finally:
            self._lost()

    async def _found_again(self) -> bool:
        """Whether there is another connection, and all that was not heard has been sent on it. Who receives events has
        to say so again: see `Receiver`."""
        ended = (self._connection.close_code, self._connection.close_reason)
        if ended != (SERVICE_RESTART, UNHEARD) or self._again is None or self._on_group is not None:
            return False
        try:
            self._connection = await self._again()
        except (OSError, InvalidHandshake, TimeoutError) as error:
            logger.info("the hub has not come back: %s", error)
            return False
        self.connections += 1
        with contextlib.suppress(ConnectionClosed):
            for request in list(self._sent.values()):
                await self._connection.send(request)
        return True

    def _lost(self) -> None:
        self.closed.set()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(RemoteError(CONNECTION_LOST, "the connection was lost"))
        for task in self._groups:
            task.cancel()

    def _received(self, data: bytes) -> None:
        coding = codec.coding_of(data)
        try:
            fields = codec.decode_object(data, coding)
        except codec.Undecodable:
            logger.warning("an undecodable message was ignored")
            return
        if Deviation(fields).is_answer:
            self._answered(codec.answer(fields), fields)
        elif isinstance(fields, dict):
            task = asyncio.get_running_loop().create_task(self._called(fields, coding))
            self._groups.add(task)
            task.add_done_callback(self._groups.discard)

    def _answered(self, answer: Answer | None, fields: dict[str, Any]) -> None:
        future = None if answer is None else self._waiting.get(answer.rid)
        if answer is None or future is None or future.done():
            return
        if answer.error is not None:
            future.set_exception(RemoteError(answer.error, answer.text))
        elif not self._is_genuine(fields):
            future.set_exception(RemoteError(SECURITY_ERROR, "The reply is not signed as it should be"))
        else:
            future.set_result(answer.value)

    def _is_genuine(self, fields: dict[str, Any]) -> bool:
        credentials = self._credentials
        return not isinstance(credentials, Signer | MasterSigner) or credentials.is_genuine(fields)

    async def _called(self, fields: dict[str, Any], coding: Coding) -> None:
        rid = fields.get("rid")
        rid = rid if isinstance(rid, str) else None
        try:
            seq, events = _pushed_group(fields)
            if self._on_group is None:
                raise PeerError(UNKNOWN_INTERFACE, "Nobody is ready to receive here")
            await self._on_group(seq, events)
            reply = codec.result(True, rid, coding)
        except PeerError as error:
            reply = codec.failure(error, rid, coding)
        except Exception as error:
            logger.warning("a group of events was not accepted: %r", error)
            reply = codec.failure(PeerError(INTERNAL_ERROR, "The events were not taken"), rid, coding)
        with contextlib.suppress(ConnectionClosed):
            await self._connection.send(reply)


def _event(fields: dict[str, Any]) -> Event:
    return Event(int(fields["id"]), fields["type"], fields["data"], fields["ts"])


def _pushed_group(fields: dict[str, Any]) -> tuple[int, list[Event]]:
    if fields.get("f") not in (f"{RECEIVER}:1.0:onEvents", f"{RECEIVER}:1.1:onEvents"):
        raise PeerError(UNKNOWN_INTERFACE, f"Unknown function: {fields.get('f')}")
    try:
        params = msgspec.convert(fields.get("p"), OnEvents)
        return params.seq, [_event(each) for each in params.events]
    except (msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
        raise PeerError(INVALID_REQUEST, f"Not a group of events: {error}") from error


class Ordering:
    """Whose turn it is: groups may arrive in parallel and out of order, and are handled strictly by `seq`."""

    def __init__(self) -> None:
        self.next_seq = 0
        self._turns: dict[int, asyncio.Future[None]] = {}

    async def turn(self, seq: int) -> bool:
        """Wait for the turn of `seq`; False when it has already been handled and was only repeated."""
        if seq > self.next_seq:
            if seq > self.next_seq + PARKED_MAX:
                raise PeerError(INVALID_REQUEST, f"Group {seq} is too far ahead of {self.next_seq}")
            turn = self._turns.setdefault(seq, asyncio.get_running_loop().create_future())
            await asyncio.shield(turn)
        return seq == self.next_seq

    def done(self, seq: int) -> None:
        """`seq` was handled: the next may go."""
        if seq != self.next_seq:  # a copy of a group that was handled meanwhile
            return
        self.next_seq = seq + 1
        waiting = self._turns.pop(self.next_seq, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(None)


class Receiver:
    """Receives pushed events for as long as it runs, over as many connections as that takes.

    With a component: registered, reliable, in order; an event pushed again after a lost connection is not given to
    `handle` again. Without: LIVE; `missed_groups` counts what was left out.
    """

    def __init__(
        self,
        url: str,
        credentials: Credentials = None,
        *,
        handle: Callable[[list[Event]], Awaitable[None]],
        component: str = LIVE,
        want: list[str] | None = None,
        coding: Coding = Coding.JSON,
        **options: Any,
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._handle = handle
        self._component = component
        self._want = want
        self._coding = coding
        self._options = options
        self._turn_lock = asyncio.Lock()
        self.last_id = 0
        self.missed_groups = 0
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Receive until cancelled. A refusal (wrong secret, no right) is raised; what may pass is waited out."""
        delay_s = RECONNECT_MIN_S
        while True:
            try:
                async with await Client.connect(
                    self._url, self._credentials, coding=self._coding, **self._options
                ) as client:
                    await self._begin(client)
                    delay_s = RECONNECT_MIN_S
                    await client.closed.wait()
            except (OSError, InvalidHandshake, TimeoutError) as error:
                logger.info("%s cannot be reached: %s", self._url, error)
            except RemoteError as error:
                if error.name not in PASSING:
                    raise
                logger.info("%s: %s", self._url, error)
            self.ready.clear()
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, RECONNECT_MAX_S)

    async def _begin(self, client: Client) -> None:
        ordering = Ordering()

        async def on_group(seq: int, events: list[Event]) -> None:
            if await ordering.turn(seq):
                await self._give(events)
                ordering.done(seq)

        async def on_live_group(seq: int, events: list[Event]) -> None:
            self.missed_groups += max(0, seq - ordering.next_seq)
            ordering.next_seq = max(ordering.next_seq, seq + 1)
            await self._give(events)

        is_live = self._component == LIVE
        if not is_live:
            await client.register(self._component)
        await client.ready_to_receive(self._component, on_live_group if is_live else on_group, self._want)
        self.ready.set()

    async def _give(self, events: list[Event]) -> None:
        """Hand over what is new. A group that fails half way is given again as a whole."""
        async with self._turn_lock:
            new = [event for event in events if event.id > self.last_id]
            if new:
                await self._handle(new)
                self.last_id = new[-1].id
