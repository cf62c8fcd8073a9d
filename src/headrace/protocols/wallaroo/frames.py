"""The frames of the connector protocol as values, the same for every dialect.

Names, cookies and keys are bytes: the protocol calls them text and its peers send anything. `None` means that the
field is not on the wire (a v2 message without an id, a draft message without an event time).
"""

from __future__ import annotations

from enum import IntFlag

import msgspec

from headrace.errors import HeadraceError
from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

NO_POINT = 2**64 - 1
"""The point of reference that v3 uses for "nothing stored yet"."""

VERSION = b"0.0.1"
"""The one version string that published connectors send; compared exactly ([A1])."""


class Flag(IntFlag):
    """Bit flags of a message. KEY exists in v2 only."""

    EPHEMERAL = 1
    BOUNDARY = 2
    EOS = 4
    UNSTABLE_REFERENCE = 8
    EVENT_TIME = 16
    KEY = 32


class PeerFault(RemoteProtocolError, HeadraceError):
    """The peer broke the protocol. The text is what it will read in our ERROR frame, so it holds no secrets."""

    code = "wallaroo-peer-fault"


class LocalFault(LocalProtocolError, HeadraceError):
    """We asked the codec or the session for something the protocol cannot say. A bug on our side."""

    code = "wallaroo-local-fault"


class Hello(msgspec.Struct, frozen=True, gc=False):
    version: bytes
    cookie: bytes
    program: bytes
    instance: bytes


class Ok(msgspec.Struct, frozen=True):
    """`points` is the draft's list; `names` and `sources` are the lists of the two v2 forms."""

    credits: int
    points: tuple[tuple[int, int], ...] = ()
    names: tuple[bytes, ...] = ()
    sources: tuple[tuple[bytes, bytes], ...] = ()


class Error(msgspec.Struct, frozen=True, gc=False):
    reason: bytes


class Notify(msgspec.Struct, frozen=True, gc=False):
    stream_id: int
    name: bytes
    point: int


class NotifyAck(msgspec.Struct, frozen=True, gc=False):
    success: bool
    stream_id: int
    point: int


class Message(msgspec.Struct, frozen=True, gc=False):
    stream_id: int | None
    message_id: int | None
    payload: bytes | None
    event_time: int | None = None
    key: bytes | None = None
    flags: int = 0


class Ack(msgspec.Struct, frozen=True):
    credits: int
    acks: tuple[tuple[int, int], ...] = ()


class Nack(msgspec.Struct, frozen=True, gc=False):
    credits: int
    stream_id: int
    point: int


class Restart(msgspec.Struct, frozen=True, gc=False):
    address: bytes | None = None


class Eos(msgspec.Struct, frozen=True, gc=False):
    stream_id: int


class WorkersLeft(msgspec.Struct, frozen=True):
    request: int
    workers: tuple[bytes, ...] = ()


Frame = Hello | Ok | Error | Notify | NotifyAck | Message | Ack | Nack | Restart | Eos | WorkersLeft

_WIRE_NAMES = {NotifyAck: "notify_ack", WorkersLeft: "workers_left", Eos: "eos_message"}


def wire_name(frame: Frame) -> str:
    """What the peer calls a frame, for faults."""
    return _WIRE_NAMES.get(type(frame), type(frame).__name__.lower())


def readable(text: bytes) -> str:
    """What a peer sent as text, for people."""
    return text.decode("utf-8", "backslashreplace")
