"""What the hub logs in a world: an error that nobody expected is a bug."""

from __future__ import annotations

import logging

from headrace.errors import HeadraceError

FIELDS = "headrace_fields"
"""Where `telemetry.log_lines.fields` puts what belongs to a line."""
EXPECTED = (
    "injected",
    "the log has failed",
    "no broker answers",
    "log.kafka.timeout_s",
    "fenced: ",
    "address already in use",  # another hub has taken over
)
"""Words of errors that the world itself has caused."""
OF_DAMAGE = ("recovery: ", "damaged", "not served")
"""Those of a hub whose disk has been damaged."""


class Logged(logging.Handler):
    """Listens, and keeps what should not have been said."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []
        self.expected: tuple[str, ...] = EXPECTED

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        text = f"{record.getMessage()} {getattr(record, FIELDS, '')} {error or ''}"
        if any(words in text for words in self.expected):
            return
        is_bug = record.levelno >= logging.ERROR if error is None else not isinstance(error, HeadraceError)
        if is_bug:
            self.found.append(f"{record.name}: {text.strip()}" + (f": {error!r}" if error is not None else ""))
