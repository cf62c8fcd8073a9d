"""The protocols' state machines as data for the page: the tables that the servers run by, and nothing written twice."""

from __future__ import annotations

import msgspec

from headrace.protocols.descriptor import protocols
from headrace.protocols.state_machine import Change


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
        Machine(label, name, machine.of, machine.states(), machine.changes())
        for protocol in protocols()
        for machine in protocol.shown().machines
        for label, name in [machine.name.split("/")]
    ]
