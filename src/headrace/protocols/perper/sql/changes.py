"""INSERT, MERGE, UPDATE and DELETE: what DuckDB finds becomes one transaction of the log.

The entries that a statement is about, and the values that it computes, are asked of DuckDB; constants and arguments are
not. The transaction holds only if the entries are still what DuckDB was told; otherwise the statement starts over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import ConditionFailed
from headrace.log.ops import ABSENT, ANY
from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.ignite.types import BinaryType
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.table import (
    HIDDEN,
    KEY_OBJECT,
    VALUE_OBJECT,
    Column,
    Table,
)
from headrace.protocols.perper.sql.text import (
    Delete,
    Insert,
    Path,
    Question,
    Update,
    Words,
    Writer,
    failed_to_parse,
    quoted,
)
from headrace.protocols.perper.sql.values import constant
from headrace.protocols.perper.tables import TableCache

if TYPE_CHECKING:
    from headrace.protocols.perper.state import Fabric

# As often as Ignite tries.
ATTEMPTS_MAX: Final = 4

Ask = Callable[[Question], Awaitable[list[tuple[bytes, ...]]]]
Expiry = tuple[int, int, int] | None


class Target(NamedTuple):
    """The table that a statement changes."""

    table: Table
    cache: TableCache
    expiry: Expiry


class Changes:
    """One statement that changes entries."""

    def __init__(self, fabric: Fabric, text: str, arguments: Sequence[bytes], ask: Ask) -> None:
        self._fabric = fabric
        self._text = text
        self._arguments = arguments
        self._ask = ask

    def _writer(self) -> Writer:
        return Writer(self._text, [kinds.parameter(each) for each in self._arguments])

    # new entries

    async def insert(self, statement: Insert, target: Target) -> int:
        """INSERT and MERGE: how many rows."""
        table = target.table
        names = [column.name for column in table.columns] if statement.columns is None else statement.columns
        columns = [table.column(name) for name in names]
        if len(set(names)) < len(names):
            raise failed_to_parse("Duplicate column name in the list of columns")
        if statement.select is not None:
            rows: Iterable[Sequence[bytes]] = await self._selected(statement.select, columns)
        else:
            rows = await self._given(statement.rows, columns)
        await self._know(table.types())
        entries: dict[bytes, bytes] = {}
        duplicates = []
        for row in rows:
            key, value = table.entry(dict(zip(names, row, strict=True)))
            if key in entries and not statement.replaces:
                duplicates.append(key)
            entries[key] = value
        if not entries:
            return 0
        expect = ANY if statement.replaces else ABSENT
        if not statement.replaces:
            duplicates += [key for key in entries if target.cache.get(key) is not None]
        if duplicates:
            raise _duplicate(duplicates)
        try:
            await target.cache.change_many({key: (value, expect) for key, value in entries.items()}, target.expiry)
        except ConditionFailed:
            raise _duplicate([key for key in entries if target.cache.get(key) is not None]) from None
        return len(entries)

    async def _selected(self, words: Words, columns: list[Column]) -> list[tuple[bytes, ...]]:
        writer = self._writer()
        names = [f"c{number}" for number in range(len(columns))]
        cast = ", ".join(f"CAST({name} AS {column.kind.sql})" for name, column in zip(names, columns, strict=True))
        text = f"SELECT {cast} FROM ({writer.piece(words)}) AS given({', '.join(names)})"
        rows = await self._ask(writer.question(text))
        return [tuple(map(_stored, columns, row)) for row in rows]

    async def _given(self, rows: list[list[Words]], columns: list[Column]) -> list[list[bytes]]:
        """The rows of VALUES. Those of their values that must be computed are, all at once."""
        found: list[list[bytes | None]] = []
        computed: list[tuple[Column, Words]] = []
        for row in rows:
            if len(row) != len(columns):
                raise failed_to_parse("Column count does not match")
            cells = [self._constant(words, column) for words, column in zip(row, columns, strict=True)]
            computed += [(column, row[at]) for at, column in enumerate(columns) if cells[at] is None]
            found.append(cells)
        values = iter(await self._computed(computed))
        return [
            [next(values) if cell is None else cell for cell in row]  # in the order in which they were gathered
            for row in found
        ]

    def _constant(self, words: Words, column: Column) -> bytes | None:
        if len(words) == 1 and words[0].kind == "name" and words[0].word == "DEFAULT":
            return column.default
        value = constant(words, self._arguments)
        fitted = None if value is None else kinds.object_as(column.kind, value)
        return None if fitted is None else column.stored(fitted)

    async def _computed(self, values: list[tuple[Column, Words]]) -> list[bytes]:
        if not values:
            return []
        writer = self._writer()
        text = ", ".join(f"CAST(({writer.piece(words)}) AS {column.kind.sql})" for column, words in values)
        (row,) = await self._ask(writer.question(f"SELECT {text}"))
        return [_stored(column, data) for (column, _), data in zip(values, row, strict=True)]

    # entries that are there

    async def update(self, statement: Update, target: Target) -> int:
        """UPDATE: how many rows."""
        columns = []
        for name, _ in statement.values:
            column = target.table.column(name)
            if column.part == "key":
                raise failed_to_parse("SQL UPDATE can't modify key or its fields directly")
            columns.append(column)
        for _ in range(ATTEMPTS_MAX):
            rows = await self._affected(statement, columns)
            changes: dict[bytes, tuple[bytes | None, Any]] = {}
            kinds_made: dict[int, BinaryType] = {}
            for key, value, *cells in rows:
                key, value = _bytes(key), _bytes(value)
                new = {column.name: _stored(column, cell) for column, cell in zip(columns, cells, strict=True)}
                updated, kind = target.table.updated(value, new, self._fabric.registry.schema)
                changes[key] = (updated, value)
                if kind is not None:
                    kinds_made[next(iter(kind.schemas))] = kind
            await self._know(kinds_made.values())
            if await self._done(target, changes):
                return len(changes)
        raise _modified()

    async def delete(self, statement: Delete, target: Target) -> int:
        """DELETE: how many rows."""
        for _ in range(ATTEMPTS_MAX):
            rows = await self._affected(statement, [])
            changes: dict[bytes, tuple[bytes | None, Any]] = {_bytes(key): (None, _bytes(value)) for key, value in rows}
            if await self._done(target, changes):
                return len(changes)
        raise _modified()

    async def _affected(self, statement: Update | Delete, columns: list[Column]) -> list[tuple[bytes, ...]]:
        writer = self._writer()
        values = [words for _, words in statement.values] if isinstance(statement, Update) else []
        new = [
            f"CAST(({writer.piece(words)}) AS {column.kind.sql})" for words, column in zip(values, columns, strict=True)
        ]
        source = quoted(*statement.table) + (f" AS {quoted(statement.alias)}" if statement.alias else "")
        text = f"SELECT {', '.join([KEY_OBJECT, VALUE_OBJECT, *new])} FROM {source} {writer.piece(statement.rest)}"
        return await self._ask(writer.question(text))

    @staticmethod
    async def _done(target: Target, changes: dict[bytes, tuple[bytes | None, Any]]) -> bool:
        """Whether nobody was faster."""
        if not changes:
            return True
        try:
            await target.cache.change_many(changes, target.expiry)
        except ConditionFailed:
            return False
        return True

    async def _know(self, types: Iterable[BinaryType]) -> None:
        """Have the types registered before there is anything of them."""
        for kind in types:
            known = self._fabric.registry.get(kind.type_id)
            if known is not None:
                kind = kind._replace(name=known.name, affinity_field=known.affinity_field)
            stored = self._fabric.registry.put(kind)
            if stored is not None:
                await stored


def _stored(column: Column, data: bytes) -> bytes:
    """What DuckDB has computed for a column, as the column's own type has it."""
    fitted = kinds.object_as(column.kind, data)
    if fitted is None:
        raise Refused(f"Value for a column '{column.name}' is not {column.kind.sql}")
    return column.stored(fitted)


def _bytes(data: bytes) -> bytes:
    """The content of a byte array object."""
    return data[5:]


def _duplicate(keys: list[bytes]) -> Refused:
    shown = ", ".join(_text(key) for key in keys[:10])
    if len(keys) == 1:
        return Refused(f"Duplicate key during INSERT [key={shown}]")
    return Refused(f"Failed to INSERT some keys because they are already in cache [keys=[{shown}]]")


def _text(key: bytes) -> str:
    value, kind = kinds.parameter(key)
    return f"object of {len(key)} bytes" if kind == kinds.OBJECT.sql else str(value)


def _modified() -> Refused:
    return Refused("Failed to update some keys because they had been modified concurrently; try again")


def check_visible(path: Path, columns: Sequence[str]) -> None:
    """No column of a new table may be called like one that every table has."""
    for name in columns:
        if name in HIDDEN:
            raise failed_to_parse(f"Direct specification of {name} is not allowed in table {path[-1]}")
