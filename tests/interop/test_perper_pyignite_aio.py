"""The asynchronous pyignite client: every operation its caches offer, on a table and on a stream."""

from __future__ import annotations

import asyncio
import inspect
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio
from pyignite import AioClient
from pyignite.aio_cache import AioCache
from pyignite.datatypes import ExpiryPolicy
from pyignite.datatypes.cache_config import CacheAtomicityMode
from pyignite.datatypes.cluster_state import ClusterState
from pyignite.datatypes.prop_codes import PROP_CACHE_ATOMICITY_MODE, PROP_NAME, PROP_QUERY_ENTITIES
from pyignite.exceptions import CacheError
from support.perper_agents import HubThread

# These only tell of a cache.
NOT_OPERATIONS = {"cache_id", "cache_info", "client", "name", "settings"}


@pytest.fixture(scope="module")
def shared() -> Iterator[HubThread]:
    with HubThread() as hub:
        yield hub


@pytest_asyncio.fixture
async def client(shared: HubThread) -> AsyncIterator[AioClient]:
    client = AioClient()
    async with client.connect("127.0.0.1", shared.ignite_port):
        yield client


class Noted:
    """A cache that remembers which of its operations were called."""

    def __init__(self, cache: AioCache, called: set[str]) -> None:
        self._cache = cache
        self._called = called

    def __getattr__(self, name: str) -> Any:
        self._called.add(name)
        return getattr(self._cache, name)


async def new_cache(client: AioClient, kind: str) -> AioCache:
    name = f"{kind}-{uuid.uuid4()}"
    if kind == "table":
        return await client.create_cache(name)
    cache = await client.create_cache({PROP_NAME: name, PROP_QUERY_ENTITIES: []})
    await cache.put_if_absent(0, "decides that it is a stream")
    await cache.remove_key(0)
    return cache


@pytest.mark.parametrize("kind", ["table", "stream"])
async def test_every_operation(shared: HubThread, client: AioClient, kind: str) -> None:
    called: set[str] = set()
    raw = await new_cache(client, kind)
    assert shared.call(lambda: shared.hub.stream(raw.name).kind) == kind
    cache = Noted(raw, called)
    assert await cache.get(1) is None
    await cache.put(1, "a")
    assert await cache.put_if_absent(1, "b") is False
    assert await cache.put_if_absent(2, "b") is True
    await cache.put_all({3: "c", 4: "d"})
    assert await cache.get_all([1, 2, 3, 9]) == {1: "a", 2: "b", 3: "c"}
    assert await cache.replace(1, "A") is True
    assert await cache.replace(9, "A") is False
    assert await cache.replace_if_equals(1, "a", "x") is False
    assert await cache.replace_if_equals(1, "A", "x") is True
    assert await cache.get_and_put(1, "y") == "x"
    assert await cache.get_and_put_if_absent(1, "z") == "y"
    assert await cache.get_and_put_if_absent(5, "e") is None
    assert await cache.get_and_replace(5, "E") == "e"
    assert await cache.get_and_replace(9, "E") is None
    assert await cache.get_and_remove(5) == "E"
    assert await cache.contains_key(5) is False
    assert await cache.contains_keys([1, 2, 3, 4]) is True
    assert await cache.contains_keys([1, 9]) is False
    assert await cache.get_size() == 4
    async with cache.scan(page_size=1) as rows:
        assert {key: value async for key, value in rows} == {1: "y", 2: "b", 3: "c", 4: "d"}
    assert await cache.remove_if_equals(2, "x") is False
    assert await cache.remove_if_equals(2, "b") is True
    assert await cache.remove_key(3) is True
    assert await cache.remove_key(3) is False
    await cache.clear_key(4)
    assert await cache.get_size() == 1
    await cache.put_all(dict.fromkeys(range(10, 20), "more"))
    await cache.clear_keys([10, 11])
    await cache.remove_keys([12, 13, 99])
    assert await cache.get_size() == 7
    await cache.remove_all()
    assert await cache.get_size() == 0
    await cache.put(1, "again")
    await cache.clear()
    assert await cache.get(1) is None
    short_lived = cache.with_expire_policy(ExpiryPolicy(create=3_600_000))
    await short_lived.put(1, "kept for an hour")
    assert await cache.get(1) == "kept for an hour"
    assert (await raw.settings())[PROP_NAME] == raw.name
    await cache.destroy()
    with pytest.raises(CacheError, match="does not exist"):
        await raw.get(1)
    offered = {name for name, _ in inspect.getmembers(AioCache) if not name.startswith("_")}
    assert called == offered - NOT_OPERATIONS


async def test_caches_types_transactions_and_the_cluster(client: AioClient) -> None:
    name = f"t-{uuid.uuid4()}"
    cache = await client.get_or_create_cache(
        {PROP_NAME: name, PROP_CACHE_ATOMICITY_MODE: CacheAtomicityMode.TRANSACTIONAL}
    )
    assert name in await client.get_cache_names()
    async with client.tx_start() as transaction:
        await cache.put("k", 1)
        await transaction.commit()
    assert await cache.get("k") == 1
    async with client.tx_start():
        await cache.put("k", 2)
    assert await cache.get("k") == 1
    assert await client.get_cluster().get_state() == ClusterState.ACTIVE
    assert await client.get_binary_type(12345) == {"type_exists": False}
    async with client.sql("SELECT ? UNION ALL SELECT 2", page_size=1, query_args=[1]) as rows:
        assert [row async for row in rows] == [[1], [2]]


@pytest.mark.parametrize("kind", ["table", "stream"])
async def test_what_is_pipelined_is_decided_in_order(client: AioClient, kind: str) -> None:
    cache = await new_cache(client, kind)
    won = await asyncio.gather(*[cache.put_if_absent(number % 20, number) for number in range(200)])
    assert won == [True] * 20 + [False] * 180
    assert await asyncio.gather(*[cache.get(number) for number in range(20)]) == list(range(20))
    removed = await asyncio.gather(*[cache.remove_key(number % 20) for number in range(40)])
    assert removed == [True] * 20 + [False] * 20
