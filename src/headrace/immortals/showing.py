"""What an immortal does, in lines for people."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import msgspec

from headrace.protocols.ambrosia.binding.cell import Cell
from headrace.protocols.ambrosia.codec import Call
from headrace.protocols.ambrosia.interface import KEY_FIELD

TEXT_MAX: Final = 100


class Shown:
    """Writes each call with its arguments, result and time to standard error; replays are counted only."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._began: dict[int, float] = {}
        self._is_away = False

    def ready(self, hub: str, processed: int) -> None:
        """It has started, recovered or taken over."""
        self._is_away = False
        past = f", recovered from {processed} messages" if processed else ""
        self._say(f"at {hub}{past}; Ctrl-C stops it, and the next start continues")

    def takes_checkpoints(self, hub: str) -> None:
        """It never serves."""
        self._say(f"at {hub}: follows, and takes the checkpoints; Ctrl-C stops it")

    def stands_by(self, hub: str) -> None:
        """Another program of that name runs."""
        self._say(f"at {hub}: stands by, and takes over when the program that runs is gone; Ctrl-C stops it")

    def away(self, error: Exception) -> None:
        """The hub cannot be reached. Said once, however often it is tried."""
        if not self._is_away:
            self._is_away = True
            self._say(f"waits for its hub: {error}")

    def called(self, cell: Cell, method: str, message: Call | None) -> None:
        """A method begins."""
        if message is not None:
            self._began[id(message)] = time.perf_counter()

    def ended(self, cell: Cell, method: str, message: Call | None, value: Any, error: BaseException | None) -> None:
        """It has ended."""
        began = self._began.pop(id(message), None)
        if cell.immortal.replaying:
            return
        taken = "" if began is None else f"  {1000 * (time.perf_counter() - began):.1f} ms"
        outcome = f"→ {value!r}" if error is None else f"raised {type(error).__name__}: {error}"
        where = "" if cell.key is None else f"[{cell.key}]"
        arguments = "" if message is None or message.method < 0 else _arguments(message.arguments)
        self._say(f"{where}{method}({arguments}) {_short(outcome)}{taken}")

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self._name}: {text}", file=sys.stderr, flush=True)


def _arguments(data: bytes) -> str:
    try:
        values = msgspec.json.decode(data or b"{}", type=dict[str, Any])
    except msgspec.MsgspecError:
        return f"{len(data)} bytes"
    return _short(", ".join(f"{name}={value!r}" for name, value in values.items() if name != KEY_FIELD))


def _short(text: str) -> str:
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
