"""Queries: methods that read the state, run between two messages, and leave no trace in the log.

One that sets an attribute is refused before it does. One that changes what an attribute holds (`self.items.append(…)`)
is found by comparing the state before and after; its caller is told, and the program recovers its state from the log.
A large state is compared only now and then, since that takes longer than the query.
"""

from __future__ import annotations

import fnmatch
import itertools
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.protocols.ambrosia.binding.look import look
from headrace.protocols.ambrosia.binding.methods import INSTANCES_METHOD, LOOK_METHOD
from headrace.protocols.ambrosia.binding.values import from_json, to_json
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return
from headrace.protocols.ambrosia.interface import KEY_FIELD

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.engine import Engine
    from headrace.protocols.ambrosia.binding.immortal import Immortal


COMPARED_BYTES_MAX: Final = 64 << 10
COMPARED_EVERY: Final = 100
"""Above so many bytes of state, one query of so many."""


class QueryWrites(TypeError):
    """A query tried to change the state."""


class _Keyed(msgspec.Struct):
    key: str | None = msgspec.field(name=KEY_FIELD, default=None)


def key_in(arguments: bytes) -> str | None:
    """The key that arguments carry."""
    try:
        keyed: _Keyed | None = from_json(arguments, _Keyed) if arguments else None
    except msgspec.MsgspecError:
        return None
    return None if keyed is None else keyed.key


def answer_query(engine: Engine, message: Call) -> Return:
    """What a query says now."""
    try:
        value = _ask(engine, message)
        kind, data = (BodyKind.EMPTY, b"") if value is None else (BodyKind.VALUE, to_json(value))
    except Exception as error:
        kind, data = BodyKind.EXCEPTION, to_json(f"{type(error).__name__}: {error}")
    return Return(kind, engine.name.encode(), message.call_number, data, message.caller)


def _ask(engine: Engine, message: Call) -> Any:
    immortal = engine.immortal
    if message.method == INSTANCES_METHOD:
        return _instances(engine, message.arguments)
    if engine.keyed is not None:
        key = key_in(message.arguments)
        immortal = engine.keyed.look(key)
    if message.method == LOOK_METHOD:
        return look(immortal._cell)
    method = immortal.__methods__.get(message.method)
    if method is None or not method.is_query:
        raise LookupError(f"there is no query {message.method}")
    before = _to_compare(engine, immortal)
    own_class = type(immortal)
    immortal.__class__ = _read_only(own_class)
    try:
        return method.invoke(immortal, message.arguments)
    finally:
        object.__setattr__(immortal, "__class__", own_class)
        if before is not None and immortal.save_state() != before:
            engine.spoilt = True
            raise QueryWrites(
                f"a query reads the state and does not change it: {method.name} changed what an attribute holds; make "
                "it a @method, or copy what it changes"
            )


def _to_compare(engine: Engine, immortal: Immortal) -> bytes | None:
    """The state before a query; None if it is large and not this query's turn."""
    engine.queries += 1
    saved = immortal._cell.saved
    if saved is not None and len(saved.state) > COMPARED_BYTES_MAX and engine.queries % COMPARED_EVERY != 1:
        return None
    return immortal.save_state()


class _Wanted(msgspec.Struct):
    pattern: str = "*"
    after: str = ""
    limit: int = 1_000


def _instances(engine: Engine, arguments: bytes) -> list[str]:
    """Keys of a keyed immortal, in order."""
    if engine.keyed is None:
        raise LookupError(f"{engine.name} is not keyed: it is one instance")
    wanted = msgspec.json.decode(arguments, type=_Wanted)
    found = (
        key for key in engine.keyed.sorted_keys() if key > wanted.after and fnmatch.fnmatchcase(key, wanted.pattern)
    )
    return list(itertools.islice(found, wanted.limit))


def _read_only(cls: type[Immortal]) -> type[Immortal]:
    found = _classes.get(cls)
    if found is None:

        def refuse(self: Any, name: str, *value: Any) -> None:
            raise QueryWrites(f"a query reads the state and does not change it: {name} was set; make it a @method")

        members = {"__setattr__": refuse, "__delattr__": refuse, "__module__": cls.__module__}
        found = _classes[cls] = type.__new__(type, cls.__name__, (cls,), members)
    return found


_classes: dict[type, Any] = {}
