"""Several steps that belong together: if one fails, those before it are undone."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Self

from headrace.protocols.ambrosia.binding.results import Cancelled


class Saga:
    """Made by `Immortal.saga`. Undoing is logged like everything else: it goes on after a crash, and happens once."""

    def __init__(self) -> None:
        self._steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def undo(self, function: Callable[..., Awaitable[Any] | Any], *args: Any, **kwargs: Any) -> None:
        """What undoes a step that was done: a call of a proxy, `self.effect`, or any function of the object."""
        self._steps.append((function, args, kwargs))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, Exception | Cancelled):
            return
        failures: list[str] = []
        while self._steps:
            function, args, kwargs = self._steps.pop()
            try:
                done = function(*args, **kwargs)
                if inspect.isawaitable(done):
                    await done
            except Exception as failure:  # the others have to be undone nevertheless
                name = getattr(function, "__name__", repr(function))
                failures.append(f"{name}: {type(failure).__name__}: {failure}")
        for failure_text in failures:
            error.add_note(f"could not be undone: {failure_text}")
