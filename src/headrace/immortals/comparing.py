"""Two programs side by side: what each does with every message that an immortal was sent.

One is the program that ran, which the log proves: what it says is compared with what was said. The other is a change to
it. Both go through the same messages from the same checkpoint, and nothing of it leaves the session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from headrace.client import Client
from headrace.immortals.checking import Checked, check
from headrace.protocols.ambrosia.binding.engine import Engine
from headrace.protocols.ambrosia.binding.immortal import Immortal
from headrace.protocols.ambrosia.binding.look import readable
from headrace.protocols.ambrosia.binding.methods import CLOCK_METHOD
from headrace.protocols.ambrosia.codec import BodyKind, Call, Message, Return, decode_messages
from headrace.protocols.ambrosia.interface import KEY_FIELD

STEPS_MAX: Final = 10_000
TEXT_MAX: Final = 2_000


class Did(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a program did with a message: what it answered, the calls that it made, and its state afterwards. `state` is
    null where it is too large to show, or in a form of the program's own."""

    results: list[str] = []
    calls: list[str] = []
    state: Any = None


class Step(msgspec.Struct, frozen=True):
    """One logged message, and what came of it."""

    index: int
    message: str
    before: Did
    after: Did
    differs: bool


class Compared(msgspec.Struct, frozen=True):
    """All of it. `not_logged` is what the first program does otherwise than was logged: then it is not the one that
    ran. `left_out` messages were processed and are not shown."""

    name: str
    checkpoint: int
    messages: int
    difference: str | None
    not_logged: str | None
    steps: list[Step]
    left_out: int = 0


class Recorder:
    """Writes down what one program does."""

    def __init__(self) -> None:
        self.done: list[tuple[int, str, Did]] = []
        self.left_out = 0
        self._place = -1

    def __call__(self, engine: Engine, message: Message, said: Sequence[bytes]) -> None:
        """A message was processed, and this was said."""
        self._place += 1
        if isinstance(message, Call) and message.method == CLOCK_METHOD:
            return
        if len(self.done) >= STEPS_MAX:
            self.left_out += 1
            return
        spoken = [each for part in said for each in decode_messages(part, addressed=True)]
        results = [_result(each) for each in spoken if isinstance(each, Return)]
        calls = [_call(engine, each) for each in spoken if isinstance(each, Call)]
        self.done.append((self._place, _called(engine, message), Did(results, calls, _state(engine, message))))


async def compare(
    before: Callable[[], Immortal],
    after: Callable[[], Immortal],
    name: str,
    client: Client,
    checkpoint: int | None = None,
) -> Compared:
    """Replay an immortal's log since a checkpoint, the oldest kept if none is given, to both programs."""
    new, old = Recorder(), Recorder()
    checked: Checked = await check(after, name, client, checkpoint, observer=new)
    proved = await check(before, name, client, checked.checkpoint, observer=old, until=checked.next)
    steps = [
        Step(checked.first + place, message, did, other, did != other)
        for (place, message, did), (_, _, other) in zip(old.done, new.done, strict=False)
    ]
    return Compared(
        name, checked.checkpoint, checked.messages, checked.difference, proved.difference, steps, new.left_out
    )


def _text(data: bytes) -> str:
    return data[:TEXT_MAX].decode(errors="replace")


def _named(engine: Engine, method: int) -> str:
    found = type(engine.immortal).__methods__.get(method)
    return f"method {method}" if found is None else found.name


def _called(engine: Engine, message: Message) -> str:
    if isinstance(message, Call):
        return f"{_named(engine, message.method)} {_text(message.arguments)}"
    if isinstance(message, Return):
        return f"answer of {_text(message.responder)}: {_result(message)}"
    return type(message).__name__


def _call(engine: Engine, call: Call) -> str:
    destination = _text(call.destination or b"")
    method = _named(engine, call.method) if not destination else f"method {call.method}"
    return f"{destination or 'itself'}: {method} {_text(call.arguments)}"


def _result(answer: Return) -> str:
    if answer.kind == BodyKind.EXCEPTION:
        return f"raised {_text(answer.value)}"
    return "returned" if answer.kind == BodyKind.EMPTY else f"returned {_text(answer.value)}"


def _state(engine: Engine, message: Message) -> Any:
    key = None
    if engine.keyed is not None:
        key = _key_in(message)
    cell = engine.cell_of(key) if engine.keyed is None or key is not None else None
    return None if cell is None else readable(cell.immortal.save_state())


def _key_in(message: Message) -> str | None:
    """The instance that a call is for."""
    try:
        found = json.loads(message.arguments).get(KEY_FIELD) if isinstance(message, Call) else None
    except (ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None
