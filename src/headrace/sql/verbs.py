"""The verbs of SQL: run a query and get its rows as JSON, see what is under way, cancel it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.admin.requests import Asked, check_between
from headrace.errors import BadRequest
from headrace.hub.verbs import Nothing
from headrace.serving.listener import Listener
from headrace.sql.engine import Engine, Query, QueryInfo

if TYPE_CHECKING:
    from headrace.hub import Hub

ROWS_DEFAULT = 1_000
ROWS_MAX = 100_000


class SqlQuery(Asked, frozen=True):
    """One SELECT over streams and tables by their names, or `stream('orders', start => '…')`. `parameters` are for its
    `?` or `$1`. At most `limit` rows come back. `id` is for `sql.cancel`, chosen by the caller."""

    sql: str
    parameters: tuple[Any, ...] = ()
    limit: int = ROWS_DEFAULT
    id: str | None = None


class SqlColumn(msgspec.Struct, frozen=True):
    """A column of a result. `type` is SQL's."""

    name: str
    type: str


class SqlAnswer(msgspec.Struct, frozen=True):
    """Rows as arrays, in the order of the columns. Bytes are `{"text": …}` where they are UTF-8 and `{"base64": …}`
    elsewhere, times are ISO 8601, decimals with a fraction are strings. With `truncated` there were more rows than
    `limit`, or than fit into an answer."""

    id: str
    columns: list[SqlColumn]
    rows: list[list[Any]]
    truncated: bool
    elapsed_us: int
    scanned_records: int
    scanned_bytes: int


class SqlColumns(Asked, frozen=True):
    """A statement, of which only the columns are wanted: `FROM orders`, or `SELECT value.* FROM orders`."""

    sql: str
    parameters: tuple[Any, ...] = ()


class SqlCancel(Asked, frozen=True):
    """Names a query that is under way."""

    id: str


class SqlCancelled(msgspec.Struct, frozen=True):
    """Whether there was such a query."""

    cancelled: bool


class _RawAnswer(msgspec.Struct, frozen=True):
    """`SqlAnswer` with rows that are JSON already."""

    id: str
    columns: list[SqlColumn]
    rows: msgspec.Raw
    truncated: bool
    elapsed_us: int
    scanned_records: int
    scanned_bytes: int


class SqlVerbs:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._engine = Engine.of(hub)
        self._verbs = hub.verbs

    def register(self) -> None:
        """Add the verbs to the hub."""
        add = functools.partial(self._verbs.register, right="read", filters=True)
        add("sql.query", SqlQuery, self.query, summary="Run a SQL query", response=SqlAnswer)
        columns = list[SqlColumn]
        add("sql.columns", SqlColumns, self.columns, summary="The columns of a SQL query", response=columns)
        add("sql.list", Nothing, self.under_way, summary="One's queries under way; an admin sees all")
        add("sql.cancel", SqlCancel, self.cancel, summary="End one of one's queries; an admin ends any")

    async def query(self, asked: SqlQuery) -> Any:
        """Run it; the rows as JSON."""
        check_between("limit", asked.limit, 1, ROWS_MAX)
        most = self._engine.settings.answer_bytes_max
        query = self._engine.begin(
            asked.sql,
            _caller(),
            parameters=_checked(asked.parameters),
            form="json",
            rows_max=asked.limit,
            bytes_max=most,
            id=asked.id,
        )
        return await self._engine.run(query, _answer)

    async def columns(self, asked: SqlColumns) -> Any:
        """What it would give."""
        query = self._engine.begin(asked.sql, _caller(), parameters=_checked(asked.parameters), form="columns")
        return (await self._engine.run(query, _answer)).columns

    async def under_way(self, asked: Nothing) -> list[QueryInfo]:
        """The oldest first."""
        return [query.info() for query in self._engine.queries() if _may_end(query)]

    async def cancel(self, asked: SqlCancel) -> SqlCancelled:
        """End it."""
        found = [query for query in self._engine.queries() if query.id == asked.id and _may_end(query)]
        for query in found:
            query.cancel()
        return SqlCancelled(bool(found))


def _answer(query: Query) -> _RawAnswer:
    columns, _ = query.columns()
    parts = [bytes(body) for _, body in query.rows()]
    return _RawAnswer(
        query.id,
        [SqlColumn(name, kind) for name, kind in zip(columns.names, columns.types, strict=True)],
        msgspec.Raw(b"[" + b",".join(parts) + b"]"),
        not query.is_whole,
        int(query.elapsed_s * 1e6),
        query.scanned_records,
        query.scanned_bytes,
    )


def _checked(parameters: tuple[Any, ...]) -> tuple[Any, ...]:
    for number, each in enumerate(parameters, 1):
        if isinstance(each, (dict, list)):
            raise BadRequest(f"parameter {number} is not a string, a number, true, false or null")
    return parameters


def _caller() -> Any:
    from headrace.security import current

    return current()


def _may_end(query: Query) -> bool:
    caller = _caller()
    return bool(query.user == caller.name or caller.may("admin"))


async def start(hub: Hub) -> Listener:
    """Register the verbs; the server calls this while it starts. No process is started before the first query."""
    SqlVerbs(hub).register()
    return Listener("", Engine.of(hub).close)
