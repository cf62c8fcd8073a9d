"""Structured logs: `logger.info("stream created", extra=fields(stream="orders"))`.

Text for people on a terminal, one JSON object per line elsewhere. Everything goes to standard error, so that standard
output stays free for data. Values under a secret-looking name are masked before they reach any handler.
"""

from __future__ import annotations

import datetime
import json
import logging
import sys
from typing import Any, TextIO

from headrace.config import LoggingSection
from headrace.config.load import SECRET_NAMES

_FIELDS = "headrace_fields"
_HIDDEN = SECRET_NAMES | {"authorization", "token"}


def fields(**values: object) -> dict[str, dict[str, object]]:
    """The `extra` argument of a log call."""
    return {_FIELDS: {name: "********" if name in _HIDDEN else value for name, value in values.items()}}


def set_up(section: LoggingSection, stream: TextIO | None = None) -> None:
    """Send the logs of the whole process to `stream` in the configured form."""
    target = sys.stderr if stream is None else stream
    as_json = section.format == "json" or (section.format == "auto" and not target.isatty())
    handler = logging.StreamHandler(target)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter())
    root = logging.getLogger("headrace")
    root.handlers[:] = [handler]
    root.setLevel(section.level.upper())
    root.propagate = False


def _printable(line: str) -> str:
    """A line stays a line: what a peer calls itself must not look like another entry, or move the cursor."""
    return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _fields_of(record: logging.LogRecord) -> dict[str, Any]:
    return getattr(record, _FIELDS, {})


def _time_of(record: logging.LogRecord) -> str:
    moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class TextFormatter(logging.Formatter):
    """`12:00:01.234 WARNING hub: disk is nearly full free_bytes=1024`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, and the traceback below it when there is one."""
        words = [
            _time_of(record)[11:23],
            f"{record.levelname:<7}",
            f"{record.name.removeprefix('headrace.')}:",
            record.getMessage(),
        ]
        words += [f"{name}={value}" for name, value in _fields_of(record).items()]
        line = _printable(" ".join(words))
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, logger, message, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, always: newlines inside values are escaped by JSON."""
        entry: dict[str, Any] = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields_of(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)
