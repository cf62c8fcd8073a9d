"""What the hub keeps for immortals, and under which names.

    immortal/NAME/log       the log: one record per logged message, `id` = sequence id, `key` = sender, `type` = label
    immortal/NAME/pending   messages for an immortal that has not started yet, or that nobody registered
    immortal/NAME/inbox     what other protocols append; each record becomes an impulse
    ambrosia/immortals      table: name → `Registration`
    ambrosia/initial        table: name → InitialMessage, from the first checkpoint until record 0 is in the log
    ambrosia/methods        table: name → `Interface`: what can be called, as its program says
    ambrosia/forgotten      table: sender, destination → number up to which the sender's calls were for a peer now gone

Counters are producers of the log (and of `pending`), so they are durable in the same frame as the records they count:

    sequence          the next sequence id
    from:SENDER       replayable calls accepted from SENDER
    impulses:SENDER   impulses accepted from SENDER
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import Final
from urllib.parse import quote

import msgspec

from headrace.config.address import split_address
from headrace.errors import BadRequest, LimitExceeded
from headrace.hub import Hub
from headrace.protocols.ambrosia.interface import Interface, read_interface
from headrace.protocols.ambrosia.settings import Delivery, ImmortalSection, Sockets

IMMORTALS_TABLE: Final = "ambrosia/immortals"
INITIAL_TABLE: Final = "ambrosia/initial"
FORGOTTEN_TABLE: Final = "ambrosia/forgotten"
CURSOR: Final = "ambrosia"
SEQUENCE_PRODUCER: Final = "sequence"
INITIAL_LABEL: Final = "initial"
METHODS_TABLE: Final = "ambrosia/methods"
IMPULSE_PREFIX: Final = "impulse/"


class Registration(msgspec.Struct, omit_defaults=True, kw_only=True):
    """An immortal as it was registered, and what became of it."""

    name: str
    committer: int
    receive: str = "127.0.0.1:0"
    send: str = "127.0.0.1:0"
    sockets: Sockets = "listen"
    standby: bool = False
    checkpoint_log_bytes: int = 128 << 20
    checkpoints_kept: int = 2
    inbox_method: int | None = None
    clock: bool = False
    version: int = 0
    upgrade_version: int = 0
    started: bool = False
    """Record 0 is in the log, and everything that waited for it."""
    deliveries: list[tuple[int, Delivery]] = msgspec.field(default_factory=lambda: [(0, "bare")])
    """From which sequence id on records were delivered in which form: a replay has to use the same."""

    def delivery(self, sequence: int) -> Delivery:
        """The form in which the record of this sequence id is delivered, now and in every replay."""
        for first, delivery in reversed(self.deliveries):
            if first <= sequence:
                return delivery
        return "bare"


def registration_of(
    name: str, section: ImmortalSection, known: Registration | None, next_sequence: int
) -> Registration:
    """An immortal as it is to be from now on: the options asked for, and what is known of it already."""
    check_addresses(section)
    options = msgspec.structs.asdict(section)
    delivery = options.pop("delivery")
    if known is None:
        options |= {"version": section.upgrade_version or 0, "deliveries": [(0, delivery)]}
        if section.committer is None:
            options["committer"] = new_committer()
    else:
        options |= {"version": known.version, "committer": known.committer, "started": known.started}
        options["deliveries"] = known.deliveries
        if known.deliveries[-1][1] != delivery:  # another form, from the next record on
            options["deliveries"] = [*known.deliveries, (next_sequence, delivery)]
    if section.upgrade_version is None:
        options["upgrade_version"] = options["version"]
    registration = Registration(name=name, **options)
    if registration.upgrade_version < registration.version:
        raise BadRequest(
            f"immortal {name!r} has version {registration.version}; it cannot go back to {registration.upgrade_version}"
        )
    return registration


def check_addresses(ports: ImmortalSection | Registration) -> None:
    """Of both, also where the hub binds only one: it connects to the other, sooner or later."""
    for address in (ports.receive, ports.send):
        split_address(address)


class StreamNames:
    """The names of one immortal's streams."""

    def __init__(self, immortal: str) -> None:
        quoted = quote(immortal, safe="")
        self.log = f"immortal/{quoted}/log"
        self.pending = f"immortal/{quoted}/pending"
        self.inbox = f"immortal/{quoted}/inbox"


def producer_of(sender: str, replayable: bool) -> str:
    """The producer that counts a sender's replayable calls, or its impulses."""
    return f"from:{sender}" if replayable else f"impulses:{sender}"


def new_committer() -> int:
    """Low 31 bits of a clock, sign-extended from bit 30: as published coordinators choose it."""
    low = time.time_ns() // 1000 & 0x7FFFFFFF
    return low - (1 << 31) if low & (1 << 30) else low


def check_name(name: str, bytes_max: int) -> None:
    """A name for a new immortal: one that others can call."""
    if not name or not name.isprintable() or name.startswith("@"):
        raise BadRequest(f"{name!r} cannot name an immortal: printable text is needed, and no @ in front")
    if (size := len(name.encode())) > bytes_max:
        raise LimitExceeded("bytes of an immortal's name", size, bytes_max, "ambrosia.name_bytes_max")


def read_registration(key: bytes, value: bytes) -> Registration:
    """A row of `ambrosia/immortals`."""
    registration = msgspec.json.decode(value, type=Registration)
    if registration.name.encode() != key or not registration.deliveries:
        raise BadRequest(f"it is not a registration of the immortal {key!r}")
    check_addresses(registration)
    return registration


def read_forgotten(key: bytes, value: bytes) -> tuple[bytes, str, int]:
    """A row of `ambrosia/forgotten`: its key, the sender and the number."""
    sender, _ = msgspec.json.decode(key, type=tuple[str, str])
    return key, sender, int(value)


def _pair(sender: str, destination: str) -> bytes:
    return json.dumps([sender, destination]).encode()


class Store:
    """The tables above."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self._interfaces: dict[str, tuple[bytes, Interface]] = {}
        self._saving = asyncio.Lock()

    async def open(self) -> None:
        """Create the tables."""
        for table in (IMMORTALS_TABLE, INITIAL_TABLE, FORGOTTEN_TABLE, METHODS_TABLE):
            await self.hub.create_table(table)
        self._forgotten()
        self.hub.set_aside.read(METHODS_TABLE, self.hub.items(METHODS_TABLE), read_interface)

    def registrations(self) -> list[Registration]:
        """All immortals, in the order in which they were registered."""
        return self.hub.set_aside.read(IMMORTALS_TABLE, self.hub.items(IMMORTALS_TABLE), read_registration)

    async def save(self, registration: Registration) -> None:
        """Make a registration durable, unless it is: a hub has to start on a full disk, too."""
        async with self._saving:
            key, value = registration.name.encode(), msgspec.json.encode(registration)
            if self.hub.get(IMMORTALS_TABLE, key) != value:
                await self.hub.put(IMMORTALS_TABLE, key, value)

    async def keep_initial(self, name: str, message: bytes) -> None:
        """Keep the InitialMessage until it is in the log."""
        await self.hub.put(INITIAL_TABLE, name.encode(), message)

    def initial(self, name: str) -> bytes | None:
        """The InitialMessage that is not in the log yet."""
        return self.hub.get(INITIAL_TABLE, name.encode())

    def interface(self, name: str) -> Interface | None:
        """What can be called of an immortal, if its program has said so."""
        value = self.hub.get(METHODS_TABLE, name.encode())
        if value is None:
            return None
        known = self._interfaces.get(name)
        if known is None or known[0] != value:
            try:
                known = self._interfaces[name] = value, read_interface(name.encode(), value)
            except msgspec.MsgspecError:  # it was set aside when the hub opened
                return None
        return known[1]

    def method_name(self, name: str, label: str) -> str:
        """What a label of the log calls, by its name if the program has said so: `async/7`, `order`."""
        interface, number = self.interface(name), label.partition("/")[2]
        methods = () if interface is None else interface.methods
        return next((method.name for method in methods if str(method.id) == number), label)

    def forgotten(self, sender: str, destination: str) -> int:
        """Calls up to this number were for a peer that was forgotten."""
        value = self.hub.get(FORGOTTEN_TABLE, _pair(sender, destination))
        return int(value) if value is not None and value.isdigit() else 0

    def _forgotten(self) -> list[tuple[bytes, str, int]]:
        return self.hub.set_aside.read(FORGOTTEN_TABLE, self.hub.items(FORGOTTEN_TABLE), read_forgotten)

    async def forget_peer(self, sender: str, destination: str, number: int) -> None:
        """Remember that calls up to `number` must not reach a later immortal of the same name."""
        await self.hub.put(FORGOTTEN_TABLE, _pair(sender, destination), str(number).encode())

    async def forget_immortal(self, name: str) -> None:
        """Remove an immortal's rows; those in which it was the sender too, for a new one counts from one again."""
        await self.hub.delete(IMMORTALS_TABLE, name.encode())
        await self.hub.delete(INITIAL_TABLE, name.encode())
        await self.hub.delete(METHODS_TABLE, name.encode())
        for key, sender, _ in self._forgotten():
            if sender == name:
                await self.hub.delete(FORGOTTEN_TABLE, key)
