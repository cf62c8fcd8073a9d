"""Whether the hub is alive and ready, and if not, why: what `/health` answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec


class HealthReport(msgspec.Struct, frozen=True):
    """`live`: the process answers. `ready`: it takes records; otherwise `reasons` says what is wrong, by part."""

    live: bool
    ready: bool
    reasons: dict[str, str]


class Health:
    """Named checks. A check returns None when all is well, or one sentence for people."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str | None]] = {}

    def check(self, part: str, check: Callable[[], str | None]) -> None:
        """Register the check of a part, replacing an earlier one of the same name. Checks must not block."""
        self._checks[part] = check

    def report(self) -> HealthReport:
        """Run all checks. A check that raises is itself a reason."""
        reasons: dict[str, str] = {}
        for part, check in self._checks.items():
            try:
                reason = check()
            except Exception as error:
                reason = f"the check failed: {error!r}"
            if reason is not None:
                reasons[part] = reason
        return HealthReport(live=True, ready=not reasons, reasons=reasons)
