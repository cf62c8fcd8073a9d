"""Dead letters: what is in a stream `<name>.dead`, why, and back to where it came from.

A letter that a pipeline wrote (type `dead-letter`) is a JSON object with the reason, the place where the record stood
and all of its columns, bytes in base64. Any other record in such a stream is taken as it is: its type is the reason and
it belongs to `<name>`.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from headrace.admin.records import batch_of
from headrace.errors import BadRequest, Forbidden
from headrace.log.columns import plain_rows
from headrace.log.ops import Append, Trim
from headrace.security import current
from headrace.units import microseconds

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
    """Send the oldest letters below an index again, to where each stood or `into` another stream; they leave the
    stream of dead letters in the same step."""

    stream: str
    before: int
    into: str | None = None
    partition: int = 0


class Redriven(msgspec.Struct, frozen=True):
    """How many were sent again and where to, and how many below the index are left for another call."""

    count: int
    streams: list[str]
    left: int = 0


class DeadLetter(msgspec.Struct, frozen=True):
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


class DeadLetters:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._redriving = asyncio.Lock()

    def register(self) -> None:
        add = self._hub.verbs.register
        add("dead.list", LettersRequest, self.oldest, right="read", summary="Dead letters, with reasons")
        add("dead.redrive", RedriveRequest, self.redrive, right="admin", summary="Send dead letters again")

    async def oldest(self, asked: LettersRequest) -> list[DeadLetter]:
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
        oldest = await self._read(asked.stream, LETTERS_MAX, asked.partition)
        letters = [letter for letter in oldest if letter.index < asked.before]
        if not letters:
            raise BadRequest(f"stream {asked.stream!r} has no letters below {asked.before}")
        if asked.into is not None:
            _check_right(asked.into)
            partitions = (await self._hub.create_stream(asked.into, exist_ok=True)).partitions
        by_partition: dict[tuple[str, int], list[DeadLetter]] = {}
        for letter in letters:
            place = (letter.stream, letter.partition)
            if asked.into is not None:
                place = (asked.into, letter.partition if letter.partition < partitions else 0)
            by_partition.setdefault(place, []).append(letter)
        after = letters[-1].index + 1
        appends = [self._append(*place, by_partition[place]) for place in sorted(by_partition)]
        await self._hub.transact([*appends, Trim(asked.stream, after, asked.partition)])
        left = min(asked.before, self._hub.bounds(asked.stream, asked.partition).next) - after
        return Redriven(len(letters), sorted({stream for stream, _ in by_partition}), left)

    def _append(self, stream: str, partition: int, letters: list[DeadLetter]) -> Append:
        _check_right(stream)
        if not partition < self._hub.stream(stream).partitions:
            raise BadRequest(f"stream {stream!r} has no partition {partition}, where a letter belongs")
        return Append(stream, batch_of([letter.payload for letter in letters], letters), partition)

    async def _read(self, stream: str, limit: int, partition: int = 0) -> list[DeadLetter]:
        """Also from a stream of another name, if it holds nothing but letters of a pipeline."""
        if origin := stream.removesuffix(SUFFIX):
            records = await self._hub.read(stream, 0, partition=partition, limit=limit)
            if origin != stream or set(records.column("type").to_pylist()) == {LETTER_TYPE}:
                return list(letters_of(records, origin))
        raise BadRequest(f"{stream!r} is not a stream of dead letters: their names end in {SUFFIX!r}")


def _check_right(stream: str) -> None:
    if not current().may("write", stream):
        raise Forbidden(f"{current().name!r} may not write to stream {stream!r}, where a letter belongs")


def letters_of(records: pa.RecordBatch, origin: str) -> Iterator[DeadLetter]:
    """Records of a stream of dead letters, opened."""
    for row in plain_rows(records):
        reason = str(row["type"] or "no reason given")
        letter: dict[str, Any] = {"stream": origin, "partition": 0, "reason": reason, **row}
        if row["type"] == LETTER_TYPE:
            with contextlib.suppress(msgspec.MsgspecError):
                letter |= structs.asdict(msgspec.json.decode(row["payload"], type=Envelope))
                event_time = letter.pop("event_time")
                letter["event_time_us"] = None if event_time is None else microseconds(event_time)
        yield DeadLetter(**letter)
