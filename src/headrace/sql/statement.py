"""What a statement is allowed to be: one `SELECT` (or `DESCRIBE`, `SUMMARIZE`) over streams and tables of the hub.

DuckDB itself parses it, and what it understood is looked at before anything is run: what is not known to be harmless is
refused. The process has no rights that could be used (`worker.py`); this makes the refusals clear.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from headrace.errors import BadSql
from headrace.sql.calls import StreamCall, in_double_quotes, replaced
from headrace.sql.wire import Dialect, Wanted

SOURCES = {"BASE_TABLE", "SUBQUERY", "JOIN", "TABLE_FUNCTION", "EXPRESSION_LIST", "EMPTY", "PIVOT", "SHOW_REF", "CTE"}
"""What may stand after FROM."""
QUERIES = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE"}
"""What may be a query, or part of one: to DuckDB the body of a WITH may also be an INSERT, UPDATE, DELETE or COPY."""
TABLE_FUNCTIONS = {"unnest", "range", "generate_series", "json_each", "json_tree", "repeat", "repeat_row"}
HIDDEN_FUNCTIONS = {
    *("current_setting", "getenv", "getvariable", "nextval", "currval", "pg_sleep", "sleep_ms", "sleep"),
    *("json_serialize_plan", "write_log"),
}
"""They tell of the process, or change it, or look at another statement; all others only compute."""
TEXT_TYPES = {"string", "varchar", "text", "char", "bpchar"}
BYTES_COLUMNS = {"payload", "key"}
OPENED = "value"
"""The column that holds what JSON in a payload says."""
UTF8 = "headrace_utf8"
NO_CHANGES = "a query is a single SELECT; it cannot change or set anything"
_OWN = Dialect()


class Statement:
    """A statement that may be run, once its sources are there under their names in `sources`."""

    def __init__(self, text: str, connection: duckdb.DuckDBPyConnection, dialect: Dialect = _OWN) -> None:
        self._dialect = dialect
        self.sources: dict[str, Wanted] = {}
        """Name in the statement → what it stands for."""
        self.opens = False
        """Whether it uses `value`."""
        self.hides = True
        """Whether no hidden column is named in it."""
        if not dialect.is_plain:
            self._written_by_user = text
            text = replaced(in_double_quotes(text), self._call, for_duckdb=True)
        (tree,) = self._parsed(text, connection)
        scoped = list(_nodes(tree))
        nodes = [node for node, _ in scoped]
        for node in nodes:
            self._look(node)
        for node, names in scoped:
            if node.get("type") == "BASE_TABLE":
                self._source(node, names)
        is_changed = [self._change(node) for node in nodes] if not dialect.is_plain else [self._adapt(nodes)]
        self.text = self._written({"error": False, "statements": [tree]}, connection) if any(is_changed) else text

    def _call(self, call: StreamCall) -> str:
        name = f"stream {len(self.sources) + 1}"
        while name in self._written_by_user.lower():  # a stream may have this name
            name += " "
        self.sources[name] = Wanted(call.names, call.options)
        return f'"{name}"'

    @staticmethod
    def _parsed(text: str, connection: duckdb.DuckDBPyConnection) -> list[Any]:
        try:
            parsed = json.loads(only_value(connection, "SELECT json_serialize_sql($1)", text))
        except RecursionError:
            raise BadSql("the statement is nested too deeply") from None
        if parsed["error"]:
            reason = parsed["error_message"]
            if parsed["error_type"] == "not implemented" and "SELECT" in reason:
                reason = NO_CHANGES
            raise BadSql(reason)
        statements: list[Any] = parsed["statements"]
        if len(statements) != 1:
            raise BadSql(f"a query is a single statement, and this has {len(statements)}")
        return statements

    @staticmethod
    def _written(tree: Any, connection: duckdb.DuckDBPyConnection) -> str:
        return str(only_value(connection, "SELECT json_deserialize_sql($1)", json.dumps(tree)))

    def _look(self, node: dict[str, Any]) -> None:
        kind = node.get("type")
        if "cte_map" in node and kind not in QUERIES:
            raise BadSql(NO_CHANGES)
        if node.get("class") == "FUNCTION" and node["function_name"].lower() in HIDDEN_FUNCTIONS:
            raise BadSql(f"queries may not call {node['function_name']}()")
        if node.get("class") == "COLUMN_REF":
            names = [name.lower() for name in node["column_names"]]
            self.opens = self.opens or OPENED in names[:2]
            self.hides = self.hides and names[-1] not in self._dialect.hidden
        if kind == "TABLE_FUNCTION":
            name = node["function"]["function_name"]
            if name.lower() not in TABLE_FUNCTIONS:
                raise BadSql(f"queries may not read from {name}(); they read streams and tables of the hub by name")
        if kind == "SHOW_REF" and not node.get("query"):
            raise BadSql(
                "queries cannot read the catalog; the verbs stream.list and table.list list streams and tables"
            )
        if "query_location" in node and "alias" in node and "class" not in node and kind not in SOURCES:
            raise BadSql(f"queries may not read from {str(kind).lower()}")

    def _change(self, node: dict[str, Any]) -> bool:
        """Write what DuckDB has another word for as it knows it."""
        if _is_text_of_bytes(node):
            node["child"] = _call_of(UTF8, node["child"])
            return True
        if node.get("class") == "STAR" and node.get("relation_name", "").lower() == OPENED not in self.sources:
            column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": [OPENED]}
            node.clear()
            node.update(_call_of("unnest", column | _NOWHERE))
            self.opens = True
            return True
        for item in node.get("select_list", ()):
            if _is_text_of_bytes(item) and not item["alias"]:  # or the column would have the name of our function
                item["alias"] = f"CAST({'.'.join(item['child']['column_names'])} AS {item['type_expr']['type_name']})"
        return False

    def _adapt(self, nodes: list[dict[str, Any]]) -> bool:
        """Write a plain statement so that DuckDB, which knows its sources by one name each, understands it."""
        hidden = [] if self.hides else [node for node in nodes if node.get("class") == "STAR" and not node["columns"]]
        qualified = [node for node in nodes if node.get("type") == "BASE_TABLE" and len(_path(node)) > 1]
        for node in hidden:
            node.update(_without(self._dialect.hidden, node["relation_name"]))
        for node in qualified:
            path = _path(node)
            node["alias"] = node["alias"] or path[-1]
            node.update(schema_name="", table_name=".".join(path), qualified_name={"path": [".".join(path)]})
        for node in nodes:
            if node.get("class") == "COLUMN_REF" and ".".join(node["column_names"][:2]) in self.sources:
                node["column_names"] = node["column_names"][1:]
        return bool(hidden or qualified)

    def _source(self, node: dict[str, Any], names: frozenset[str]) -> None:
        """`names` are those that a WITH around it has given."""
        path = _path(node)
        name = path[-1]
        if node.get("at_clause"):
            raise BadSql("AT is for table formats; the history of a stream is in its indexes and times")
        if len(path) > 1 and not self._dialect.is_plain:
            quoted = '"' + ".".join(path) + '"'
            raise BadSql(f"there are no schemas; a name with a dot goes in quotes: {quoted}")
        if len(path) == 1 and name.lower() in names:
            return
        whole = ".".join(path)
        same = next((known for known in self.sources if known.lower() == whole.lower()), None)
        if same is None:
            self.sources[whole] = Wanted(path)
        elif self._dialect.is_plain and self.sources[same].names != path:
            raise BadSql(f"{same!r} and {whole!r} differ only in case or dots; read one of them in a query")
        elif same != whole:
            raise BadSql(f"{same!r} and {name!r} differ only in case; write them as stream('{name}')")


def only_value(connection: duckdb.DuckDBPyConnection, text: str, parameter: Any) -> Any:
    """Of a statement with one row and one column."""
    ((value,),) = connection.execute(text, [parameter]).fetchall()
    return value


def _nodes(tree: Any) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every object of the tree, with the names that a WITH has given there. Where it has not, the same name means a
    stream or table, or would mean something of DuckDB's own."""
    waiting: list[tuple[Any, frozenset[str]]] = [(tree, frozenset())]
    while waiting:
        node, names = waiting.pop()
        if isinstance(node, dict):
            yield node, names
            for entry in node.get("cte_map", {}).get("map", ()):
                waiting.append((entry["value"], names))
                names |= {entry["key"].lower()}
            if node.get("type") == "RECURSIVE_CTE_NODE":
                names |= {node["cte_name"].lower()}
            inner = [each for name, each in node.items() if name != "cte_map"]
        else:
            inner = node
        waiting += [(each, names) for each in inner if isinstance(each, (dict, list))]


_NOWHERE = {"query_location": 0, "query_location_length": 0}


def _path(node: dict[str, Any]) -> list[str]:
    path: list[str] = node["qualified_name"]["path"]
    return path


def _without(hidden: Sequence[str], relation: str) -> dict[str, Any]:
    """What makes a `*` mean all columns but these. Other than EXCLUDE it does not insist that they are there."""
    star = {"class": "STAR", "type": "STAR", "alias": "", **_NOWHERE, "relation_name": relation, "columns": False}
    lists: dict[str, Any] = {
        name: [] for name in ("exclude_list", "replace_list", "qualified_exclude_list", "rename_list")
    }
    column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", **_NOWHERE, "column_names": ["c"]}
    names = [
        {
            "class": "CONSTANT",
            "type": "VALUE_CONSTANT",
            "alias": "",
            **_NOWHERE,
            "literal": {"kind": "STRING", "text": n},
        }
        for n in hidden
    ]
    operator = {"class": "OPERATOR", "alias": "", **_NOWHERE}
    lowered = _call_of("lower", column)
    is_among = {**operator, "type": "COMPARE_IN", "children": [lowered, *names]}
    rule = {
        **{"class": "LAMBDA", "type": "LAMBDA", "alias": "", **_NOWHERE, "lhs": column},
        **{"expr": {**operator, "type": "OPERATOR_NOT", "children": [is_among]}, "syntax_type": "LAMBDA_KEYWORD"},
    }
    chosen = _call_of("list_filter", {**star, **lists, "expr": None})
    chosen["arguments"].append({"name": "", "expression": rule})
    return {"columns": True, "expr": chosen, "relation_name": ""}


def _is_text_of_bytes(node: dict[str, Any]) -> bool:
    """A cast of bytes to text: elsewhere, as in Spark, it means their UTF-8; DuckDB would write what is not ASCII as
    escapes."""
    return (
        node.get("class") == "CAST"
        and node["child"].get("class") == "COLUMN_REF"
        and node["child"]["column_names"][-1].lower() in BYTES_COLUMNS
        and node.get("type_expr", {}).get("type_name", "").lower() in TEXT_TYPES
    )


def _call_of(function: str, argument: dict[str, Any]) -> dict[str, Any]:
    return {
        "class": "FUNCTION",
        "type": "FUNCTION",
        "alias": "",
        **_NOWHERE,
        "function_name": function,
        "schema": "",
        "catalog": "",
        "filter": None,
        "order_bys": {"type": "ORDER_MODIFIER", "orders": []},
        "distinct": False,
        "is_operator": False,
        "export_state": False,
        "arguments": [{"name": "", "expression": argument}],
        "qualified_name": {"path": [function]},
    }
