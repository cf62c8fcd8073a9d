"""What each rpc does. A handler gets the requests of one call and sends through it; nothing here blocks or holds a
thread."""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

from headrace.errors import HeadraceError
from headrace.protocols.perper.catalogue import EXECUTIONS, LISTENERS, Entry
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.codec import Fields, Message, encode_keys
from headrace.protocols.perper.fabric.descriptors import SERVICES, file_named, files_of_symbol
from headrace.protocols.perper.fabric.executions import (
    ExecutionFeed,
    Filter,
    Reservations,
    ReservedFeed,
    SingleReservation,
    snapshot,
)
from headrace.protocols.perper.fabric.items import ItemFeed
from headrace.protocols.perper.records import REGISTRY_AGENT, Execution
from headrace.protocols.perper.settings import Perper
from headrace.protocols.perper.state import Fabric
from headrace.units import natural

if TYPE_CHECKING:
    from headrace.protocols.perper.fabric.server import ServerCall

# Keys per turn of the event loop: long enough to fill frames, short enough to let others run.
KEYS_PER_TURN: Final = 2_000
SCALER_DEBOUNCE_S: Final = 0.1
HEALTH_SERVING, HEALTH_NOT_SERVING, HEALTH_SERVICE_UNKNOWN = 1, 2, 3


class CallError(PeerError):
    """The call ends with this status, one of gRPC's."""


class Services:
    """What the handlers of all calls share."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        self.locks = Reservations()
        self.missing_stream: str = fabric.hub.config.section(Perper).missing_stream
        self.delivered = fabric.hub.metrics.protocol.of("fabric").records_out.inc

    def health(self) -> int:
        """Serving, unless the hub's own checks say otherwise."""
        return HEALTH_SERVING if self.fabric.hub.health.report().ready else HEALTH_NOT_SERVING

    def counts(self, agent: str) -> tuple[int, int]:
        """Executions of the agent, finished ones until they are removed; and instances of it."""
        registered = self.fabric.executions.of_agent(REGISTRY_AGENT).values()
        instances = sum(record.instance == agent for record in registered)
        return len(self.fabric.executions.of_agent(agent)), instances


class Handler:
    """One call's work. The base does nothing."""

    def __init__(self, call: ServerCall, services: Services) -> None:
        self.call = call
        self.services = services
        self.fabric = services.fabric
        self.stops: list[Callable[[], object]] = []
        """What ends with the call."""
        self._needs: dict[tuple[Literal["read", "write"], str], None] = {}

    def request(self, message: Message) -> None:
        """A request came."""

    def requests_ended(self) -> None:
        """No more requests will come."""

    def room(self) -> None:
        """The call can take more."""

    def close(self) -> None:
        """The call is over, whatever ended it."""
        for stop in self.stops:
            stop()

    def check(self, right: Literal["read", "write"], name: str) -> None:
        """The caller needs a right on a cache."""
        if not self.call.principal.may(right, name):
            raise CallError(
                http2.PERMISSION_DENIED,
                f"user {self.call.principal.name!r} needs the right {right!r} on cache {name!r}",
            )
        self._needs[right, name] = None
        self.call.uses(right, name)

    def check_again(self) -> None:
        """Raise if the caller has lost a right that the call needs."""
        for right, name in list(self._needs):
            self.check(right, name)


class AnsweringHandler(Handler):
    """A call with one request and one response."""

    def __init__(self, answer: Callable[[Handler, Message], Fields], call: ServerCall, services: Services) -> None:
        super().__init__(call, services)
        self._answer = answer

    def request(self, message: Message) -> None:
        self.call.send(self._answer(self, message))
        self.call.end()


class WaitingHandler(Handler):
    """A call that is answered with Empty when a future is done; at once when there is nothing to wait for."""

    def __init__(
        self, future: Callable[[Handler, Message], Future[None] | None], call: ServerCall, services: Services
    ) -> None:
        super().__init__(call, services)
        self._future = future

    def request(self, message: Message) -> None:
        future = self._future(self, message)
        if future is None:
            self._answer()
            return
        self.stops.append(future.cancel)
        future.add_done_callback(lambda finished: None if finished.cancelled() else self._answer())

    def _answer(self) -> None:
        self.call.send({})
        self.call.end()


# ---------------------------------------------------------------------------------------------------------- executions


def all_executions(handler: Handler, message: Message) -> Fields:
    """AllExecutions: one snapshot."""
    handler.check("read", EXECUTIONS)
    return {"executions": snapshot(handler.fabric.executions, Filter.of(message))}


def execution_finished(handler: Handler, message: Message) -> Future[None] | None:
    """ExecutionFinished: also when the execution does not exist."""
    handler.check("read", EXECUTIONS)
    return handler.fabric.executions.finished(message.execution)


class ExecutionsHandler(Handler):
    """Executions."""

    def request(self, message: Message) -> None:
        self.check("read", EXECUTIONS)
        self.call.send_headers()
        feed = ExecutionFeed(self.fabric.executions, Filter.of(message), self.call.send)
        self.stops.append(feed.close)
        feed.start()


class ReserveExecutionHandler(Handler):
    """ReserveExecution."""

    def request(self, message: Message) -> None:
        self.check("write", EXECUTIONS)
        self.call.send_headers()
        reservation = SingleReservation(
            self.fabric.executions, self.services.locks, message.workGroup, message.execution, self.call.peer
        )
        reservation.granted = self._granted
        self.stops.append(reservation.close)
        reservation.start()

    def _granted(self, active: bool) -> None:
        if active:
            self.call.send({})
        else:
            self.call.end(http2.CANCELLED, "the execution is finished or does not exist")


class ReservedExecutionsHandler(Handler):
    """ReservedExecutions."""

    _feed: ReservedFeed | None = None
    _early_permits = 0

    @property
    def permits(self) -> int:
        """How many executions the worker will still take."""
        return self._early_permits if self._feed is None else self._feed.permits

    def request(self, message: Message) -> None:
        """The message with a filter starts the feed; every message adds permits."""
        if message.HasField("filter") and self._feed is None:
            self.check("write", EXECUTIONS)
            self.call.send_headers()
            self._feed = ReservedFeed(
                self.fabric.executions,
                self.services.locks,
                message.workGroup,
                Filter.of(message.filter),
                self.call.send,
                self.call.peer,
            )
            self.stops.append(self._feed.close)
            self._feed.start()
            self._feed.add_permits(self._early_permits)
        if self._feed is None:
            self._early_permits += message.reserveNext
        else:
            self._feed.add_permits(message.reserveNext)

    def requests_ended(self) -> None:
        """A worker that never said what it wants gets nothing; otherwise its executions stay its own."""
        if self._feed is None:
            self.call.end(http2.INVALID_ARGUMENT, "no message carried a filter")


# ------------------------------------------------------------------------------------------------------------- streams


def listener_attached(handler: Handler, message: Message) -> Future[None] | None:
    """ListenerAttached."""
    handler.check("read", LISTENERS)
    return handler.fabric.listeners.attached(message.stream)


class StreamItemsHandler(Handler):
    """StreamItems."""

    _entry: Entry | None = None
    _feed: ItemFeed | None = None
    _turn: asyncio.Handle | None = None
    _closed = False

    def request(self, message: Message) -> None:
        """Find the stream, and its keys."""
        self.check("read", self.fabric.catalogue.owner_of(message.stream))
        opening = asyncio.ensure_future(self._open(message))
        opening.add_done_callback(self._opened)
        self.stops.append(opening.cancel)

    async def _open(self, message: Message) -> None:
        name = message.stream
        entry = self.fabric.catalogue.find_name(name)
        if entry is None:
            if self.services.missing_stream == "fail":
                raise CallError(http2.NOT_FOUND, f"stream {name!r} does not exist")
            self.call.send_headers()
            entry = await self.fabric.catalogue.appeared(name)
            self.check("read", entry.owner)
        if not entry.ready:
            await self.fabric.catalogue.prepare(entry, stream=True)
        cache = entry.cache
        assert cache is not None
        # First the subscription, then the metadata: a client that has seen the metadata may count on every new item.
        self._feed = ItemFeed(cache.keys, cache.arrivals, message.startKey, message.stride)
        self._entry = entry
        cache.watch(self._wake)
        entry.on_destroyed[self._destroyed] = None
        self.stops += [partial(entry.on_destroyed.pop, self._destroyed, None), partial(cache.unwatch, self._wake)]
        self.call.send_headers()
        self._pump()

    def _opened(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, CallError):
            self.call.end(error.status, error.message)
        elif error is not None:
            self.call.end(http2.INTERNAL, str(error))

    def _wake(self) -> None:
        if self._turn is None and not self._closed:
            self._turn = asyncio.get_running_loop().call_soon(self._pump)

    def room(self) -> None:
        """The peer has taken some."""
        if self._feed is not None:
            self._wake()

    def _pump(self) -> None:
        self._turn = None
        if self._feed is None or self._closed or not self.call.writable():
            return  # the peer is slow: `room` comes when it has read
        assert self._entry is not None
        if self.fabric.catalogue.find_name(self._entry.name) is not self._entry:
            self._destroyed()  # another protocol has deleted the stream
            return
        try:
            keys = self._feed.take(KEYS_PER_TURN)
        except HeadraceError as error:  # the stream was deleted, or the log has failed
            self.call.end(http2.ABORTED, str(error))
            return
        if keys:
            self.call.send_raw(encode_keys(keys))
            self.services.delivered(len(keys))
            if len(keys) == KEYS_PER_TURN:
                self._wake()

    def _destroyed(self) -> None:
        self.call.end(http2.ABORTED, f"stream {self._entry.name if self._entry else ''!r} was destroyed")

    def close(self) -> None:
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        super().close()


# ---------------------------------------------------------------------------------------------------------------- KEDA


def scaled_agent(reference: Message) -> tuple[str, dict[str, str]]:
    """The agent a scaled object is about, and the object's metadata."""
    metadata = dict(reference.scalerMetadata)
    return metadata.get("agent") or reference.name, metadata


def is_active(handler: Handler, message: Message) -> Fields:
    """IsActive: whether anything of the agent is counted."""
    handler.check("read", EXECUTIONS)
    return {"result": any(handler.services.counts(scaled_agent(message)[0]))}


def metric_spec(handler: Handler, message: Message) -> Fields:
    """GetMetricSpec: only the metrics that have a target."""
    handler.check("read", EXECUTIONS)
    agent, metadata = scaled_agent(message)
    specs = []
    for kind, key in (("executions", "targetExecutions"), ("instances", "targetInstances")):
        if key in metadata:
            target = natural(metadata[key])
            if target is None:
                raise CallError(http2.INVALID_ARGUMENT, f"{key} is {metadata[key]!r}, not a number")
            specs.append({"metricName": f"{agent}-{kind}", "targetSize": target})
    return {"metricSpecs": specs}


def metrics(handler: Handler, message: Message) -> Fields:
    """GetMetrics: both, whichever was asked for."""
    handler.check("read", EXECUTIONS)
    if not message.HasField("scaledObjectRef"):
        raise CallError(http2.INVALID_ARGUMENT, "no scaledObjectRef")
    agent, _ = scaled_agent(message.scaledObjectRef)
    values = zip(("executions", "instances"), handler.services.counts(agent), strict=True)
    return {"metricValues": [{"metricName": f"{agent}-{kind}", "metricValue": value} for kind, value in values]}


class StreamIsActiveHandler(Handler):
    """StreamIsActive: false first, then each change, at most one in 100 ms."""

    _agent = ""
    _timer: asyncio.TimerHandle | None = None
    _active = False

    def request(self, message: Message) -> None:
        self.check("read", EXECUTIONS)
        self._agent = scaled_agent(message)[0]
        self.call.send_headers()
        self.call.send({"result": False})
        watch = self.fabric.executions.watch
        self.stops += [watch(agent, self._changed) for agent in {self._agent, REGISTRY_AGENT}]
        self._schedule()

    def _changed(self, execution: str, before: Execution | None, now: Execution | None) -> None:
        self._schedule()

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SCALER_DEBOUNCE_S, self._report)

    def _report(self) -> None:
        self._timer = None
        active = any(self.services.counts(self._agent))
        if active != self._active:
            self._active = active
            self.call.send({"result": active})

    def close(self) -> None:
        super().close()
        if self._timer is not None:
            self._timer.cancel()


# ----------------------------------------------------------------------------------------------- health and reflection


def health(handler: Handler, message: Message) -> Fields:
    """Health check, by service; the empty name is the whole server."""
    if message.service and message.service not in SERVICES:
        raise CallError(http2.NOT_FOUND, f"there is no service {message.service!r}")
    return {"status": handler.services.health()}


class HealthWatchHandler(Handler):
    """Health watch: the state now; it ends with the server."""

    def request(self, message: Message) -> None:
        self.call.send_headers()
        known = not message.service or message.service in SERVICES
        self.call.send({"status": self.services.health() if known else HEALTH_SERVICE_UNKNOWN})


class ReflectionHandler(Handler):
    """Server reflection."""

    def request(self, message: Message) -> None:
        """One question, one answer."""
        answer: Fields = {"valid_host": message.host, "original_request": message}
        if message.file_by_filename:
            files = file_named(message.file_by_filename)
        elif message.file_containing_symbol:
            files = files_of_symbol(message.file_containing_symbol)
        elif message.all_extension_numbers_of_type:
            files = []
        else:
            answer["list_services_response"] = {"service": [{"name": name} for name in SERVICES]}
            self.call.send(answer)
            return
        if files:
            answer["file_descriptor_response"] = {"file_descriptor_proto": files}
        else:
            answer["error_response"] = {"error_code": http2.NOT_FOUND, "error_message": "not found"}
        self.call.send(answer)

    def requests_ended(self) -> None:
        """All questions are answered."""
        self.call.end()


HANDLERS: Final[dict[str, Callable[[ServerCall, Services], Handler]]] = {
    "/perper.Fabric/Executions": ExecutionsHandler,
    "/perper.Fabric/AllExecutions": partial(AnsweringHandler, all_executions),
    "/perper.Fabric/ExecutionFinished": partial(WaitingHandler, execution_finished),
    "/perper.Fabric/ReserveExecution": ReserveExecutionHandler,
    "/perper.Fabric/ReservedExecutions": ReservedExecutionsHandler,
    "/perper.Fabric/StreamItems": StreamItemsHandler,
    "/perper.Fabric/ListenerAttached": partial(WaitingHandler, listener_attached),
    "/externalscaler.ExternalScaler/IsActive": partial(AnsweringHandler, is_active),
    "/externalscaler.ExternalScaler/StreamIsActive": StreamIsActiveHandler,
    "/externalscaler.ExternalScaler/GetMetricSpec": partial(AnsweringHandler, metric_spec),
    "/externalscaler.ExternalScaler/GetMetrics": partial(AnsweringHandler, metrics),
    "/grpc.health.v1.Health/Check": partial(AnsweringHandler, health),
    "/grpc.health.v1.Health/Watch": HealthWatchHandler,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": ReflectionHandler,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": ReflectionHandler,
}
# What may be asked without saying who one is.
OPEN_PATHS: Final = frozenset(path for path in HANDLERS if path.startswith("/grpc."))
