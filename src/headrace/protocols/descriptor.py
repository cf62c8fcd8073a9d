"""What a protocol is to the rest of the hub, said once by the protocol itself, and the list of all protocols.

Server, settings, metrics, security, AsyncAPI and console go through `protocols()`; none of them names one. A descriptor
is light: whatever serves, draws or shows is named "module:name" and imported when it is wanted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config.sections import Section
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.protocols.state_machine import StateMachine

BUILT_IN = ("flight", "wallaroo", "ockam", "futoin", "perper", "ambrosia")
"""The packages beside this module, in the order in which they start and are listed. Others come after them, by name."""
ENTRY_POINTS = "headrace.protocols"
"""The group under which an installed package offers its `PROTOCOL`."""


class Field(msgspec.Struct, frozen=True):
    """`size` bytes that mean something together."""

    name: str
    size: int
    text: str


class WireForm(msgspec.Struct, frozen=True):
    """A record as a protocol sends it. The sizes of `fields` add up to the bytes."""

    message: str
    data: bytes
    fields: list[Field]


class SeenRecord(msgspec.Struct, frozen=True):
    """What a wire form can be made of."""

    index: int
    time_us: int
    payload: bytes
    event_time_us: int | None = None
    id: int | None = None
    type: str | None = None
    key: bytes | None = None


class Words(msgspec.Struct, frozen=True):
    """What bytes say that are a data object of a protocol: its type, and its value as text or JSON."""

    form: str
    kind: str
    text: str


class Place(msgspec.Struct, frozen=True):
    """What runs by a machine, and the state that it is in."""

    machine: str
    what: str
    state: str


class ListenerKind(msgspec.Struct, frozen=True):
    """A listener. `protocol` is AsyncAPI's word for what it speaks; `serve` is "module:function" of
    `async def serve(hub, address) -> Listener`. One without `serve` is another part's, on which the protocol mounts."""

    name: str
    protocol: str
    title: str
    serve: str = ""
    address: str = ""


def state_place(label: str, details: dict[str, Any], what: str = "connection") -> list[Place]:
    """The place of a session that runs by one machine."""
    return [Place(f"{label}/{what}", what, str(details.get("state")))]


@dataclass(frozen=True, kw_only=True)
class Console:
    """How the console shows a protocol."""

    machines: tuple[StateMachine[Any, Any], ...] = ()
    wire_form: Callable[[SeenRecord], WireForm | None] = lambda record: None
    """A record as it goes out; None if the protocol cannot carry it."""
    places: Callable[[str, dict[str, Any]], list[Place]] = lambda label, details: []
    """Where a session stands in the machines, from its label (`Protocol.labels`) and its details."""
    words: Callable[[Hub, list[bytes]], list[Words | None]] = lambda hub, objects: [None] * len(objects)
    """What data objects of its own say, for people; None for bytes that are none. It bounds what it does at once."""


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """One protocol. It says only what it has."""

    name: str
    """Its section in the settings, and what it is called in metrics and sessions if it has no listener of its own."""
    title: str
    authentication: str
    """How its peers say who they are; for people."""
    settings: type[Section]
    metrics: Callable[[Any], object] | None = None
    """A class of metrics, called with a `Maker`."""
    listeners: tuple[ListenerKind, ...] = ()
    service: str = ""
    """`async def start(hub) -> Listener | None`: what it runs besides listeners of [listen]."""
    console: str = ""
    """A `Console`."""
    own_tls_files: bool = False
    """TLS only with files of its own in [tls.listeners]: published peers cannot speak it."""
    addresses: Callable[[Any], Iterable[str]] = lambda settings: ()
    """What its section lets it listen on besides [listen]."""
    warnings: Callable[[Any], Iterable[str]] = lambda settings: ()
    """What an operator must know about its section if there are users."""
    own_tables: Mapping[str, str] = field(default_factory=dict)
    """Tables that only it writes and only admins read, with `def read(key, value)`, which raises for a row that it
    cannot understand; empty where any bytes will do."""
    own_streams: tuple[str, ...] = ()
    """Patterns of streams that only it writes and only admins read."""
    own_cursors: tuple[tuple[str, str], ...] = ()
    """Cursors that only it moves, with a pattern of the streams that they are in."""
    holds: Callable[[str, str], bool] = lambda cursor, stream: False
    """Whether a cursor, in a stream, is there to keep the records and not to read them."""
    own_producers: tuple[str, ...] = ()
    """Patterns of producers, in whatever stream, whose sequences only it moves."""

    @property
    def labels(self) -> tuple[str, ...]:
        """What its sessions are called: by its own listeners, or by its name."""
        return tuple(each.name for each in self.listeners if each.serve) or (self.name,)

    def shown(self) -> Console:
        """How the console shows it."""
        return resolve_name(self.console) if self.console else Console()


class BrokenProtocol(HeadraceError):
    """A protocol of an installed package cannot be used."""

    code = "broken-protocol"


@functools.cache
def protocols() -> tuple[Protocol, ...]:
    """All of them: those of Headrace, then those that other installed packages offer."""
    found = [resolve_name(f"headrace.protocols.{name}:PROTOCOL") for name in BUILT_IN]
    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        package = entry.dist.name if entry.dist else entry.module
        try:
            protocol = entry.load()
        except Exception as error:
            raise _broken(package, entry, f"cannot be loaded: {error!r}") from error
        if not isinstance(protocol, Protocol):
            raise _broken(package, entry, "is not a headrace.protocols.descriptor.Protocol")
        taken = {"http"}.union(*((each.name, *each.labels) for each in found))
        if twice := sorted(taken.intersection((protocol.name, *protocol.labels))):
            raise _broken(package, entry, f"is called {twice[0]!r}, as another one")
        found.append(protocol)
    return tuple(found)


def is_holding_cursor(cursor: str, stream: str) -> bool:
    """Whether it only keeps the records of the stream: nobody reads with it, so it never moves."""
    return any(each.holds(cursor, stream) for each in protocols())


def _broken(package: str, entry: metadata.EntryPoint, problem: str) -> BrokenProtocol:
    return BrokenProtocol(
        f"protocol {entry.name!r} ({entry.value}) of the package {package!r} {problem}; "
        f"install a version that works with this Headrace, or `pip uninstall {package}`"
    )
