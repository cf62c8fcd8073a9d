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
import functools
import inspect
import logging
import random
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, ParamSpec, Self, TypeVar, get_origin, get_type_hints, overload

import msgspec

from headrace.protocols.ambrosia.binding.cell import MICROSECONDS, Effect, Timer
from headrace.protocols.ambrosia.binding.methods import Method, methods_of
from headrace.protocols.ambrosia.binding.proxies import proxy_of, proxy_to_self, target_of
from headrace.protocols.ambrosia.binding.results import Result, as_result, select
from headrace.protocols.ambrosia.binding.retry import Retry
from headrace.protocols.ambrosia.binding.saga import Saga
from headrace.protocols.ambrosia.binding.schedule import Cron, Delay, seconds_of
from headrace.protocols.ambrosia.binding.token import Token
from headrace.protocols.ambrosia.binding.values import pack, unpack
from headrace.protocols.ambrosia.settings import NAME_BYTES_MAX

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.cell import Cell
    from headrace.protocols.ambrosia.binding.proxies import Proxy

logger = logging.getLogger("headrace.immortal")
ProxyType = TypeVar("ProxyType", bound="Proxy")
Other = TypeVar("Other", bound="Immortal")
T = TypeVar("T")
P = ParamSpec("P")
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
    __keyed__: ClassVar[bool] = False
    __renamed__: ClassVar[dict[str, str]] = {}
    if TYPE_CHECKING:  # not at run time, where annotations are the state
        _cell: Cell

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
        for name in annotations_of(cls):
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
        return pack({name: getattr(self, name) for name in names if hasattr(self, name)})

    def load_state(self, data: bytes) -> None:
        """The opposite, on a fresh object. Attributes that the saved state does not know keep their first value; saved
        ones that the class does not have go to `load_unknown`."""
        kinds = _state_fields(type(self))
        unknown: dict[str, Any] = {}
        for saved_name, value in msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw]).items():
            name = saved_name if saved_name in kinds else self.__renamed__.get(saved_name, saved_name)
            if name in kinds:
                setattr(self, name, unpack(value, kinds[name]))
            else:
                unknown[name] = msgspec.msgpack.decode(value)
        self.load_unknown(unknown)
        if unknown:
            raise StateError(
                f"the checkpoint of {type(self).__name__} holds {', '.join(sorted(unknown))}, which the class does not "
                "have: the next checkpoint would lose it. Say what became of it: @immortal(renamed={old: new}), or "
                "write load_unknown(self, saved), which takes it out of `saved` to keep or to drop it, or upgrade() "
                "from the old class to a new one"
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
        return self._cell.engine.name

    @property
    def replaying(self) -> bool:
        """Whether logged messages are being processed again. Nothing that is sent or kept may depend on it."""
        return not self._cell.engine.primary

    @property
    def random(self) -> random.Random:
        """Random numbers that a replay draws again: seeded by the immortal, kept in checkpoints."""
        return self._cell.random

    @property
    def itself(self) -> Any:
        """A proxy for calls to oneself, which come back through the log."""
        return proxy_to_self(self._cell)

    def peer(self, proxy: type[ProxyType], name: str) -> ProxyType:
        """A proxy for another immortal."""
        self._check_name(name)
        return proxy(self._cell, name)

    def _check_name(self, name: str) -> None:
        if not 0 < len(name.encode()) <= self.name_bytes_max:  # the hub would close the link, now and in every replay
            raise ValueError(
                f"{name!r} is not a valid name for an immortal: a name has 1 to {self.name_bytes_max} bytes"
            )

    def proxy(self, kind: type[Other], name: str, *, key: str | None = None) -> Other:
        """Another immortal, to call: `await self.proxy(Shop, "shop").order("pear")`. Checkers take it for the immortal
        itself, and so does the reader; each call of it is a message."""
        self._check_name(name)
        proxy: Other = proxy_of(kind)(self._cell, name, key)
        return proxy

    @property
    def key(self) -> str:
        """Which instance of a keyed immortal this is."""
        return self._cell.key or ""

    def now(self) -> datetime:
        """The time, as the log has it: the same one in every replay."""
        if not self._cell.now_us:
            raise StateError(
                f"the hub does not tell {self.name} the time: register it with --clock, or start it with "
                "headrace.immortals.run; await self.time() works without"
            )
        return datetime.fromtimestamp(self._cell.now_us / MICROSECONDS, UTC)

    def uuid(self) -> uuid.UUID:
        """A random UUID, the same one in every replay."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)

    @overload
    def effect(
        self,
        function: Callable[..., Awaitable[T]],
        *args: Any,
        retry: Retry | None = None,
        timeout: Delay | None = None,
        **kwargs: Any,
    ) -> Result[T]: ...
    @overload
    def effect(
        self,
        function: Callable[..., T],
        *args: Any,
        retry: Retry | None = None,
        timeout: Delay | None = None,
        **kwargs: Any,
    ) -> Result[T]: ...
    def effect(
        self,
        function: Callable[..., Any],
        *args: Any,
        retry: Retry | None = None,
        timeout: Delay | None = None,
        **kwargs: Any,
    ) -> Result[Any]:
        """Do something that a replay must not do again, and await its result, which is logged once.

        The function, blocking or `async`, runs outside of the replayed world, at least once: if the process dies before
        the result is logged, it runs again. What it raises is tried again as `retry` says; the last error is raised
        here as an `EffectError`. `timeout` is for one attempt.
        """
        work = functools.partial(function, **kwargs) if kwargs else function
        timeout_s = None if timeout is None else seconds_of(timeout)
        effect = Effect(work, args, Result(), retry=retry or Retry(), timeout_s=timeout_s, returns=_returns(function))
        return self._cell.effect(effect)

    @overload
    def token(self) -> Token[Any]: ...
    @overload
    def token(self, kind: type[T]) -> Token[T]: ...
    def token(self, kind: Any = Any) -> Token[Any]:
        """Something that a person or another system does later: hand out its `id`, and await it. Whoever has the id
        fulfils it, through any protocol."""
        return Token(self._cell, kind, self.uuid().hex)

    def later(self, delay: Delay | datetime, method: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method after a delay, or at a moment (of UTC if it names no zone): one of this object, or of a proxy.
        No method waits meanwhile. The number is for `cancel_later`."""
        if isinstance(delay, datetime):  # one without a zone must not depend on where the program runs
            moment = delay if delay.tzinfo is not None else delay.replace(tzinfo=UTC)
            deadline_us = int(moment.timestamp() * MICROSECONDS)
        else:
            deadline_us = int((self.now().timestamp() + seconds_of(delay)) * MICROSECONDS)
        destination, number, data = target_of(self._cell, method, args, kwargs)
        return self._cell.later(Timer(deadline_us, destination, number, data))

    def every(self, cron: str, method: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> int:
        """Call a method whenever a cron expression says so, in UTC: `self.every("0 8 * * 1-5", self.report)`."""
        deadline_us = int(Cron(cron).next(self.now()).timestamp() * MICROSECONDS)
        destination, number, data = target_of(self._cell, method, args, kwargs)
        return self._cell.later(Timer(deadline_us, destination, number, data, cron))

    def cancel_later(self, number: int) -> bool:
        """Call off what `later` or `every` has arranged; whether there was something."""
        return self._cell.timers.pop(number, None) is not None

    async def timeout(self, delay: Delay, awaitable: Awaitable[T]) -> T:
        """What is awaited, or `TimeoutError` if it takes longer; then it is cancelled."""
        result, over = as_result(awaitable), self.sleep(delay)
        first, _ = await select(_settled(result), over)
        if first == 0:
            over.resolve(None)
            return await result
        result.cancel("timeout")
        raise TimeoutError(f"not done within {delay if isinstance(delay, str) else f'{seconds_of(delay):g} s'}")

    def saga(self) -> Saga:
        """`async with self.saga() as saga`: what was arranged with `saga.undo(…)` is done, last first, if the block
        fails."""
        return Saga()

    def outside(self, function: Callable[..., Any], *args: Any) -> Result[Any]:
        """Do something that a replay must not do again, and await its result, which is logged.

        The function (a coroutine function too) runs outside of the replayed world, at least once: it runs again if the
        process dies before its result is logged. The result has to be something that JSON can say. `effect` does the
        same with a retry policy.
        """
        return self._cell.effect(Effect(function, args, Result()))

    def time(self) -> Result[float]:
        """The time, in seconds since 1970: the same one in every replay."""
        return self.outside(time.time)

    def sleep(self, seconds: Delay) -> Result[None]:
        """Wait. The deadline is logged: a crash in the middle makes the wait no longer, and one that is over when the
        immortal has recovered ends at once."""
        return self._cell.effect(Effect(asyncio.sleep, (seconds_of(seconds),), Result(), is_sleep=True))


def _settled(result: Result[Any]) -> Result[None]:
    """That it is there, whatever it is."""
    settled: Result[None] = Result()
    result.when_done(lambda: settled.resolve(None))
    return settled


def _returns(function: Callable[..., Any]) -> Any:
    """What a function says that it returns."""
    try:
        return get_type_hints(function).get("return", Any)
    except (NameError, TypeError):  # types that exist only for type checkers, or a callable object
        return Any


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


def annotations_of(cls: type) -> list[str]:
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
    if cls not in _fields:
        hints = get_type_hints(cls)
        _fields[cls] = {name: hints[name] for name in annotations_of(cls) if not name.startswith("_")}
    return _fields[cls]


_fields: dict[type, dict[str, Any]] = {}
