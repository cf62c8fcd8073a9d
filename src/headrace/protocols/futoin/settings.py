"""The settings of this protocol: `[futoin]`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Seconds, Section
from headrace.units import KIB


class Futoin(Section, frozen=True):
    """FutoIn FTN18 event streams, under the HTTP listener."""

    enabled: Annotated[bool, Meta(description="Serve FutoIn under `path`")] = True
    path: Annotated[str, Meta(description="Where FutoIn is mounted on the HTTP port")] = "/futoin"
    insecure: Annotated[
        bool, Meta(description="Let programs on this machine call without TLS and without a name; for development")
    ] = False
    create_streams: Annotated[
        bool, Meta(description="Create a stream when someone who may write to it first names it")
    ] = True
    discard: Annotated[
        bool, Meta(description="Streams created here drop events that every registered consumer has read")
    ] = False
    mac_keys: Annotated[dict[str, str], Meta(description="Keys of users that sign their messages, in base64")] = {}
    message_bytes_max: Annotated[Bytes, Meta(description="The largest message (FTN3: 64 KiB)")] = 64 * KIB
    group_events_max: Annotated[
        int, Meta(ge=1, le=1000, description="Events in one answer to a poll and in one pushed group")
    ] = 1_000
    calls_max: Annotated[Count, Meta(description="Calls of one connection that may be under way")] = 1_024
    push_window: Annotated[Count, Meta(description="Groups on their way to one reliable consumer")] = 2
    push_timeout_s: Annotated[Seconds, Meta(description="A group not answered in this time is sent again")] = 30
    live_window: Annotated[Count, Meta(description="Groups on their way to one LIVE consumer")] = 2
    live_backlog_events: Annotated[
        int, Meta(ge=1000, description="A LIVE consumer further behind than this loses the oldest groups")
    ] = 10_000
