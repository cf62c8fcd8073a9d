"""Records as FutoIn events: FTN18 ids, types, times and data, cut to what one message may hold.

record                             event
index                              id = index + 1, as decimal text
time                               ts: UTC, whole seconds
type `^[A-Z_]{1,16}$`              type; any other, or none: RAW
payload that is JSON               data, byte for byte
any other payload                  data {"base64": "…"}
"""

from __future__ import annotations

import base64
import functools
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
from msgspec import Raw

from headrace.protocols.futoin.codec import DATA_DEPTH_MAX, Coding, Event, encode_object, nesting
from headrace.protocols.futoin.interface import EVENT_TYPE_PATTERN, RAW_TYPE

MICROSECONDS = 1_000_000

# {"id":"","type":"","data":,"ts":"2026-11-15T06:54:37Z"}, and a comma.
EVENT_OVERHEAD_BYTES = 56
# The most that a payload grows as data: `0.5,` is four bytes of JSON and nine of MessagePack; base64 grows less.
BINARY_GROWTH = 2.25

# The integers of MessagePack; CBOR has these too. JSON has any.
INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1

_has_long_number = re.compile(rb"[0-9]{19}").search
_decode_raws = msgspec.json.Decoder(list[Raw]).decode
_decode_values = msgspec.json.Decoder(list[Any]).decode
_decode_value = msgspec.json.Decoder().decode
_is_event_type = re.compile(EVENT_TYPE_PATTERN).search


class Page(msgspec.Struct):
    """Some records as events."""

    events: list[Event]
    first: int
    """Index of the first event; `next` when there is none."""
    next: int
    """The first index not looked at."""
    bytes: int
    """What the events take, at most."""
    full: bool
    """Whether it ended because a limit was met."""
    too_big: int = 0
    """Wanted records left out because one message cannot hold them."""
    all_json: bool = False
    """Whether every record looked at is JSON."""


@functools.lru_cache(maxsize=4096)
def shown_type(kind: str | None) -> str:
    """The FutoIn type of a record."""
    return kind if kind is not None and _is_event_type(kind) else RAW_TYPE


@functools.lru_cache(maxsize=4096)
def timestamp(seconds: int) -> str:
    """FTN18 3.1 EventTimestamp: whole seconds of UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class Room(NamedTuple):
    """What a page may hold."""

    events: int
    bytes: int
    """What is left in the message being filled."""
    bytes_max: int
    """What a message of its own would hold: a larger event never fits."""


def page(
    records: pa.RecordBatch, coding: Coding, want: frozenset[str] | None, room: Room, known_json: bool = False
) -> Page:
    """The wanted ones of `records`, as many as there is room for. `records` is not empty.

    `known_json` tells that every payload is known to be JSON, which saves looking.
    """
    types = _shown_types(records.column("type").to_pylist())
    indexes: list[int] = records.column("index").to_pylist()
    payloads: list[bytes] = records.column("payload").to_pylist()
    times = _timestamps(records.column("time").cast(pa.int64()).to_pylist())
    end = indexes[-1] + 1
    rows: Sequence[int] = range(len(indexes))
    if want is not None:
        rows = [row for row in rows if types[row] in want]
    if max(map(len, payloads)) > room.bytes_max:
        # An event that could never fit is left out, so that it does not stop the ones behind it.
        fitting: Sequence[int] = [row for row in rows if len(payloads[row]) <= room.bytes_max]
    else:
        fitting = rows
    shown = Page([], end, end, 0, False, len(rows) - len(fitting))
    if len(fitting) > room.events:
        shown.next = indexes[fitting[room.events]]
        shown.full = True
        fitting = fitting[: room.events]
    all_fit = len(fitting) == len(indexes)
    if not all_fit:
        indexes = [indexes[row] for row in fitting]
        types = [types[row] for row in fitting]
        payloads = [payloads[row] for row in fitting]
        times = [times[row] for row in fitting]
    data, all_json = event_data(payloads, coding, known_json)
    shown.all_json = all_fit and all_json
    ids = [str(index + 1) for index in indexes]
    _keep(list(map(Event, ids, types, data, times)), indexes, payloads, coding, room, shown)
    return shown


def _shown_types(kinds: list[str | None]) -> list[str]:
    distinct = set(kinds)
    if len(distinct) == 1:
        return [shown_type(distinct.pop())] * len(kinds)
    return [shown_type(kind) for kind in kinds]


def _timestamps(times_us: list[int]) -> list[str]:
    first, last = times_us[0] // MICROSECONDS, times_us[-1] // MICROSECONDS
    if first == last:  # times never go back within a partition
        return [timestamp(first)] * len(times_us)
    return [timestamp(at // MICROSECONDS) for at in times_us]


def _keep(
    events: list[Event], indexes: list[int], payloads: list[bytes], coding: Coding, room: Room, shown: Page
) -> None:
    """Put those that fit into `shown`."""
    most = int(BINARY_GROWTH * (sum(map(len, payloads)) + len(events) * EVENT_OVERHEAD_BYTES))
    if most <= min(room.bytes, room.bytes_max):
        shown.events, shown.bytes = events, most
    else:
        for event, index in zip(events, indexes, strict=True):
            size = encoded_bytes(event, coding)
            if size > room.bytes_max:
                shown.too_big += 1
            elif shown.bytes + size > room.bytes:
                shown.next = index
                shown.full = True
                break
            else:
                shown.events.append(event)
                shown.bytes += size
    shown.first = int(shown.events[0].id) - 1 if shown.events else shown.next


def encoded_bytes(event: Event, coding: Coding) -> int:
    """What an event takes within a list."""
    return len(encode_object(event, coding)) + 1


def event_data(payloads: Sequence[bytes], coding: Coding, known_json: bool = False) -> tuple[list[Any], bool]:
    """The `data` of each payload, and whether all are JSON. Nearly always they are: then one pass is enough."""
    if known_json and coding is Coding.JSON:
        return list(map(Raw, payloads)), True
    joined = b"[" + b",".join(payloads) + b"]"
    try:
        # `Raw` is only stepped over; text and number ranges are checked by decoding in full.
        values = _decoded(_decode_values, joined, coding)
        if coding is not Coding.JSON and known_json:
            return values, True
        raws = _decode_raws(joined)
        # One payload that is half an array and the next that is its other half must not count as JSON.
        if list(map(bytes, raws)) == payloads and not any(map(_too_deep, payloads)):
            return (raws if coding is Coding.JSON else values), True
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    return [_one_data(payload, coding) for payload in payloads], False


def _decoded(decode: Callable[[bytes], Any], text: bytes, coding: Coding) -> Any:
    values = decode(text)
    return _narrowed(values) if coding is not Coding.JSON and _has_long_number(text) else values


def _narrowed(value: Any) -> Any:
    """With integers that the binary codings cannot hold as the doubles that JavaScript makes of them."""
    if isinstance(value, int) and not INTEGER_MIN <= value <= INTEGER_MAX:
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if isinstance(value, list):
        return [_narrowed(item) for item in value]
    if isinstance(value, dict):
        return {key: _narrowed(item) for key, item in value.items()}
    return value


def _too_deep(payload: bytes) -> bool:
    return len(payload) > 2 * DATA_DEPTH_MAX and nesting(payload) > DATA_DEPTH_MAX


def _one_data(payload: bytes, coding: Coding) -> Any:
    try:
        value = _decoded(_decode_value, payload, coding)
        if not _too_deep(payload):
            return Raw(payload) if coding is Coding.JSON else value
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass
    text = base64.b64encode(payload)
    return Raw(b'{"base64":"%b"}' % text) if coding is Coding.JSON else {"base64": text.decode()}
