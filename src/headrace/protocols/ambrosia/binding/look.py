"""How an immortal is now, for people who look: its state, which methods wait for what, the timers to come, and what is
being done outside. A query that every immortal answers, by the number `LOOK_METHOD`; like any query it changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.protocols.ambrosia.binding.results import Result, Task
from headrace.protocols.ambrosia.binding.values import to_json, unpack

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.cell import Cell, Effect, Timer

SHOWN_MAX: Final = 200
STATE_BYTES_MAX: Final = 256 << 10
ARGUMENT_BYTES_MAX: Final = 2_000


class WaitingMethod(msgspec.Struct, omit_defaults=True):
    """A method that is under way. `call` is the number of a call with an answer, by which it can be cancelled."""

    method: str
    waits_for: str
    call: int | None = None


class ComingTimer(msgspec.Struct, omit_defaults=True):
    """A call to come."""

    number: int
    deadline_us: int
    destination: str
    method: int
    arguments: str = ""
    cron: str | None = None


class OpenEffect(msgspec.Struct, omit_defaults=True):
    """Something that is being done outside. `attempts` have failed; `token` is what others fulfil."""

    number: int
    what: str
    attempts: int = 0
    last_error: str = ""
    not_before_s: float = 0.0
    deadline_s: float | None = None
    token: str | None = None


class Look(msgspec.Struct):
    """One instance as it is. `state` is null where it is too large to show; `more` counts what was left out."""

    kind: str
    now_us: int
    state: Any
    state_bytes: int
    methods: list[WaitingMethod]
    queued: int
    timers: list[ComingTimer]
    effects: list[OpenEffect]
    more: int = 0


def look(cell: Cell) -> Look:
    """The cell, with nothing changed."""
    saved = cell.immortal.save_state()
    methods = [WaitingMethod(name, _reason(cell, task), _call_of(cell, task)) for task, name in cell.tasks.items()]
    timers = sorted(cell.timers.items(), key=lambda each: each[1].deadline_us)
    left_out = sum(max(0, many - SHOWN_MAX) for many in (len(methods), len(timers), len(cell.effects)))
    return Look(
        cell.immortal.__saved_as__,
        cell.now_us,
        readable(saved),
        len(saved),
        methods[:SHOWN_MAX],
        len(cell.waiting_calls),
        [_timer(number, timer) for number, timer in timers[:SHOWN_MAX]],
        [_effect(number, effect) for number, effect in list(cell.effects.items())[:SHOWN_MAX]],
        left_out,
    )


def readable(state: bytes) -> Any:
    """A saved state as what JSON can say; null if it is too large, or a form of the program's own."""
    if len(state) > STATE_BYTES_MAX:
        return None
    try:
        return msgspec.json.decode(to_json(unpack(state)))
    except (msgspec.MsgspecError, TypeError, ValueError):  # a key of a map that is no text, or not msgpack
        return None


def _call_of(cell: Cell, task: Task[Any]) -> int | None:
    return next((number for number, each in cell.origin.items() if each is task), None)


def _reason(cell: Cell, task: Task[Any]) -> str:
    """What a method waits for, in words."""
    awaited: Result[Any] | None = task.waits_for
    if awaited is None:
        return "nothing"
    for number, (result, _, destination, method) in cell.calls.items():
        if result is awaited:
            return f"the answer of {destination}, method {method} (call {number})"
    for number, effect in cell.effects.items():
        if effect.result is awaited:
            return f"{_what(effect)} (effect {number})"
    for other, name in cell.tasks.items():
        if other is awaited:
            return f"{name}, which it has started"
    return "the first of several"


def _what(effect: Effect) -> str:
    if effect.token is not None:
        return f"token {effect.token}"
    if effect.is_sleep:
        return "sleep"
    return getattr(effect.function, "__qualname__", repr(effect.function))


def _effect(number: int, effect: Effect) -> OpenEffect:
    return OpenEffect(
        number,
        _what(effect),
        effect.attempts,
        effect.last_error,
        effect.not_before,
        effect.deadline,
        effect.token,
    )


def _timer(number: int, timer: Timer) -> ComingTimer:
    said = timer.arguments[:ARGUMENT_BYTES_MAX].decode(errors="replace")
    return ComingTimer(number, timer.deadline_us, timer.destination, timer.method, said, timer.cron)
