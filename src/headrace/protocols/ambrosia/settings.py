"""The settings of this protocol: `[ambrosia]`."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta

from headrace.config.sections import Address, Bytes, Count, Int32, Seconds, Section
from headrace.units import GIB, MIB

Sockets = Literal["listen", "connect"]
Delivery = Literal["bare", "batch", "counted"]
NAME_BYTES_MAX: Final = 128


class ImmortalSection(Section, frozen=True):
    """One immortal: `[ambrosia.immortals.NAME]`."""

    receive: Annotated[Address, Meta(description="Port on which the hub receives from the binding")] = "127.0.0.1:0"
    send: Annotated[Address, Meta(description="Port on which the hub sends to the binding")] = "127.0.0.1:0"
    sockets: Annotated[
        Sockets,
        Meta(description="`listen` on both ports, or `connect` out to the send port (C binding, before mid-2020)"),
    ] = "listen"
    delivery: Annotated[
        Delivery,
        Meta(description="Records hold `bare` RPCs, a `batch` (type 5), or also `counted` batches (type 13)"),
    ] = "bare"
    standby: Annotated[
        bool, Meta(description="A second binding follows and takes over (type 15) instead of being refused")
    ] = False
    checkpoint_log_bytes: Annotated[Bytes, Meta(description="Ask for a checkpoint after this much log")] = 128 * MIB
    checkpoints_kept: Annotated[
        int, Meta(ge=0, description="Checkpoints kept, and the log since the oldest of them; 0 keeps all")
    ] = 2
    inbox_method: Annotated[
        Int32 | None,
        Meta(description="Method for inbox records whose type is not a number; without it the type is a method's name"),
    ] = None
    clock: Annotated[
        bool,
        Meta(description="Start each record with the time, which only programs of `headrace.immortals` understand"),
    ] = False
    upgrade_version: Annotated[
        int | None, Meta(description="Version to run; above the current one the next recovery is an upgrade")
    ] = None
    committer: Annotated[Int32 | None, Meta(description="Committer id of a new immortal; chosen if not given")] = None


class Ambrosia(Section, frozen=True):
    """AMBROSIA immortals."""

    enabled: Annotated[bool, Meta(description="Serve immortals")] = True
    trust_local: Annotated[
        bool, Meta(description="Let bindings on this machine in even if there are users: the protocol has no login")
    ] = True
    host: Annotated[str, Meta(description="Where the ports of debugging sessions are bound")] = "127.0.0.1"
    compare_repeats: Annotated[
        bool, Meta(description="Refuse a recovering binding that sends something else than it sent before")
    ] = True
    message_bytes_max: Annotated[
        Bytes, Meta(description="The largest message of a binding; not above log.record_bytes_max")
    ] = 16 * MIB
    batch_calls_max: Annotated[Count, Meta(description="The most calls of one batch message (types 5 and 13)")] = (
        250_000
    )
    initial_bytes_max: Annotated[Bytes, Meta(description="The largest InitialMessage")] = 8 * MIB - 64
    name_bytes_max: Annotated[Count, Meta(description="The longest name of an immortal")] = NAME_BYTES_MAX
    checkpoint_bytes_max: Annotated[Bytes, Meta(description="The largest checkpoint")] = 64 * GIB
    destinations_max: Annotated[Count, Meta(description="Names that may be called without being registered")] = 1_000
    backlog_bytes_max: Annotated[
        Bytes, Meta(description="Calls kept for one absent immortal; above it their senders are held back")
    ] = GIB
    outside_calls_max: Annotated[Count, Meta(description="Calls from outside in progress at once")] = 10_000
    answers_kept_s: Annotated[
        Seconds, Meta(description="How long the answer to a call with an idempotency key is kept")
    ] = 86_400
    answers_max: Annotated[Count, Meta(description="Such answers that are kept; the oldest go first")] = 100_000
    import_root: Annotated[
        str,
        Meta(description="Directory that `immortal.import` reads below; relative to the data directory"),
    ] = "../headrace-imports"
    immortals: Annotated[dict[str, ImmortalSection], Meta(description="Immortals by name")] = {}
