"""Entries and records whose bytes a protocol reads for people."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from headrace.console.words import Reading
from headrace.errors import BadRequest, Forbidden
from headrace.hub import Hub
from headrace.protocols.perper.ignite.binary import (
    encode_complex,
    encode_long,
    encode_string,
    field_id,
    schema_id,
    type_id,
)
from headrace.protocols.perper.ignite.types import BinaryType, Field
from headrace.protocols.perper.records import Execution, write_execution
from headrace.protocols.perper.registry import TypeRegistry
from headrace.security import EVERYTHING, Principal
from headrace.testing import memory_hub

ITEM = field_id("item")
KIND = BinaryType(type_id("Order"), "Order", None, [Field("item", 9, ITEM)], False, [], {schema_id([ITEM]): (ITEM,)})


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with memory_hub() as made:
        Reading(made).register()
        types = TypeRegistry(made)
        await types.load()
        stored = types.put(KIND)
        assert stored is not None
        await stored
        await made.create_table("orders")
        await made.put("orders", encode_long(7), encode_complex(KIND.type_id, [(ITEM, encode_string("pear"))]))
        await made.put("orders", b"plain", b"\xff\xfe")
        yield made


async def ask(hub: Hub, verb: str, principal: Principal = EVERYTHING, **request: Any) -> Any:
    return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(request), principal))


async def test_entries_come_with_their_bytes_and_with_words(hub: Hub) -> None:
    first, second = await ask(hub, "console.entries", table="orders")
    assert first["key"] == b64encode(encode_long(7)).decode()
    assert first["key_words"] == {"form": "ignite", "kind": "long", "text": "7"}
    assert first["value_words"] == {"form": "ignite", "kind": "Order", "text": '{"item": "pear"}'}
    assert second["key_words"] is None, "text says what it says"
    assert second["value_words"] is None, "nobody can read that"
    assert await ask(hub, "console.entries", table="orders", offset=1, limit=1) == [second]


async def test_a_record_of_a_table_has_words_too(hub: Hub) -> None:
    found = await ask(hub, "record.words", stream="orders", index=0)
    assert (found["key"]["text"], found["payload"]["kind"]) == ("7", "Order")
    with pytest.raises(BadRequest, match="has no record 99"):
        await ask(hub, "record.words", stream="orders", index=99)


async def test_an_execution_is_read_though_nobody_has_registered_its_type(hub: Hub) -> None:
    await hub.create_table("executions")
    await hub.put("executions", encode_string("e"), write_execution(Execution("Pricing", "shop", "Quote", False)))
    [entry] = await ask(hub, "console.entries", table="executions")
    assert entry["value_words"]["kind"] == "ExecutionData"
    assert msgspec.json.decode(entry["value_words"]["text"])["agent"] == "Pricing"


async def test_they_are_for_those_who_may_read_the_table(hub: Hub) -> None:
    nobody = Principal("nobody", (), ())
    for verb, named in (("console.entries", {"table": "orders"}), ("record.words", {"stream": "orders", "index": 0})):
        with pytest.raises(Forbidden):
            await ask(hub, verb, nobody, **named)
    with pytest.raises(BadRequest):
        await ask(hub, "console.entries", table="orders", limit=501)
