"""The settings of this protocol: `[ockam]`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from headrace.config.sections import Address, Bytes, Count, Seconds, Section
from headrace.units import MIB


class Ockam(Section, frozen=True):
    """Ockam stream protocol. `listen.ockam` is the listener of the original framing."""

    cbor_listen: Annotated[
        Address, Meta(description="A second listener, for the newer framing of July 2024: `host:port`, or `off`")
    ] = "off"
    stream_services: Annotated[list[str], Meta(description="Addresses under which the stream service answers")] = (
        msgspec.field(default_factory=lambda: ["stream_service", "stream"])
    )
    index_services: Annotated[list[str], Meta(description="Addresses under which the index service answers")] = (
        msgspec.field(default_factory=lambda: ["stream_index_service", "stream_index"])
    )
    unknown_index: Annotated[
        Literal["zero", "none"],
        Meta(
            description="Get of an index never saved: `zero` records and answers 0 (specification), `none` as reference"
        ),
    ] = "zero"
    clamp_saved_index: Annotated[
        bool, Meta(description="Keep saved indexes within the stream, so that nobody can make a client skip the future")
    ] = True
    name_bytes_max: Annotated[Count, Meta(description="The longest stream name and client id")] = 500
    partitions_max: Annotated[Count, Meta(description="Partitions one create may ask for")] = 1_024
    addresses_max: Annotated[Count, Meta(description="Stream addresses (one per partition) handed out at all")] = (
        100_000
    )
    saved_indexes_max: Annotated[
        Count, Meta(description="Saved indexes kept for streams that do not exist, until they do")
    ] = 100_000
    pull_records_max: Annotated[Count, Meta(description="Records in one pull reply, whatever limit was asked")] = 10_000
    pull_bytes_max: Annotated[Bytes, Meta(description="Bytes of records in one pull reply, if one record fits")] = MIB
    waiting_requests_max: Annotated[
        Count, Meta(description="Pulls and index requests of one connection under way; above it we stop reading")
    ] = 1_024
    unconfirmed_pushes_max: Annotated[
        Count, Meta(description="Pushes of one connection not yet confirmed; above it we stop reading")
    ] = 100_000
    greeting_timeout_s: Annotated[
        Seconds, Meta(description="Newer framing: how long to wait for the peer's version byte")
    ] = 5
