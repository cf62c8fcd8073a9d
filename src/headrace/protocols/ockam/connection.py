"""One client connection: requests out, replies matched. The delivery recipe on top of it is in `client`.

Replies are matched by the return route: every create, pull and index request gives an address of its own to answer to,
so no reply can be taken for another's, whatever order they come in. Pushes share one address per stream and are matched
by request id, which this client never uses twice on a connection.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Literal, cast

import msgspec

from headrace.config.address import split_address
from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.bare import encode_data, encode_string, encode_uint
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import Assembly, Framing, LegacyFraming, Message, Route, local

log = logging.getLogger(__name__)

TIMEOUT_S: Final = 10.0
_PUSH_HEAD: Final = encode_string(codec.PUSH)


class OckamError(Exception):
    """What went wrong between us and the hub."""


class ConnectionLost(OckamError):
    """The connection is gone; what was not confirmed may or may not have been stored."""


class Refused(OckamError):
    """The hub said no: an `error` reply, or a push confirmed with status ERROR. Or a record fits no frame."""


class NoAnswer(OckamError):
    """Nothing came back in time. Addresses that do not exist are answered by silence: create the stream again."""


class Stream(msgspec.Struct, frozen=True):
    """A stream partition and the way to it."""

    name: str
    partition: int
    route: Route


class PushGroup:
    """Pushes made by one call: their indexes as the confirms come in."""

    __slots__ = ("first_id", "future", "indexes", "left", "refused")

    def __init__(self, first_id: int, count: int, future: asyncio.Future[list[int]]) -> None:
        self.first_id = first_id
        self.indexes = [-1] * count
        self.left = count
        self.refused = 0
        self.future = future

    def confirm(self, confirm: codec.PushConfirm) -> None:
        self.left -= 1
        if confirm.ok:
            self.indexes[confirm.request_id - self.first_id] = confirm.index
        else:
            self.refused += 1
        if self.left == 0 and not self.future.done():
            if self.refused:
                self.fail(Refused(f"{self.refused} of {len(self.indexes)} records were not stored"))
            else:
                self.future.set_result(self.indexes)

    def fail(self, error: OckamError) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()  # whoever awaits it sees it; whoever does not is not warned about it at exit


class Connection(asyncio.Protocol):
    """A connection to the hub. Make one with `connect`."""

    def __init__(self, framing: Framing, *, stream_service: str, index_service: str, timeout_s: float) -> None:
        self._framing = framing
        self._stream_service = local(stream_service)
        self._index_service = local(index_service)
        self.timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._assembly = Assembly()
        self._greeted = not framing.greeting
        self._ids = itertools.count(1)
        self._next_request_id = 1
        self._waiting: dict[bytes, Callable[[Message], None]] = {}
        self._pushes: dict[int, PushGroup] = {}
        self._push_addresses: dict[Route, Route] = {}
        self._writable = asyncio.Event()
        self._lost: ConnectionLost | None = None
        self._asking: set[asyncio.Future[None]] = set()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # --- requests -------------------------------------------------------------------------------------------------

    async def create(self, name: str | None = None) -> Stream:
        """Open a stream: the one of that name, or a new one with a name of the hub's choosing."""
        request = codec.CreateRequest(codec.CREATE, name)
        (init,) = await self._ask((self._stream_service,), request, 1)
        return init_stream(init)

    async def create_partitioned(self, name: str | None, partitions: int) -> list[Stream]:
        """Open a stream with at least so many partitions; one Stream each, in order."""
        request = codec.CreateRequest(codec.CREATE_PARTITIONED, name, partitions)
        inits = await self._ask((self._stream_service,), request, partitions)
        return sorted(map(init_stream, inits), key=lambda stream: stream.partition)

    async def push(self, stream: Stream, data: bytes) -> int:
        """Store one record; its index once it is durable."""
        (index,) = await self.push_all(stream, [data])
        return index

    def push_all(self, stream: Stream, records: Sequence[bytes]) -> asyncio.Future[list[int]]:
        """Store records without waiting between them. Calls may follow each other at once: order is kept."""
        future: asyncio.Future[list[int]] = asyncio.get_running_loop().create_future()
        group = PushGroup(self._next_request_id, len(records), future)
        self._next_request_id += len(records)
        if self._lost is not None:
            group.fail(self._lost)
            return future
        if not records:
            future.set_result([])
            return future
        back = self._push_address(stream)
        frames = []
        try:
            for request_id, data in enumerate(records, group.first_id):
                body = encode_uint(request_id) + encode_data(data)
                frames.append(self._framing.encode(Message(stream.route, back, _PUSH_HEAD + encode_data(body))))
        except LocalProtocolError as error:
            group.fail(Refused(f"none of {len(records)} records was sent: {error}"))
            return future
        self._pushes.update(dict.fromkeys(range(group.first_id, self._next_request_id), group))
        self._write(b"".join(frames))
        return future

    async def pull(self, stream: Stream, index: int, limit: int) -> list[codec.StreamMessage]:
        """At most `limit` records, none below `index`. Fewer, or none, does not mean that there are no more."""
        ((_, response),) = await self._ask(stream.route, codec.PullRequest(next(self._ids), index, limit), 1)
        if not isinstance(response, codec.PullResponse):
            raise OckamError(f"a pull was answered by {response!r}")
        return response.messages

    async def get_index(self, client_id: str, stream: Stream) -> int | None:
        """The index this client saved last; 0 or None if it never did."""
        request = codec.GetIndex(codec.INDEX_PARTITIONED, client_id, stream.name, stream.partition)
        ((_, response),) = await self._ask((self._index_service,), request, 1)
        if not isinstance(response, codec.Index):
            raise OckamError(f"an index request was answered by {response!r}")
        return response.index

    def save_index(self, client_id: str, stream: Stream, index: int) -> None:
        """Save the index to go on from. The protocol has no answer to this; a later get on this connection sees it."""
        request = codec.SaveIndex(codec.INDEX_PARTITIONED, client_id, stream.name, index, stream.partition)
        back = (local(b"s%d" % next(self._ids)),)
        self._write(self._framing.encode(Message((self._index_service,), back, codec.encode_request(request))))

    async def drain(self) -> None:
        """Wait until the socket takes more: call it now and then when pushing a lot."""
        await self._writable.wait()
        if self._lost is not None:
            raise self._lost

    async def close(self) -> None:
        """Hang up after what is already written; after the time-out, without."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self._closed], timeout=self.timeout_s)
        if self._transport is not None:
            self._transport.abort()
        await asyncio.shield(self._closed)

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- matching -------------------------------------------------------------------------------------------------

    async def _ask(self, onward: Route, request: codec.Request, count: int) -> list[tuple[Route, codec.Response]]:
        """Send a request from an address of its own, and collect so many replies to that address."""
        if self._lost is not None:
            raise self._lost
        address = b"c%d" % next(self._ids)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answers: list[tuple[Route, codec.Response]] = []

        def arrived(message: Message) -> None:
            response = codec.decode_response(message.payload)
            answers.append((message.returning, response))
            if done.done():
                return
            if isinstance(response, codec.Error):
                done.set_exception(Refused(response.reason))
            elif len(answers) >= count:
                done.set_result(None)

        self._waiting[address] = arrived
        self._asking.add(done)
        try:
            self._write(self._framing.encode(Message(onward, (local(address),), codec.encode_request(request))))
            async with asyncio.timeout(self.timeout_s):
                await done
        except TimeoutError:
            raise NoAnswer(f"no answer to {request!r} in {self.timeout_s} s") from None
        finally:
            del self._waiting[address]
            self._asking.discard(done)
        return answers

    def _push_address(self, stream: Stream) -> Route:
        back = self._push_addresses.get(stream.route)
        if back is None:
            address = b"p%d" % next(self._ids)
            back = self._push_addresses[stream.route] = (local(address),)
            self._waiting[address] = self._confirmed
        return back

    def _confirmed(self, message: Message) -> None:
        response = codec.decode_response(message.payload)
        if not isinstance(response, codec.PushConfirm):
            raise RemoteProtocolError(f"a push was answered by {response!r}")
        group = self._pushes.pop(response.request_id, None)
        if group is None:
            log.warning("a confirmation arrived for push %d, which is not waiting for one", response.request_id)
        else:
            group.confirm(response)

    # --- the socket -----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop has a class of its own
        self._writable.set()
        if self._framing.greeting:
            self._transport.write(self._framing.greeting)

    def data_received(self, data: bytes) -> None:
        buffer = self._assembly.join(data)
        if buffer is None:
            return
        try:
            self._frames(buffer)
        except RemoteProtocolError as error:
            log.error("the hub sent a message that cannot be decoded: %s", error)
            self._lose(f"the hub sent a message that cannot be decoded: {error}")
            if self._transport is not None:
                self._transport.abort()

    def _frames(self, buffer: bytes) -> None:
        framing, position, needed = self._framing, 0, self._framing.header_bytes
        if not self._greeted:
            if not buffer.startswith(framing.greeting):
                raise RemoteProtocolError(f"the version byte is {buffer[0]}")
            self._greeted = True
            position = len(framing.greeting)
        while len(buffer) - position >= framing.header_bytes:
            start = position + framing.header_bytes
            size = framing.frame_size(buffer, position)
            if len(buffer) - start < size:
                needed = framing.header_bytes + size
                break
            position = start + size
            if size:
                self._message(framing.decode(buffer[start:position]))
        self._assembly.hold(buffer[position:], needed)

    def _message(self, message: Message) -> None:
        if not message.onward:
            return  # a heartbeat
        waiting = self._waiting.get(message.onward[0].value)
        if waiting is None:
            log.debug("a reply arrived for %s, which is no longer waiting", message.onward[0])
        else:
            waiting(message)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._lose(str(error) if error else "the connection was closed")
        self._transport = None
        if not self._closed.done():
            self._closed.set_result(None)

    def _lose(self, why: str) -> None:
        if self._lost is not None:
            return
        self._lost = ConnectionLost(why)
        self._writable.set()
        for done in self._asking:
            if not done.done():
                done.set_exception(self._lost)
        groups, self._pushes = set(self._pushes.values()), {}
        for group in groups:
            group.fail(self._lost)

    def _write(self, data: bytes) -> None:
        if self._lost is not None or self._transport is None:
            raise self._lost or ConnectionLost("not connected")
        self._transport.write(data)


def init_stream(answer: tuple[Route, codec.Response]) -> Stream:
    """The stream that an INIT speaks of; the way to it is the INIT's return route."""
    route, init = answer
    if not isinstance(init, codec.Init):
        raise OckamError(f"a create was answered by {init!r}")
    return Stream(init.stream_name, init.partition or 0, route)


async def connect(
    address: str,
    *,
    framing: Literal["legacy", "cbor"] = "legacy",
    stream_service: str = "stream",
    index_service: str = "stream_index",
    timeout_s: float = TIMEOUT_S,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Connect to `host:port`. `framing` is `cbor` for the listener of the newer framing."""
    host, port = split_address(address)
    chosen: Framing = CborFraming() if framing == "cbor" else LegacyFraming()

    def make() -> Connection:
        return Connection(chosen, stream_service=stream_service, index_service=index_service, timeout_s=timeout_s)

    try:
        async with asyncio.timeout(timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(make, host, port, ssl=tls)
    except (OSError, TimeoutError) as error:
        raise ConnectionLost(f"cannot connect to {address}: {error}") from error
    return connection
