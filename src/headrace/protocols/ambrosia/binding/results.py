"""Answers that are still under way, and the coroutines that wait for them.

No event loop runs these: a coroutine goes on exactly when the message that it waits for is processed, so that the same
log always leads to the same steps in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RemoteError(Exception):
    """The other immortal's method raised; the text says what."""


class NotDeterministic(RuntimeError):
    """A method of an immortal awaited something whose outcome no log knows."""


class Result(Generic[T]):
    """What a call will return. Await it in a method; or do not, and the answer is ignored."""

    __slots__ = ("_error", "_value", "_waiting", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: Exception | None = None
        self._waiting: list[Task] = []

    def __await__(self) -> Generator[Result[T], None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def wake(self, task: Task) -> None:
        """Let a task go on when the answer is there."""
        self._waiting.append(task)

    def resolve(self, value: Any, error: Exception | None = None) -> None:
        """The answer is there."""
        self.done = True
        self._value, self._error = value, error
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            task.step()


async def gather(*results: Result[Any]) -> list[Any]:
    """The answers of several calls, which have all been sent already."""
    return [await result for result in results]


class Task:
    """A coroutine method that is under way."""

    __slots__ = ("_coroutine", "_ended")

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], ended: Callable[[Task, Any, Exception | None], None]
    ) -> None:
        self._coroutine = coroutine
        self._ended = ended

    def step(self) -> None:
        """Run to the next answer that is not there yet, or to the end."""
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as end:
            self._ended(self, end.value, None)
            return
        except Exception as error:
            self._ended(self, None, error)
            return
        if isinstance(awaited, Result):
            awaited.wake(self)
            return
        self._coroutine.close()
        refusal = NotDeterministic(
            f"awaited {awaited!r}: only answers of calls and self.outside(…) can be awaited in an immortal's method"
        )
        self._ended(self, None, refusal)
