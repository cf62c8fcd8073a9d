"""The SQL of one connection: what is asked, who may ask it, and what is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadSql, Cancelled, HeadraceError
from headrace.protocols.perper.catalogue import Entry
from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.sql import definitions, kinds
from headrace.protocols.perper.sql.changes import Changes, Target, check_visible
from headrace.protocols.perper.sql.names import table_exists
from headrace.protocols.perper.sql.results import Answer, Done, Result, closed
from headrace.protocols.perper.sql.scope import CacheScope, Uses
from headrace.protocols.perper.sql.table import KEY, PUBLIC, VALUE, schema_of
from headrace.protocols.perper.sql.text import (
    AnyStatement,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Path,
    Question,
    Select,
    Update,
    Writer,
    failed_to_parse,
    parse,
    quoted,
    tokens,
)
from headrace.protocols.perper.tables import TableCache

if TYPE_CHECKING:
    from headrace.protocols.perper.state import Fabric
    from headrace.security import Principal
    from headrace.sql.engine import Engine

SELECT_ONLY: Final = 1
UPDATE_ONLY: Final = 2

Check = Callable[[Any, str], None]


class Statements:
    """What one client asks in SQL."""

    def __init__(self, fabric: Fabric, principal: Principal, check: Check, uses: Uses) -> None:
        """`check` raises unless the client has a right; `uses` is told what is read and written."""
        self._fabric = fabric
        self._principal = principal
        self._check = check
        self._uses = uses
        self._open: dict[Answer, None] = {}
        self._is_closed = False

    @property
    def _engine(self) -> Engine:
        from headrace.sql.engine import Engine  # with all that it imports: most hubs are never asked

        return Engine.of(self._fabric.hub)

    async def fields(self, asked: dict[str, Any], cache: Entry | None) -> Result:
        """Any statement."""
        schema = self._schema(asked["schema"], cache)
        text: str = asked["sql"] or ""
        statement = parse(text)
        is_question = isinstance(statement, Select)
        if asked["statement_type"] == (UPDATE_ONLY if is_question else SELECT_ONLY):
            raise Refused("Given statement type does not match that declared by JDBC driver")
        timeout_s = max(asked["timeout_ms"], 0) / 1000
        if isinstance(statement, Select):
            writer = Writer(text, [kinds.parameter(each) for each in asked["args"]])
            question = writer.question(writer.piece(statement.words))
            return await self._ask(question, schema, timeout_s, max(asked["max_rows"], 0) or None)
        if isinstance(statement, CreateTable):
            return await self._create(statement, schema)
        if isinstance(statement, DropTable):
            return await self._drop(statement, schema)
        return await self._change(statement, schema, text, asked["args"], timeout_s)

    async def entries(self, asked: dict[str, Any], cache: Entry) -> Answer:
        """Keys and values of a table of a cache: of the type that is named, those that a condition is about."""
        schema = schema_of(cache.name, cache.configuration)
        text: str = asked["sql"] or ""
        given = asked["table"] or ""
        names = self._fabric.catalogue.tables
        simple = given.rpartition(".")[2].upper()
        table = next(
            (table for table in names.of_cache(cache.name) if given in (table.value_type, table.name)), None
        ) or names.find((simple,), schema)
        if table is None or table.cache != cache.name:
            raise failed_to_parse(f"Failed to find SQL table for type: {given}")
        writer = Writer(text, [kinds.parameter(each) for each in asked["args"]])
        rest, of = self._condition(text, writer)
        source = rest if of else f"FROM {quoted(table.schema, table.name)} {rest}"
        name = of or quoted(table.name)
        question = writer.question(f"SELECT {name}.{KEY}, {name}.{VALUE} {source}")
        return await self._ask(question, schema, max(asked["timeout_ms"], 0) / 1000, None)

    @staticmethod
    def _condition(text: str, writer: Writer) -> tuple[str, str]:
        """What stands behind the columns in a query for entries, and the alias that it uses for its table, if it says
        FROM itself. It may be a whole `SELECT *`, what follows that, or only a condition."""
        words = tokens(text)
        of = ""
        if words and words[0].word == "SELECT":
            star = next((at for at, word in enumerate(words) if word.text == "*"), 0)
            if star not in (1, 3):
                raise failed_to_parse(
                    "Only queries starting with 'SELECT *' and 'SELECT alias.*' are supported "
                    "(rewrite your query or use SqlFieldsQuery instead)"
                )
            of = quoted(words[1].word) if star == 3 else ""
            words = words[star + 1 :]
        if words and words[0].word == "FROM":
            table = [word.word for word in words[1:4]]
            return writer.piece(words), of or quoted(table[2] if table[1:2] == ["."] else table[0])
        is_clause = not words or words[0].word in ("WHERE", "ORDER", "LIMIT")
        return ("" if is_clause else "WHERE ") + writer.piece(words), ""

    def _schema(self, given: str | None, cache: Entry | None) -> str:
        if given:
            return self._fabric.catalogue.tables.schema(given)
        return PUBLIC if cache is None else schema_of(cache.name, cache.configuration)

    # questions

    async def _ask(self, question: Question, schema: str, timeout_s: float, rows_max: int | None) -> Answer:
        scope = CacheScope(self._fabric, self._principal, self._uses, schema)
        timer = answer = None
        try:
            query = await self._engine.begin_in_turn(
                question.text, self._principal, parameters=question.parameters, rows_max=rows_max, scope=scope
            )
            answer = Answer(self._engine, query)
            self._open[answer] = None
            if timeout_s:
                late = Cancelled("The query was cancelled while executing due to timeout.")
                timer = asyncio.get_running_loop().call_later(timeout_s, query.cancel, late)
            await answer.open()
        except HeadraceError as error:
            if answer is not None:
                self._open.pop(answer, None)
            raise _in_own_words(error) from None
        finally:
            if timer is not None:
                timer.cancel()
        if self._is_closed:
            self.ended(answer)
            raise Refused("the client is gone")
        answer.owners = scope.owners
        return answer

    def ended(self, cursor: Result) -> None:
        """Nobody will ask for more of it."""
        if isinstance(cursor, Answer):
            self._open.pop(cursor, None)
        self._fabric.run(closed([cursor]))

    def close(self) -> None:
        """The client is gone."""
        self._is_closed = True
        if self._open:
            self._fabric.run(closed([*self._open]))
        self._open.clear()

    # changes

    async def _change(
        self, statement: Insert | Update | Delete, schema: str, text: str, arguments: list[bytes], timeout_s: float
    ) -> Done:
        target = await self._target(statement, schema)

        async def ask(question: Question) -> list[tuple[bytes, ...]]:
            answer = await self._ask(question, schema, timeout_s, None)
            try:
                return await answer.all(self._fabric.hub.config.log.batch_bytes_max)
            except HeadraceError as error:
                raise _in_own_words(error) from None
            finally:
                self.ended(answer)

        changes = Changes(self._fabric, text, arguments, ask)
        if isinstance(statement, Insert):
            return Done(await changes.insert(statement, target))
        if isinstance(statement, Update):
            return Done(await changes.update(statement, target))
        return Done(await changes.delete(statement, target))

    async def _target(self, statement: AnyStatement, schema: str) -> Target:
        catalogue = self._fabric.catalogue
        assert isinstance(statement, (Insert, Update, Delete))
        table = catalogue.tables.table(statement.table, schema)
        entry = self._entry(table.cache, statement.table)
        self._check("write", entry.owner)
        self._uses("write", entry.owner)
        if not entry.ready:
            await catalogue.prepare(entry, stream=entry.cache is not None)
        if not isinstance(entry.cache, TableCache):
            raise Refused(f"cache {entry.name!r} is a stream: SQL can read it, and not change it")
        return Target(table, entry.cache, entry.configuration.expiry)

    def _entry(self, cache: str, path: Path) -> Entry:
        entry = self._fabric.catalogue.find_name(cache)
        if entry is None:
            raise failed_to_parse(f'Table "{path[-1]}" not found')
        return entry

    # tables

    async def _create(self, statement: CreateTable, schema: str) -> Done:
        schema = statement.table[0] if len(statement.table) > 1 else schema
        check_visible(statement.table, [column.name for column in statement.columns])
        configuration = definitions.configuration_of(statement, schema)
        name = configuration.name or ""
        self._check("write", name)
        if self._fabric.catalogue.tables.find(statement.table, schema) is not None:
            if statement.if_not_exists:
                return Done()
            raise table_exists(statement.table[-1])
        await self._fabric.catalogue.create(name, configuration, by_name=True, must_be_new=True)
        return Done()

    async def _drop(self, statement: DropTable, schema: str) -> Done:
        table = self._fabric.catalogue.tables.find(statement.table, schema)
        if table is None:
            if statement.if_exists:
                return Done()
            raise Refused(f"Table doesn't exist: {statement.table[-1]}")
        entry = self._entry(table.cache, statement.table)
        self._check("admin", entry.name)
        await self._fabric.catalogue.destroy(entry)
        return Done()


def _in_own_words(error: HeadraceError) -> Exception:
    """What the engine says, as Ignite would."""
    if isinstance(error, BadSql):
        return failed_to_parse(str(error))
    if isinstance(error, Cancelled):
        return Refused(str(error))
    return error
