"""Immortals: services written as if nothing could die.

    from headrace.immortals import Immortal, method, query, run

    class Shop(Immortal):
        stock: dict[str, int] = {}               # annotated attributes are the state; it survives everything

        @method
        async def order(self, item: str, qty: int) -> str:
            paid = await self.effect(charge, item, qty)        # done once, its result logged, tried again if it fails
            self.later("2d", self.remind, item)                # durable: it comes although all processes died meanwhile
            return paid

        @method
        def remind(self, item: str) -> None: ...

        @query
        def left(self, item: str) -> int:                       # reads the state, writes nothing
            return self.stock.get(item, 0)

    run(Shop, "shop")                                           # registers, recovers, serves until it is stopped

From any other program: `headrace.connect().immortal("shop").order(item="pear", qty=2)`.
"""

from headrace.immortals.running import run, serve
from headrace.protocols.ambrosia.binding.declaring import immortal
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError
from headrace.protocols.ambrosia.binding.methods import DeclarationError, method, query
from headrace.protocols.ambrosia.binding.results import (
    Cancelled,
    EffectError,
    NotDeterministic,
    RemoteError,
    Result,
    as_completed,
    gather,
    select,
)
from headrace.protocols.ambrosia.binding.retry import Retry
from headrace.protocols.ambrosia.binding.saga import Saga
from headrace.protocols.ambrosia.binding.token import Token

__all__ = [
    "Cancelled",
    "DeclarationError",
    "EffectError",
    "Immortal",
    "NotDeterministic",
    "RemoteError",
    "Result",
    "Retry",
    "Saga",
    "StateError",
    "Token",
    "as_completed",
    "gather",
    "immortal",
    "method",
    "query",
    "run",
    "select",
    "serve",
]
