"""Traces: what a hub does, told to an OpenTelemetry collector when `tracing.endpoint` is set.

This module is all that the rest of Headrace knows of it: `hub.tracing` is either `OFF`, which does nothing, or the
implementation in `otel`, which is imported only when it is wanted. Spans stand for what an operator asks about: an
append, a read or a transaction of a client, a commit of the log, a segment, a batch of Spark. Never for one record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.errors import BadConfig

if TYPE_CHECKING:
    from headrace.config import Config
    from headrace.hub.hooks import Hooks

Thing = TypeVar("Thing")
Value = str | int | float | bool


class TracingUnavailable(BadConfig):
    """Traces are asked for and cannot be sent."""


class Span(Protocol):
    """A span under way: all that callers do to one."""

    def set_attribute(self, key: str, value: Value, /) -> Any: ...


class Followed(Protocol):
    """A span that others may follow, whenever and wherever they run."""

    @property
    def context(self) -> object: ...

    def end(self) -> None: ...


class _NoSpan:
    def set_attribute(self, key: str, value: Value, /) -> None:
        """Nobody listens."""


class Tracing:
    """Traces that go nowhere. The base of those that do."""

    def subscribe(self, hooks: Hooks) -> None:
        """Make spans of what a hub tells."""

    def app(self, app: Thing, prefixes: Sequence[str]) -> Thing:
        """A web application whose requests below these paths make spans, continuing the caller's trace."""
        return app

    def call(
        self, name: str, headers: Mapping[str, str], attributes: Mapping[str, Value] | None = None
    ) -> AbstractContextManager[Span]:
        """A call from outside; `headers` may hold a W3C `traceparent`."""
        return contextlib.nullcontext(_NO_SPAN)

    def span(self, name: str, attributes: Mapping[str, Value] | None = None) -> AbstractContextManager[Span]:
        """A piece of work inside."""
        return contextlib.nullcontext(_NO_SPAN)

    def context(self) -> object | None:
        """The trace that is being worked for, to be followed later; None if nobody keeps it."""
        return None

    def follow(self, name: str, parent: object, attributes: Mapping[str, Value]) -> Followed:
        """A span of a trace that `context` gave, or another span of it; whoever starts it ends it."""
        raise NotImplementedError("nothing gives a trace to follow")

    async def close(self) -> None:
        """Send what has not been sent."""


_NO_SPAN = _NoSpan()
OFF = Tracing()


def start(config: Config) -> Tracing:
    """What the settings ask for."""
    section = config.tracing
    if not section.endpoint:
        return OFF
    try:
        from headrace.telemetry.tracing.otel import OtelTracing
    except ImportError as error:
        raise TracingUnavailable(
            f"tracing.endpoint is set, and OpenTelemetry is not installed ({error.name}): install headrace[otel]"
        ) from error
    return OtelTracing(section)
