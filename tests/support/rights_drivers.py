"""One driver for each listener: a real client that tries everything that the matrix of rights asks of it.

An action returns when it was allowed, raises `Refused` with the protocol's own word for no, or `NotThere` where the
protocol has no such action. What the hub says is noted in `heard`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import httpx
import pyarrow.flight as flight
import websockets
from support import flight_peer, ockam_peer, wallaroo_peer
from support.ambrosia_peer import RawBinding, fork
from support.rights_world import OTHER, OTHER_CACHE, OWN, OWN_CACHE, PASSWORD, RESERVED, Who, World
from support.until import DEADLINE_S

from headrace.config.address import split_address
from headrace.protocols.ambrosia.codec import Checkpoint, InitialMessage
from headrace.protocols.ambrosia.record_reader import Record
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.futoin.client import RemoteError
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.routing import LegacyFraming
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import ClientCall, FabricClient, RpcError
from headrace.protocols.perper.ignite.binary import encode_string, java_hash
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo import frames
from headrace.protocols.wallaroo.codec import V3

SIGNAL = -1
LOG = "immortal/payroll-admin-write/log"
"""A stream of the hub's own, for protocols that know streams."""
ENDED = (ConnectionError, EOFError, ssl.SSLError, asyncio.IncompleteReadError)


class NotThere(Exception):
    """The protocol has no such action."""


class Refused(Exception):
    """No, in the protocol's own word."""


class Line:
    """One peer of one listener. The base has nothing."""

    own, other, reserved = OWN, OTHER, LOG

    def __init__(self, world: World, who: Who, use: str) -> None:
        self.world = world
        self.who = who
        self.use = use
        self.heard: list[str] = []

    @classmethod
    async def prepare(cls, world: World) -> None:
        """Whatever must be there before."""

    async def open(self) -> None:
        """Sign in."""
        raise NotThere

    async def list(self) -> None:
        raise NotThere

    async def read(self, name: str) -> None:
        raise NotThere

    async def write(self, name: str) -> None:
        raise NotThere

    async def admin(self) -> None:
        raise NotThere

    async def feed(self) -> None:
        """Begin to receive what comes, until the first of it has come."""
        raise NotThere

    async def feed_ends(self) -> None:
        """Receive on; raises when the hub ends it."""
        raise NotThere

    async def look_around(self) -> None:
        """What else the protocol tells of the hub."""

    async def first_use(self) -> None:
        """Something that is allowed before the rights change, to be sure that it was."""
        with contextlib.suppress(NotThere):
            await self.read(self.own)
        with contextlib.suppress(NotThere):
            await self.write(self.own)

    async def close(self) -> None:
        """Leave."""

    def hear(self, what: object) -> None:
        self.heard.append(repr(what))

    @contextlib.contextmanager
    def words(self, *kinds: type[BaseException], word: Callable[[Any], str]) -> Iterator[None]:
        """Errors of these kinds as refusals."""
        try:
            yield
        except kinds as error:
            self.heard.append(str(error))
            raise Refused(word(error)) from error
        except ENDED as error:
            raise Refused("closed") from error


class FlightLine(Line):
    """Arrow Flight, by a client that knows nothing of Headrace."""

    async def _run(self, work: Callable[[], Any]) -> Any:
        def word(error: flight.FlightError) -> str:
            names = {"FlightUnauthenticatedError": "UNAUTHENTICATED", "FlightUnauthorizedError": "UNAUTHORIZED"}
            return names.get(type(error).__name__, flight_peer.code_of(error))

        with self.words(flight.FlightError, word=word):
            return await asyncio.to_thread(work)

    async def open(self) -> None:
        self._client = flight.connect("grpc://" + self.world.hub.addresses["flight"])
        shown = [(b"authorization", self.who.headers["authorization"].encode())] if self.who.is_named else []
        self._options = flight.FlightCallOptions(headers=shown)
        self._puts: dict[str, Any] = {}
        self.hear(await self._run(lambda: list(self._client.list_actions(self._options))))

    async def list(self) -> None:
        criteria = json.dumps({"all": True}).encode()
        found = await self._run(lambda: list(self._client.list_flights(criteria, self._options)))
        self.hear([info.descriptor.path for info in found])

    def _get(self, **ticket: Any) -> flight.FlightStreamReader:
        return self._client.do_get(flight.Ticket(json.dumps(ticket).encode()), self._options)

    async def read(self, name: str) -> None:
        self.hear(await self._run(lambda: self._get(stream=name).read_all()))

    async def write(self, name: str) -> None:
        await self._run(lambda: self._write(name))

    def _write(self, name: str) -> None:
        """The upload of a stream stays open."""
        if name not in self._puts:
            place = flight.FlightDescriptor.for_path(name)
            self._puts[name] = self._client.do_put(place, flight_peer.PAYLOADS, self._options)
        writer, acks = self._puts[name]
        with contextlib.suppress(flight.FlightError):  # the status comes with the end
            writer.write_batch(flight_peer.payloads(b'{"count": 2}'))
        answer = acks.read()
        if answer is None or json.loads(answer.to_pybytes())["error"] is not None:
            self.hear(answer)
            writer.close()
            raise AssertionError("a put that was refused ended well")

    async def admin(self) -> None:
        self.hear(await self._run(lambda: flight_peer.call(self._client, "config.show", self._options)))

    async def feed(self) -> None:
        self._reader = await self._run(lambda: self._get(stream=OWN, follow=True))
        self.hear(await self._run(self._reader.read_chunk))

    async def feed_ends(self) -> None:
        while True:
            await self._run(self._reader.read_chunk)

    async def close(self) -> None:
        for writer, _ in self._puts.values():
            with contextlib.suppress(flight.FlightError):
                await asyncio.to_thread(writer.close)
        self._client.close()


class HttpLine(Line):
    """The admin API."""

    reserved = RESERVED

    async def _call(self, verb: str, **request: Any) -> Any:
        return self._checked(await self._client.post(f"/api/v1/{verb}", json=request))

    def _checked(self, answer: httpx.Response) -> Any:
        self.heard.append(answer.text)
        if answer.status_code != 200:
            raise Refused(str(answer.status_code))
        return answer

    async def open(self) -> None:
        self._client = self.world.http(self.who)
        await self._call("user.whoami")

    async def list(self) -> None:
        await self._call("stream.list", all=True)

    async def read(self, name: str) -> None:
        if name == RESERVED:
            await self._call("table.items", table=name)
        else:
            await self._call("stream.read", stream=name)

    async def write(self, name: str) -> None:
        if name == RESERVED:
            await self._call("table.put", table=name, key="a2V5", value="dmFsdWU=")
        else:
            await self._call("stream.append", stream=name, records=[{"text": '{"count": 2}'}])

    async def admin(self) -> None:
        await self._call("config.show")

    async def look_around(self) -> None:
        for path in ("/health", "/health/ready", "/api/openapi.json", "/metrics"):
            self.heard.append((await self._client.get(path)).text)
        for verb in ("hub.info", "hub.asyncapi", "verb.list", "session.list", "user.list", "cursor.list"):
            self.heard.append((await self._client.post(f"/api/v1/{verb}", json={})).text)

    async def close(self) -> None:
        await self._client.aclose()


class ConsoleLine(HttpLine):
    """The page's own verbs and its events."""

    async def open(self) -> None:
        self._client = self.world.http(self.who)
        async with self._client.stream("GET", "/console/live") as answer:
            if answer.status_code != 200:
                await answer.aread()
                self._checked(answer)

    async def list(self) -> None:
        await self._call("console.streams")

    async def read(self, name: str) -> None:
        if name == RESERVED:
            raise NotThere
        await self._call("console.stream", stream=name)

    async def write(self, name: str) -> None:
        raise NotThere

    async def admin(self) -> None:
        raise NotThere

    async def feed(self) -> None:
        request = self._client.build_request("GET", "/console/live", params={"stream": OWN})
        self._live = await self._client.send(request, stream=True)
        if self._live.status_code != 200:
            await self._live.aread()
            self._checked(self._live)
        self._events = self._live.aiter_text()
        self.heard.append(await anext(self._events))

    async def feed_ends(self) -> None:
        received = ""
        async for text in self._events:
            received += text
        self.heard.append(received)
        last = received.rstrip().rpartition("\n\n")[2]
        name, _, data = last.removeprefix("event: ").partition("\ndata: ")
        raise Refused(f"event `{name}`, {json.loads(data)['code']}")

    async def look_around(self) -> None:
        self.heard.append((await self._client.get("/")).text)


class WallarooLine(Line):
    """A source connector, third version. A stream has one connector at a time, so each line has its own."""

    def __init__(self, world: World, who: Who, use: str) -> None:
        super().__init__(world, who, use)
        self.own, self.other = (f"{name}.{who.name}.{use.replace(' ', '-')}" for name in ("orders", "payroll"))

    async def _frame(self) -> frames.Frame:
        with self.words(word=str):
            frame = await self._peer.receive()
        self.hear(frame)
        if isinstance(frame, frames.Error):
            raise Refused("ERROR")
        return frame

    async def open(self) -> None:
        self._peer = await wallaroo_peer.Peer.connect(self.world.hub.addresses["wallaroo"], V3)
        self._ids: dict[str, int] = {}
        self._sent = 0
        self._peer.send(frames.Hello(frames.VERSION, self.who.token.encode(), b"test", b""))
        await self._frame()

    async def write(self, name: str) -> None:
        if name not in self._ids:
            number = self._ids[name] = len(self._ids) + 1
            self._peer.send(frames.Notify(number, name.encode(), frames.NO_POINT))
            while not isinstance(answer := await self._frame(), frames.NotifyAck):
                pass
            if not answer.success:
                raise Refused("NOTIFY_ACK false")
            self._sent = 0 if answer.point == frames.NO_POINT else answer.point
        self._sent += 1
        number, point = self._ids[name], self._sent
        self._peer.send(frames.Message(number, point, b'{"count": 2}'))
        while not (isinstance(frame := await self._frame(), frames.Ack) and (number, point) in frame.acks):
            pass

    async def close(self) -> None:
        await self._peer.close()


class OckamLine(Line):
    """A routed peer; an admin has opened the streams, whose addresses are known to all."""

    addresses: ClassVar[dict[str, bytes]] = {}

    @classmethod
    async def prepare(cls, world: World) -> None:
        admin = cls(world, world.people["admin"], "")
        await admin.open()
        cls.addresses = {name: await admin._peer.create(name) for name in (OWN, OTHER, LOG)}
        await admin.close()

    async def open(self) -> None:
        with self.words(word=str):
            reader, writer = await asyncio.open_connection(
                *self.world.place("ockam"), ssl=self.world.tls(self.who), server_hostname="localhost"
            )
            self._peer = ockam_peer.Peer(reader, writer, LegacyFraming())
            self._peer.raw(self._peer.framing.greeting)
            async with asyncio.timeout(DEADLINE_S):
                await reader.readexactly(len(self._peer.framing.greeting))
            await self._ask("stream", codec.CreateRequest(codec.CREATE, ""))  # answered to whoever is let in

    async def _ask(self, to: str | bytes, request: codec.Request) -> codec.Response:
        with self.words(word=str):
            answer = await self._peer.ask(to, request)
        self.hear(answer)
        return answer

    async def read(self, name: str) -> None:
        answer = await self._ask(self.addresses[name], codec.PullRequest(7, 0, 10))
        if isinstance(answer, codec.Error):
            raise Refused("error")

    async def write(self, name: str) -> None:
        answer = await self._ask(self.addresses[name], codec.PushRequest(1, b'{"count": 2}'))
        assert isinstance(answer, codec.PushConfirm)
        if not answer.ok:
            raise Refused("ERROR in the confirmation")

    async def close(self) -> None:
        self._peer.writer.transport.abort()


class FutoinLine(Line):
    """WebSockets, one for each stream: a request names its user, and its stream is the path."""

    async def open(self) -> None:
        self._clients: dict[str, FutoinClient] = {}
        self._fed = asyncio.Event()
        await self._call(OWN, lambda client: client.ping(1))

    async def _call(self, stream: str, work: Callable[[FutoinClient], Any]) -> None:
        def word(error: RemoteError) -> str:
            return error.name if hasattr(error, "name") else str(error).partition(":")[0]

        if stream not in self._clients:
            url = f"wss://localhost:{self.world.place('http')[1]}/futoin/{stream.replace('/', '%2F')}"
            shown = f"{self.who.name}:{PASSWORD}" if self.who.is_named else None
            self._clients[stream] = await FutoinClient.connect(url, shown, ssl=self.world.tls())
        with self.words(RemoteError, word=word):
            self.hear(await work(self._clients[stream]))

    async def read(self, name: str) -> None:
        await self._call(name, lambda client: client.poll("LIVE"))

    async def write(self, name: str) -> None:
        await self._call(name, lambda client: client.add("ORDER", {"count": 2}))

    async def feed(self) -> None:
        async def received(number: int, events: Any) -> None:
            self.hear(events)

        await self._call(OWN, lambda client: client.ready_to_receive("LIVE", received))

    async def feed_ends(self) -> None:
        client = self._clients[OWN]
        await client.closed.wait()
        raise Refused(f"closed with {client._connection.close_code}")

    async def close(self) -> None:
        for client in self._clients.values():
            with contextlib.suppress(websockets.WebSocketException, OSError):
                await client.close()


class IgniteLine(Line):
    """A thin client; caches stand for streams."""

    own, other, reserved = OWN_CACHE, OTHER_CACHE, RESERVED

    async def _request(self, op: int, *arguments: Any, cache: str | int = 0) -> Any:
        with self.words(PeerError, word=lambda error: f"status {int(error.status)}"):
            answer = await self._client.request(op, *arguments, cache=cache)
        self.hear(answer)
        return answer

    async def open(self) -> None:
        named = {"user": self.who.name, "password": PASSWORD} if self.who.is_named else {}
        with self.words(PeerError, word=lambda error: f"status {int(error.status)}"):
            self._client = await IgniteClient.connect(*self.world.place("ignite"), **named)

    async def list(self) -> None:
        await self._request(1050)

    async def read(self, name: str) -> None:
        await self._request(1000, encode_string("key 1"), cache=name)

    async def write(self, name: str) -> None:
        await self._request(1001, encode_string("key 1"), encode_string("other"), cache=name)

    async def admin(self) -> None:
        await self._request(1056, java_hash(f"scratch.{self.who.name}"))

    async def feed(self) -> None:
        self._cursor = (await self._request(2000, b"\x65", 1, -1, False, cache=OWN_CACHE)).cursor

    async def feed_ends(self) -> None:
        await self._request(2001, self._cursor)

    async def close(self) -> None:
        await self._client.close()


class FabricLine(Line):
    """An agent's gRPC channel."""

    def _word(self, error: RpcError) -> str:
        names = {7: "PERMISSION_DENIED", 16: "UNAUTHENTICATED", 14: "closed"}
        return names.get(error.status, str(error.status))

    async def open(self) -> None:
        metadata = [("authorization", self.who.basic)] if self.who.is_named else []
        self._client = await FabricClient.connect(*self.world.place("fabric"), metadata)
        with self.words(RpcError, word=self._word):
            try:
                self.hear(await self._client.call("/perper.Fabric/AllExecutions", {"agent": "a"}))
            except RpcError as error:
                if error.status != 7:  # known, and told that this is not for them
                    raise

    async def _items(self, name: str) -> ClientCall:
        call = self._client.start("/perper.Fabric/StreamItems", {"stream": name})
        with self.words(RpcError, word=self._word):
            await asyncio.wait([call.headers])  # the hub has taken the call, or ended it
            if call.headers.cancelled() or name == OWN:
                self.hear(await call.next())
        return call

    async def read(self, name: str) -> None:
        (await self._items(name)).cancel()

    async def feed(self) -> None:
        self._call = await self._items(OWN)

    async def feed_ends(self) -> None:
        with self.words(RpcError, word=self._word):
            while await self._call.next() is not None:
                pass

    async def look_around(self) -> None:
        health = await self._client.call("/grpc.health.v1.Health/Check", {})
        self.hear(health)

    async def close(self) -> None:
        await self._client.close()


class AmbrosiaLine(Line):
    """A binding with a client certificate; to write is to be an immortal's binding."""

    async def open(self) -> None:
        self._bindings: dict[str, RawBinding] = {}
        binding, _ = await self._bind("orders", "open")
        cut(binding)

    async def first_use(self) -> None:
        if self.use == "write `orders`":  # an immortal has one binding at a time
            await self.write(OWN)

    async def _bind(self, kind: str, use: str) -> tuple[RawBinding, Record]:
        """Linked, and the first that it is told."""
        binding = RawBinding()
        context = self.world.tls(self.who)
        name = f"ambrosia.{kind}-{self.who.name}-{use}"
        addresses = [self.world.hub.addresses[f"{name}.{half}"] for half in ("receive", "send")]
        with self.words(word=str):
            made = [
                await asyncio.open_connection(*split_address(at), ssl=context, server_hostname="localhost")
                for at in addresses
            ]
            binding.to_hub = made[0][1]
            binding.from_hub, binding._from_writer = made[1]
            return binding, await binding.record()

    async def write(self, name: str) -> None:
        if name == LOG:
            raise NotThere
        if name not in self._bindings:
            binding, first = await self._bind("orders" if name == OWN else "payroll", "write")
            if first.sequence != SIGNAL:  # it has started before: it is let in, and would have to be recovered
                cut(binding)
                return
            self._bindings[name] = binding
            binding.say(InitialMessage(b"hi"), Checkpoint(5), b"state")
            await self._hear_record(binding)
        self._bindings[name].say(fork(b"x"))
        await self._hear_record(self._bindings[name])

    async def _hear_record(self, binding: RawBinding) -> None:
        with self.words(word=str):
            self.hear(await binding.record())

    async def feed(self) -> None:
        self._bindings["feed"], _ = await self._bind("orders", "feed")

    async def feed_ends(self) -> None:
        while True:
            await self._hear_record(self._bindings["feed"])

    async def close(self) -> None:
        for binding in self._bindings.values():
            cut(binding)


def cut(binding: RawBinding) -> None:
    """TLS would say good-bye first, and the hub may be in the middle of something."""
    for writer in (binding.to_hub, binding._from_writer):
        writer.transport.abort()


DRIVERS: dict[str, type[Line]] = {
    "flight": FlightLine,
    "http": HttpLine,
    "console": ConsoleLine,
    "futoin": FutoinLine,
    "wallaroo": WallarooLine,
    "ockam": OckamLine,
    "ignite": IgniteLine,
    "fabric": FabricLine,
    "ambrosia": AmbrosiaLine,
}
