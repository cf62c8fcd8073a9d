"""How people write positions and times on the command line."""

from __future__ import annotations

import codecs
import datetime
from typing import Any

import typer

from headrace.log.columns import OPTIONAL
from headrace.units import Position, position


def parse_position(text: str) -> Position:
    """`120` is an index, `5m` five minutes ago, `2026-11-15T12:00:00Z` a time; and `earliest`, `latest`."""
    try:
        return position(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def shown_time(time: datetime.datetime | int | None) -> str | None:
    """A time (or microseconds since 1970) for people: UTC, to the millisecond."""
    if time is None:
        return None
    if isinstance(time, int):
        time = datetime.datetime.fromtimestamp(time / 1e6, datetime.UTC)
    return time.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + "Z"


def shown_bytes(data: bytes | None, width: int = 80) -> str | None:
    """Bytes for people: text where they are text, otherwise hexadecimal; long ones are cut."""
    if data is None:
        return None
    head = data[: 4 * width]
    cut = len(head) < len(data)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(head, final=not cut)  # a cut may part a character
        if not text.replace("\n", " ").replace("\t", " ").isprintable():
            raise ValueError
        text = text.replace("\n", "⏎").replace("\t", " ")
    except ValueError:
        text = "0x" + head.hex()
    return text if len(text) <= width and not cut else text[: width - 1] + "…"


def json_record(record: Any) -> dict[str, Any]:
    """A record for programs; what is absent is left out. `json_bytes` says how keys and payloads are written."""
    shown: dict[str, Any] = {"index": record.index, "time": record.time}
    for name in ("stream", "partition", *(column.name for column in OPTIONAL)):
        value = getattr(record, name)
        if value is not None:
            shown |= json_bytes(name, value) if isinstance(value, bytes) else {name: value}
    return shown | json_bytes("payload", record.payload)


def json_bytes(name: str, data: bytes | None) -> dict[str, Any]:
    """Bytes for programs: what is text stays text under its own name, other bytes are base64 under NAME_base64."""
    try:
        return {name: None if data is None else data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": data}
