"""The settings of this protocol: `[flight]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Seconds, Section
from headrace.units import KIB, MIB


class Flight(Section, frozen=True):
    """Arrow Flight. `log.readers_max` limits how many reads and follows may be open."""

    unfolded_bytes_max: Annotated[
        Bytes, Meta(description="Memory for Arrow data that is being decompressed; 0 for no limit")
    ] = 256 * MIB
    action_bytes_max: Annotated[
        Bytes, Meta(description="The largest request of a verb; the largest record is within it as base64")
    ] = 32 * MIB
    puts_bytes_max: Annotated[
        Bytes, Meta(description="Batches of all puts that wait for the disk; beyond this, puts are not read")
    ] = 64 * MIB
    puts_waiting_bytes_max: Annotated[
        Bytes,
        Meta(
            description="Batches of all puts that are there and wait until `puts_bytes_max` has room; above it the "
            "largest is refused. Batches above an eighth of it have a quarter of it together"
        ),
    ] = 256 * MIB
    writers_max: Annotated[Count, Meta(description="Open puts; each has two threads")] = 1_000
    lines_max: Annotated[
        Count, Meta(description="Open lines of the SDK; a client that gets none makes calls instead")
    ] = 1_000
    line_request_bytes_max: Annotated[
        Bytes, Meta(description="The largest request on a line; the SDK sends larger ones as calls")
    ] = 64 * KIB
    line_requests_max: Annotated[
        Count, Meta(description="Requests of one line that may be under way at once; further ones wait to be read")
    ] = 256
    line_ticket_s: Annotated[Seconds, Meta(description="A line must be opened within this after it was offered")] = 10
    line_tickets_max: Annotated[
        Count, Meta(description="Lines that are offered and not opened yet; one more voids the oldest")
    ] = 1_000
