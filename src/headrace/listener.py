"""What every protocol server hands back: where it listens, and how to stop it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.errors import BadRequest


class BadAddress(BadRequest, ValueError):
    """An address that is not `host:port`."""


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


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its two parts; IPv6 hosts stand in brackets."""
    host, separator, port = address.rpartition(":")
    if not separator or not port.isdigit() or int(port) > 65535:
        raise BadAddress(f"{address!r} is not host:port")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
