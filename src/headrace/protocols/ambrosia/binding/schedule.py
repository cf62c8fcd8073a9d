"""When something is due: durations, moments and cron expressions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from headrace.units import parse_seconds

FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
YEARS_AHEAD: Final = 8
Delay = float | str | timedelta


def seconds_of(delay: Delay) -> float:
    """`5`, `"10m"` or a timedelta, in seconds."""
    if isinstance(delay, timedelta):
        return delay.total_seconds()
    return parse_seconds(delay) if isinstance(delay, str) else float(delay)


class Cron:
    """Five fields as cron has them, in UTC: minute, hour, day of the month, month, day of the week (0, 7: Sunday)."""

    def __init__(self, expression: str) -> None:
        parts = expression.split()
        if len(parts) != len(FIELDS):
            raise ValueError(f"{expression!r} is not a cron expression: five fields are needed, such as '0 8 * * 1-5'")
        self._sets = [_values(part, *field) for part, field in zip(parts, FIELDS, strict=True)]
        self._sets[4] = {day % 7 for day in self._sets[4]}
        self._any_day, self._any_weekday = parts[2] == "*", parts[4] == "*"

    def next(self, after: datetime) -> datetime:
        """The first moment behind this one."""
        minutes, hours, _, months, _ = self._sets
        moment = after.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
        end = moment + timedelta(days=366 * YEARS_AHEAD)
        while moment < end:
            if moment.month not in months:
                moment = (moment.replace(day=1, hour=0, minute=0) + timedelta(days=32)).replace(day=1)
            elif not self._is_day(moment):
                moment = moment.replace(hour=0, minute=0) + timedelta(days=1)
            elif moment.hour not in hours:
                moment = moment.replace(minute=0) + timedelta(hours=1)
            elif moment.minute not in minutes:
                moment += timedelta(minutes=1)
            else:
                return moment
        raise ValueError("the cron expression matches no day of any year")

    def _is_day(self, moment: datetime) -> bool:
        in_month, in_week = moment.day in self._sets[2], (moment.weekday() + 1) % 7 in self._sets[4]
        if self._any_day or self._any_weekday:
            return in_month and in_week
        return in_month or in_week  # as cron does if both are given


def _values(part: str, name: str, low: int, high: int) -> set[int]:
    values: set[int] = set()
    for piece in part.split(","):
        span, _, step = piece.partition("/")
        first, dash, last = span.partition("-")
        try:
            start = low if span == "*" else int(first)
            end = high if span == "*" or (step and not dash) else int(last or first)
            every = int(step or 1)
        except ValueError:
            raise ValueError(f"{piece!r} is not a {name} of a cron expression") from None
        if not low <= start <= end <= high or every < 1:
            raise ValueError(f"{piece!r} is not a {name} of a cron expression, which is {low} to {high}")
        values.update(range(start, end + 1, every))
    return values
