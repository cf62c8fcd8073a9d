"""Whose turn it is on the event loop, for work that a peer can make long by sending much.

Few bytes may hold very many small messages. What deals with them does a little at a time, and asks for its next turn:
one of all who ask has it, then everything else that is ready, then the next one. So however many peers send as fast as
they can, whoever asks for little waits for one such piece, not for one of each peer. Nothing is lost by it: when nobody
else wants the loop the next turn comes at once.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

TURN_S: Final = 0.002
"""How long one turn should take, of the processor."""


class Turns:
    """Those of one event loop."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def soon(self, work: Callable[[], object]) -> None:
        """Have `work` called when it is its turn. It does about `TURN_S` and asks again."""
        self._waiting.append(work)
        if len(self._waiting) == 1:
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                asyncio.get_running_loop().call_soon(self._next)

    async def wait(self) -> None:
        """Go on when it is one's turn."""
        turn = asyncio.Event()
        self.soon(turn.set)
        await turn.wait()


class Pace:
    """For a task that takes one message after another: it lets others have their turn when it has been long at it."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._began_s = time.thread_time()

    async def keep(self) -> None:
        """To be called between two messages."""
        if time.thread_time() - self._began_s > TURN_S:
            await self._turns.wait()
            self._began_s = time.thread_time()
