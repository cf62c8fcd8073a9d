"""The settings of this protocol: `[futoin]`."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from msgspec import Meta

from headrace.config.sections import Bytes, Count, Seconds, Section
from headrace.units import KIB

MASTER_BYTES_MIN, MASTER_BYTES_MAX = 16, 1_024


def check_key(name: str, key: str, bytes_min: int, bytes_max: int = 1 << 20) -> None:
    """Whether a key in base64 can be used."""
    try:
        size = len(base64.b64decode(key, validate=True))
    except (binascii.Error, ValueError):
        raise ValueError(f"`{name}` is not base64: write the bytes of the key as `base64` prints them") from None
    if not bytes_min <= size <= bytes_max:
        raise ValueError(f"`{name}` has {size} bytes; it needs at least {bytes_min} and at most {bytes_max}")


class MasterKey(Section, frozen=True):
    """A Master Secret of FTN8.2: `[futoin.master_keys.ID]`."""

    user: Annotated[str, Meta(description="Whose it is", min_length=1)]
    key: Annotated[str, Meta(description="The secret, in base64: 16 to 1,024 bytes", min_length=1)]


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
    master_keys: Annotated[
        dict[str, MasterKey],
        Meta(description="Master Secrets by their id, of users that sign with keys made from them"),
    ] = {}
    global_id: Annotated[
        str, Meta(description="The global id that callers with a Master Secret know this hub by, such as its host name")
    ] = ""
    message_bytes_max: Annotated[Bytes, Meta(description="The largest message (FTN3: 64 KiB)")] = 64 * KIB
    group_events_max: Annotated[
        int, Meta(ge=1, le=1000, description="Events in one answer to a poll and in one pushed group")
    ] = 1_000
    calls_max: Annotated[Count, Meta(description="Calls of one connection that may be under way")] = 1_024
    push_window: Annotated[Count, Meta(description="Groups in flight to one reliable consumer")] = 2
    push_timeout_s: Annotated[Seconds, Meta(description="A group not answered in this time is sent again")] = 30
    live_window: Annotated[Count, Meta(description="Groups in flight to one LIVE consumer")] = 2
    live_backlog_events: Annotated[
        int, Meta(ge=1000, description="A LIVE consumer further behind than this loses the oldest groups")
    ] = 10_000

    def __post_init__(self) -> None:
        for user, key in self.mac_keys.items():
            check_key(f"futoin.mac_keys.{user}", key, bytes_min=1)
        for name, master in self.master_keys.items():
            check_key(f"futoin.master_keys.{name}.key", master.key, MASTER_BYTES_MIN, MASTER_BYTES_MAX)
        if self.master_keys and not self.global_id:
            raise ValueError(
                "`futoin.master_keys` needs `futoin.global_id`: keys are made for one hub, and callers take its host "
                "name unless they are told another"
            )
