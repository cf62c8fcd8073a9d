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
import inspect
import logging
import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_type_hints

import msgspec

from headrace.protocols.ambrosia.binding.methods import Method, methods_of
from headrace.protocols.ambrosia.binding.results import Result

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.engine import Engine
    from headrace.protocols.ambrosia.binding.proxies import Proxy

logger = logging.getLogger("headrace.immortal")
ProxyType = TypeVar("ProxyType", bound="Proxy")


class StateError(TypeError):
    """The state of an immortal cannot be put into a checkpoint as it is."""


class UpgradeRefused(Exception):
    """The hub asked for an upgrade and the class does not say how."""


class Immortal:
    """Derive from this, annotate the state, and declare methods with `@fork`, `@call` and `@impulse`."""

    __methods__: ClassVar[dict[int, Method]] = {}
    if TYPE_CHECKING:  # not at run time, where annotations are the state
        _engine: Engine

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__methods__ = methods_of(cls)

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
        if stray:
            raise StateError(
                f"{type(self).__name__}.{stray[0]} would be lost in a checkpoint: annotate it in the class, begin its "
                "name with an underscore if it need not be kept, or write save_state and load_state"
            )
        return msgspec.msgpack.encode({name: getattr(self, name) for name in names if hasattr(self, name)})

    def load_state(self, data: bytes) -> None:
        """The opposite, on a fresh object. Attributes that the saved state does not know keep their first value."""
        kinds = _state_fields(type(self))
        for name, value in msgspec.msgpack.decode(data, type=dict[str, msgspec.Raw]).items():
            if name in kinds:
                setattr(self, name, msgspec.msgpack.decode(value, type=kinds[name]))

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
        """Wait. After a crash in the middle the wait begins again."""
        return self.outside(asyncio.sleep, seconds)


def _state_fields(cls: type) -> dict[str, Any]:
    """Annotated attributes with their types, without those of `Immortal` itself and private ones."""
    own: dict[str, Any] = {}
    for base in cls.__mro__:
        if base is Immortal:
            break
        own |= {name: None for name in inspect.get_annotations(base) if not name.startswith("_")}
    hints = get_type_hints(cls)
    return {name: hints[name] for name in own}
