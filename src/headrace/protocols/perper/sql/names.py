"""Which table is meant by a name."""

from __future__ import annotations

from collections import Counter

from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.sql.table import PUBLIC, Table
from headrace.protocols.perper.sql.text import Path, failed_to_parse


class TableNames:
    """The tables of all caches, by schema and name."""

    def __init__(self) -> None:
        self._tables: dict[tuple[str, str], Table] = {}
        self._by_cache: dict[str, list[Table]] = {}
        self._schemas: Counter[str] = Counter()

    def check(self, tables: list[Table]) -> None:
        """Whether their names are free."""
        for table in tables:
            if (table.schema, table.name) in self._tables:
                raise table_exists(table.name)

    def add(self, cache: str, tables: list[Table]) -> None:
        """A cache has come, with its tables. Of two with one name the first keeps it."""
        if tables:
            self._by_cache[cache] = tables
        for table in tables:
            if self._tables.setdefault((table.schema, table.name), table) is table:
                self._schemas[table.schema] += 1

    def remove(self, cache: str) -> None:
        """A cache is gone, with its tables."""
        for table in self._by_cache.pop(cache, ()):
            name = (table.schema, table.name)
            if self._tables.get(name) is table:
                del self._tables[name]
                self._schemas[table.schema] -= 1

    def of_cache(self, cache: str) -> list[Table]:
        """The tables of a cache."""
        return self._by_cache.get(cache, [])

    def schema(self, name: str) -> str:
        """The schema that a client calls so."""
        for known in (name, name.upper()):
            if known == PUBLIC or self._schemas[known] > 0:
                return known
        raise Refused(f"Failed to set schema for DB connection for thread [schema={name}]")

    def find(self, path: Path, schema: str) -> Table | None:
        """The table of a name; `schema` is that of names without one."""
        return self._tables.get((path[0] if len(path) > 1 else schema, path[-1]))

    def table(self, path: Path, schema: str) -> Table:
        """The same, where it must be there."""
        table = self.find(path, schema)
        if table is None:
            raise failed_to_parse(f'Table "{path[-1]}" not found')
        return table


def table_exists(name: str) -> Refused:
    """The answer to the second creation of a table."""
    return Refused(f"Table already exists: {name}")
