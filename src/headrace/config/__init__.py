"""Settings: what there are (`sections`, and `settings` of each protocol), and where their values come from (`load`).

`Config` and what protocols declare come when they are first asked for: a protocol makes its settings with this package,
and the whole is made of all protocols.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.config.sections import (
    Address,
    Bytes,
    Count,
    Grant,
    Http,
    Int32,
    Limits,
    Log,
    LoggingSection,
    PipelineEntry,
    Seconds,
    Section,
    SecuritySection,
    Spark,
    Tls,
    TlsFiles,
    Tracing,
    User,
)

if TYPE_CHECKING:
    from headrace.config.whole import Config, Listen

__all__ = [
    "Address",
    "Bytes",
    "Config",
    "Count",
    "Grant",
    "Http",
    "Int32",
    "Limits",
    "Listen",
    "Log",
    "LoggingSection",
    "PipelineEntry",
    "Seconds",
    "Section",
    "SecuritySection",
    "Spark",
    "Tls",
    "TlsFiles",
    "Tracing",
    "User",
]


def __getattr__(name: str) -> Any:
    """The whole, or a section from the settings of a protocol."""
    if name[0].isupper():
        from importlib import import_module

        from headrace.protocols.descriptor import protocols

        for module in ("headrace.config.whole", *(each.settings.__module__ for each in protocols())):
            if isinstance(found := getattr(import_module(module), name, None), type):
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
