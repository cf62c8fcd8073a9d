"""The one state machine: steps, what is missing, what may happen everywhere, grouping and drawing."""

from __future__ import annotations

from enum import Enum

import pytest

from headrace.protocols.errors import LocalProtocolError
from headrace.protocols.state_machine import Change, StateMachine


class Door(Enum):
    SHUT = "shut"
    OPEN = "wide-open"
    GONE = "gone"
    PAINTED = "painted"  # in no table: never shown


class Deed(Enum):
    PUSH = "hand: push"
    KNOCK = "knock"
    RING = "ring"
    BURN = "burn"


TABLE = {
    Door.SHUT: {Deed.PUSH: Door.OPEN, Deed.KNOCK: Door.SHUT, Deed.RING: Door.SHUT},
    Door.OPEN: {Deed.PUSH: Door.SHUT},
}
PLAIN = StateMachine("house/door", Door.SHUT, TABLE)
BURNING = StateMachine("house/door", Door.SHUT, TABLE, of="a door", everywhere={Deed.BURN: Door.GONE})


def test_a_step_follows_the_table() -> None:
    assert PLAIN.step(Door.SHUT, Deed.PUSH) is PLAIN.get(Door.SHUT, Deed.PUSH) is Door.OPEN
    assert PLAIN.step(Door.SHUT, Deed.KNOCK) is Door.SHUT


def test_a_missing_pair_is_our_bug_unless_the_caller_knows_better() -> None:
    for state, event in ((Door.OPEN, Deed.KNOCK), (Door.GONE, Deed.PUSH), (Door.SHUT, Deed.BURN)):
        assert PLAIN.get(state, event) is None
        with pytest.raises(LocalProtocolError, match=f"house/door: no {event.value!r} in state {state.value!r}"):
            PLAIN.step(state, event)


def test_what_may_happen_everywhere_leads_to_the_same_state() -> None:
    assert {BURNING.step(state, Deed.BURN) for state in Door} == {Door.GONE}
    assert BURNING.step(Door.SHUT, Deed.PUSH) is Door.OPEN
    assert Change("wide-open", "gone", ["burn"]) in BURNING.changes()


def test_events_between_the_same_states_are_one_change() -> None:
    assert PLAIN.changes() == [
        Change("shut", "wide-open", ["hand: push"]),
        Change("shut", "shut", ["knock", "ring"]),
        Change("wide-open", "shut", ["hand: push"]),
    ]
    assert PLAIN.states() == ["shut", "wide-open"]
    assert PLAIN.of == "a connection"


def test_the_drawing() -> None:
    drawn = """\
stateDiagram-v2
    state "wide-open" as wide_open
    [*] --> shut
    shut --> wide_open: hand push
    shut --> shut: knock, ring
    wide_open --> shut: hand push"""
    assert PLAIN.mermaid() == drawn
    note = '\n    state "gone" as gone\n    note right of gone: burn, in any state'
    assert BURNING.mermaid() == drawn + note


def test_a_label_says_more_and_an_empty_one_leaves_out() -> None:
    def label(state: Door, event: Deed) -> str:
        return f"{event.value} / creak" if event is Deed.PUSH and state is Door.SHUT else ""

    machine = StateMachine("house/door", Door.SHUT, TABLE, label=label)
    assert machine.mermaid().splitlines()[-2:] == ["    [*] --> shut", "    shut --> wide_open: hand push / creak"]
    assert len(machine.changes()) == 3
