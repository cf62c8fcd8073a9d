"""Results of a query in real time that go to several streams or partitions, in one exactly-once step.

A task sends the rows of the records of one source partition up to, not including, index b. One transaction appends them
to all their destinations and moves the end of the results from a to b. The end is a producer of `spark/sinks`, named as
every other (`result_ends.py`): a run that was replaced finds none of that name, and is `Fenced`.

Rows come as in a staged file: an Arrow IPC stream whose batches say where they go.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import msgspec
import pyarrow as pa

from headrace.errors import BadRequest
from headrace.log.batch import Batch
from headrace.log.ops import Append, Op, SetProducer
from headrace.protocols.flight.codec import PutColumns
from headrace.spark.hub.batch_files import Group, groups_of
from headrace.spark.hub.result_ends import producer_name
from headrace.spark.hub.sink_state import SINKS, Name, Number, SinkState, check_rights, check_run

PARSED_INLINE_BYTES = 64 << 10


class AppendRows(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows for several places, and whose results they are: those of a source partition from `after` up to `sequence`.
    Without a source they may come again. Without rows it only asks where the results end."""

    query: Name
    run: Name
    rows: bytes
    source: Name | None = None
    partition: Number = 0
    sequence: Number | None = None
    after: Number | None = None
    partitions: Annotated[int, msgspec.Meta(ge=1)] = 1


class ResultsEnd(msgspec.Struct, frozen=True):
    """Where the results of a source partition end now; None where that is not counted, or the run was replaced."""

    sequence: int | None


class LiveAppends:
    """The appends of tasks in real time."""

    def __init__(self, hub: Any, state: Callable[[str], Awaitable[SinkState]]) -> None:
        """`state` is what is known of a query that the caller may write as."""
        self._hub = hub
        self._state = state

    def register(self) -> None:
        """Offer the verb."""
        # Which streams rows go to is known only when they are read: the right on each is checked then.
        add = self._hub.verbs.register
        add("spark.append", AppendRows, self.append, right="write", filters=True, summary="Append rows in real time")

    async def append(self, request: AppendRows) -> ResultsEnd:
        """Append to all places at once, or to none."""
        check_run(await self._state(request.query), request.query, request.run)
        producer = producer_name(request.query, request.run, request.source or "", request.partition)
        if request.rows:
            groups = await self._read(request.rows)
            check_rights({stream for stream, _, _ in groups}, set())
            await self._make_streams(groups, request.partitions)
            end: list[Op] = []
            if request.source is not None:
                if request.sequence is None or request.after is None:
                    raise BadRequest("spark.append: rows of a source need both 'sequence' and 'after'")
                end = [SetProducer(SINKS, producer, request.sequence, after=request.after)]
            appends = [Append(stream, Batch.from_arrow(rows), partition) for stream, partition, rows in groups]
            await self._hub.transact([*end, *appends])
        return ResultsEnd(None if request.source is None else self._hub.producer(SINKS, producer))

    async def _read(self, rows: bytes) -> list[Group]:
        if len(rows) <= PARSED_INLINE_BYTES:
            return read_rows(rows, self._hub.config.log.batch_bytes_max)
        return await asyncio.to_thread(read_rows, rows, self._hub.config.log.batch_bytes_max)

    async def _make_streams(self, groups: list[Group], partitions: int) -> None:
        for stream, partition, _ in groups:
            info = await self._hub.create_stream(stream, partitions=partitions)
            if not 0 <= partition < info.partitions:
                raise BadRequest(f"spark.append: stream {stream!r} has no partition {partition}; start the query again")


def read_rows(rows: bytes, bytes_max: int) -> list[Group]:
    """The rows of a request with where they go; what cannot be records is refused."""
    try:
        with pa.ipc.open_stream(pa.py_buffer(rows)) as reader:
            columns = PutColumns(reader.schema, bytes_max)
            groups = [(stream, partition, columns.apply(batch)) for stream, partition, batch in groups_of(reader)]
    except (pa.ArrowException, KeyError, ValueError, OSError) as error:
        raise BadRequest(f"spark.append: 'rows' is not an Arrow stream of records: {error}") from None
    return groups
