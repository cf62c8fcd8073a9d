import pytest

from headrace.errors import BadRequest
from headrace.listener import Listener, join_address, split_address


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
