"""Sizes and durations as people write them: `32MiB`, `30s`; and times as numbers."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
TIB = 1024 * GIB

_BYTES_PER_UNIT = {
    "": 1,
    "B": 1,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KIB": KIB,
    "MIB": MIB,
    "GIB": GIB,
    "TIB": TIB,
}
_SECONDS_PER_UNIT = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str) -> int:
    """`"32MiB"` → 33554432. Units: B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024)."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].upper() not in _BYTES_PER_UNIT:
        raise ValueError(f"{text!r} is not a size such as 4096, 64KiB or 32MiB")
    if "." in match[1]:
        return int(float(match[1]) * _BYTES_PER_UNIT[match[2].upper()])
    return int(match[1]) * _BYTES_PER_UNIT[match[2].upper()]


def parse_seconds(text: str) -> float:
    """`"30s"` → 30.0. Units: ms, s, m (or min), h, d."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in _SECONDS_PER_UNIT:
        raise ValueError(f"{text!r} is not a duration such as 250ms, 30s, 5m, 12h or 7d")
    return float(match[1]) * _SECONDS_PER_UNIT[match[2].lower()]


Position = int | Literal["earliest", "latest"] | datetime
"""Where in a stream."""


def natural(text: str | bytes, digits_max: int = 18) -> int | None:
    """What digits from 0 to 9 say, and nothing else: Python takes other scripts' digits for digits, fails on some of
    them, and fails on thousands of digits."""
    return int(text) if len(text) <= digits_max and text.isascii() and text.isdigit() else None


def position(text: str) -> Position:
    """`120` is an index, `5m` five minutes ago, `2026-11-15T12:00:00Z` a time; and `earliest`, `latest`."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    if (index := natural(text, 19)) is not None:
        return index
    try:
        return _now() - timedelta(seconds=parse_seconds(text))
    except OverflowError:
        raise ValueError(f"{text!r} is before the year 1; earliest is the first record there is") from None
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
        return time if time.tzinfo is not None else time.astimezone()
    except (ValueError, OverflowError):
        raise ValueError(
            f"{text!r} is not an index (120), earliest, latest, a time (2026-11-15T12:00:00Z) or an age (5m, 2h)"
        ) from None


def _now() -> datetime:
    return datetime.now(UTC)


def format_bytes(count: float) -> str:
    """33554432 → `"32.0 MiB"`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def format_seconds(seconds: float) -> str:
    """0.0123 → `"12.3 ms"`; 90 → `"1.5 min"`."""
    if seconds < 1:
        return f"{seconds * 1000:.1f} ms"
    for unit, size in (("s", 60.0), ("min", 60.0), ("h", 24.0)):
        if seconds < size:
            return f"{seconds:.1f} {unit}"
        seconds /= size
    return f"{seconds:.1f} d"


def microseconds(moment: datetime) -> int:
    """A time as microseconds since 1970. One without a zone is in UTC."""
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
