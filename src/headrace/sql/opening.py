"""`value`: JSON payloads opened to typed columns, `value.fruit`.

The types come from a sample, or from `schema => 'fruit STRING, count INT'`. What does not fit its type is null: above
all a number with a fraction where the sample had whole ones, which DuckDB by itself would round.

Whoever writes to a stream chooses the sample, and must not be able to spoil `value` for those who query: payloads whose
types DuckDB cannot find are left out of it, and names that no column can have are left out of `value`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from headrace.errors import BadSql
from headrace.sql.wire import ValueLimits

INTEGER = "headrace_integer"
MACROS = (
    "CREATE MACRO headrace_utf8(bytes) AS TRY(decode(bytes))",
    "CREATE MACRO headrace_json(bytes) AS TRY_CAST(TRY(decode(bytes)) AS JSON)",
    "CREATE MACRO get_json_object(j, path) AS json_extract_string(j, path)",  # as it is called in Spark
    f"CREATE MACRO {INTEGER}(j) AS CASE WHEN json_type(j) IN ('UBIGINT', 'BIGINT') THEN TRY_CAST(j AS BIGINT) END",
)
_STEP = '"value "'
"""A name that no query means."""
_WHOLE = ("UBIGINT", "BIGINT", "HUGEINT")
_FIELD = re.compile(r'\s*("[^"]+"|[A-Za-z_]\w*)\s+([A-Za-z]\w*(?:\(\d+(?:\s*,\s*\d+)?\))?(?:\[\])*)\s*')


class Opening:
    """`value` of the sources of one query, and which of its limits they met: `value_fields`, `value_depth`. What is
    beyond a limit can still be read by `get_json_object`, or named by a schema."""

    def __init__(self, limits: ValueLimits) -> None:
        self._limits = limits
        self._fields_left = 0
        self.limits_met: set[str] = set()

    def opened(self, source: str, column: str, structure: str | None) -> str:
        """A SELECT of a source with `value`, made of the bytes in a column. `structure` is what `json_group_structure`
        has found."""
        self._fields_left = self._limits.fields_max
        shape = self._pruned(json.loads(structure)) if structure else None
        if not isinstance(shape, dict) or not shape:
            return f"SELECT *, headrace_json({column}) AS value FROM {source}"
        transformed = _literal(json.dumps(_transformed(shape)))
        # In two steps, and without a subquery: filters reach the source through both.
        return (
            f"SELECT * EXCLUDE ({_STEP}), CASE WHEN {_STEP} IS NOT NULL THEN {_typed(_STEP, shape)} END AS value "
            f"FROM (SELECT *, json_transform(headrace_json({column}), {transformed}) AS {_STEP} FROM {source})"
        )

    def _pruned(self, shape: Any) -> Any:
        """With the names that columns can have, which differ in more than case, and not too many."""
        if isinstance(shape, list):
            return [self._pruned(each) for each in shape]
        if not isinstance(shape, dict):
            return shape
        kept: dict[str, str] = {}
        for name in shape:
            if not name or "\0" in name or name.lower() in kept:
                continue
            if not self._fields_left:
                self.limits_met.add("value_fields")
                break
            kept[name.lower()] = name
            self._fields_left -= 1
        return {name: self._pruned(shape[name]) for name in kept.values()}

    def sampled(self, payloads: Iterable[bytes]) -> list[bytes]:
        """Those whose types DuckDB finds, in bounded time: at a deep one it would give up on all."""
        return [payload for payload in payloads if self._is_simple(payload)]

    def _is_simple(self, payload: bytes) -> bool:
        try:
            inner = [msgspec.json.decode(payload)]
        except RecursionError:
            self.limits_met.add("value_depth")
            return False
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False
        fields = 0
        for _ in range(self._limits.depth_max + 1):
            level = [value for value in inner if isinstance(value, (dict, list))]
            if not level:
                return True
            fields += sum(len(each) for each in level if isinstance(each, dict))
            if fields > self._limits.fields_max:
                self.limits_met.add("value_fields")
                return False
            inner = [value for each in level for value in (each.values() if isinstance(each, dict) else each)]
        self.limits_met.add("value_depth")
        return False


def opened_as(source: str, column: str, schema: str) -> str:
    """The same with the fields that the user has named."""
    fields = []
    at = 0
    while True:
        field = _FIELD.match(schema, at)
        if field is None or (field.end() < len(schema) and schema[field.end()] != ","):
            raise BadSql(f"cannot read schema => '{schema}': write it as 'fruit STRING, count INT'")
        fields.append(f"{field[1]} {field[2]}")
        if field.end() == len(schema):
            value = f"TRY_CAST(headrace_json({column}) AS STRUCT({', '.join(fields)}))"
            return f"SELECT *, {value} AS value FROM {source}"
        at = field.end() + 1


def _transformed(shape: Any) -> Any:
    """What `json_transform` shall make of a shape: whole numbers stay JSON, to be looked at."""
    if isinstance(shape, dict):
        return {name: _transformed(each) for name, each in shape.items()} or "JSON"
    if isinstance(shape, list):
        return [_transformed(each) for each in shape]
    return "JSON" if shape in (*_WHOLE, "NULL") else shape


def _typed(value: str, shape: Any) -> str:
    if isinstance(shape, dict) and shape:
        fields = [f"{_quoted(name)} := {_typed(f'{value}.{_quoted(name)}', each)}" for name, each in shape.items()]
        return f"struct_pack({', '.join(fields)})"
    if isinstance(shape, list) and shape:
        return f"list_transform({value}, lambda e: {_typed('e', shape[0])})"
    return f"{INTEGER}({value})" if shape in _WHOLE else value


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
