import asyncio
import socket

import pytest

from headrace.config.address import join_address, split_address
from headrace.errors import BadRequest
from headrace.serving.listener import Listener, keep_alive


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("127.0.0.1:80", "127.0.0.1", 80), ("[::1]:0", "::1", 0), ("hub.lan:65535", "hub.lan", 65535)],
)
def test_addresses_there_and_back(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)
    assert join_address(host, port) == address


@pytest.mark.parametrize("address", ["", "host", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_the_callers_mistake(address: str) -> None:
    with pytest.raises(BadRequest, match="is not host:port"):
        split_address(address)
    with pytest.raises(ValueError, match="is not host:port"):
        split_address(address)


async def test_a_listener_closes_by_what_it_was_given() -> None:
    closed = []

    async def close() -> None:
        closed.append(True)

    await Listener("127.0.0.1:1", close).close()
    assert closed == [True]


class Transport(asyncio.BaseTransport):
    """Over a socket, or over none."""

    def __init__(self, connected: socket.socket | None) -> None:
        super().__init__({"socket": connected})


def test_a_peer_that_vanishes_is_noticed() -> None:
    with socket.socket() as connected:
        keep_alive(Transport(connected))
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
    keep_alive(Transport(None))
