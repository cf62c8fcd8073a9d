"""What a method may not do, found before it runs: a clock, a random number or an event loop that no log knows.

Only what stands in a method itself is looked at; functions that are passed to `self.effect` are outside, and may do
what they like.
"""

from __future__ import annotations

import asyncio
import datetime
import dis
import inspect
import os
import random
import secrets
import threading
import time
import uuid
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from headrace.protocols.ambrosia.binding.methods import DeclarationError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.immortal import Immortal

OUTSIDE_OF_THE_LOG: Final = frozenset({"on_primary", "save_state", "load_state", "load_unknown", "__init__", "__new__"})
_CLOCK: Final = "use self.now(), which the log knows"
_SLEEP: Final = "use await self.sleep(…), whose end is logged"
_RANDOM: Final = "use self.random, which draws the same again in a replay"
_LOOP: Final = "use await self.sleep, self.effect, gather and select of headrace.immortals, which the log knows"
REMEDIES: Final[dict[Any, str]] = {
    time.time: _CLOCK,
    time.time_ns: _CLOCK,
    time.monotonic: _CLOCK,
    time.perf_counter: _CLOCK,
    time.localtime: _CLOCK,
    time.sleep: _SLEEP,
    asyncio.sleep: _SLEEP,
    uuid.uuid1: "use self.uuid()",
    uuid.uuid4: "use self.uuid()",
    os.urandom: "use self.random.randbytes(…)",
    secrets.token_hex: "use self.uuid().hex",
    secrets.token_urlsafe: "use self.uuid().hex",
    open: "use await self.effect(function, …), which runs outside of the log",
    input: "use await self.effect(function, …), which runs outside of the log",
    threading.Thread: "use await self.effect(function, …), which runs outside of the log",
}
CLOCKS: Final = {
    (datetime.datetime, "now"),
    (datetime.datetime, "utcnow"),
    (datetime.datetime, "today"),
    (datetime.date, "today"),
}

BUILTINS: Final = {"open": open, "input": input}


def check_class(cls: type[Immortal]) -> None:
    """Refuse a class whose methods would do something else in a replay."""
    for name, member in inspect.getmembers(cls, inspect.isfunction):
        function = inspect.unwrap(member)
        if name in OUTSIDE_OF_THE_LOG or function.__module__.startswith("headrace.protocols.ambrosia."):
            continue
        for line, what, remedy in _found(function.__code__, function.__globals__):
            file = os.path.basename(function.__code__.co_filename)
            raise DeclarationError(
                f"{cls.__name__}.{name} ({file}:{line}) uses {what}: a recovery runs the method again and would get "
                f"another answer; {remedy}"
            )


def _found(code: CodeType, names: dict[str, Any]) -> Iterator[tuple[int, str, str]]:
    """What is called by its name in a function: line, name and what to use in its place."""
    line, path, value = code.co_firstlineno, "", None
    for instruction in dis.get_instructions(code):
        line = instruction.starts_line or line
        if instruction.opname == "LOAD_GLOBAL":
            path = str(instruction.argval)
            value = names.get(path, BUILTINS.get(path))
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and value is not None:
            attribute = str(instruction.argval)
            if (remedy := _remedy_of_attribute(value, attribute)) is not None:
                yield line, f"{path}.{attribute}", remedy
            is_open = inspect.ismodule(value) or inspect.isclass(value)
            path, value = f"{path}.{attribute}", getattr(value, attribute, None) if is_open else None
            continue
        elif instruction.opname not in ("PRECALL", "CACHE", "PUSH_NULL"):
            path, value = "", None
        if value is not None and _is_hashable(value) and value in REMEDIES:
            yield line, path, REMEDIES[value]


def _remedy_of_attribute(owner: Any, attribute: str) -> str | None:
    if inspect.isclass(owner) and (owner, attribute) in CLOCKS:
        return _CLOCK
    if owner is random and attribute != "Random":
        return _RANDOM
    if owner is asyncio and attribute not in ("CancelledError", "TimeoutError", "sleep"):
        return _LOOP
    found = getattr(owner, attribute, None) if inspect.ismodule(owner) else None
    return REMEDIES.get(found) if found is not None and _is_hashable(found) else None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
