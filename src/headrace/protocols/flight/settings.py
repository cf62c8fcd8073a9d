"""The settings of this protocol: `[flight]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.config.sections import Count, Section


class Flight(Section, frozen=True):
    """Arrow Flight. How many reads and follows may be open stands in `log.readers_max`."""

    writers_max: Annotated[Count, Meta(description="Open puts; each has two threads")] = 1_000
