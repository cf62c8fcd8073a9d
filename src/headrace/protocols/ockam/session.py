"""One connection's decisions: bytes in, hub requests and replies out. No I/O, no hub, no clock.

Ockam has no login and no session in its original framing: a connection is a pipe for routed messages, and the newer
framing adds only a greeting. So there are two small tables here, and the code below only looks things up in them.

`CONNECTION` is the life of a connection. `ANSWERED` says which requests each kind of address takes. Rules of this file:

1. A state changes only by `CONNECTION.step`: an event that the table does not have is our own bug.
2. Whatever the peer sends ends in exactly one of: a hub request, a reply, a counted drop, or the end of the connection.
3. A message that is not well formed ends the connection, because its routes cannot be trusted. A well-formed message
   with a payload that makes no sense is answered by `error` (or by silence at the index service, which has no error
   reply).
4. A push that is understood and refused is answered by a confirm with status ERROR, never by `error`: a published
   client takes `error` for user data and pushes it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

import msgspec

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.bare import encode_uint
from headrace.protocols.ockam.routing import (
    LOCAL,
    RECORD_FIELDS_BYTES_MAX,
    REFUSAL_BYTES_MAX,
    Assembly,
    Framing,
    LegacyFraming,
    LongRoute,
    Message,
    Route,
    Unroutable,
    constant_head,
    local,
)
from headrace.protocols.ockam.settings import Ockam
from headrace.protocols.state_machine import StateMachine


class State(Enum):
    GREETING = "greeting"
    OPEN = "open"
    CLOSED = "closed"


class Event(Enum):
    GREETED = "version byte 1"
    GREETING_WRONG = "another version byte"
    GREETING_LATE = "no version byte in time"
    REQUEST = "request"
    INVALID = "invalid request"
    DROPPED = "nothing to answer"
    MALFORMED = "malformed message"
    LOST = "connection lost"


CONNECTION = StateMachine(
    "ockam/connection",
    State.GREETING,
    {
        State.GREETING: {
            Event.GREETED: State.OPEN,
            Event.GREETING_WRONG: State.CLOSED,
            Event.GREETING_LATE: State.CLOSED,
        },
        State.OPEN: {
            Event.REQUEST: State.OPEN,
            Event.INVALID: State.OPEN,
            Event.DROPPED: State.OPEN,
            Event.MALFORMED: State.CLOSED,
        },
    },
    everywhere={Event.LOST: State.CLOSED},
)

MACHINES = (CONNECTION,)


class Endpoint(Enum):
    """What stands behind a local address."""

    SERVICE = "stream service"
    WORKER = "stream"
    INDEX = "index service"


ANSWERED: Final[dict[Endpoint, tuple[type[codec.Request], ...]]] = {
    Endpoint.SERVICE: (codec.CreateRequest,),
    Endpoint.WORKER: (codec.PushRequest, codec.PullRequest),
    Endpoint.INDEX: (codec.GetIndex, codec.SaveIndex),
}


class Dropped(Enum):
    """Why a message was not answered. The names are those of the metric's label."""

    EMPTY_FRAME = "empty_frame"
    HEARTBEAT = "heartbeat"
    NOT_LOCAL = "not_local"
    UNKNOWN_ADDRESS = "unknown_address"
    LONG_ROUTE = "long_route"
    INDEX_REQUEST = "index_request"


class Worker(NamedTuple):
    """The stream partition behind a stream address."""

    address: bytes
    stream: str
    partition: int


class PushRun(msgspec.Struct):
    """Pushes that stand together in a batch and are confirmed along the same route."""

    route: Route
    offset: int | None
    """Where in the batch they begin; None for pushes that are refused and have no place in it."""
    ids: list[bytes] = []


class PushBatch(msgspec.Struct):
    """All pushes to one stream partition in one received chunk: one append."""

    worker: Worker
    records: list[bytes] = []
    runs: list[PushRun] = []

    def count(self) -> int:
        return sum(len(run.ids) for run in self.runs)

    def refused(self) -> int:
        return sum(len(run.ids) for run in self.runs if run.offset is None)


class Create(msgspec.Struct, frozen=True):
    """A stream to open; `service` is the name the client used for us."""

    service: bytes
    route: Route
    request: codec.CreateRequest


class Pull(msgspec.Struct, frozen=True):
    worker: Worker
    route: Route
    request: codec.PullRequest


class Get(msgspec.Struct, frozen=True):
    service: bytes
    route: Route
    request: codec.GetIndex


class Save(msgspec.Struct, frozen=True):
    request: codec.SaveIndex


HubRequest = Create | Pull | Get | Save


class Turn(msgspec.Struct):
    """What one received chunk asks for."""

    pushes: dict[Worker, PushBatch] = {}
    requests: list[HubRequest] = []
    replies: list[bytes] = []
    """Ready to send: they need nothing from the hub."""
    dropped: list[Dropped] = []
    ended: str | None = None
    """Why the connection must be closed."""


class Session:
    """One connection, seen from the server."""

    def __init__(
        self,
        framing: Framing,
        resolve: Callable[[bytes], Worker | None],
        settings: Ockam | None = None,
        record_bytes_max: int = sys.maxsize,
    ) -> None:
        """`record_bytes_max` is the log's limit; the framing has one of its own, and the smaller one counts."""
        self.framing = framing
        self.state = State.GREETING if framing.greeting else State.OPEN
        self.last_error: str | None = None
        self.requests = 0
        self._resolve = resolve
        self._settings = settings = settings or Ockam()
        self._record_bytes_max = min(framing.record_bytes_max, record_bytes_max)
        self._endpoints = dict.fromkeys(map(str.encode, settings.stream_services), Endpoint.SERVICE)
        self._endpoints |= dict.fromkeys(map(str.encode, settings.index_services), Endpoint.INDEX)
        self._assembly = Assembly()
        self._repeated: tuple[bytes, PushRun, PushBatch] | None = None

    def describe(self) -> dict[str, object]:
        return {
            "state": self.state.value,
            "framing": self.framing.name,
            "requests": self.requests,
            "last_error": self.last_error,
        }

    # --- what arrives -------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> Turn:
        """Take a chunk as it came from the socket, whatever it cuts through."""
        turn = Turn()
        buffer = self._assembly.join(data)
        if buffer is None or self.state is State.CLOSED:
            return turn
        try:
            position = self._greet(buffer, turn) if self.state is State.GREETING else 0
            self._frames(buffer, position, turn)
        except RemoteProtocolError as error:
            self._end(Event.MALFORMED, str(error), turn)
        return turn

    def greeting_late(self) -> Turn:
        """The time for the peer's version byte is over."""
        turn = Turn()
        if self.state is State.GREETING:
            self._end(Event.GREETING_LATE, "no version byte in time", turn)
        return turn

    @property
    def unread_bytes(self) -> int:
        """Bytes that wait for the rest of their frame."""
        return self._assembly.held_bytes

    def lost(self) -> None:
        """The connection is gone."""
        self._assembly.clear()
        self.state = CONNECTION.step(self.state, Event.LOST)

    def _greet(self, buffer: bytes, turn: Turn) -> int:
        size = len(self.framing.greeting)
        if buffer[:size] == self.framing.greeting:
            self.state = CONNECTION.step(self.state, Event.GREETED)
            return size
        self._end(Event.GREETING_WRONG, f"the version byte is {buffer[0]}", turn)
        return len(buffer)

    def _frames(self, buffer: bytes, position: int, turn: Turn) -> None:
        framing, header_bytes, end = self.framing, self.framing.header_bytes, len(buffer)
        needed_bytes = header_bytes
        while end - position >= header_bytes and self.state is State.OPEN:
            size = framing.frame_size(buffer, position)
            start = position + header_bytes
            if end - start < size:
                needed_bytes = header_bytes + size
                break
            position = start + size
            if not size:
                self._drop(Dropped.EMPTY_FRAME, turn)
                continue
            self._message(buffer[start:position], turn)
            if self._repeated is not None:
                head, run, batch = self._repeated
                before = len(run.ids)
                position = codec.scan_pushes(buffer, position, head, self._record_bytes_max, run.ids, batch.records)
                self.requests += len(run.ids) - before
                self._repeated = None
        self._assembly.hold(buffer[position:], needed_bytes)

    def _message(self, data: bytes, turn: Turn) -> None:
        refused: LongRoute | None = None
        try:
            message = self.framing.decode(data)
        except LongRoute as error:
            message, refused, self.last_error = error.message, error, str(error)
            if error.size + REFUSAL_BYTES_MAX > self.framing.sent_bytes_max:
                self._drop(Dropped.LONG_ROUTE, turn)
                return
        except Unroutable as error:
            self.last_error = str(error)
            self._drop(Dropped.LONG_ROUTE, turn)
            return
        if not message.onward:
            self._drop(Dropped.HEARTBEAT, turn)
            return
        hop = message.onward[0]
        if hop.type != LOCAL:
            self._drop(Dropped.NOT_LOCAL, turn)  # never dialled: that would make the hub an open relay
            return
        endpoint = self._endpoints.get(hop.value)
        worker = None
        if endpoint is None:
            worker = self._resolve(hop.value)
            if worker is None:
                self._drop(Dropped.UNKNOWN_ADDRESS, turn)
                return
            endpoint = Endpoint.WORKER
        self._request(endpoint, worker, message, turn, refused)

    def _request(
        self, endpoint: Endpoint, worker: Worker | None, message: Message, turn: Turn, refused: LongRoute | None
    ) -> None:
        own = message.onward[0].value
        try:
            request = codec.decode_request(message.payload)
            if not isinstance(request, ANSWERED[endpoint]):
                raise RemoteProtocolError(f"a {endpoint.value} does not take a {type(request).__name__}")
            self._check(request)
            if refused is not None and not isinstance(request, codec.PushRequest | codec.SaveIndex):
                raise AskedTooMuch(str(refused))
        except RemoteProtocolError as error:
            self.last_error = str(error)
            if endpoint is Endpoint.INDEX:
                self._drop(Dropped.INDEX_REQUEST, turn)
                return
            self.state = CONNECTION.step(self.state, Event.INVALID)
            reason = str(error) if isinstance(error, AskedTooMuch) else codec.INVALID_REQUEST
            turn.replies.append(self.error(own, message.returning, reason))
            return
        self.state = CONNECTION.step(self.state, Event.REQUEST)
        self.requests += 1
        match request:
            case codec.PushRequest():
                assert worker is not None
                self._push(worker, message, request, turn, refused)
            case codec.PullRequest():
                assert worker is not None
                turn.requests.append(Pull(worker, message.returning, request))
            case codec.CreateRequest():
                turn.requests.append(Create(own, message.returning, request))
            case codec.GetIndex():
                turn.requests.append(Get(own, message.returning, request))
            case codec.SaveIndex():
                turn.requests.append(Save(request))

    def _check(self, request: codec.Request) -> None:
        """What decodes and still cannot be meant, or is more than a peer may ask for."""
        limits = self._settings
        match request:
            case codec.CreateRequest(_, name, partitions):
                if name == "":
                    raise RemoteProtocolError("an empty stream name")
                if partitions == 0:
                    raise AskedTooMuch("a stream has at least one partition")
                _within("partitions", partitions or 1, limits.partitions_max, "ockam.partitions_max")
                _within("stream name bytes", len((name or "").encode()), limits.name_bytes_max, "ockam.name_bytes_max")
            case codec.GetIndex() | codec.SaveIndex():
                for text in (request.client_id, request.stream_name):
                    _within("name bytes", len(text.encode()), limits.name_bytes_max, "ockam.name_bytes_max")

    def _push(
        self, worker: Worker, message: Message, request: codec.PushRequest, turn: Turn, refused: LongRoute | None
    ) -> None:
        batch = turn.pushes.get(worker)
        if batch is None:
            batch = turn.pushes[worker] = PushBatch(worker)
        fits = refused is None and len(request.data) <= self._record_bytes_max
        run = batch.runs[-1] if batch.runs else None
        if run is None or run.route != message.returning or (run.offset is not None) is not fits:
            run = PushRun(message.returning, len(batch.records) if fits else None)
            batch.runs.append(run)
        run.ids.append(encode_uint(request.request_id))
        if not fits:
            too_large = f"a record of {len(request.data)} bytes is above {self._record_bytes_max}"
            self.last_error = str(refused or too_large)
            return
        batch.records.append(request.data)
        if isinstance(self.framing, LegacyFraming):
            self._repeated = (constant_head(message.onward, message.returning), run, batch)

    def _drop(self, why: Dropped, turn: Turn) -> None:
        self.state = CONNECTION.step(self.state, Event.DROPPED)
        turn.dropped.append(why)

    def _end(self, event: Event, why: str, turn: Turn) -> None:
        self.state = CONNECTION.step(self.state, event)
        self.last_error = turn.ended = why
        self._assembly.clear()

    # --- what the hub said --------------------------------------------------------------------------------------------

    def confirmed(self, batch: PushBatch, first: int | None) -> bytes:
        """The confirms of a batch stored from index `first` on; None when it could not be stored."""
        own = (local(batch.worker.address),)
        return b"".join(
            codec.encode_confirms(
                self.framing,
                run.route,
                own,
                run.ids,
                None if first is None or run.offset is None else first + run.offset,
            )
            for run in batch.runs
        )

    def created(self, create: Create, name: str, workers: Sequence[Worker]) -> bytes:
        """One INIT from each partition, under the protocol name that was used to ask."""
        plain = create.request.partitions is None
        return b"".join(
            self._reply(
                create.route,
                worker.address,
                codec.encode_response(codec.Init(create.request.protocol, name, None if plain else worker.partition)),
            )
            for worker in workers
        )

    @property
    def pull_bytes_max(self) -> int:
        """How many bytes of records, with their indexes and lengths, fit one reply along any route."""
        return self.framing.record_bytes_max + RECORD_FIELDS_BYTES_MAX

    def pulled(self, pull: Pull, indexes: Sequence[int], records: Sequence[bytes]) -> tuple[bytes, int]:
        """The reply with as many of the records as fit, and how many those are."""
        payload, count = codec.encode_pull(pull.request.request_id, indexes, records, self.pull_bytes_max)
        return self._reply(pull.route, pull.worker.address, payload), count

    def index(self, get: Get, index: int | None) -> bytes:
        request = get.request
        response = codec.Index(request.protocol, request.client_id, request.stream_name, index, request.partition)
        return self._reply(get.route, get.service, codec.encode_response(response))

    def error(self, own: bytes, route: Route, reason: str) -> bytes:
        return self._reply(route, own, codec.encode_response(codec.Error(reason)))

    def _reply(self, route: Route, own: bytes, payload: bytes) -> bytes:
        """A reply goes along the request's own return route, exactly as it came, and says who answered."""
        return self.framing.encode(Message(route, (local(own),), payload))


class AskedTooMuch(RemoteProtocolError):
    """A request above one of our own limits. Unlike other invalid requests it is answered with the reason."""


def _within(what: str, value: int, maximum: int, key: str) -> None:
    if value > maximum:
        raise AskedTooMuch(f"{what}: {value} is above the maximum of {maximum}, set by {key}")
