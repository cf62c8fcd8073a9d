"""The settings of this protocol: `[flight]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Section
from headrace.units import MIB


class Flight(Section, frozen=True):
    """Arrow Flight. `log.readers_max` limits how many reads and follows may be open."""

    unfolded_bytes_max: Annotated[
        Bytes, Meta(description="Memory for compressed Arrow data that is being unfolded; 0 for no limit")
    ] = 256 * MIB
    action_bytes_max: Annotated[
        Bytes, Meta(description="The largest request of a verb; the largest record is within it as base64")
    ] = 32 * MIB
    puts_bytes_max: Annotated[
        Bytes, Meta(description="Batches of all puts that wait for the disk; above it puts are not read on")
    ] = 64 * MIB
    writers_max: Annotated[Count, Meta(description="Open puts; each has two threads")] = 1_000
