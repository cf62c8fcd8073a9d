"""An actor is a process. It may be killed and is started again; what it was promised is in the book, what it remembers
is what its protocol lets it find again.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

from headrace.protocols.ockam.client import Dial, connect
from headrace.testing.world.book import Book
from headrace.testing.world.hub import CBOR, HubProcess
from headrace.testing.world.scheduler import Machine

T = TypeVar("T")

RETRY_S = 0.2
ANSWER_S = 20.0
"""A client that hears nothing for so long tries again."""
LOST = (OSError, TimeoutError, EOFError, asyncio.CancelledError)


class Refused(Exception):
    """The hub said no to a verb."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code


class Actor:
    """One process, again and again until its work is done."""

    kind = "actor"
    can_die = True

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        self.name = f"{self.kind}-{number}"
        self.hub = hub
        self.world = hub.world
        self.random = self.world.random
        self.book = book
        self.is_done = False
        self.is_ready = True
        """Others that need it first may begin."""
        self.begins_after: Actor | None = None
        self.machine: Machine | None = None

    def start(self) -> None:
        self.machine = self.world.start(self.name, self._live)

    def kill(self) -> None:
        """`kill -9`, for now."""
        if self.machine is not None and not self.machine.is_dead:
            self.world.kill(self.machine)

    async def _live(self) -> None:
        while self.begins_after is not None and not self.begins_after.is_ready:
            await self.retry()
        await self.work()
        self.is_done = True
        self.world.tell(self.name, "done")

    async def work(self) -> None:
        raise NotImplementedError

    def port(self, listener: str) -> int:
        return self.hub.ports[listener]

    def ockam_dial(self) -> Dial:
        """How Ockam's clients come in: by one of both framings."""
        if self.random.random() < 0.5:
            return lambda: connect(self.hub.address("ockam"))
        return lambda: connect(self.hub.address(CBOR), framing="cbor")

    async def retry(self) -> None:
        await asyncio.sleep(RETRY_S * self.random.uniform(0.5, 2))

    async def verb(self, verb: str, /, *, signed: str = "", **body: Any) -> Any:
        """A verb of the hub over HTTP: the SDK, the command line and Spark use the same ones. Raises `Refused`.
        `signed` is the header that says who asks."""
        return await asyncio.wait_for(call_verb(self.port("http"), verb, signed, body), ANSWER_S)


class Watcher(Actor):
    """One that never ends, and that nobody waits for."""

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.is_done = True

    async def _live(self) -> None:
        while self.begins_after is not None and not self.begins_after.is_ready:
            await self.retry()
        while True:
            await self.work()
            await self.retry()


class Answered(NamedTuple):
    """An answer over HTTP."""

    status: int
    head: str
    body: bytes


async def ask_http(port: int, method: str, path: str, body: bytes = b"", **headers: str) -> Answered:
    """One request on a connection of its own. Raises `EOFError` when the connection ends before the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        named = {"host": "127.0.0.1", "content-length": str(len(body)), "connection": "close"}
        head = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (named | headers).items())]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        answer = await reader.read(-1)
    except BaseException:
        writer.transport.abort()  # or it would be done later, when nobody counts on it any more
        raise
    writer.close()
    told, separator, rest = answer.partition(b"\r\n\r\n")
    if not separator:
        raise EOFError("the connection ended before the answer")
    status, _, more = told.decode("latin-1").partition("\r\n")
    return Answered(int(status.split()[1]), more.lower(), rest)


async def call_verb(port: int, name: str, authorization: str, body: dict[str, object]) -> Any:
    """One verb; raises `Refused`."""
    shown = {"authorization": authorization} if authorization else {}
    headers = {"content-type": "application/json", **shown}
    answer = await ask_http(port, "POST", f"/api/v1/{name}", json.dumps(body).encode(), **headers)
    try:
        decoded = json.loads(answer.body or b"null")
    except ValueError as error:
        raise EOFError("the connection ended in the middle of the answer") from error
    if answer.status != 200:
        detail = (decoded if isinstance(decoded, dict) else {}).get("error", {})
        raise Refused(answer.status, detail.get("code", ""), detail.get("message", ""))
    return decoded


def basic(user: str, secret: str) -> str:
    """A user and a password as HTTP takes them."""
    return f"Basic {encoded(f'{user}:{secret}'.encode())}"


async def soon(awaited: Awaitable[T]) -> T:
    """Its outcome, or a `TimeoutError` for a client that has waited long enough."""
    return await asyncio.wait_for(awaited, ANSWER_S)


def encoded(data: bytes) -> str:
    """Bytes as verbs take them."""
    return base64.b64encode(data).decode()


def plain(record: bytes) -> str:
    """A record as its producer named it: FutoIn's are JSON strings."""
    text = record.decode("utf-8", "replace")
    return (json.loads(text) if text.startswith('"') else text).strip()
