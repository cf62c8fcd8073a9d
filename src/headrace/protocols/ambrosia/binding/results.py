"""Answers that are still under way, and the coroutines that wait for them.

No event loop runs these: a coroutine goes on exactly when the message that it waits for is processed, so that the same
log always leads to the same steps in the same order.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class RemoteError(Exception):
    """The other immortal's method raised; the text says what."""


class EffectError(RemoteError):
    """What was to be done outside has failed as often as it may be tried; the text says how."""


class NotDeterministic(RuntimeError):
    """A method of an immortal awaited something whose outcome no log knows."""


class Cancelled(BaseException):
    """Somebody has cancelled this. Not an `Exception`, so that nobody catches it by mistake."""


class Result(Generic[T]):
    """What a call will return. Await it in a method; or do not, and the answer is ignored."""

    __slots__ = ("_callbacks", "_error", "_value", "done")

    def __init__(self) -> None:
        self.done = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def __await__(self) -> Generator[Result[T], None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value

    def when_done(self, callback: Callable[[], None]) -> None:
        """Have something done when the answer is there; at once if it is."""
        if self.done:
            callback()
        else:
            self._callbacks.append(callback)

    def resolve(self, value: Any, error: BaseException | None = None) -> None:
        """The answer is there. Whoever was first counts."""
        if self.done:
            return
        self.done = True
        self._value, self._error = value, error
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def cancel(self, reason: str = "cancelled") -> None:
        """Wait for it no longer: whoever does is told."""
        self.resolve(None, Cancelled(reason))


class Task(Result[T]):
    """A coroutine that is under way."""

    __slots__ = ("_cancelled", "_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._coroutine = coroutine
        self._waits_for: Result[Any] | None = None
        self._cancelled: Cancelled | None = None

    @property
    def waits_for(self) -> Result[Any] | None:
        """What it waits for now."""
        return self._waits_for

    def step(self) -> None:
        """Run to the next answer that is not there yet, or to the end."""
        while not self.done:
            self._waits_for = None
            error, self._cancelled = self._cancelled, None
            try:
                awaited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                self.resolve(end.value)
                return
            except (Exception, Cancelled) as failure:
                self.resolve(None, failure)
                return
            if not isinstance(awaited, Result):
                self._coroutine.close()
                refusal = "only answers of calls and self.outside(…) can be awaited in an immortal's method"
                self.resolve(None, NotDeterministic(f"awaited {awaited!r}: {refusal}"))
                return
            if not awaited.done:
                self._wait(awaited)
                return

    def _wait(self, awaited: Result[Any]) -> None:
        self._waits_for = awaited

        def go_on() -> None:
            if self._waits_for is awaited:
                self.step()

        awaited.when_done(go_on)

    def cancel(self, reason: str = "cancelled") -> None:
        """Raise `Cancelled` where the coroutine waits."""
        if not self.done:
            self._cancelled = Cancelled(reason)
            self.step()


Start = Callable[[Awaitable[Any]], "Result[Any]"]
_starters: list[Start] = []
"""Who starts coroutines, while a message is processed: the cell that it is for."""


def starting(start: Start) -> None:
    """Coroutines that a method passes on belong to this cell, until `started`."""
    _starters.append(start)


def started() -> None:
    """The opposite."""
    _starters.pop()


def as_result(awaitable: Awaitable[T]) -> Result[T]:
    """A result as it is; a coroutine started."""
    if isinstance(awaitable, Result):
        return awaitable
    if not inspect.iscoroutine(awaitable):
        raise NotDeterministic(f"{awaitable!r} is neither an answer nor a coroutine")
    if not _starters:
        awaitable.close()
        raise NotDeterministic("coroutines are started by methods of an immortal, and by nothing else")
    return _starters[-1](awaitable)


async def gather(*awaitables: Awaitable[Any]) -> list[Any]:
    """All answers, in the order of the arguments. Coroutines among them run side by side."""
    results = [as_result(awaitable) for awaitable in awaitables]
    return [await result for result in results]


async def select(*awaitables: Awaitable[Any]) -> tuple[int, Any]:
    """The first that is there: its place among the arguments, and its answer. The others go on."""
    results = [as_result(awaitable) for awaitable in awaitables]
    first = await _first_of(results)
    return results.index(first), await first


async def as_completed(*awaitables: Awaitable[T]) -> AsyncIterator[T]:
    """The answers, as they come: `async for answer in as_completed(…)`."""
    left: list[Result[T]] = [as_result(awaitable) for awaitable in awaitables]
    while left:
        first = await _first_of(left)
        left.remove(first)
        yield await first


async def _first_of(results: list[Result[T]]) -> Result[T]:
    any_done: Result[Result[T]] = Result()
    for result in results:
        result.when_done(lambda result=result: any_done.resolve(result))  # type: ignore[misc]
    return await any_done
