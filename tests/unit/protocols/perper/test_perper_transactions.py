"""Transactions of thin clients."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.perper_peer import key, served
from support.until import until

from headrace.config import Config, Grant, SecuritySection
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import TRANSACTIONAL, Configuration
from headrace.security import hash_secret

READ_COMMITTED, REPEATABLE_READ, SERIALIZABLE = 0, 1, 2
OPTIMISTIC, PESSIMISTIC = 0, 1
ATOMIC = 1


async def start(
    client: IgniteClient, isolation: int = REPEATABLE_READ, concurrency: int = OPTIMISTIC
) -> dict[str, int]:
    number = await client.request(4000, concurrency, isolation, 0, None)
    return {"flags": 2, "transaction": number}


async def new_table(client: IgniteClient, name: str) -> None:
    """A cache that transactions may use; it is open until its first put."""
    await client.request(1053, Configuration({0: name, 2: TRANSACTIONAL}))


async def end(client: IgniteClient, transaction: dict[str, int], commit: bool = True) -> None:
    await client.request(4001, transaction["transaction"], commit)


async def test_every_operation_inside_of_a_transaction() -> None:
    async with served() as pair:
        client = await pair.client()
        await new_table(client, "t")
        await client.request(1004, [(key(n), key(n)) for n in range(10)], cache="t")
        tx = await start(client)

        async def do(op: int, *arguments: object) -> object:
            return await client.request(op, *arguments, cache="t", **tx)

        assert await do(1000, key(1)) == key(1)
        assert await do(1002, key(1), key("x")) is False
        assert await do(1002, key(100), key("x")) is True
        assert await do(1003, [key(1), key(100), key(999)]) == [(key(1), key(1)), (key(100), key("x"))]
        assert await do(1005, key(1), key("y")) == key(1)
        assert await do(1006, key(2), key("z")) == key(2)
        assert await do(1006, key(999), key("z")) == b"\x65"
        assert await do(1007, key(3)) == key(3)
        assert await do(1008, key(1), key("w")) == key("y")
        assert await do(1009, key(4), key("four")) is True
        assert await do(1010, key(5), key(5), key("five")) is True
        assert await do(1010, key(5), key(5), key("again")) is False
        assert await do(1011, key(3)) is False
        assert await do(1012, [key(1), key(2)]) is True
        await do(1014, key(6))
        await do(1015, [key(7)])
        assert await do(1016, key(8)) is True
        assert await do(1016, key(8)) is False
        assert await do(1017, key(9), key("no")) is False
        assert await do(1017, key(9), key(9)) is True
        await do(1018, [key(0), key(12345)])
        await do(1001, key(200), key("blind"))
        assert await do(1020, b"") == 10  # outside: what is committed
        with pytest.raises(PeerError, match="may not be null"):
            await do(1001, key(1), b"\x65")
        assert await client.request(1000, key(1), cache="t") == key(1)
        await end(client, tx)
        page = await client.request(2000, b"\x65", 100, -1, False, cache="t")
        expected = {1: "y", 2: "z", 4: "four", 5: "five", 100: "x", 200: "blind"}
        assert dict(page.rows) == {key(number): key(text) for number, text in expected.items()}


@pytest.mark.parametrize(
    ("isolation", "concurrency", "reads", "writes", "holds"),
    [
        (READ_COMMITTED, OPTIMISTIC, True, False, True),  # looked at it and wrote elsewhere: no conflict
        (REPEATABLE_READ, OPTIMISTIC, True, False, True),
        (SERIALIZABLE, OPTIMISTIC, True, False, False),
        (READ_COMMITTED, PESSIMISTIC, True, False, False),
        (REPEATABLE_READ, OPTIMISTIC, False, True, True),  # a blind write
        (READ_COMMITTED, OPTIMISTIC, True, True, False),  # looked at, then written: nothing may come between
        (REPEATABLE_READ, OPTIMISTIC, True, True, False),
    ],
)
async def test_what_conflicts(isolation: int, concurrency: int, reads: bool, writes: bool, holds: bool) -> None:
    async with served() as pair:
        client, other = await pair.client(), await pair.client()
        await new_table(client, "t")
        await client.request(1001, key("a"), key(1), cache="t")
        tx = await start(client, isolation, concurrency)
        if reads:
            assert await client.request(1000, key("a"), cache="t", **tx) == key(1)
            assert await client.request(1000, key("absent"), cache="t", **tx) == b"\x65"
        await other.request(1001, key("a"), key(2), cache="t")
        if writes:
            await client.request(1001, key("a"), key(3), cache="t", **tx)
        await client.request(1001, key("b"), key(1), cache="t", **tx)
        if holds:
            await end(client, tx)
        else:
            with pytest.raises(PeerError, match="rolled back"):
                await end(client, tx)
        assert (await client.request(1000, key("b"), cache="t") == key(1)) is holds


async def test_reads_repeat_or_not() -> None:
    async with served() as pair:
        client, other = await pair.client(), await pair.client()
        await new_table(client, "t")
        await client.request(1001, key("a"), key(1), cache="t")
        committed, repeatable = await start(client, READ_COMMITTED), await start(client, REPEATABLE_READ)
        for tx in (committed, repeatable):
            assert await client.request(1000, key("a"), cache="t", **tx) == key(1)
        await other.request(1001, key("a"), key(2), cache="t")
        assert await client.request(1000, key("a"), cache="t", **committed) == key(2)
        assert await client.request(1000, key("a"), cache="t", **repeatable) == key(1)
        await end(client, committed)
        await end(client, repeatable, commit=False)


async def test_limits_timeouts_and_streams() -> None:
    async with served() as pair:
        client = await pair.client()
        await new_table(client, "s")
        await client.request(1002, key(1), key("x"), cache="s")  # which makes it a stream
        tx = await start(client)
        with pytest.raises(PeerError, match="for tables"):
            await client.request(1001, key(1), key("x"), cache="s", **tx)
        await new_table(client, "open")
        assert await client.request(1000, key(1), cache="open", **tx) == b"\x65"
        for _ in range(99):
            await start(client)
        with pytest.raises(PeerError) as many:
            await start(client)
        assert many.value.status == 1020
        with pytest.raises(PeerError, match="unknown concurrency"):
            await client.request(4000, 7, 7, 0, None)
        fresh = await pair.client()
        number = await fresh.request(4000, 0, 0, 10, None)
        await asyncio.sleep(0.05)
        with pytest.raises(PeerError) as late:
            await fresh.request(4001, number, True)
        assert late.value.status == 1021
        empty = await start(fresh)
        await end(fresh, empty)


async def test_a_transaction_makes_a_cache_a_table() -> None:
    async with served() as pair:
        client = await pair.client()
        await new_table(client, "t")
        tx = await start(client)
        assert await client.request(1002, key(1), key("x"), cache="t", **tx) is True
        await end(client, tx)
        assert pair.hub.stream("t").kind == "table"
        assert await client.request(1000, key(1), cache="t") == key("x")


async def test_atomic_caches_refuse_transactions() -> None:
    async with served() as pair:
        client = await pair.client()
        await client.request(1052, "by-name")
        await client.request(1053, Configuration({0: "configured", 2: ATOMIC}))
        await client.request(1053, Configuration({0: "default", 1: 2}))
        tx = await start(client)
        for cache in ("by-name", "configured", "default", "executions"):
            for op, *arguments in ((1000, key("x")), (1001, key("x"), key(1)), (1018, [key("x")])):
                with pytest.raises(PeerError, match="Transaction spans operations on atomic cache") as refused:
                    await client.request(op, *arguments, cache=cache, **tx)
                assert refused.value.status == 1
            assert await client.request(1055, cache=cache, **tx)
        await end(client, tx)


async def test_a_table_somebody_listens_to() -> None:
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await new_table(client, "t")
        await client.request(1001, key("x"), key("x"), cache="t")  # which makes it a table
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "t", "startKey": 0})
        await call.headers
        tx = await start(client)
        await client.request(1001, key(5), key("x"), cache="t", **tx)
        await end(client, tx)
        assert (await asyncio.wait_for(call.next(), 60)).key == 5


async def test_a_vanished_client_leaves_nothing() -> None:
    async with served() as pair:
        client, other = await pair.client(), await pair.client()
        await new_table(client, "t")
        tx = await start(client)
        await client.request(1001, key(1), key("x"), cache="t", **tx)
        await client.close()
        await until(lambda: len(pair.hub.sessions.list("ignite")) == 1)
        assert await other.request(1020, b"", cache="t") == 0


async def test_what_may_not_be_written_any_more_is_not_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was allowed when the transaction was filled; what may still be written goes through."""
    monkeypatch.chdir(tmp_path)  # where a hub in memory keeps its users
    roles = {"narrow": [Grant(rights=["read", "write"], streams=["mine"]), Grant(rights=["read"])]}
    async with served(Config(security=SecuritySection(roles=roles))) as pair:
        pair.hub.security.add_user("ann", hash_secret("a password"), ["writer"])
        client = await pair.client(user="ann", password="a password")
        for name in ("mine", "theirs"):
            await new_table(client, name)
            await client.request(1001, key(1), key("before"), cache=name)
        both, one, read = [await start(client) for _ in range(3)]
        await client.request(1001, key(1), key("both"), cache="mine", **both)
        await client.request(1001, key(1), key("both"), cache="theirs", **both)
        await client.request(1001, key(1), key("one"), cache="mine", **one)
        await client.request(1000, key(1), cache="theirs", **read)
        pair.hub.security.add_user("ann", None, ["narrow"])
        with pytest.raises(PeerError, match="needs the right 'write' on cache 'theirs'"):
            await end(client, both)
        await end(client, one)
        await end(client, read)
        assert await client.request(1000, key(1), cache="mine") == key("one")
        assert await client.request(1000, key(1), cache="theirs") == key("before")


async def test_a_client_that_says_nothing_after_its_sign_in_has_ended_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with served(Config(security=SecuritySection(farewell_s=0.01))) as pair:
        pair.hub.security.add_user("ann", hash_secret("a password"), ["writer"])
        client = await pair.client(user="ann", password="a password")
        pair.hub.security.remove_user("ann")
        async with asyncio.timeout(60):
            await client.lost
