"""What every protocol server hands back: where it listens, and how to stop it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.serving import sockets

# So many connections are accepted before those that are open have their turn again.
ACCEPTS_AT_ONCE = 4

# A peer that has vanished without a word is noticed after a minute.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class Listener:
    """A socket that is being served."""

    def __init__(self, address: str, close: Callable[[], Awaitable[None]]) -> None:
        self.address = address
        self._close = close

    @property
    def addresses(self) -> dict[str, str]:
        """Named addresses of a service that opens ports of its own, as they stand in the ready file."""
        return {}

    async def close(self) -> None:
        """Stop accepting, end the open sessions, and free the port."""
        await self._close()


async def open_server(
    connection: Callable[[], asyncio.BaseProtocol], tls: ssl.SSLContext | None, handshake_s: float, **where: Any
) -> asyncio.Server:
    """Accept connections: a few at a time, so that those that are open have their turn, while more wait; asyncio has
    one number for both. `where` is as for asyncio's `create_server`."""
    server = await asyncio.get_running_loop().create_server(
        connection,
        ssl=tls,
        backlog=ACCEPTS_AT_ONCE,
        ssl_handshake_timeout=None if tls is None else handshake_s,
        **where,
    )
    sockets.deepen_backlog(server)
    return server


def let_go(transport: asyncio.BaseTransport) -> None:
    """Of a connection that is gone. asyncio's transports hold methods of their own, so that only the garbage collector
    would free them: a crowd that comes and goes would keep it busy. Others have no such thing."""
    attributes = getattr(transport, "__dict__", {})
    for method in ("_read_ready_cb", "_write_ready"):  # the second from Python 3.12 on
        attributes.pop(method, None)


def keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let the kernel ask a silent peer whether it is still there, and end the connection when it is not."""
    connected = transport.get_extra_info("socket")
    if connected is None:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
