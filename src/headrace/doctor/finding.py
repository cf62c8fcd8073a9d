"""One thing that was looked at, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

Level = Literal["ok", "warn", "fail"]
LEVELS: tuple[Level, ...] = ("ok", "warn", "fail")
Progress = Callable[[str], None]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """`advice` says what to do about it. The last four name records, where there are any."""

    check: str
    level: Level
    text: str
    advice: str = ""
    stream: str | None = None
    partition: int | None = None
    first: int | None = None
    last: int | None = None


def ok(check: str, text: str) -> Finding:
    """Looked at and well."""
    return Finding(check, "ok", text)


def warn(check: str, text: str, advice: str) -> Finding:
    """Worth knowing."""
    return Finding(check, "warn", text, advice)


def fail(check: str, text: str, advice: str) -> Finding:
    """Needs a hand."""
    return Finding(check, "fail", text, advice)


def worst(findings: Iterable[Finding]) -> Level:
    """The level of the worst of them."""
    return max((finding.level for finding in findings), key=LEVELS.index, default="ok")
