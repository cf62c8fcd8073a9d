"""Somebody who tries every verb with whatever fits, and with what does not. What changes something gets names of its
own only; questions go to anybody's streams and tables. None may be answered by an error inside of the hub.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import inspect

from headrace.hub.verbs import Verb
from headrace.testing.world.actors.actor import LOST, Refused, Watcher, encoded
from headrace.testing.world.book import Book
from headrace.testing.world.hub import IMMORTALS, REGISTERED, HubProcess

NOT_TRIED = (
    *("user.add", "user.remove", "user.token"),  # the first user ends the time when anybody may do anything
    *("hub.backup", "pipeline.start", "sql.query", "sql.columns", "console.parquet"),  # real files and real processes
)
CHANGING = ("immortal.call", "immortal.cancel", "immortal.fulfil", "spark.move-cursor")
"""Verbs that say of themselves that they read, and more than that comes of them."""
HARMLESS = ("immortal.checkpoint", "immortal.hand-over", "immortal.replay", "immortal.end-replay")
"""Those that change something, and nothing that anybody counts on."""
OFTEN = ("stream.create", "stream.append", "table.create", "table.put", "table.put-many", "cursor.save")
"""What makes the others find something."""
NUMBERS = (0, 0, 1, 1, 2, 3, 5, 40, 1000, -1, 2**31, 2**63)
FEW = {"partitions": (1, 2, 3, 0, 10**6), "limit": (1, 2, 3, 50, 0, 10**9)}
SECONDS = (0.0, 0.1, 2.0, -1.0)
WORDS = ("", "x", "earliest", "*", "\N{SNOWMAN}", "a/b", "1")
GARBAGE: tuple[Any, ...] = (None, -1, "x", [], {}, [[1]], True, 1e300)
TABLES = ("table", "library", "bank", "cache-0", "query", "perper.caches", "ambrosia/immortals")
DEPTH_MAX = 4


class Prober(Watcher):
    """One such."""

    kind = "prober"

    def __init__(self, number: int, hub: HubProcess, book: Book, streams: Sequence[str]) -> None:
        super().__init__(number, hub, book)
        self.own = (f"{self.name}/a", f"{self.name}/b", self.name)
        self.others = (*streams, *IMMORTALS, *REGISTERED, *TABLES)
        self.is_careless = self.random.random() < 0.5
        """Sends what does not fit, too."""

    async def work(self) -> None:
        served = self.hub.hub
        if served is not None:
            verb = self._chosen([verb for verb in served.verbs if verb.name not in NOT_TRIED])
            await self._try(verb)
        await asyncio.sleep(self.random.uniform(0, 0.5))

    def _chosen(self, verbs: list[Verb]) -> Verb:
        often = [verb for verb in verbs if verb.name in OFTEN]
        return self.random.choice(often if often and self.random.random() < 0.4 else verbs)

    async def _try(self, verb: Verb) -> None:
        is_question = verb.right == "read" and not verb.moves_cursor and verb.name not in CHANGING
        names: tuple[str, ...] = self.own
        if (is_question or verb.name in HARMLESS) and self.random.random() < 0.7:
            names = self.others
        body = self._of_struct(fields_of(verb.request), names, 0)
        if verb.name == "stream.append" and self.random.random() < 0.8:  # each has exactly one of several fields
            body = {"stream": self.random.choice(names), "records": [{"text": "x"}] * self.random.randint(1, 5)}
        try:
            with contextlib.suppress(*LOST):
                await self.verb(verb.name, **body)
        except Refused as refused:
            if refused.status == 500:
                self.book.wrong.append(f"{verb.name} {body}: {refused}")

    # -- values ----------------------------------------------------------------------------------------------------

    def _of_struct(self, fields: tuple[inspect.Field, ...], names: Sequence[str], depth: int) -> dict[str, Any]:
        chance = self.random
        body = {
            field.encode_name: self._of(field.type, names, depth + 1, field.encode_name)
            for field in fields
            if field.required or chance.random() < 0.5
        }
        if self.is_careless and body and chance.random() < 0.1:
            body[chance.choice(sorted(body))] = chance.choice(GARBAGE)
        return body

    def _of(self, kind: inspect.Type, names: Sequence[str], depth: int, field: str = "") -> Any:
        chance = self.random
        match kind:
            case inspect.Metadata():
                return self._of(kind.type, names, depth, field)
            case inspect.UnionType():
                return self._of(chance.choice(kind.types), names, depth, field)
            case inspect.StrType():
                return chance.choice(names) if chance.random() < 0.8 or not self.is_careless else chance.choice(WORDS)
            case inspect.IntType():
                return chance.choice(FEW.get(field, NUMBERS if self.is_careless else NUMBERS[:7]))
            case inspect.FloatType():
                return chance.choice(SECONDS)
            case inspect.BoolType():
                return chance.random() < 0.5
            case inspect.BytesType():
                return encoded(chance.choice([b"", b"k", b"key", chance.randbytes(30)]))
            case inspect.LiteralType():
                return chance.choice(sorted(kind.values, key=repr))
            case inspect.EnumType():
                return chance.choice([each.value for each in kind.cls])
            case inspect.StructType():
                return self._of_struct(kind.fields, names, depth) if depth < DEPTH_MAX else {}
            case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
                return [self._of(kind.item_type, names, depth + 1) for _ in range(chance.choice([1, 1, 2, 3, 0]))]
            case inspect.TupleType():
                return [self._of(each, names, depth + 1) for each in kind.item_types]
            case inspect.DictType():
                keys = [str(self._of(kind.key_type, names, DEPTH_MAX)) for _ in range(chance.choice([1, 1, 2, 0]))]
                return {key: self._of(kind.value_type, names, depth + 1) for key in keys}
            case inspect.NoneType():
                return None
            case _:
                return chance.choice(["x", 1, {"x": [1]}, None])


@functools.cache
def fields_of(request: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    found = inspect.type_info(request)
    assert isinstance(found, inspect.StructType)
    return found.fields
