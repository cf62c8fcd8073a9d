"""Between Flight's threads and the hub's event loop, and between our errors and Flight's.

gRPC runs every call in a thread of its own; the hub lives in one event loop. A call asks the loop for something and
waits here. While it waits it looks from time to time whether its client has gone or the server is stopping: gRPC has no
way to wake it. Only from time to time: gRPC may have to wait for its own locks to answer, for milliseconds on a busy
machine, and no other thread of Python runs meanwhile.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from headrace.errors import BadRequest, Closed, Forbidden, HeadraceError, NotHere, Unauthenticated
from headrace.hub.waiters import Bell
from headrace.protocols.flight.codec import encode, error_body

logger = logging.getLogger("headrace.flight")

# How long a client that went away may keep its thread: at first, and when it has waited for a while. A thousand
# followers of quiet streams must not keep the machine busy with looking.
CANCEL_POLL_S = 0.2
CANCEL_POLL_S_MAX = 1.0

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")


def cancelled() -> flight.FlightCancelledError:
    """The client has gone; there is nobody to answer."""
    return flight.FlightCancelledError("the call was cancelled")


def to_flight_error(error: BaseException, batch: int | None = None) -> flight.FlightError:
    """Our error as Flight sends it: the text for people, the fields for programs in `extra_info`. `batch` is the one of
    a put that was refused."""
    if isinstance(error, flight.FlightCancelledError):
        return error
    if not isinstance(error, HeadraceError):
        logger.error("a Flight call failed unexpectedly", exc_info=error)
        return flight.FlightInternalError("internal error of the hub; its log says more")
    body = encode(error_body(error, batch))
    if isinstance(error, Unauthenticated):
        return flight.FlightUnauthenticatedError(str(error), body)
    if isinstance(error, Forbidden):
        return flight.FlightUnauthorizedError(str(error), body)
    if error.retriable:
        return flight.FlightUnavailableError(str(error), body)
    return flight.FlightServerError(str(error), body)


def translated(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A Flight handler whose errors reach the client as `to_flight_error` says."""

    @functools.wraps(method)
    def handler(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        try:
            return method(*arguments, **named)
        except (flight.FlightError, StopIteration, GeneratorExit):
            raise
        except pa.ArrowCancelled as error:
            raise cancelled() from error
        except pa.ArrowInvalid as error:
            raise to_flight_error(BadRequest(f"the Arrow data is malformed: {error}")) from None
        except BaseException as error:
            raise to_flight_error(error) from None

    return handler


class Bridge:
    """The way from a thread into the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, has_heirs: bool = False) -> None:
        """With heirs, another hub takes over when this one stops: what is refused then may be asked again."""
        self.loop = loop
        self.leaving = threading.Event()
        """Set when the hub is about to stop: what is under way ends well, and nothing without an end goes on."""
        self.stopping = threading.Event()
        self._has_heirs = has_heirs
        self._waiting: set[concurrent.futures.Future[Any]] = set()
        self.bells: set[Bell] = set()
        """Of calls without an end: they ring when the hub is about to stop."""

    def check(self, context: flight.ServerCallContext) -> None:
        """Raise when there is no point in going on. Not for each batch of a call: see above."""
        self.check_stopping()
        if context.is_cancelled():
            raise cancelled()

    def check_stopping(self) -> None:
        """Raise when the server is stopping."""
        if self.stopping.is_set():
            raise Closed("the hub is stopping")

    def check_new(self) -> None:
        """Raise when nothing more is taken. Whoever is told so can be sure that it was not done."""
        if self.leaving.is_set():
            raise self.refusal()

    def refusal(self) -> HeadraceError:
        """What to tell whoever comes now."""
        if self._has_heirs:
            return NotHere("this hub is stopping, and another takes over; nothing was done: try again, at any hub")
        return Closed("the hub is stopping")

    @property
    def is_busy(self) -> bool:
        """Whether calls wait for something that will have an end."""
        return bool(self._waiting)

    def run(
        self,
        work: Coroutine[Any, Any, Result],
        context: flight.ServerCallContext | None = None,
    ) -> Result:
        """Run in the loop, wait for the result; end early when the client goes or the server stops."""
        if self.stopping.is_set():
            work.close()
            raise self.refusal()
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        self._waiting.add(future)
        try:
            return self._result(future, context)
        except concurrent.futures.CancelledError:
            raise Closed("the hub is stopping") from None
        finally:
            future.cancel()
            self._waiting.discard(future)

    def open(
        self,
        begin: Callable[[], Coroutine[Any, Any, Result]],
        context: flight.ServerCallContext,
        close: Callable[[Result], None],
    ) -> Result:
        """`run` for what takes a place. A call may give up at the very moment at which the loop is done: then nobody
        has the result, and the loop closes it, whether it is there already or still comes."""
        results: list[Result] = []
        abandoned = False  # this and the results: only the loop touches them

        async def run() -> Result:
            result = await begin()
            if abandoned:
                close(result)
            else:
                results.append(result)
            return result

        def abandon() -> None:
            nonlocal abandoned
            abandoned = True
            for result in results:
                close(result)

        try:
            return self.run(run(), context)
        except BaseException:
            self.post(abandon)
            raise

    def _result(self, future: concurrent.futures.Future[Result], context: flight.ServerCallContext | None) -> Result:
        poll_s = CANCEL_POLL_S
        while True:
            if context is not None:
                self.check(context)
            try:
                return future.result(poll_s)
            except TimeoutError:
                if future.done():  # the work itself ended with this error
                    raise
                poll_s = min(poll_s * 1.5, CANCEL_POLL_S_MAX)

    def leave(self) -> None:
        """Take nothing more into calls that go on, and end those without an end. Others end by themselves."""
        self.leaving.set()
        for bell in list(self.bells):
            bell.ring()

    def stop(self) -> None:
        """Let no call begin any more, and wake those that wait."""
        self.stopping.set()
        self.leave()
        for future in list(self._waiting):
            future.cancel()

    def post(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the loop call a function soon; when the loop has closed there is nothing left to tell it."""
        try:
            self.loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            logger.debug("the loop is closed; %r was not called", function)
