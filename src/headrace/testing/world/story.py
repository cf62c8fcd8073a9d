"""What happened in a world: every line is part of the trace, the last ones are told when something is wrong."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable

TOLD = 100


class Story:
    """Lines with their time. The same seed gives the same lines, and so the same digest."""

    def __init__(self, told: Callable[[str], None] | None = None) -> None:
        self._digest = hashlib.sha256()
        self._last: deque[str] = deque(maxlen=TOLD)
        self._told = told
        self.lines = 0

    def tell(self, now_s: float, who: str, what: str) -> None:
        line = f"{now_s:12.6f}  {who:<14} {what}"
        self._digest.update(line.encode() + b"\n")
        self._last.append(line)
        self.lines += 1
        if self._told is not None:
            self._told(line)

    @property
    def trace(self) -> str:
        return self._digest.hexdigest()

    @property
    def end(self) -> str:
        return "\n".join(self._last)
