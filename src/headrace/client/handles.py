"""Handles of a client: one cursor, one table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

from headrace.admin.cursors import CursorMove
from headrace.admin.requests import Index
from headrace.admin.tables import AcceptedDamage, Changed, Item, KeyCount
from headrace.log.ops import PutResult
from headrace.protocols.flight.codec import AtTime

if TYPE_CHECKING:
    from headrace.client.client import Client

PAGE_ITEMS = 1_000

Expectation = Literal["any", "absent", "present"] | bytes


class Cursor:
    """A consumer's position in one partition: the index it reads next."""

    def __init__(self, client: Client, name: str, stream: str, partition: int) -> None:
        self._client = client
        self.name = name
        self.stream = stream
        self.partition = partition

    def __repr__(self) -> str:
        return f"<Cursor {self.name} in {self.stream} partition {self.partition}>"

    def _params(self, **more: Any) -> dict[str, Any]:
        return {"cursor": self.name, "stream": self.stream, "partition": self.partition, **more}

    def get(self) -> int | None:
        """The position, or None when it was never saved."""
        return self._client.request("cursor.get", self._params(), Index).index

    def save(self, index: int) -> int:
        """Move on to `index`; a lower one than saved changes nothing. Returns the position now stored."""
        saved = self._client.request("cursor.save", self._params(index=index), Index)
        assert saved.index is not None
        return saved.index

    def reset(self, to: int | Literal["earliest", "latest"] | AtTime, *, dry_run: bool = False) -> CursorMove:
        """Move anywhere; with `dry_run` only say what that would mean."""
        [move] = self._client.request("cursor.reset", self._params(to=to, dry_run=dry_run), list[CursorMove])
        return move

    def delete(self) -> None:
        """Forget it: it holds nothing back any more."""
        self._client.call("cursor.delete", self._params())


class Table:
    """A durable map from keys to values, both bytes."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def __repr__(self) -> str:
        return f"<Table {self.name}>"

    def get(self, key: bytes | str) -> bytes | None:
        """The value of a key, or None."""
        return self._client.request("table.get", {"table": self.name, "key": _bytes(key)}, Item).value

    def put(self, key: bytes | str, value: bytes | str, *, expect: Expectation = "any") -> PutResult:
        """Set a key, if it is as expected: any, absent, present, or equal to the given bytes."""
        return self._change("table.put", {"value": _bytes(value)}, key, expect)

    def delete(self, key: bytes | str, *, expect: Expectation = "any") -> PutResult:
        """Remove a key, if it is as expected."""
        return self._change("table.delete", {}, key, expect)

    def put_many(self, items: Mapping[Any, Any] | Iterable[tuple[bytes | str, bytes | str]]) -> int:
        """Set many keys in one step: all of them, or none. Returns how many."""
        pairs = items.items() if isinstance(items, Mapping) else items
        params = {"table": self.name, "items": [(_bytes(key), _bytes(value)) for key, value in pairs]}
        return self._client.request("table.put-many", params, KeyCount).keys

    def delete_many(self, keys: Iterable[bytes | str]) -> int:
        """Remove many keys in one step; returns how many of them were there."""
        params = {"table": self.name, "keys": list(map(_bytes, keys))}
        return self._client.request("table.delete-many", params, KeyCount).keys

    def clear(self) -> int:
        """Remove all keys in one step, however many there are; returns how many."""
        return self._client.request("table.clear", {"table": self.name}, KeyCount).keys

    def accept_damage(self) -> AcceptedDamage:
        """Have a damaged table served as what can be read of it; returns what is given up."""
        return self._client.request("table.accept-damage", {"table": self.name}, AcceptedDamage)

    def _change(self, verb: str, more: dict[str, Any], key: bytes | str, expect: Expectation) -> PutResult:
        expected = {"expect_value": expect} if isinstance(expect, bytes) else {"expect": expect}
        changed = self._client.request(verb, {"table": self.name, "key": _bytes(key), **more, **expected}, Changed)
        return PutResult(changed.applied, changed.previous)

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, fetched in pages; changes made meanwhile may or may not be seen."""
        offset = 0
        while True:
            params = {"table": self.name, "offset": offset, "limit": PAGE_ITEMS}
            page = self._client.request("table.items", params, list[Item])
            for item in page:
                yield item.key, item.value or b""
            if len(page) < PAGE_ITEMS:
                return
            offset += len(page)

    def drop(self) -> None:
        """Delete the table with all its keys."""
        self._client.call("table.drop", {"table": self.name})


def _bytes(value: bytes | str) -> bytes:
    return value.encode() if isinstance(value, str) else value
