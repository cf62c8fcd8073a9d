"""Whether the hub is alive and ready, and if not, why: what `/health` answers."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from headrace.security.principal import EVERYTHING, Principal

NOT_FOR_ALL = "those who may read every stream are told why"


class HealthReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """`live`: the process answers. `ready`: it takes records; otherwise `reasons` says what is wrong, by part. `notes`
    say what else somebody should look at."""

    live: bool
    ready: bool
    reasons: dict[str, str]
    notes: dict[str, str] = {}


class Health:
    """Named checks. A check returns None when all is well, or one sentence for people. It may name streams and files:
    whoever may not read every stream is told less."""

    def __init__(self) -> None:
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._redacted: dict[str, Callable[[Principal], str | None]] = {}
        self._notes: dict[str, Callable[[], str | None]] = {}
        self.owns: Callable[[int], bool] = lambda cell: cell == 0
        """Whether this hub answers for a cell of the log; a log that is not on Kafka is cell 0."""

    def check(
        self, part: str, check: Callable[[], str | None], redacted: Callable[[Principal], str | None] | None = None
    ) -> None:
        """Register the check of a part, replacing an earlier one of the same name. Checks must not block.
        `redacted` is what someone who may not read every stream may know of the reason."""
        self._checks[part] = check
        self._redacted[part] = redacted or (lambda principal: None)

    def note(self, part: str, check: Callable[[], str | None]) -> None:
        """Register a check of something that does not keep the hub from taking records."""
        self._notes[part] = check

    def report(self, principal: Principal = EVERYTHING) -> HealthReport:
        """Run all checks. A check that raises is itself a reason."""
        reasons = _found(self._checks)
        if principal.may("read"):
            return HealthReport(live=True, ready=not reasons, reasons=reasons, notes=_found(self._notes))
        redacted = {part: self._redacted[part](principal) or NOT_FOR_ALL for part in reasons}
        return HealthReport(live=True, ready=not reasons, reasons=redacted)


def _found(checks: dict[str, Callable[[], str | None]]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part, check in checks.items():
        try:
            reason = check()
        except Exception as error:
            reason = f"the check failed: {error!r}"
        if reason is not None:
            found[part] = reason
    return found
