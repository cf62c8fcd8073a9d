"""Dead letters: what is in a stream `<name>.dead`, why, and back to where it came from.

A letter that a pipeline wrote (type `dead-letter`) is a JSON object with the reason, the place where the record stood
and all of its columns, bytes in base64. Any other record in such a stream is taken as it is: its type is the reason and
it belongs to `<name>`.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.errors import BadRequest, Forbidden
from headrace.log.batch import Batch
from headrace.log.ops import Append, Op, Trim
from headrace.security import current

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.hub import Hub

SUFFIX = ".dead"
LETTER_TYPE = "dead-letter"
LETTERS_MAX = 500


class LettersRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Letters of a stream that ends in `.dead`, from its oldest on."""

    stream: str
    limit: int = 50


class RedriveRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Send the letters below an index again; they leave the stream of dead letters in the same step."""

    stream: str
    before: int


class Redriven(msgspec.Struct, frozen=True):
    """How many were sent again, and where to."""

    count: int
    streams: list[str]


class Letter(msgspec.Struct, frozen=True):
    """One dead letter: where it lies, why, and the record that it holds."""

    index: int
    time_us: int
    reason: str
    stream: str
    partition: int
    payload: bytes
    type: str | None
    key: bytes | None
    id: int | None
    event_time_us: int | None


class Envelope(msgspec.Struct, frozen=True):
    """A letter as pipelines write it."""

    stream: str
    payload: bytes
    reason: str = ""
    partition: int = 0
    type: str | None = None
    key: bytes | None = None
    id: int | None = None
    event_time: datetime.datetime | None = None


class Letters:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._redriving = asyncio.Lock()

    def register(self) -> None:
        add = self._hub.verbs.register
        add("dead.list", LettersRequest, self.oldest, right="read", summary="Dead letters, with reasons")
        add("dead.redrive", RedriveRequest, self.redrive, right="admin", summary="Send dead letters again")

    async def oldest(self, asked: LettersRequest) -> list[Letter]:
        """The oldest letters."""
        if not 1 <= asked.limit <= LETTERS_MAX:
            raise BadRequest(f"limit is from 1 to {LETTERS_MAX}")
        return await self._read(asked.stream, asked.limit)

    async def redrive(self, asked: RedriveRequest) -> Redriven:
        """All or none, and each once: the records are appended and the letters removed in one durable step, and nobody
        else reads the letters in between."""
        async with self._redriving:
            return await self._redrive(asked)

    async def _redrive(self, asked: RedriveRequest) -> Redriven:
        letters = [one for one in await self._read(asked.stream, LETTERS_MAX) if one.index < asked.before]
        if not letters:
            raise BadRequest(f"stream {asked.stream!r} has no letters below {asked.before}")
        operations: list[Op] = []
        places = sorted({(one.stream, one.partition) for one in letters})
        for stream, partition in places:
            if not current().may("write", stream):
                raise Forbidden(f"{current().name!r} may not write to stream {stream!r}, where a letter belongs")
            if not partition < self._hub.stream(stream).partitions:
                raise BadRequest(f"stream {stream!r} has no partition {partition}, where a letter belongs")
            found = [one for one in letters if (one.stream, one.partition) == (stream, partition)]
            operations.append(Append(stream, _batch(found), partition))
        operations.append(Trim(asked.stream, letters[-1].index + 1))
        await self._hub.transact(operations)
        return Redriven(len(letters), sorted({stream for stream, _ in places}))

    async def _read(self, stream: str, limit: int) -> list[Letter]:
        if not stream.endswith(SUFFIX) or stream == SUFFIX:
            raise BadRequest(f"{stream!r} is not a stream of dead letters: their names end in {SUFFIX!r}")
        records = await self._hub.read(stream, 0, limit=limit)
        return letters_of(records, stream.removesuffix(SUFFIX))


def letters_of(records: pa.RecordBatch, origin: str) -> list[Letter]:
    """Records of a stream of dead letters, opened."""
    times = records.column("time").cast("int64").to_pylist()
    event_times = records.column("event_time").cast("int64").to_pylist()
    rows = records.select(["index", "id", "type", "key", "payload"]).to_pylist()
    return [
        _letter(row, time_us, event_time_us, origin)
        for row, time_us, event_time_us in zip(rows, times, event_times, strict=True)
    ]


def _letter(row: dict[str, Any], time_us: int, event_time_us: int | None, origin: str) -> Letter:
    if row["type"] == LETTER_TYPE:
        try:
            inside = msgspec.json.decode(row["payload"], type=Envelope)
        except msgspec.MsgspecError:
            inside = None
        if inside is not None:
            return Letter(
                row["index"],
                time_us,
                inside.reason,
                inside.stream,
                inside.partition,
                inside.payload,
                inside.type,
                inside.key,
                inside.id,
                _micros(inside.event_time),
            )
    columns = {name: row[name] for name in ("index", "payload", "type", "key", "id")}
    reason = str(row["type"] or "no reason given")
    return Letter(time_us=time_us, reason=reason, stream=origin, partition=0, event_time_us=event_time_us, **columns)


def _micros(moment: datetime.datetime | None) -> int | None:
    if moment is None:
        return None
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
    return (aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


def _batch(letters: list[Letter]) -> Batch:
    return Batch.of(
        [one.payload for one in letters],
        ids=[one.id for one in letters],
        event_times=[one.event_time_us for one in letters],
        types=[one.type for one in letters],
        keys=[one.key for one in letters],
    )
