"""From a decoded message to its reply: who calls, may they, do it, sign it. The same for HTTP and WebSocket."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

from headrace.hub.intake import LARGE_BYTES
from headrace.protocols.futoin import codec, interface
from headrace.protocols.futoin.codec import Coding, Deviation, Request, Rid
from headrace.protocols.futoin.credentials import Caller, Guard
from headrace.protocols.futoin.errors import INTERNAL_ERROR, PeerError, from_hub
from headrace.protocols.futoin.interface import ENVELOPE_BYTES, Call
from headrace.protocols.futoin.push import Receivers
from headrace.protocols.futoin.service import Service
from headrace.protocols.futoin.session import Channel, Endpoint, check_constraints
from headrace.protocols.futoin.settings import Futoin

if TYPE_CHECKING:
    from headrace.hub import Hub

logger = logging.getLogger("headrace.futoin")


class Dispatcher:
    """One for a hub."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.settings = hub.config.section(Futoin)
        self.service = Service(hub)
        self.guard = Guard(hub)
        self.receivers = Receivers()
        # An event must fit alone into the reply to a poll: its own overhead, and that of the reply.
        self.data_bytes_max = self.settings.message_bytes_max - 2 * ENVELOPE_BYTES
        self._peer_errors = hub.metrics.protocol.peer_errors

    async def caller(
        self, message: Request | Deviation, data: bytes, coding: Coding, channel: Channel
    ) -> Caller | None:
        """Who sent `message`; None for nobody. Raises for a claim that is wrong: that comes before everything else."""
        caller = await self._identified(message, data, coding, channel)
        if caller is not None:
            channel.recognized()
        return caller

    async def _identified(
        self, message: Request | Deviation, data: bytes, coding: Coding, channel: Channel
    ) -> Caller | None:
        sec = message.sec
        known = self.guard.remembered(sec)
        if known is not None:
            return known
        if isinstance(sec, str | dict) and sec:
            try:
                return await self.guard.identify(sec, codec.decode_object(data, coding), channel.peer)
            except RecursionError as error:
                raise PeerError("InvalidRequest", "The message is nested too deep to be signed") from error
        return self.guard.anonymous() if channel.open_to_all else None

    def checked(
        self, message: Request | Deviation, caller: Caller | None, channel: Channel, endpoint: Endpoint
    ) -> Call:
        """The call that `message` makes, if the rules of FTN3 and the caller's rights allow it."""
        if isinstance(message, Deviation):
            raise codec.explain(
                message.fields,
                authenticated=caller is not None,
                check=lambda interface: check_constraints(interface, channel, caller is not None),
            )
        call = codec.CALL_OF[type(message)]
        check_constraints(call.interface, channel, caller is not None)
        if caller is not None:
            self.service.check_right(caller, call.function, endpoint.stream)
        return call

    async def perform(self, call: Call, params: Any, caller: Caller | None, endpoint: Endpoint, coding: Coding) -> Any:
        """Do what was asked, except readyToReceive, which needs a connection."""
        if call.function == "ping":
            return {"echo": int(params.echo)}
        assert caller is not None, "only ping is open to nobody"
        await self.service.prepare(endpoint, caller.principal)
        if isinstance(params, interface.AddEvent):
            return await self.add(params, endpoint, coding)
        if isinstance(params, interface.RegisterConsumer):
            return await self.service.register(endpoint, caller.user, params.component)
        params = cast(interface.PollEvents, params)
        return await self.service.poll(endpoint, caller.user, params, call, coding)

    async def add(self, params: interface.AddEvent, endpoint: Endpoint, coding: Coding) -> str:
        """The id of the new event, once it is durable."""
        payload = await self.payload(params, coding)
        if self.hub.congested:
            await self.hub.drained()
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def added(index: int, error: BaseException | None) -> None:
            if future.done():  # the caller has gone
                return
            if error is None:
                future.set_result(index)
            else:
                future.set_exception(error)

        self.service.add(endpoint, params.type, payload, added)
        return str(await future + 1)

    async def payload(self, params: interface.AddEvent, coding: Coding) -> bytes:
        """What is stored of an event; a large one is checked beside the event loop."""
        if memoryview(params.data).nbytes < LARGE_BYTES:
            return codec.event_payload(params.data, coding, self.data_bytes_max)
        return await self.hub.intake.apart(lambda: codec.event_payload(params.data, coding, self.data_bytes_max))

    def failure(self, error: BaseException, rid: Rid | None, coding: Coding, caller: Caller | None) -> bytes:
        """An error as a reply, signed where the request was."""
        refusal = from_hub(error)
        if refusal.name == INTERNAL_ERROR:
            logger.error("a call failed: %s", refusal.text, exc_info=error)
        self._peer_errors.labels(protocol="futoin", code=refusal.name).inc()
        return codec.failure(refusal, rid, coding, None if caller is None else caller.sign)
