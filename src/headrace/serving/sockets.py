"""What asyncio does not offer, asked of the kernel itself. Called as `sockets.…`: a simulated world has its own."""

from __future__ import annotations

import asyncio
import os
import select
import socket

# So many connections may wait in the kernel to be accepted.
BACKLOG = 1024


def bound(host: str, port: int) -> socket.socket:
    """A socket that will listen at an address."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's delay off only where the socket says that it is TCP; accepted sockets inherit that.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
    except OSError:
        listening.close()
        raise
    return listening


def deepen_backlog(server: asyncio.Server) -> None:
    """Let more connections wait than asyncio accepts at once."""
    for each in server.sockets:
        with socket.socket(fileno=os.dup(each.fileno())) as same:
            same.listen(BACKLOG)


def accept_no_more(server: asyncio.Server) -> None:
    """What comes from now on waits in the kernel. Asyncio forgets a connection that it has accepted if the server is
    closed before the loop's next turn, and its peer waits for ever: so this first, then a turn, then close."""
    loop = asyncio.get_running_loop()
    for each in server.sockets:
        loop.remove_reader(each.fileno())


def has_news(transport: asyncio.BaseTransport, events: int = 0) -> bool:
    """Whether something of `events` (`select.POLLIN`, …) waits, or the connection is gone altogether."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), events)
    return bool(poll.poll(0))
