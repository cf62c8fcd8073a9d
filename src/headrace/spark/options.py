"""The options of the format "headrace", parsed once and checked where the user can see the mistake."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated

import msgspec

from headrace.log.columns import SCHEMA
from headrace.spark.errors import BadOption
from headrace.spark.hub_client import WAIT_S_DEFAULT, Access, access_to
from headrace.units import microseconds

SOURCE_COLUMNS = (*SCHEMA.names, "stream", "partition")
DECODINGS = ("raw", "string", "json")
SPLIT_RECORDS_MIN_DEFAULT = 100_000


@dataclass(frozen=True)
class Point:
    """Where to start or end: "earliest", "latest", "cursor", an index, a time in microseconds, or "positions":
    one index for each partition, by stream."""

    kind: str
    value: int = 0
    positions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceOptions:
    """What a reader was asked for."""

    access: Access
    wait_s: float
    streams: tuple[str, ...]
    partitions: tuple[int, ...] | None
    start: Point
    end: Point
    records_per_batch_max: int | None
    records_per_batch_min: int | None
    cursor: str | None
    move_cursor: bool
    decode: str
    value_schema: str | None
    columns: tuple[str, ...]
    types: tuple[str, ...] | None
    fail_on_data_loss: bool
    memory_map: bool
    split_records_min: int
    tasks_max: int
    pushdown: bool


@dataclass(frozen=True)
class SinkOptions:
    """What a writer was asked for."""

    access: Access
    wait_s: float
    stream: str | None
    stream_column: str | None
    partitions: int
    query: str | None
    checkpoint: str | None


def parse_source(options: Mapping[str, str]) -> SourceOptions:
    """The options of a reader, or BadOption."""
    decode = _one_of(options, "decode", DECODINGS, "raw")
    value_schema = options.get("schema")
    if decode == "json" and not value_schema:
        raise BadOption("schema", value_schema, "the columns of the JSON objects, such as 'item STRING, price DOUBLE'")
    streams = _words(options.get("stream") or options.get("path") or "")
    if not streams:
        expected = "a stream, several separated by commas, or a pattern (orders.*)"
        raise BadOption("stream", options.get("stream"), expected)
    cursor = options.get("cursor") or None
    start = parse_point("start", options.get("start", "earliest"))
    if start.kind == "cursor" and cursor is None:
        raise BadOption("start", "cursor", "the option 'cursor' to name one")
    end = parse_point("end", options.get("end", "latest"))
    if end.kind in ("cursor", "positions"):
        raise BadOption("end", options.get("end"), "latest, an index, or a time such as 2026-11-15T08:00:00Z")
    partitions = options.get("partitions")
    types = options.get("types")
    return SourceOptions(
        access=access_to(options.get("hub"), options.get("token"), options.get("ca")),
        wait_s=_number(options, "hubWaitSeconds", WAIT_S_DEFAULT),
        streams=streams,
        partitions=None if not partitions else tuple(_index("partitions", word) for word in _words(partitions)),
        start=start,
        end=end,
        records_per_batch_max=_optional_count(options, "maxRecordsPerBatch"),
        records_per_batch_min=_optional_count(options, "minRecordsPerBatch"),
        cursor=cursor,
        move_cursor=_flag(options, "moveCursor", True),
        decode=decode,
        value_schema=value_schema,
        columns=_columns(options.get("columns"), decode),
        types=None if types is None else _words(types),
        fail_on_data_loss=_flag(options, "failOnDataLoss", True),
        memory_map=_flag(options, "memoryMap", True),
        split_records_min=int(_number(options, "splitRecords", SPLIT_RECORDS_MIN_DEFAULT)),
        tasks_max=int(_number(options, "tasks", 0)),
        pushdown=_flag(options, "pushdown", True),
    )


def parse_sink(options: Mapping[str, str]) -> SinkOptions:
    """The options of a writer, or BadOption."""
    stream = options.get("stream") or options.get("path") or None
    stream_column = options.get("streamColumn") or None
    if (stream is None) == (stream_column is None):
        raise BadOption("stream", stream, "the stream to append to, or else the option 'streamColumn' naming a column")
    return SinkOptions(
        access=access_to(options.get("hub"), options.get("token"), options.get("ca")),
        wait_s=_number(options, "hubWaitSeconds", WAIT_S_DEFAULT),
        stream=stream,
        stream_column=stream_column,
        partitions=_optional_count(options, "partitions") or 1,
        query=options.get("query") or None,
        checkpoint=options.get("checkpointLocation") or None,
    )


def parse_point(option: str, text: str) -> Point:
    """`earliest`, `latest`, `cursor`, an index, a time such as 2026-11-15T08:00:00Z, or `{"orders": [17, 4]}`."""
    word = text.strip()
    if word.startswith("{"):
        return Point("positions", positions=_positions(option, word))
    if word in ("earliest", "latest", "cursor"):
        return Point(word)
    if word.isdigit():
        return Point("index", int(word))
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise BadOption(option, text, "earliest, latest, an index, or a time such as 2026-11-15T08:00:00Z") from None
    return Point("time", microseconds(moment))


def _positions(option: str, text: str) -> dict[str, tuple[int, ...]]:
    try:
        return msgspec.json.decode(text, type=dict[str, tuple[Annotated[int, msgspec.Meta(ge=0)], ...]])
    except msgspec.MsgspecError as error:
        expected = f'an index for each partition by stream, as {{"orders": [17, 4]}}: {error}'
        raise BadOption(option, text, expected) from None


def _columns(text: str | None, decode: str) -> tuple[str, ...]:
    known = (*SOURCE_COLUMNS, "value", "error") if decode == "json" else SOURCE_COLUMNS
    if text is None:
        return known
    chosen = _words(text)
    for name in chosen:
        if name not in known:
            raise BadOption("columns", name, "some of " + ", ".join(known))
    if not chosen or len(set(chosen)) != len(chosen):
        raise BadOption("columns", text, "at least one column, each once")
    return chosen


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one_of(options: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    value = options.get(name, default)
    if value not in choices:
        raise BadOption(name, value, "one of " + ", ".join(choices))
    return value


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(options, name, ("true", "false"), "true" if default else "false") == "true"


def _number(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name, default)
    try:
        value = float(text)
    except ValueError:
        raise BadOption(name, text, "a number") from None
    if value < 0:
        raise BadOption(name, text, "a number that is not negative")
    return value


def _optional_count(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    value = _index(name, text)
    if value < 1:
        raise BadOption(name, text, "at least 1")
    return value


def _index(name: str, text: str) -> int:
    if not text.strip().isdigit():
        raise BadOption(name, text, "a whole number that is not negative")
    return int(text)
