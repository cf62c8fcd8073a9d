"""One `do_get` of a SQL query: its rows as they come."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.flight as flight

from headrace.protocols.flight.bridge import Bridge, translated
from headrace.protocols.flight.codec import SqlTicket
from headrace.sql.engine import Engine, Query

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.security import Principal


class QueryStream:
    """The iterator behind it. Each step runs in a thread of the engine, while this one looks whether the client is
    still there: if not, the query is cancelled."""

    def __init__(
        self, hub: Hub, bridge: Bridge, ticket: SqlTicket, principal: Principal, context: flight.ServerCallContext
    ) -> None:
        self._bridge = bridge
        self._context = context
        self._engine, self._query = bridge.run(_begun(hub, ticket, principal), context)
        try:
            _, self.schema = bridge.run(self._engine.run(self._query, Query.columns), context)
        except BaseException:
            self.close()
            raise
        self._rows = self._query.rows()

    def __iter__(self) -> QueryStream:
        return self

    @translated
    def __next__(self) -> pa.RecordBatch:
        try:
            found = self._bridge.run(self._engine.run(self._query, self._next), self._context)
            if found is None:
                raise StopIteration
            return found
        except BaseException:
            self.close()
            raise

    def _next(self, query: Query) -> pa.RecordBatch | None:
        for _, body in self._rows:
            return pa.ipc.read_record_batch(pa.py_buffer(body), self.schema)
        return None

    def close(self) -> None:
        """Free the query's place."""
        self._query.close()

    def __del__(self) -> None:
        # A client that cancels before the first batch leaves an iterator that nobody ever asks.
        with contextlib.suppress(Exception):
            self.close()


async def _begun(hub: Hub, ticket: SqlTicket, principal: Principal) -> tuple[Engine, Query]:
    """In the loop."""
    engine = Engine.of(hub)
    return engine, engine.begin(
        ticket.sql, principal, parameters=ticket.parameters, rows_max=ticket.limit, id=ticket.id
    )
