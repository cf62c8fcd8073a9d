"""Addresses as they are written in settings: `host:port`."""

from __future__ import annotations

import ipaddress

from headrace.errors import BadRequest
from headrace.units import natural


class BadAddress(BadRequest, ValueError):
    """An address that is not `host:port`."""


def split_address(address: str) -> tuple[str, int]:
    """`host:port` as its two parts; IPv6 hosts stand in brackets."""
    host, separator, port = address.rpartition(":")
    number = natural(port, 5)
    if not separator or number is None or number > 65535:
        raise BadAddress(f"{address!r} is not host:port")
    return host.strip("[]"), number


def join_address(host: str, port: int) -> str:
    """The opposite of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`. Of names only `localhost` is known to be so: whoever owns a domain
    can have a name that begins with `127.` and point it anywhere."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
