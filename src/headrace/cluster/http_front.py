"""HTTP at a hub that does not own the cell. It answers for its own health, metrics and place in the cluster; everything
else is the owner's, passed on or, with `cluster.forward = "redirect"`, answered with 307 and the owner's address."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from pathlib import Path

from headrace.cluster.front import CONNECT_S, Client, Front
from headrace.cluster.introductions import Introducer
from headrace.cluster.route import Route
from headrace.cluster.splice import connect
from headrace.config.address import join_address, split_address
from headrace.config.sections import TlsFiles
from headrace.hub.peers import Introduced, Peers
from headrace.telemetry.metrics import ClusterMetrics

HEAD_BYTES_MAX = 64 * 1024
"""Of a request, up to the end of its headers."""
HEAD_S = 30.0
OWN_PATHS = ("/health", "/metrics", "/api/v1/cluster.status")
END = b"\r\n\r\n"


class HttpFront(Front):
    """The HTTP listener."""

    def __init__(
        self,
        route: Route,
        wait_s: float,
        metrics: ClusterMetrics,
        own: str,
        *,
        redirects: bool = False,
        tls_on: Sequence[ssl.SSLContext] = (),
        introducer: Introducer | None = None,
        peers: Peers | None = None,
    ) -> None:
        """`own` is where this hub's own answers are served, to clients that it knows by `peers`."""
        super().__init__("http", route, wait_s, metrics, tls_on, introducer)
        self._own = own
        self._peers = peers or Peers()
        self._redirects = redirects

    async def _serve(self, client: Client) -> None:
        head = await _head(client)
        if head is None:
            client.abort()
            return
        path = head.split(b" ", 2)[1].split(b"?")[0].decode("latin-1") if head.count(b" ") > 1 else ""
        if any(path == own or path.startswith(own + "/") for own in OWN_PATHS):
            await self._answer(client, head)
        elif self._redirects and b"\nupgrade:" not in head.lower():
            self._redirect(client, head)
        else:
            await self._pass_on(client)

    async def _answer(self, client: Client, head: bytes) -> None:
        """By this hub. One request only: the next one may be the owner's."""
        line, _, headers = head.partition(b"\r\n")
        kept = [each for each in headers.split(b"\r\n") if not each.lower().startswith(b"connection:")]
        client.unread[: len(head)] = b"\r\n".join([line, b"Connection: close", *kept])
        host, port = split_address(self._own)
        near = ""

        async def introduce(from_port: int) -> None:
            nonlocal near
            near = join_address(host, from_port)
            self._peers.introduce(near, Introduced(self._peers.client(client.address), ""))

        client.when_lost(lambda: self._peers.forget(near))
        try:
            client.join(await connect(host, port, CONNECT_S, from_port=introduce))
        except OSError:  # the hub stops
            client.abort()

    def _redirect(self, client: Client, head: bytes) -> None:
        owner = self._route.owner
        target = head.split(b" ", 2)[1].decode("latin-1")
        if owner is None or "http" not in owner.addresses:
            status, more = "503 Service Unavailable", "Retry-After: 1\r\n"
        else:
            scheme = "https" if self._tls_on else "http"
            status, more = "307 Temporary Redirect", f"Location: {scheme}://{owner.addresses['http']}{target}\r\n"
        answer = f"HTTP/1.1 {status}\r\n{more}Content-Length: 0\r\nConnection: close\r\n\r\n"
        client.transport.write(answer.encode("latin-1"))
        client.transport.close()


async def _head(client: Client) -> bytes | None:
    """The request up to its headers' end; None when there is none in time, or it is too long."""
    client.transport.resume_reading()
    try:
        async with asyncio.timeout(HEAD_S):
            while (end := client.unread.find(END)) < 0:
                if client.is_lost or len(client.unread) > HEAD_BYTES_MAX:
                    return None
                await client.more()
    except TimeoutError:
        return None
    if not client.is_lost:
        client.transport.pause_reading()
    return bytes(client.unread[: end + len(END)])


def tls_to_owner(files: TlsFiles | None, authority: str) -> list[ssl.SSLContext]:
    """For the connection to the owner, whose certificate is this hub's own or comes from the authority that was given:
    then names are not compared. Without one it may also be what this machine trusts, for the name that is advertised.
    """
    if files is None:
        return []
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    own.check_hostname = False
    own.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # whoever signed it is not asked for
    own.load_verify_locations(Path(authority or files.certificate))
    return [own] if authority else [own, ssl.create_default_context()]
