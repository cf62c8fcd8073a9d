"""Rows of the hub's own tables that cannot be understood, by damage or by malice. They stay where they are and count as
not there: no row keeps a hub from starting. The log and `headrace doctor` name them, health says where they are.

Nor does a stream that has the name of such a table: only the part that needs the table is not served."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

from headrace.errors import NameTaken
from headrace.log.ops import StreamInfo
from headrace.log.state import TABLE
from headrace.security.reserved import own_tables

logger = logging.getLogger("headrace.hub")
Row = TypeVar("Row")


class Catalog(Protocol):
    """What a log and a hub know of streams."""

    def has_stream(self, name: str) -> bool: ...

    def stream(self, name: str) -> StreamInfo: ...


def is_misplaced(catalog: Catalog, name: str) -> bool:
    """Whether a stream is where a table of the hub's own should be."""
    return name in own_tables() and catalog.has_stream(name) and catalog.stream(name).kind != TABLE


def check_place(catalog: Catalog, name: str) -> None:
    if is_misplaced(catalog, name):
        raise NameTaken(name)


class SetAside:
    """Those of one hub."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[bytes, bytes]] = {}

    def read(
        self, table: str, items: Iterable[tuple[bytes, bytes]], reader: Callable[[bytes, bytes], Row]
    ) -> list[Row]:
        """What the rows of a table mean, by a reader that raises for one that means nothing."""
        known, self._rows[table] = self._rows.get(table, {}), {}
        found: list[Row] = []
        for key, value in items:
            try:
                found.append(reader(key, value))
            except Exception as error:
                self.note(table, key, value, error, is_new=key not in known)
        return found

    def note(self, table: str, key: bytes, value: bytes, error: Exception, *, is_new: bool = True) -> None:
        """Set a row aside."""
        self._rows.setdefault(table, {})[key] = value
        if is_new:
            logger.error("table %r: the row %r cannot be used and is set aside: %s", table, key, error)

    def value(self, table: str, key: bytes) -> bytes | None:
        """What a row held when it was set aside; None if it was not."""
        return self._rows.get(table, {}).get(key)

    def forget(self, table: str, key: bytes) -> None:
        """A row that was set aside is gone."""
        self._rows.get(table, {}).pop(key, None)

    def trouble(self) -> str | None:
        """One sentence for people, whoever they are; None when there are none."""
        tables = [f"{table} ({len(rows)})" for table, rows in self._rows.items() if rows]
        more = "the hub's log and `headrace doctor` name them"
        return f"rows that cannot be used are set aside: {', '.join(tables)}; {more}" if tables else None
