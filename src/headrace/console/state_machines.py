"""The protocols' state machines as data for the page: the tables that the servers run by, and nothing written twice."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import msgspec

from headrace.protocols.ambrosia import session as ambrosia
from headrace.protocols.flight import session as flight
from headrace.protocols.futoin import session as futoin
from headrace.protocols.ockam import session as ockam
from headrace.protocols.perper.fabric import session as fabric
from headrace.protocols.perper.ignite import session as ignite
from headrace.protocols.wallaroo import states as wallaroo

Step = tuple[Enum, Enum, Enum]
"""A state, what happens in it, and the state after that."""


class Change(msgspec.Struct, frozen=True):
    """One arrow: all events that lead from a state to another (or keep it, where both are the same)."""

    before: str
    after: str
    events: list[str]


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
        _machine("wallaroo", "connection", "a connection", _nested(wallaroo.SESSION)),
        *(
            _machine("wallaroo", f"stream {dialect.name}", "a stream", _nested(table))
            for dialect, table in wallaroo.STREAM.items()
        ),
        _machine("ockam", "connection", "a connection", _nested(ockam.TRANSITIONS)),
        _machine("futoin", "delivery", "a reliable receiver", _flat(futoin.TRANSITIONS)),
        _machine("ignite", "connection", "a connection", _flat(ignite.TRANSITIONS)),
        _machine("fabric", "call", "a call", _flat(fabric.TRANSITIONS)),
        _machine("ambrosia", "link", "a binding's link", _ambrosia()),
        _machine("flight", "put", "an upload", _flat(flight.PUT_TRANSITIONS)),
    ]


def _nested(table: Mapping[Any, Mapping[Any, Enum]]) -> list[Step]:
    return [(before, event, after) for before, row in table.items() for event, after in row.items()]


def _flat(table: Mapping[Any, Enum]) -> list[Step]:
    return [(before, event, after) for (before, event), after in table.items()]


def _ambrosia() -> list[Step]:
    """The link may be lost in every state, which its table says once for all of them."""
    steps: list[Step] = [
        (before, event, after) for before, row in ambrosia.TRANSITIONS.items() for event, (after, _) in row.items()
    ]
    closed, lost = ambrosia.State.CLOSED, ambrosia.Input.LINK_LOST
    return steps + [(state, lost, closed) for state in ambrosia.State if state is not closed]


def _machine(protocol: str, name: str, of: str, steps: Iterable[Step]) -> Machine:
    arrows: dict[tuple[str, str], list[str]] = {}
    states: dict[str, None] = {}
    for before, event, after in steps:
        states |= {str(before.value): None, str(after.value): None}
        arrows.setdefault((str(before.value), str(after.value)), []).append(str(event.value))
    changes = [Change(before, after, events) for (before, after), events in arrows.items()]
    return Machine(protocol, name, of, list(states), changes)
