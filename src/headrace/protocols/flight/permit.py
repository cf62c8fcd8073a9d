"""The right to a stream that a call needs for as long as it lasts: reads that follow and puts go on for days."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.errors import Forbidden, HeadraceError

if TYPE_CHECKING:
    from headrace.security import Principal, Right


def require(principal: Principal, right: Right, *streams: str) -> None:
    """Raise unless the caller has the right to all of the streams."""
    if principal.refusal is not None:
        raise principal.refusal
    for stream in streams:
        if not principal.may(right, stream):
            raise Forbidden(f"{principal.name!r} may not {right} stream {stream!r}")


class Permit:
    """Made, refused and ended in the event loop; asked in any thread."""

    def __init__(
        self, principal: Principal, right: Right, *streams: str, cut: Callable[[], object], farewell_s: float
    ) -> None:
        """Raises when there is no such right. `cut` ends a call that has not ended by itself `farewell_s` after the
        right has gone: gRPC cannot wake one whose client neither sends nor reads."""
        require(principal, right, *streams)
        self.error: HeadraceError | None = None
        """Why the call may not go on."""
        self.on_refused: Callable[[HeadraceError], object] = lambda error: None
        self._principal = principal
        self._right: Right = right
        self._streams = streams
        self._cut = cut
        self._farewell_s = farewell_s
        self._refused = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._unwatch = principal.watch(self._look)

    def check(self) -> None:
        """Raise when the call may not go on."""
        if self.error is not None:
            raise self.error

    async def refused(self) -> None:
        """Return when the call may not go on."""
        await self._refused.wait()

    def close(self) -> None:
        """The call has ended."""
        self._unwatch()
        self.on_refused = lambda error: None  # the call knows this permit
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        if self.error is not None:
            return
        try:
            require(self._principal, self._right, *self._streams)
        except HeadraceError as error:
            self.error = error
            self._refused.set()
            self._timer = asyncio.get_running_loop().call_later(self._farewell_s, self._cut)
            self.on_refused(error)
