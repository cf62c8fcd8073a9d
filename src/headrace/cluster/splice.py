"""Two TCP connections joined: what comes in at one goes out at the other, no quicker than it is taken there."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import cast

from headrace.serving.listener import keep_alive

FromPort = Callable[[int], Awaitable[object]]


class End(asyncio.Protocol):
    """One side of a splice. It reads nothing before there is another side, unless told to."""

    def __init__(self) -> None:
        self.transport = cast(asyncio.Transport, None)
        self.is_lost = False
        self.unread = bytearray()
        """What came before there was another side."""
        self.has_ended = False
        """The peer has said all."""
        self._other: End | None = None
        self._on_lost: list[Callable[[], None]] = []

    def when_lost(self, told: Callable[[], None]) -> None:
        """Have it told when the connection ends; at once, if it has."""
        if self.is_lost:
            told()
        else:
            self._on_lost.append(told)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()
        keep_alive(transport)

    def join(self, other: End) -> None:
        """Begin to pass bytes on, both ways."""
        self._other, other._other = other, self
        for end, far in ((self, other), (other, self)):
            if end.unread:
                far.transport.write(bytes(end.unread))
                end.unread.clear()
            if far.is_lost:
                end.transport.close()
            elif not end.is_lost:
                end.transport.resume_reading()
                if end.has_ended:
                    far.transport.write_eof()

    def data_received(self, data: bytes) -> None:
        if self._other is not None:
            self._other.transport.write(data)
        else:
            self.unread += data

    def eof_received(self) -> bool:
        """One side has said all: the other may still have something to say."""
        other, self.has_ended = self._other, True
        if other is None:
            return True
        if other.is_lost or other.has_ended or not other.transport.can_write_eof():
            return False  # the transport closes, and the other one with it
        other.transport.write_eof()
        return True

    def pause_writing(self) -> None:
        if self._other is not None and not self._other.is_lost:
            self._other.transport.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None and not self._other.is_lost:
            self._other.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._other is not None and not self._other.is_lost:
            self._other.transport.close()
        for told in self._on_lost:
            told()
        self._on_lost.clear()

    def abort(self) -> None:
        if not self.is_lost:
            self.transport.abort()


async def connect(
    host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None = None, from_port: FromPort | None = None
) -> End:
    """The far side of a splice. `from_port` is told where the connection will come from before it is made. Raises an
    `OSError`; nobody who answers in time is one, too."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(timeout_s):
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for number, (family, kind, protocol, _, address) in enumerate(found, 1):
            near = socket.socket(family, kind, protocol)
            try:
                near.setblocking(False)
                if from_port is not None:
                    near.bind(("", 0))
                    await from_port(near.getsockname()[1])
                await loop.sock_connect(near, address)
                _, end = await loop.create_connection(
                    End, sock=near, ssl=tls, server_hostname=None if tls is None else host
                )
                return end
            except BaseException as error:
                near.close()
                if not isinstance(error, OSError) or number == len(found):
                    raise
    raise OSError(f"{host} has no address")
