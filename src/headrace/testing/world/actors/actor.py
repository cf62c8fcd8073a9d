"""An actor is a process. It may be killed and is started again; what it was promised is in the book, what it remembers
is what its protocol lets it find again.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable
from typing import Any, TypeVar

from headrace.testing.world.book import Book
from headrace.testing.world.hub import HubProcess
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
        self.machine: Machine | None = None

    def start(self) -> None:
        self.machine = self.world.start(self.name, self._live)

    def kill(self) -> None:
        """`kill -9`, for now."""
        if self.machine is not None and not self.machine.is_dead:
            self.world.kill(self.machine)

    async def _live(self) -> None:
        await self.work()
        self.is_done = True
        self.world.tell(self.name, "done")

    async def work(self) -> None:
        raise NotImplementedError

    def port(self, listener: str) -> int:
        return self.hub.ports[listener]

    async def retry(self) -> None:
        await asyncio.sleep(RETRY_S * self.random.uniform(0.5, 2))

    async def verb(self, verb: str, /, *, signed: tuple[str, str] | None = None, **body: Any) -> Any:
        """A verb of the hub over HTTP: the SDK, the command line and Spark use the same ones. Raises `Refused`."""
        return await asyncio.wait_for(call_verb(self.port("http"), verb, signed, body), ANSWER_S)


class Watcher(Actor):
    """One that never ends, and that nobody waits for."""

    def __init__(self, number: int, hub: HubProcess, book: Book) -> None:
        super().__init__(number, hub, book)
        self.is_done = True

    async def _live(self) -> None:
        while True:
            await self.work()
            await self.retry()


async def call_verb(port: int, name: str, user: tuple[str, str] | None, body: dict[str, object]) -> Any:
    """One request on a connection of its own."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        data = json.dumps(body).encode()
        head = [f"POST /api/v1/{name} HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        if user is not None:
            head.append(f"Authorization: Basic {base64.b64encode(':'.join(user).encode()).decode()}")
        head += [f"Content-Length: {len(data)}", "Connection: close", "", ""]
        writer.write("\r\n".join(head).encode() + data)
        answer = await reader.read(-1)
    except BaseException:
        writer.transport.abort()  # or it would be done later, when nobody counts on it any more
        raise
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    head_end = rest.find(b"\r\n\r\n")
    if not status or head_end < 0:
        raise EOFError("the connection ended before the answer")
    code = int(status.split()[1])
    try:
        decoded = json.loads(rest[head_end + 4 :] or b"null")
    except ValueError as error:
        raise EOFError("the connection ended in the middle of the answer") from error
    if code != 200:
        detail = (decoded if isinstance(decoded, dict) else {}).get("error", {})
        raise Refused(code, detail.get("code", ""), detail.get("message", ""))
    return decoded


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
