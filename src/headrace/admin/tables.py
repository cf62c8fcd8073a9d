"""The verbs of tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from headrace.admin.requests import Asked, Done, check_at_least, check_between
from headrace.admin.streams import StreamList, shown_streams
from headrace.errors import BadRequest
from headrace.log.ops import ABSENT, ANY, PRESENT, Expect

if TYPE_CHECKING:
    from headrace.hub import Hub

ITEMS_MAX = 10_000


class TableName(Asked, frozen=True):
    """Names a table."""

    table: str


class TableKey(TableName, frozen=True):
    """Names a key of a table."""

    key: bytes


class TablePut(TableKey, frozen=True):
    """Set a key. It fails unless the key is as expected: `any`, `absent`, `present`, or equal to `expect_value`."""

    value: bytes
    expect: Literal["any", "absent", "present"] = "any"
    expect_value: bytes | None = None


class TableDelete(TableKey, frozen=True):
    """Remove a key, if it is as expected."""

    expect: Literal["any", "absent", "present"] = "any"
    expect_value: bytes | None = None


class TableDeleteMany(TableName, frozen=True):
    """Remove many keys, whatever they hold."""

    keys: list[bytes]


class TablePutMany(TableName, frozen=True):
    """Set many keys, whatever they hold: all of them, or none."""

    items: list[tuple[bytes, bytes]]


class TableItems(TableName, frozen=True):
    """The entries of a table, from number `offset` on."""

    offset: int = 0
    limit: int = 1000


class TableSummary(msgspec.Struct, frozen=True):
    """A table at a glance."""

    name: str
    id: int
    keys: int
    created_us: int


class Item(msgspec.Struct, frozen=True):
    """One entry of a table; a `value` of null means that the key is absent."""

    key: bytes
    value: bytes | None


class Changed(msgspec.Struct, frozen=True):
    """Whether a put or delete applied, and what was there before."""

    applied: bool
    previous: bytes | None


class KeyCount(msgspec.Struct, frozen=True):
    """How many keys were put, or were there and are removed."""

    keys: int


class AcceptedDamage(msgspec.Struct, frozen=True):
    """What was given up; null for a table without damage. Records between `first` and `last` are lost. `keys` keys hold
    what they held before, and may have been changed or removed since; keys that only lost records named are gone."""

    first: int | None = None
    last: int | None = None
    keys: int | None = None


class Tables:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        """Add the verbs to the hub."""

        def add(name: str, request: type[msgspec.Struct], handler: Any, right: Any, summary: str) -> None:
            self._hub.verbs.register(name, request, handler, right=right, summary=summary, stream_field="table")

        self._hub.verbs.register(
            "table.list",
            StreamList,
            self.named,
            right="read",
            summary="List tables",
            filters=True,
            listed_by=lambda each: [each.id],
        )
        add("table.create", TableName, self.create, "write", "Create a table")
        add("table.drop", TableName, self.drop, "admin", "Delete a table with all its keys")
        add("table.get", TableKey, self.get, "read", "The value of a key")
        add("table.put", TablePut, self.put, "write", "Set a key, if it is as expected")
        add("table.delete", TableDelete, self.delete, "write", "Remove a key, if it is as expected")
        add("table.put-many", TablePutMany, self.put_many, "write", "Set many keys in one step")
        add("table.delete-many", TableDeleteMany, self.delete_many, "write", "Remove many keys in one step")
        add("table.clear", TableName, self.clear, "admin", "Remove all keys in one step")
        self._hub.verbs.register(
            "table.accept-damage",
            TableName,
            self.accept_damage,
            right="admin",
            summary="Serve what is left of a damaged table",
            stream_field=None,
        )
        self._hub.verbs.register(
            "table.drop-row",
            TableKey,
            self.drop_row,
            right="admin",
            summary="Remove a row that was set aside",
            stream_field=None,
        )
        add("table.items", TableItems, self.items, "read", "The entries of a table, in pages")

    async def named(self, asked: StreamList) -> Iterable[TableSummary]:
        """The tables that the caller may read."""
        return (
            TableSummary(info.name, info.id, self._hub.table_size(info.name), info.created_us)
            for info in shown_streams(self._hub, asked, "table")
        )

    async def create(self, asked: TableName) -> Done:
        """Create."""
        await self._hub.create_table(asked.table)
        return Done()

    async def drop(self, asked: TableName) -> Done:
        """Delete."""
        await self._hub.delete_table(asked.table)
        return Done()

    async def get(self, asked: TableKey) -> Item:
        """One value."""
        return Item(asked.key, self._hub.get(asked.table, asked.key))

    async def put(self, asked: TablePut) -> Changed:
        """Set one key."""
        expect = _expectation(asked.expect, asked.expect_value)
        return Changed(*await self._hub.put(asked.table, asked.key, asked.value, expect=expect))

    async def delete(self, asked: TableDelete) -> Changed:
        """Remove one key."""
        expect = _expectation(asked.expect, asked.expect_value)
        return Changed(*await self._hub.delete(asked.table, asked.key, expect=expect))

    async def put_many(self, asked: TablePutMany) -> KeyCount:
        """Set many keys."""
        if not asked.items:
            return KeyCount(0)
        keys, values = zip(*asked.items, strict=True)
        return KeyCount(await self._hub.put_many(asked.table, keys, values))

    async def delete_many(self, asked: TableDeleteMany) -> KeyCount:
        """Remove many keys."""
        return KeyCount(await self._hub.delete_many(asked.table, asked.keys))

    async def clear(self, asked: TableName) -> KeyCount:
        """Remove all keys."""
        return KeyCount(await self._hub.clear_table(asked.table))

    async def accept_damage(self, asked: TableName) -> AcceptedDamage:
        """Serve what is left."""
        lost = await self._hub.accept_damage(asked.table)
        return AcceptedDamage() if lost is None else AcceptedDamage(*lost)

    async def drop_row(self, asked: TableKey) -> Done:
        """The one thing that an admin changes in the hub's own tables."""
        value = self._hub.set_aside.value(asked.table, asked.key)
        if value is None:
            raise BadRequest(f"table {asked.table!r} has no row {asked.key!r} that was set aside")
        await self._hub.delete(asked.table, asked.key, expect=value)  # not what its owner has written since
        self._hub.set_aside.forget(asked.table, asked.key)
        return Done()

    async def items(self, asked: TableItems) -> list[Item]:
        """A page of entries, in the order in which the keys were first put."""
        check_between("limit", asked.limit, 1, ITEMS_MAX)
        check_at_least("offset", asked.offset, 0)
        return [Item(key, value) for key, value in self._hub.page(asked.table, asked.offset, asked.limit)]


def _expectation(name: str, value: bytes | None) -> Expect | bytes:
    if value is not None:
        return value
    return {"any": ANY, "absent": ABSENT, "present": PRESENT}[name]
