"""The process that runs queries: `python -m headrace.sql.worker DESCRIPTOR MEMORY_BYTES THREADS`.

It can harm nobody: it has one socket, to the hub, and no other file; a limit on memory from the kernel; an empty
environment. DuckDB in it has no files, no network, no extensions, no settings that could be changed, and sees of Python
nothing. Each query has a database of its own that is gone afterwards. A query that is cancelled, or takes too long,
ends with the process; the hub starts another.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from typing import Any

from headrace.imports import without_pandas

with without_pandas():
    import duckdb
    import pyarrow as pa

    from headrace.errors import BadSql
    from headrace.sql import wire
    from headrace.sql.json_rows import json_rows
    from headrace.sql.opening import MACROS, Opening, opened_as
    from headrace.sql.relations import Hub, Source
    from headrace.sql.statement import Statement, only_value

BATCH_ROWS = 32_768
SAMPLE_ROWS = 1_000
"""From the beginning, and as many from the end of each partition."""
SAMPLED_PLACES_MAX = 4
NICENESS = 10
SLACK_BYTES = 256 << 20
"""What Python and Arrow may use besides DuckDB."""
SETTINGS: dict[str, Any] = {
    "temp_directory": "",
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "allow_community_extensions": False,
    "python_enable_replacements": False,
}


def connect(memory_bytes: int, threads: int) -> duckdb.DuckDBPyConnection:
    """A database that nothing can be reached from."""
    connection = duckdb.connect(
        ":memory:", config=SETTINGS | {"memory_limit": f"{memory_bytes // 1024}KiB", "threads": threads}
    )
    for macro in MACROS:
        connection.execute(macro)
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


class Run:
    """One query."""

    def __init__(self, hub: Hub, asked: wire.Ask, connection: duckdb.DuckDBPyConnection) -> None:
        self._hub = hub
        self._asked = asked
        self._connection = connection
        self._opening = Opening(asked.value)

    def run(self) -> None:
        statement = Statement(self._asked.text, self._connection, self._asked.dialect)
        self._attach(statement)
        relation = self._connection.sql(statement.text, params=self._asked.parameters or None)
        if relation is None:
            raise BadSql("the statement has no result")
        schema = relation.limit(0).to_arrow_table().schema
        types = [str(each) for each in relation.types]
        self._hub.send(wire.Columns(relation.columns, types), schema.serialize())
        is_whole = self._asked.form == "columns" or self._send(relation)
        self._hub.send(wire.Finished(is_whole, sorted(self._opening.limits_met)))

    def _send(self, relation: duckdb.DuckDBPyRelation) -> bool:
        """Whether all rows were wanted."""
        rows_left, bytes_left = self._asked.rows_max, self._asked.bytes_max
        for batch in relation.to_arrow_reader(BATCH_ROWS):
            if not batch.num_rows:
                continue
            is_last = rows_left is not None and batch.num_rows > rows_left
            batch = batch.slice(0, rows_left) if is_last else batch
            body = self._encoded(batch)
            while bytes_left is not None and len(body) > bytes_left and batch.num_rows:
                is_last, batch = True, batch.slice(0, batch.num_rows // 2)
                body = self._encoded(batch)
            if batch.num_rows:
                self._hub.send(wire.Rows(batch.num_rows), body)
            if is_last:
                return False
            rows_left = None if rows_left is None else rows_left - batch.num_rows
            bytes_left = None if bytes_left is None else bytes_left - len(body)
        return True

    def _encoded(self, batch: pa.RecordBatch) -> Any:
        return batch.serialize() if self._asked.form == "arrow" else json_rows(batch)

    def _attach(self, statement: Statement) -> None:
        """Give the statement its sources, under the names it has for them."""
        if not statement.sources:
            return
        answer, body = self._hub.ask(wire.Resolve(list(statement.sources.values())), wire.Relations)
        at = 0
        for (name, wanted), relation in zip(statement.sources.items(), answer.relations, strict=True):
            if relation is None:
                raise BadSql(f"there is no stream or table {' or '.join(map(repr, wanted.names))}")
            size = relation.schema_bytes
            schema = pa.ipc.read_schema(pa.py_buffer(body[at : at + size]))
            at += size
            source = Source(self._hub, relation, schema)
            raw = f"source {relation.number}"
            while raw in (each.lower() for each in statement.sources):  # a stream may have this name
                raw += " "
            self._connection.register(raw, source)
            select = self._select(f'"{raw}"', source, relation, statement, wanted.options.get("schema"))
            quoted = name.replace('"', '""')
            self._connection.execute(f'CREATE TEMP VIEW "{quoted}" AS {select}')

    def _select(
        self, raw: str, source: Source, relation: wire.Relation, statement: Statement, schema: str | None
    ) -> str:
        """What the statement sees of the source that DuckDB knows as `raw`."""
        if statement.hides and self._asked.dialect.hidden:
            hidden = ", ".join(self._asked.dialect.hidden)
            return f"SELECT * EXCLUDE ({hidden}) FROM {raw}"
        if not statement.opens or relation.opened is None:
            return f"SELECT * FROM {raw}"
        if schema is not None:
            return opened_as(raw, relation.opened, schema)
        text = "SELECT json_group_structure(headrace_json(bytes)) FROM (SELECT unnest($1::BLOB[]) AS bytes)"
        sample = self._opening.sampled(self._sample(source, relation))
        return self._opening.opened(raw, relation.opened, only_value(self._connection, text, sample))

    @staticmethod
    def _sample(source: Source, relation: wire.Relation) -> list[bytes]:
        """Some payloads from the beginning and the end of what there is."""
        column = relation.opened or ""
        schema = pa.schema([source.schema.field(column)])
        taken: list[bytes] = []
        places = list(enumerate(relation.places[:SAMPLED_PLACES_MAX]))
        begin = [wire.Bounds(index_max=place[2] + SAMPLE_ROWS - 1, places=[number]) for number, place in places]
        end = [wire.Bounds(index_min=place[3] - SAMPLE_ROWS, places=[number]) for number, place in places]
        for bounds in [*begin, *end]:
            for _, body in source.parts([column], bounds):
                batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
                taken += batch.column(0).slice(0, SAMPLE_ROWS).to_pylist()
                break
        return taken


def serve(hub: wire.Wire, memory_bytes: int, threads: int) -> None:
    """Run what is asked, one after the other, until the hub is gone."""
    while True:
        asked, _ = hub.receive()
        connection = connect(memory_bytes, threads)
        try:
            Run(Hub(hub), asked, connection).run()
        except wire.Gone:
            raise
        except (duckdb.OutOfMemoryException, MemoryError, pa.ArrowMemoryError) as error:
            hub.send(wire.Failed("memory", str(error)))
        except (BadSql, duckdb.Error, RecursionError, pa.ArrowException, ValueError, OverflowError) as error:
            hub.send(wire.Failed("sql", _said(error)))
        finally:
            connection.close()


def _said(error: Exception) -> str:
    """What DuckDB said, without the trace of what it said it about twice."""
    return str(error).strip() or type(error).__name__


def confine(memory_bytes: int) -> None:
    """Ask the kernel for what it gives without rights: no core, no files written, no more memory, the last in line."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        used = _data_bytes()
        if used:
            most = used + memory_bytes + SLACK_BYTES
            resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError):
        os.nice(NICENESS)


def _data_bytes() -> int:
    """What the process has for its data now; 0 where the system does not say."""
    with contextlib.suppress(OSError), open("/proc/self/status") as status:
        for line in status:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Until the hub is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # meant for the hub
        signal.signal(number, signal.SIG_IGN)
    descriptor, memory_bytes, threads = map(int, sys.argv[1:])
    connect(memory_bytes, threads).close()  # what is loaded late is loaded now
    confine(memory_bytes)
    with contextlib.suppress(wire.Gone):
        serve(wire.Wire(socket.socket(fileno=descriptor)), memory_bytes, threads)
    os._exit(0)


if __name__ == "__main__":
    main()
