"""Somebody with a browser, a load balancer and a scraper: what is at the HTTP port beside verbs and protocols."""

from __future__ import annotations

import asyncio
import contextlib
import json

from headrace.testing.world.actors.actor import ANSWER_S, LOST, Answered, Watcher, ask_http

ALIVE = (200,)
READY = (200, 503)
JSON = {"content-type": "application/json"}
Page = tuple[str, str, dict[str, str], tuple[int, ...]]
PAGES: tuple[Page, ...] = (
    ("GET", "/health", {}, READY),
    ("GET", "/health/ready", {}, READY),
    ("GET", "/health/live", {}, ALIVE),
    ("GET", "/health?cell=0", {}, READY),
    ("GET", "/health?cell=7", {}, (503,)),
    ("GET", "/nowhere", {}, (200, 404)),
    ("GET", "/api/nowhere", {}, (404,)),
    ("GET", "/api/v1/hub.info", {}, (405,)),
    ("POST", "/api/v1/no.verb", JSON, (404,)),
    ("POST", "/api/v1/hub.info", {"content-type": "text/plain"}, (415,)),
    ("POST", "/api/v1/hub.info", JSON | {"origin": "http://elsewhere.example"}, (421,)),
    ("GET", "/health/live", {"host": "elsewhere.example"}, (421,)),
    ("GET", "/health/live", {"x-much": "x" * 200_000}, (431,)),
    ("GET", "/health/live", {f"x-{number}": "1" for number in range(1000)}, (431,)),
    ("GET", "/futoin/", {}, (404,)),
    ("PUT", "/futoin/orders", {}, (405,)),
    ("GET", "/futoin/orders/futoin.ping/1.0/ping?echo=5", {}, ALIVE),
    ("GET", "/api/v1/hub.info", {"authorization": "Bearer nobody's"}, (405,)),
    ("POST", "/api/v1/hub.info", JSON | {"authorization": "Basic nobody"}, (401, 429)),
)
"""What is asked, and what may be answered."""
LARGE: tuple[Page, ...] = (
    ("GET", "/metrics", {}, ALIVE),
    ("GET", "/api/openapi.json", {}, ALIVE),
    ("GET", "/", {}, ALIVE),
)
"""The same, and what takes most of a world's time."""


class Browser(Watcher):
    """Every question has its answer, and those on one connection have theirs in order."""

    kind = "browser"

    async def work(self) -> None:
        with contextlib.suppress(*LOST):
            await self.random.choice([self._visit, self._visit, self._ask_at_once, self._leave])()
        await asyncio.sleep(self.random.uniform(0, 6))

    async def _visit(self) -> None:
        method, path, headers, expected = self.random.choice(LARGE if self.random.random() < 0.05 else PAGES)
        body = b"{}" if headers.get("content-type") else b""
        answer = await asyncio.wait_for(ask_http(self.port("http"), method, path, body, **headers), ANSWER_S)
        if answer.status not in expected:
            self.book.wrong.append(f"{self.name} asked {method} {path} {[*headers][:3]}: {answer.status}")
        if answer.status == 200:
            self._check(path, answer)

    def _check(self, path: str, answer: Answered) -> None:
        """It is whole."""
        length = next((line for line in answer.head.splitlines() if line.startswith("content-length:")), "")
        if length and int(length.split(":")[1]) != len(answer.body):
            raise EOFError("the connection ended in the middle of the answer")
        if path == "/metrics" and b"headrace_" not in answer.body:
            self.book.wrong.append(f"{self.name} sees no metrics: {answer.body[:100]!r}")
        if path.startswith(("/health", "/api")):
            json.loads(answer.body)

    async def _ask_at_once(self) -> None:
        """Several requests before the first answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port("http"))
        try:
            asked = [self.random.choice(["/health/live", "/nowhere", "/nowhere/at/all"]) for _ in range(4)]
            for path in asked:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            async with asyncio.timeout(ANSWER_S):
                for path in asked:
                    status, body = await _next_answer(reader)
                    is_live = body == b'{"live":true}'
                    if is_live != (path == "/health/live") or status not in (200, 404):
                        self.book.wrong.append(f"{self.name} asked {asked}: {path} has {status} {body[:80]!r}")
        finally:
            writer.transport.abort()

    async def _leave(self) -> None:
        """Begin a request and go, in the middle of it or before the answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port("http"))
        request = b"POST /api/v1/hub.info HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        request += b"Content-Length: 2\r\n\r\n{}"
        writer.write(request[: self.random.randint(1, len(request))])
        await asyncio.sleep(self.random.uniform(0, 0.01))
        if self.random.random() < 0.5:
            writer.write_eof()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(-1), ANSWER_S)
        writer.transport.abort()


async def _next_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    length = next(int(line.split(":")[1]) for line in head.splitlines() if line.startswith("content-length:"))
    return int(head.split()[1]), await reader.readexactly(length)
