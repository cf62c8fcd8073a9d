from typing import Any

import pytest

from headrace.hub.mounts import Mounts


async def one(scope: Any, receive: Any, send: Any) -> None: ...


async def two(scope: Any, receive: Any, send: Any) -> None: ...


def test_the_longest_prefix_wins() -> None:
    mounts = Mounts()
    mounts.mount("/futoin", one)
    mounts.mount("/futoin/admin", two)
    assert mounts.find("/futoin") == ("/futoin", one)
    assert mounts.find("/futoin/events") == ("/futoin", one)
    assert mounts.find("/futoin/admin/x") == ("/futoin/admin", two)
    assert mounts.find("/futoiner") is None
    assert mounts.find("/") is None
    assert list(mounts) == ["/futoin", "/futoin/admin"]


def test_the_empty_prefix_takes_what_is_left() -> None:
    mounts = Mounts()
    mounts.mount("", one)
    mounts.mount("/futoin", two)
    assert mounts.find("/") == ("", one)
    assert mounts.find("/futoin/x") == ("/futoin", two)
    mounts.unmount("")
    assert mounts.find("/") is None
    mounts.unmount("")


@pytest.mark.parametrize("prefix", ["futoin", "/futoin/", "/", "/api", "/api/v2", "/metrics", "/health/x"])
def test_prefixes_that_cannot_be_used(prefix: str) -> None:
    with pytest.raises(ValueError, match="mount prefix"):
        Mounts().mount(prefix, one)


def test_a_prefix_is_given_once() -> None:
    mounts = Mounts()
    mounts.mount("/futoin", one)
    with pytest.raises(ValueError, match="is taken"):
        mounts.mount("/futoin", two)
