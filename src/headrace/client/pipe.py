"""A line for an event loop: any number of requests under way on one connection, without a thread for each.

The async client asks here what may be asked twice. Whenever there is no line, or it breaks, the caller takes the way
that the blocking client takes, in a thread: a pipe is never the only way.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable

import msgspec

from headrace.client.connection import Connection, trace
from headrace.client.lines import CALLS_BEFORE, PAUSE_S, Line, NotTaken
from headrace.errors import Busy, HeadraceError, Unreachable
from headrace.protocols.flight.codec import error_from_body
from headrace.protocols.flight.requests import LENGTH_BYTES, Answer, Request, decode_answer, framed

Opening = Callable[[], Awaitable[Line | None]]


class Pipe(asyncio.Protocol):
    """One line, opened when it is worth it, for the event loop in which it was opened."""

    def __init__(self, connection: Connection, open_line: Opening) -> None:
        """`open_line` opens a line without blocking the event loop; None where there are none."""
        self._connection = connection
        self._open_line = open_line
        self._loop: asyncio.AbstractEventLoop | None = None
        self._transport: asyncio.Transport | None = None
        self._opening: asyncio.Task[None] | None = None
        self._is_closed = False
        self._not_before = 0.0
        self._asked = 0
        self._address = ""
        self._request_bytes_max = 0
        self._requests_max = 0
        self._ids = itertools.count()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._unsent: list[bytes] = []
        self._received = bytearray()

    async def ask(self, verb: str, params: bytes) -> bytes:
        """The result of a verb as JSON; `NotTaken` if there is no line for it now, or it has ended."""
        loop = asyncio.get_running_loop()
        number = next(self._ids)
        request = framed(Request(verb, msgspec.Raw(params), trace=trace(), id=number))
        if not self._is_open(loop) or len(request) - LENGTH_BYTES > self._request_bytes_max:
            raise NotTaken
        if len(self._waiting) >= self._requests_max:
            raise NotTaken  # threads and lines of their own take the rest
        future = self._waiting[number] = loop.create_future()
        self._unsent.append(request)
        if len(self._unsent) == 1:
            loop.call_soon(self._send)
        timer = loop.call_later(self._connection.timeout_s, _too_late, future)
        try:
            answer = await future
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if answer.error is not None:
            raise error_from_body(answer.error)
        return bytes(answer.result)

    def _is_open(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether there is a line here; if not, and it is worth it, one is opened."""
        if self._is_closed:
            return False
        if self._transport is not None and self._loop is loop and self._address == self._connection.address:
            return not self._transport.is_closing()
        self._asked += 1
        is_due = self._asked > CALLS_BEFORE and loop.time() >= self._not_before
        if is_due and (self._opening is None or self._opening.done()):
            self._drop()
            self._loop = loop
            self._opening = loop.create_task(self._open(loop))
        return False

    async def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        address, line = self._connection.address, None
        try:
            line = await self._open_line()
            taken = None if line is None or not line.requests_max else line.give_up()
            if line is None or taken is None:
                self._not_before = loop.time() + PAUSE_S
                return
            await loop.create_connection(lambda: self, sock=taken)
            self._address, self._request_bytes_max = address, line.request_bytes_max
            self._requests_max = line.requests_max
        except (HeadraceError, OSError):
            self._not_before = loop.time() + PAUSE_S
        finally:
            if line is not None:
                line.close()

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None:
            self._transport.write(b"".join(unsent))

    def close(self) -> None:
        """Ask nothing more."""
        self._is_closed = True
        if self._opening is not None and not self._opening.done():
            self._opening.cancel()
        self._drop()

    def _drop(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None and self._loop is not None and not self._loop.is_closed():
            transport.abort()

    # asyncio's side.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The line is open."""
        assert isinstance(transport, asyncio.Transport)
        self._received.clear()
        self._unsent.clear()
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answers came, or parts of them."""
        self._received += data
        at, received = 0, self._received
        while len(received) >= at + LENGTH_BYTES:
            end = at + LENGTH_BYTES + int.from_bytes(received[at : at + LENGTH_BYTES], "big")
            if len(received) < end:
                break
            answer = decode_answer(bytes(received[at + LENGTH_BYTES : end]))
            at = end
            if answer.last:
                self._lost(NotTaken())
                return
            future = self._waiting.get(-1 if answer.id is None else answer.id)
            if future is not None and not future.done():
                future.set_result(answer)
        del received[:at]

    def connection_lost(self, error: Exception | None) -> None:
        """The line is gone."""
        self._lost(Unreachable("the connection to the hub broke before its answer"))

    def _lost(self, error: Exception) -> None:
        self._drop()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)


def _too_late(future: asyncio.Future[Answer]) -> None:
    if not future.done():
        future.set_exception(Busy("the hub did not answer in time"))
