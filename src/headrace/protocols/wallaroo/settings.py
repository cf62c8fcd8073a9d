"""The settings of this protocol: `[wallaroo]`."""

from __future__ import annotations

from types import MappingProxyType
from typing import Annotated, Literal

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Seconds, Section
from headrace.units import KIB, MIB


class Wallaroo(Section, frozen=True):
    """Wallaroo source connector protocol."""

    REMOVED = MappingProxyType({"ok_form": "it let v2 connectors in, whose messages were then stored cut short"})

    cookie: Annotated[str, Meta(description="What a connector must say in HELLO; empty means it must say nothing")] = ""
    stream_name: Annotated[
        str, Meta(description="Name of a connector's stream, from {program}, {instance} and {stream}")
    ] = "{instance}.{stream}"
    window_credits: Annotated[Count, Meta(description="Frames a connector may have in flight")] = 500
    credit_bytes: Annotated[
        Bytes, Meta(description="Frame size that a credit allows for; for larger frames, fewer credits are given")
    ] = 4 * KIB
    frame_bytes_max: Annotated[Bytes, Meta(description="The largest frame")] = 4 * MIB
    connections_max: Annotated[Count, Meta(description="Open connections; one more is answered with ERROR")] = 1_000
    streams_max: Annotated[Count, Meta(description="Streams that one connection may introduce")] = 10_000
    in_flight_bytes_max: Annotated[
        Bytes, Meta(description="Bytes of one connection on their way to the disk; above it nothing more is read")
    ] = 8 * MIB
    handshake_s: Annotated[Seconds, Meta(description="A connection without a HELLO is closed after this")] = 10
    open_wait_s: Annotated[
        Seconds, Meta(description="How long NOTIFY waits for a stream that an earlier connection still holds")
    ] = 1
    event_time_unit: Annotated[
        Literal["ns", "us", "ms", "s"], Meta(description="Unit of event times; the protocol names none")
    ] = "us"
    draft_message_ids: Annotated[
        Literal["any", "increasing"],
        Meta(description="Draft dialect: `increasing` drops ids that are not above the last, as v3 always does"),
    ] = "any"
    draft_trust_notify: Annotated[
        bool, Meta(description="Draft dialect: take a NOTIFY's point of reference even if it is not the stored one")
    ] = False
    restart_address: Annotated[
        str, Meta(description="Address that RESTART names to v3 connectors; empty for this one")
    ] = ""
