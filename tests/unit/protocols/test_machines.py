"""What holds for the state machine of every protocol, and that the docs show it."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from headrace.protocols.descriptor import protocols
from headrace.protocols.state_machine import StateMachine

PAGES = "".join(path.read_text() for path in (Path(__file__).parents[3] / "docs" / "protocols").glob("*.md"))

MACHINES = [one for protocol in protocols() for one in protocol.shown().machines]
each_machine = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@each_machine
def test_every_state_with_a_row_can_be_reached(machine: StateMachine[Any, Any]) -> None:
    reached = {machine.first}
    while more := set(chain(*(machine.rows[state].values() for state in reached))) - reached:
        reached |= more
    assert {state.value for state in reached} == set(machine.states())


@each_machine
def test_every_state_and_event_has_a_use(machine: StateMachine[Any, Any]) -> None:
    """The two dialects of a Wallaroo stream share their states and events."""
    together = [one for one in MACHINES if type(one.first) is type(machine.first)]
    states = {state for one in together for state in one.states()}
    events = {event for one in together for row in one.rows.values() for event in row}
    assert states == {state.value for state in type(machine.first)}
    assert events == set(type(next(iter(events))))


@each_machine
def test_the_docs_show_it(machine: StateMachine[Any, Any]) -> None:
    assert f"```mermaid\n{machine.mermaid()}\n```" in PAGES, machine.mermaid()
