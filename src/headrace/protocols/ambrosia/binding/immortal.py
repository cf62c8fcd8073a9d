"""`Immortal`, the base class of services that survive any crash without losing or repeating a call.

    class Counter(Immortal):
        total: int = 0                      # annotated attributes are the state that checkpoints keep

        @fork
        def add(self, amount: int) -> None:
            self.total += amount

        @call
        def read(self) -> int:
            return self.total

State may change only in declared methods, and these may depend only on state, arguments and answers: after a crash the
same messages are processed again and must lead to the same calls. What is not so by nature goes through `outside`:

        @fork
        async def stamp(self) -> None:
            self.when = await self.outside(time.time)     # runs once; a replay gets the logged answer
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import random
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar, get_origin, get_type_hints

import msgspec

from headrace.protocols.ambrosia.binding.methods import Method, methods_of
from headrace.protocols.ambrosia.binding.results import Result
from headrace.protocols.ambrosia.settings import NAME_BYTES_MAX

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.engine import Engine
    from headrace.protocols.ambrosia.binding.proxies import Proxy

logger = logging.getLogger("headrace.immortal")
ProxyType = TypeVar("ProxyType", bound="Proxy")
CONTAINERS: Final = (list, dict, set, bytearray, deque)


class StateError(TypeError):
    """The state of an immortal cannot be put into a checkpoint, or taken from one, without losing something."""


class UpgradeRefused(Exception):
    """The hub asked for an upgrade and the class does not say how."""


class Immortal:
    """Derive from this, annotate the state, and declare methods with `@fork`, `@call` and `@impulse`."""

    name_bytes_max: ClassVar[int] = NAME_BYTES_MAX
    """The longest name of a peer; where the hub has another `ambrosia.name_bytes_max`, the same here."""
    __methods__: ClassVar[dict[int, Method]] = {}
    __saved_as__: ClassVar[str] = ""
    __shared__: ClassVar[dict[str, Any]] = {}
    if TYPE_CHECKING:  # not at run time, where annotations are the state
        _engine: Engine

    def __init_subclass__(cls, *, saved_as: str | None = None, **kwargs: Any) -> None:
        """`saved_as` is the name by which checkpoints know the class: a renamed one takes its former name."""
        super().__init_subclass__(**kwargs)
        cls.__methods__ = methods_of(cls)
        cls.__saved_as__ = saved_as or cls.__qualname__
        cls.__shared__ = {**cls.__shared__, **_shared_values(cls)}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """First values are each object's own: `items: dict[str, int] = {}` would be one for all immortals, and a
        recovery would begin with what the object before it had left there."""
        if (args or kwargs) and cls.__init__ is object.__init__:
            raise TypeError(f"{cls.__name__}() takes no arguments")
        self = super().__new__(cls)
        for name in _annotations(cls):
            value = getattr(cls, name, None)
            if isinstance(value, CONTAINERS) or not (name.startswith("_") or inspect.isdatadescriptor(value)):
                own = copy.deepcopy(value)
                if own is not value:
                    setattr(self, name, own)
        return self

    # --- to override --------------------------------------------------------------------------------------------

    def first_start(self) -> Any:
        """Runs once in the immortal's life, as its first message. May be `async def`."""

    async def on_primary(self, itself: Any) -> None:
        """Runs in the process that is alive now, and is not replayed: the place to watch the outside world and to
        send impulses to `itself`. Cancelled when the link to the hub is lost, started again after the recovery."""

    def save_state(self) -> bytes:
        """The state as bytes: by default all annotated attributes."""
        names = _state_fields(type(self))
        stray = [name for name in vars(self) if name not in names and not name.startswith("_")]
        stray += [name for name, value in self.__shared__.items() if getattr(type(self), name) != value]
        if stray:
            raise StateError(
                f"{type(self).__name__}.{stray[0]} would be lost in a checkpoint: annotate it in the class, begin its "
                "name with an underscore if it need not be kept, or write save_state and load_state"
            )
        return msgspec.msgpack.encode({name: getattr(self, name) for name in names if hasattr(self, name)})

    def load_state(self, data: bytes) -> None:
        """The opposite, on a fresh object. Attributes that the saved state does not know keep their first value; saved
        ones that the class does not have go to `load_unknown`."""
        kinds = _state_fields(type(self))
        unknown: dict[str, Any] = {}
        for name, value in msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw]).items():
            if name in kinds:
                setattr(self, name, msgspec.msgpack.decode(value, type=kinds[name]))
            else:
                unknown[name] = msgspec.msgpack.decode(value)
        self.load_unknown(unknown)
        if unknown:
            raise StateError(
                f"the checkpoint of {type(self).__name__} holds {', '.join(sorted(unknown))}, which the class does not "
                "have: the next checkpoint would lose it. Write load_unknown(self, saved), which takes it out of "
                "`saved` to keep or to drop it, or upgrade() from the old class to a new one"
            )

    def load_unknown(self, saved: dict[str, Any]) -> None:
        """Saved attributes that the class does not have, by name. Override it to take out what was renamed
        (`self.total = saved.pop("amount")`) and what is gone for good; what is left in `saved` is an error."""

    def upgrade(self) -> Immortal:
        """The object of the new version, with the state of this one."""
        raise UpgradeRefused(f"{type(self).__name__} has no upgrade(): return the object of the new version from it")

    def on_error(self, method: str, error: Exception) -> None:
        """A method that nobody waits for has raised. It is deterministic too: the next replay raises it again."""
        logger.error("%s.%s failed: %r", self.name, method, error)

    # --- to use -------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name under which the immortal is registered."""
        return self._engine.name

    @property
    def replaying(self) -> bool:
        """Whether logged messages are being processed again. Nothing that is sent or kept may depend on it."""
        return not self._engine.primary

    @property
    def random(self) -> random.Random:
        """Random numbers that a replay draws again: seeded by the immortal, kept in checkpoints."""
        return self._engine.random

    @property
    def itself(self) -> Any:
        """A proxy for calls to oneself, which come back through the log."""
        return self._engine.proxy_to_self()

    def peer(self, proxy: type[ProxyType], name: str) -> ProxyType:
        """A proxy for another immortal."""
        if not 0 < len(name.encode()) <= self.name_bytes_max:  # the hub would close the link, now and in every replay
            raise ValueError(f"{name!r} names no immortal: a name has 1 to {self.name_bytes_max} bytes")
        return proxy(self._engine, name)

    def outside(self, function: Callable[..., Any], *args: Any) -> Result[Any]:
        """Do something that a replay must not do again, and await its result, which is logged.

        The function (a coroutine function too) runs outside of the replayed world, at least once: it runs again if the
        process dies before its result is logged. The result has to be something that JSON can say.
        """
        return self._engine.outside(function, args)

    def time(self) -> Result[float]:
        """The time, in seconds since 1970: the same one in every replay."""
        return self.outside(time.time)

    def sleep(self, seconds: float) -> Result[None]:
        """Wait. The deadline is logged: a crash in the middle makes the wait no longer, and one that is over when the
        immortal has recovered ends at once."""
        return self._engine.outside(asyncio.sleep, (seconds,), is_sleep=True)


def _is_class_variable(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _shared_values(cls: type) -> dict[str, Any]:
    """Containers that belong to the class and not to the state, as they are now: whoever fills one of them in a method
    takes it for state, and is told at the next checkpoint."""
    values: dict[str, Any] = {}
    for name, value in vars(cls).items():
        if isinstance(value, CONTAINERS) and not name.startswith("_") and name not in inspect.get_annotations(cls):
            with contextlib.suppress(TypeError, ValueError):  # else it holds what has no copy, and is no state either
                own = copy.deepcopy(value)
                values |= {name: own} if own == value else {}
    return values


def _annotations(cls: type) -> list[str]:
    """Annotated attributes, without those of `Immortal` itself and those of the class rather than its objects."""
    names: dict[str, None] = {}
    for base in cls.__mro__:
        if base is Immortal:
            break
        own = inspect.get_annotations(base)
        names |= {name: None for name, annotation in own.items() if not _is_class_variable(annotation)}
    return list(names)


def _state_fields(cls: type) -> dict[str, Any]:
    """Annotated attributes with their types, without private ones."""
    hints = get_type_hints(cls)
    return {name: hints[name] for name in _annotations(cls) if not name.startswith("_")}
