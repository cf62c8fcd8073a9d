"""The interfaces of FTN18 as data: functions, parameters, versions, constraints, and the limits that come with them.

    interface             functions                                          requires
    futoin.evt.gen        addEvent                                           SecureChannel, a user
    futoin.evt.poll       registerConsumer, pollEvents                       a user
    futoin.evt.push       those of poll, and readyToReceive                  BiDirectChannel, a user
    futoin.ping           ping                                               a user
    futoin.anonping       ping                                               nothing

gen, poll and push are served as 1.0 and 1.1 and import ping (FTN4). A request is served when its major version is the
same and its minor version is not above ours (FTN3).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Raw

from headrace.security import Right

KIB = 1024
MIB = 1024 * KIB

# FTN3: a message has at most 64 KiB unless the interface says more; FTN18 1.1 says 8M for event lists.
MESSAGE_BYTES_DEFAULT = 64 * KIB
EVENT_LIST_BYTES_MAX = 8 * MIB
# FTN18 3.1: EventList has maxlen 1000.
EVENTS_MAX = 1000
# What the envelope of an event list may take: f, seq, rid and a signature.
ENVELOPE_BYTES = 1 * KIB
SERVICE_RESTART = 1012
UNHEARD = "what has no answer was not heard"
"""A hub that stops has answered all that it heard, and closes its WebSockets with this code and reason."""
LIVE = "LIVE"
RAW_TYPE = "RAW"

# `\Z`, not `$`: in Python `$` would let a line feed follow.
EVENT_TYPE_PATTERN = r"^[A-Z_]{1,16}\Z"
COMPONENT_PATTERN = r"^[A-Za-z0-9_]{1,16}\Z"
EVENT_ID_PATTERN = r"^[1-9][0-9]{0,17}\Z"

EventType = Annotated[str, Meta(pattern=EVENT_TYPE_PATTERN)]
Component = Annotated[str, Meta(pattern=COMPONENT_PATTERN)]
EventId = Annotated[str, Meta(pattern=EVENT_ID_PATTERN)]
# FTN3.1: `integer` is 32-bit signed. To JavaScript 5.0 is one too.
Integer = (
    Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | Annotated[float, Meta(ge=-(2**31), le=2**31 - 1, multiple_of=1)]
)


class Params(msgspec.Struct, forbid_unknown_fields=True):
    """The base of all parameter lists: an unknown parameter is an error (FTN3)."""


class AddEvent(Params):
    """`data` stays as it was encoded: it is stored without being taken apart."""

    type: EventType
    data: Raw


class RegisterConsumer(Params):
    component: Component


class PollEvents(Params):
    component: Component
    last_id: EventId | None = None
    want: list[EventType] | None = None


class ReadyToReceive(Params):
    component: Component
    want: list[EventType] | None = None


class Ping(Params):
    echo: Integer


class OnEvents(Params):
    seq: Annotated[int, Meta(ge=0)]
    events: Annotated[list[dict[str, Any]], Meta(max_length=EVENTS_MAX)]


FUNCTION_PARAMS: dict[str, type[Params]] = {
    "addEvent": AddEvent,
    "registerConsumer": RegisterConsumer,
    "pollEvents": PollEvents,
    "readyToReceive": ReadyToReceive,
    "ping": Ping,
}


class Interface(NamedTuple):
    """One interface, its newest minor version, and what FTN3 calls constraints."""

    name: str
    minor: int
    functions: tuple[str, ...]
    secure: bool = False
    bidirectional: bool = False
    anonymous: bool = False
    major: int = 1


GEN = Interface("futoin.evt.gen", 1, ("addEvent", "ping"), secure=True)
POLL = Interface("futoin.evt.poll", 1, ("registerConsumer", "pollEvents", "ping"))
PUSH = Interface("futoin.evt.push", 1, ("registerConsumer", "pollEvents", "readyToReceive", "ping"), bidirectional=True)
PING = Interface("futoin.ping", 0, ("ping",))
ANONYMOUS_PING = Interface("futoin.anonping", 0, ("ping",), anonymous=True)
INTERFACES = {interface.name: interface for interface in (GEN, POLL, PUSH, PING, ANONYMOUS_PING)}

RECEIVER = "futoin.evt.receiver"

# Right asked of `Principal.may(right, stream, verb=...)`, by interface and function.
RIGHTS: dict[str, tuple[Right, str]] = {
    "addEvent": ("write", "futoin.add"),
    "registerConsumer": ("read", "futoin.poll"),
    "pollEvents": ("read", "futoin.poll"),
    "readyToReceive": ("read", "futoin.push"),
}


class Call(NamedTuple):
    """One function of one interface in one version: what the `f` of a request names."""

    name: str
    interface: Interface
    minor: int
    function: str

    @property
    def reply_bytes_max(self) -> int:
        """The whole reply: stock clients of poll:1.0 and of push fail above 64 KiB, those of poll:1.1 above 8 MiB."""
        if self.interface is POLL and self.minor >= 1:
            return EVENT_LIST_BYTES_MAX
        return MESSAGE_BYTES_DEFAULT

    @property
    def push_bytes_max(self) -> int:
        """The whole onEvents message, called in the version in which the consumer called readyToReceive."""
        return EVENT_LIST_BYTES_MAX if self.minor >= 1 else MESSAGE_BYTES_DEFAULT


def all_calls() -> list[Call]:
    """Every `f` that is served."""
    return [
        Call(f"{interface.name}:{interface.major}.{minor}:{function}", interface, minor, function)
        for interface in INTERFACES.values()
        for minor in range(interface.minor + 1)
        for function in interface.functions
    ]


CALLS = {call.name: call for call in all_calls()}
