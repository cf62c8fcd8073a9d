"""What the body of each operation of the thin protocol holds, and what its answer does: two tables of forms.

Every operation is one line of `OPERATIONS`: its name, whether it has the cache header, the parts of its body, the
shape of its answer, and the right it needs.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple
from uuid import UUID

from headrace.protocols.perper.bulk import Entries, Keys
from headrace.protocols.perper.ignite.binary import NULL, NULL_OBJECT, wrap
from headrace.protocols.perper.ignite.configuration import read_configuration, write_request
from headrace.protocols.perper.ignite.reader import BOOL, BYTE, INT, LONG, OBJECT, STRING, TEXT, Form, Reader, many, row
from headrace.protocols.perper.ignite.types import read_type, write_type


class Operation(NamedTuple):
    """One line of the protocol."""

    name: str
    has_cache: bool
    parts: tuple[str, ...]
    answer: str
    right: Literal["read", "write", "none"]  # needed on the cache


_R: Final = "read"
_W: Final = "write"
_N: Final = "none"

OPERATIONS: Final[dict[int, Operation]] = {
    0: Operation("resource close", False, ("long",), "nothing", _N),
    1000: Operation("get", True, ("object",), "object", _R),
    1001: Operation("put", True, ("object", "object"), "nothing", _W),
    1002: Operation("put if absent", True, ("object", "object"), "bool", _W),
    1003: Operation("get all", True, ("objects",), "pairs", _R),
    1004: Operation("put all", True, ("pairs",), "nothing", _W),
    1005: Operation("get and put", True, ("object", "object"), "object", _W),
    1006: Operation("get and replace", True, ("object", "object"), "object", _W),
    1007: Operation("get and remove", True, ("object",), "object", _W),
    1008: Operation("get and put if absent", True, ("object", "object"), "object", _W),
    1009: Operation("replace", True, ("object", "object"), "bool", _W),
    1010: Operation("replace if equals", True, ("object", "object", "object"), "bool", _W),
    1011: Operation("contains key", True, ("object",), "bool", _R),
    1012: Operation("contains keys", True, ("objects",), "bool", _R),
    1013: Operation("clear", True, (), "nothing", _W),
    1014: Operation("clear key", True, ("object",), "nothing", _W),
    1015: Operation("clear keys", True, ("objects",), "nothing", _W),
    1016: Operation("remove key", True, ("object",), "bool", _W),
    1017: Operation("remove if equals", True, ("object", "object"), "bool", _W),
    1018: Operation("remove keys", True, ("objects",), "nothing", _W),
    1019: Operation("remove all", True, (), "nothing", _W),
    1020: Operation("size", True, ("bytes",), "long", _R),
    1021: Operation("local peek", True, ("object", "bytes"), "object", _R),
    1050: Operation("cache names", False, (), "strings", _N),
    1051: Operation("create by name", False, ("text",), "nothing", _N),
    1052: Operation("get or create by name", False, ("text",), "nothing", _N),
    1053: Operation("create with configuration", False, ("configuration",), "nothing", _N),
    1054: Operation("get or create with configuration", False, ("configuration",), "nothing", _N),
    1055: Operation("get configuration", True, (), "configuration", _R),
    1056: Operation("destroy", False, ("int",), "nothing", _N),
    1101: Operation("cache partitions", False, ("ints",), "partitions", _N),
    2000: Operation("scan", True, ("filter", "int", "int", "bool"), "first page", _R),
    2001: Operation("scan next page", False, ("long",), "next page", _N),
    2002: Operation("sql", True, ("sql entries",), "first page", _R),
    2003: Operation("sql entries next page", False, ("long",), "next page", _N),
    2004: Operation("sql fields", True, ("sql",), "sql page", _N),
    2005: Operation("sql next page", False, ("long",), "sql next page", _N),
    3000: Operation("get binary type name", False, ("byte", "int"), "string", _N),
    3001: Operation("put binary type name", False, ("byte", "int", "text"), "bool", _N),
    3002: Operation("get binary type", False, ("int",), "type", _N),
    3003: Operation("put binary type", False, ("type",), "nothing", _N),
    4000: Operation("tx start", False, ("byte", "byte", "long", "string"), "int", _N),
    4001: Operation("tx end", False, ("int", "bool"), "nothing", _N),
    5000: Operation("cluster state get", False, (), "byte", _N),
    5001: Operation("cluster state set", False, ("byte",), "nothing", _N),
}


class Page(NamedTuple):
    """Rows of a scan. `cursor` stands only in the first page's answer."""

    rows: list[tuple[bytes, bytes]]
    more: bool
    cursor: int = 0


class SqlPage(NamedTuple):
    """Rows of a field query. `names` of columns stand only in the first page's answer, if they were asked for."""

    columns: int
    rows: list[tuple[bytes, ...]]
    more: bool
    cursor: int = 0
    names: list[str] | None = None


def _named(forms: dict[str, Form]) -> Form:
    """Values of these forms one after the other, by name."""
    return Form(
        lambda reader: {name: form.read(reader) for name, form in forms.items()},
        lambda values: b"".join([form.write(values[name]) for name, form in forms.items()]),
    )


def _read_filter(reader: Reader) -> bytes:
    """A scan's filter; one that is not null is followed by its platform."""
    value = reader.object()
    if value[0] != NULL:
        reader.byte()
    return value


# A query for keys and values.
_SQL_ENTRIES: Final[dict[str, Form]] = {
    "table": STRING,
    "sql": STRING,
    "args": many(OBJECT),
    **dict.fromkeys(("distributed_joins", "local", "replicated_only"), BOOL),
    "page_size": INT,
    "timeout_ms": LONG,
}
# The fixed part of a field query; what newer feature bits would add is not announced.
_SQL: Final[dict[str, Form]] = {
    "schema": STRING,
    "page_size": INT,
    "max_rows": INT,
    "sql": STRING,
    "args": many(OBJECT),
    "statement_type": BYTE,
    **dict.fromkeys(
        ("distributed_joins", "local", "replicated_only", "enforce_join_order", "collocated", "lazy"), BOOL
    ),
    "timeout_ms": LONG,
    "include_field_names": BOOL,
}


def _read_entries(reader: Reader) -> Entries:
    keys, values = [], []
    for _ in range(reader.elements(2)):
        keys.append(reader.object())
        values.append(reader.object())
    return Entries(keys, values)


_OBJECTS: Final = many(OBJECT)
_PAIRS: Final = many(row(OBJECT, OBJECT), 2)
PARTS: Final[dict[str, Form]] = {
    "object": OBJECT,
    "objects": Form(lambda reader: Keys(_OBJECTS.read(reader)), _OBJECTS.write),
    "pairs": Form(
        _read_entries,
        lambda pairs: INT.write(len(pairs)) + b"".join([part for pair in pairs for part in pair]),
    ),
    "bytes": Form(lambda reader: reader.raw(reader.count()), lambda data: INT.write(len(data)) + data),
    "byte": BYTE,
    "bool": BOOL,
    "int": INT,
    "long": LONG,
    "ints": many(INT, 4),
    "string": STRING,
    "strings": many(TEXT),
    "text": TEXT,
    "configuration": Form(read_configuration, write_request),
    "type": Form(read_type, write_type),
    "filter": Form(_read_filter, OBJECT.write),
    "sql": _named(_SQL),
    "sql entries": _named(_SQL_ENTRIES),
}


def _write_rows(page: Page | SqlPage) -> bytes:
    rows = b"".join([wrap(cell) for row in page.rows for cell in row])
    return INT.write(len(page.rows)) + rows + BOOL.write(page.more)


def _write_head(page: SqlPage) -> bytes:
    """The names of the columns, or how many they are."""
    return INT.write(page.columns) if page.names is None else PARTS["strings"].write(page.names)


def _read_page(reader: Reader, cursor: int) -> Page:
    return Page(_PAIRS.read(reader), reader.bool(), cursor)


def _read_rest(reader: Reader) -> bytes:
    """For shapes that the client leaves as they are."""
    return reader.raw(reader.end - reader.position)


def encode_node_id(node_id: UUID) -> bytes:
    """A UUID object: both halves as little-endian longs."""
    return b"\x0a" + node_id.bytes[7::-1] + node_id.bytes[:7:-1]


class Owned(NamedTuple):
    """Caches, and the node that clients should ask for their keys."""

    caches: list[int]
    owner: UUID


def _write_partitions(answer: list[int] | Owned) -> bytes:
    """One group of caches. Without an owner, affinity does not apply to it: the client then sends everything where it
    likes, which is right on one node. With one, all keys are in one partition of that node."""
    head = row(LONG, INT, INT, BOOL)
    if not isinstance(answer, Owned):
        return head.write((1, 0, 1, False)) + PARTS["ints"].write(answer)
    each = b"".join(INT.write(cache) + INT.write(0) for cache in answer.caches)
    node = INT.write(1) + encode_node_id(answer.owner) + PARTS["ints"].write([0])
    return head.write((1, 0, 1, True)) + INT.write(len(answer.caches)) + each + node


ANSWERS: Final[dict[str, Form]] = {
    **{name: PARTS[name] for name in ("bool", "byte", "int", "long", "string", "strings")},
    "nothing": Form(lambda reader: None, lambda _: b""),
    "object": Form(Reader.object, lambda value: NULL_OBJECT if value is None else wrap(value)),
    "pairs": Form(
        _PAIRS.read,
        lambda pairs: INT.write(len(pairs)) + b"".join([wrap(part) for pair in pairs for part in pair]),
    ),
    "type": Form(
        lambda reader: read_type(reader) if reader.bool() else None,
        lambda kind: b"\0" if kind is None else b"\1" + write_type(kind),
    ),
    "partitions": Form(_read_rest, _write_partitions),
    "first page": Form(
        lambda reader: _read_page(reader, reader.long()), lambda page: LONG.write(page.cursor) + _write_rows(page)
    ),
    "next page": Form(lambda reader: _read_page(reader, 0), _write_rows),
    "sql page": Form(_read_rest, lambda page: LONG.write(page.cursor) + _write_head(page) + _write_rows(page)),
    "sql next page": Form(_read_rest, _write_rows),
}


class Encoded(NamedTuple):
    """An answer that was written already, where that takes long."""

    body: bytes

    @classmethod
    def of(cls, op: int, value: object) -> Encoded:
        """Of any shape that does not depend on the version."""
        return cls(ANSWERS[OPERATIONS[op].answer].write(value))


# What a cache says of its configuration depends on the version, so `codec` writes it.
assert {operation.answer for operation in OPERATIONS.values()} <= {*ANSWERS, "configuration"}
