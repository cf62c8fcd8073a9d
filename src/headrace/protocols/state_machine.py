"""A state machine as a table: what a session may do next, and how the docs and the console draw it. No I/O.

A pair that is not in the table does not exist. Whose fault it is to ask for it, the caller knows: `step` is for what
we do ourselves, `get` for what a peer may cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from typing import Generic, TypeVar

import msgspec

from headrace.protocols.errors import LocalProtocolError

State = TypeVar("State", bound=Enum)
Event = TypeVar("Event", bound=Enum)


class Change(msgspec.Struct, frozen=True):
    """One arrow: all events that lead from a state to another (or keep it, where both are the same)."""

    before: str
    after: str
    events: list[str]


class StateMachine(Generic[State, Event]):
    """One table. `name` is "protocol/machine", and `of` says what in a session runs by it.

    `everywhere` is what may happen in every state and always leads to the same; `label` is what the diagram says about
    an event, where that is more than its name, or nothing, where the diagram leaves it out.
    """

    def __init__(
        self,
        name: str,
        first: State,
        table: Mapping[State, Mapping[Event, State]],
        *,
        of: str = "a connection",
        everywhere: Mapping[Event, State] | None = None,
        label: Callable[[State, Event], str] | None = None,
    ) -> None:
        self.name = name
        self.first = first
        self.of = of
        self.rows: dict[State, dict[Event, State]] = {
            state: {**table.get(state, {}), **(everywhere or {})} for state in type(first)
        }
        self._everywhere = everywhere or {}
        self._label = label

    def get(self, state: State, event: Event) -> State | None:
        """The next state, or `None` where the table has none."""
        return self.rows[state].get(event)

    def step(self, state: State, event: Event) -> State:
        """The next state. A missing one is our bug: what a peer may cause is looked up by `get`."""
        after = self.rows[state].get(event)
        if after is None:
            raise LocalProtocolError(f"{self.name}: no {event.value!r} in state {state.value!r}")
        return after

    def changes(self) -> list[Change]:
        """The arrows, in the order of the table."""
        return [Change(before.value, after.value, _names(events)) for (before, after), events in self._arrows().items()]

    def states(self) -> list[str]:
        """The states that can be reached, the first one first."""
        reached = dict.fromkeys([self.first, *(state for arrow in self._arrows() for state in arrow)])
        return [state.value for state in reached]

    def mermaid(self) -> str:
        """The table as a Mermaid diagram, for the docs. What may happen everywhere is a note, not an arrow each."""
        names = dict.fromkeys([self.first])
        lines = [f"    [*] --> {_id(self.first)}"]
        for (before, after), events in self._arrows().items():
            own = [event for event in events if event not in self._everywhere]
            labels = [self._label(before, event) for event in own] if self._label else [", ".join(_names(own))]
            for label in filter(None, labels):
                names |= {before: None, after: None}
                lines.append(f"    {_id(before)} --> {_id(after)}: {label.replace(':', '')}")
        for event, after in self._everywhere.items():
            lines.append(f'    state "{after.value}" as {_id(after)}')
            lines.append(f"    note right of {_id(after)}: {event.value}, in any state")
        aliases = [f'    state "{each.value}" as {_id(each)}' for each in names if _id(each) != each.value]
        return "\n".join(["stateDiagram-v2", *aliases, *lines])

    def _arrows(self) -> dict[tuple[State, State], list[Event]]:
        arrows: dict[tuple[State, State], list[Event]] = {}
        for before, row in self.rows.items():
            for event, after in row.items():
                arrows.setdefault((before, after), []).append(event)
        return arrows


def _names(events: Iterable[Enum]) -> list[str]:
    return [event.value for event in events]


def _id(state: Enum) -> str:
    """Mermaid takes letters, digits and underscores; other names are given as an alias."""
    return re.sub(r"\W", "_", state.value)
