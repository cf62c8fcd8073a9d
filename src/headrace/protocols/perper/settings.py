"""The settings of this protocol: `[perper]`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Seconds, Section
from headrace.units import MIB


class Perper(Section, frozen=True):
    """Perper fabric: Ignite thin protocol and gRPC."""

    frame_bytes_max: Annotated[Bytes, Meta(description="The largest message")] = 64 * MIB
    nesting_max: Annotated[Count, Meta(description="How deep arrays, collections and maps may be nested")] = 64
    elements_max: Annotated[
        Count, Meta(description="Elements of arrays, collections, maps and lists of keys in one Ignite request")
    ] = 250_000
    caches_max: Annotated[Count, Meta(description="How many caches may exist")] = 100_000
    types_max: Annotated[Count, Meta(description="How many binary types may be registered")] = 100_000
    cursors_max: Annotated[Count, Meta(description="Open scans and SQL results of one connection")] = 128
    requests_max: Annotated[Count, Meta(description="Unanswered requests of one Ignite connection before it waits")] = (
        10_000
    )
    calls_max: Annotated[Count, Meta(description="Open gRPC calls of one connection")] = 10_000
    login_s: Annotated[Seconds, Meta(description="An Ignite client must finish its handshake within this")] = 30
    recent_bytes_max: Annotated[Bytes, Meta(description="Stream items kept in memory for live listeners")] = 32 * MIB
    cleanup_s: Annotated[
        Seconds, Meta(description="How soon items that no listener needs are removed from an ephemeral stream")
    ] = 0.1
    missing_stream: Annotated[
        Literal["fail", "wait"], Meta(description="StreamItems on a stream that does not exist: fail, or wait for it")
    ] = "fail"
