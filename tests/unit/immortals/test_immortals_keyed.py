"""Keyed immortals through a real hub: one registration, many instances, found from every side."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import BadRequest, MethodRaised
from headrace.immortals import Immortal, immortal, method, query, serve


@immortal(keyed=True)
class Cart(Immortal):
    items: list[str] = []

    @method
    def add(self, item: str) -> int:
        self.items.append(f"{self.key}:{item}")
        return len(self.items)

    @query
    def content(self) -> list[str]:
        return self.items


async def test_instances_of_a_key(world: Any) -> None:
    def check() -> None:
        alice, bob = (world.client.immortal("carts", key=key) for key in ("alice", "bob"))
        assert [alice.add(item="pear"), alice.add("plum"), bob.add(item="fig")] == [1, 2, 1]
        assert alice.content() == ["alice:pear", "alice:plum"]
        with pytest.raises(BadRequest, match="'carts' is keyed: name the instance"):
            world.client.immortal("carts").add(item="pear")
        with pytest.raises(MethodRaised, match="carts has no instance 'eve': it was never called"):
            world.client.immortal("carts", key="eve").content()
        request = {"name": "carts", "pattern": "*b*"}
        assert world.client.call("immortal.instances", request) == ["bob"]
        assert world.client.call("immortal.instances", {"name": "carts", "limit": 1}) == ["alice"]
        assert world.client.call("immortal.instances", {"name": "carts", "after": "alice"}) == ["bob"]
        world.client.append("immortal/carts/inbox", {"item": "nut"}, type="add", key="bob")

    async with serve(Cart, "carts", hub=world.address):
        await asyncio.to_thread(check)
        content: list[str] = []
        while len(content) < 2:
            content = await asyncio.to_thread(world.client.immortal("carts", key="bob").content)
        assert content == ["bob:fig", "bob:nut"]
    async with serve(Cart, "carts", hub=world.address):
        content = await asyncio.to_thread(world.client.immortal("carts", key="alice").content)
        assert content == ["alice:pear", "alice:plum"]


BROKEN = [b"x", b"[]", b'"x"', b"null", b'{"token": "\xff"}', b'{"call": {}, "token": {}}', b"[[]]", b"[" * 100_000]


@pytest.mark.parametrize("kind", ["@fulfil", "@cancel", "add"])
async def test_what_is_broken_in_the_inbox_stops_nobody(world: Any, kind: str) -> None:
    key = f"beside {kind}"
    cart = world.client.immortal("carts", key=key)
    async with serve(Cart, "carts", hub=world.address):
        await asyncio.to_thread(cart.add, item="fig")
        await asyncio.to_thread(world.client.append, "immortal/carts/inbox", BROKEN, type=kind, key=key)
        await asyncio.to_thread(world.client.append, "immortal/carts/inbox", {"item": "nut"}, type="add", key=key)
        content: list[str] = []
        async with asyncio.timeout(30):
            while len(content) < 2:
                content = await asyncio.to_thread(cart.content)
        assert content == [f"{key}:fig", f"{key}:nut"]
