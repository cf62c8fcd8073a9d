"""The protocols' state machines as data for the page: the tables that the servers run by, and nothing written twice."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.protocols.ambrosia import session as ambrosia
from headrace.protocols.flight import session as flight
from headrace.protocols.futoin import session as futoin
from headrace.protocols.ockam import session as ockam
from headrace.protocols.perper.fabric import session as fabric
from headrace.protocols.perper.ignite import session as ignite
from headrace.protocols.state_machine import Change, StateMachine
from headrace.protocols.wallaroo import states as wallaroo

MACHINES: tuple[StateMachine[Any, Any], ...] = (
    *wallaroo.MACHINES,
    *ockam.MACHINES,
    *futoin.MACHINES,
    *ignite.MACHINES,
    *fabric.MACHINES,
    *ambrosia.MACHINES,
    *flight.MACHINES,
)


class Machine(msgspec.Struct, frozen=True):
    """One state machine. `states` begins with the first one; `of` says what in a session runs by it."""

    protocol: str
    name: str
    of: str
    states: list[str]
    changes: list[Change]


def machines() -> list[Machine]:
    """Every table, one machine each."""
    return [
        Machine(protocol, name, one.of, one.states(), one.changes())
        for one in MACHINES
        for protocol, name in [one.name.split("/")]
    ]
