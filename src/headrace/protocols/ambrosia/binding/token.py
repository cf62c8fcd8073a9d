"""Something that others do later, and a method waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from headrace.protocols.ambrosia.binding.results import Result

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.cell import Cell

T = TypeVar("T")


class Token(Result[T]):
    """Made by `Immortal.token`: hand out `id`, then await it.

    `hub.immortal("shop").fulfil(id, value)`, `POST /api/immortals/shop/tokens/ID`, or a record in the inbox of type
    `@fulfil` with the payload `{"token": id, "value": …}` from any protocol.
    """

    __slots__ = ("id",)

    def __init__(self, cell: Cell, kind: Any, secret: str) -> None:
        super().__init__()
        self.id = secret if cell.key is None else f"{secret}@{cell.key}"
        cell.await_token(self, self.id, kind)
