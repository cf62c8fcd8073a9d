"""The cells of a keyed immortal: made by their first call, kept in memory while they are in use, and as a few bytes
otherwise. A cell in which a method waits stays in memory until that ends; its calls are processed one after another."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

import msgspec

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.cell import Cell, SavedState
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError
from headrace.protocols.ambrosia.binding.look import readable
from headrace.protocols.ambrosia.binding.methods import (
    ATTEMPT_METHOD,
    CANCEL_METHOD,
    CLOCK_METHOD,
    FULFIL_METHOD,
    OUTSIDE_METHOD,
    TIMER_METHOD,
)
from headrace.protocols.ambrosia.binding.queries import key_in
from headrace.protocols.ambrosia.binding.values import from_json
from headrace.protocols.ambrosia.codec import Call, Return, RpcType

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.engine import Engine

LIVE_MAX: Final = 1_000
JOURNAL_BYTES_MAX: Final = 4 << 10
KEYS_SHOWN_MAX: Final = 1_000


class SavedCells(msgspec.Struct, array_like=True):
    """A checkpoint of a keyed immortal."""

    format: int
    now_us: int
    seed: bytes
    call_count: int
    routes: list[tuple[int, str, int]]
    """Calls under way: the number on the wire, the key, and the number in the cell."""
    cells: dict[str, bytes]
    waiting: list[str]
    """Keys of cells in which a method waits."""
    timers: dict[str, list[tuple[int, int]]]
    """Of all others: when, and which."""


def _field(arguments: bytes, name: str) -> object:
    """What a message says that anybody may have sent."""
    try:
        return from_json(arguments, dict[str, object]).get(name)
    except msgspec.MsgspecError:
        return None


def read_state(blob: bytes, key: str | None) -> dict[str, Any] | None:
    """What a checkpoint says of the state, for people who look; None if no program of ours wrote it."""
    try:
        (form, *_) = msgspec.msgpack.decode(blob, type=list[msgspec.Raw])
        if msgspec.msgpack.decode(form) == KeyedCells.FORMAT:
            cells = msgspec.msgpack.decode(blob, type=SavedCells).cells
            if key is None or key not in cells:
                return {"keys": sorted(cells)[:KEYS_SHOWN_MAX]}
            blob = cells[key]
        saved = msgspec.msgpack.decode(blob, type=SavedState)
    except (msgspec.MsgspecError, ValueError):
        return None
    return {
        "kind": saved.kind,
        "state": readable(saved.state),
        "since": len(saved.journal),
        "timers": len(saved.timers),
    }


class KeyedCells:
    """All instances of a keyed immortal."""

    FORMAT: Final = 3

    def __init__(self, engine: Engine, live_max: int = LIVE_MAX) -> None:
        self._engine = engine
        self._live_max = live_max
        self.live: OrderedDict[str, Cell] = OrderedDict()
        self.idle: dict[str, bytes] = {}
        """As they were saved, by key."""
        self._idle_timers: dict[str, list[tuple[int, int]]] = {}
        self._call_count = 0
        self._routes: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self.live) + len(self.idle)

    def sorted_keys(self) -> list[str]:
        """All keys, in order."""
        return sorted((*self.live, *self.idle))

    # --- messages -----------------------------------------------------------------------------------------------

    def process(self, message: codec.Message) -> None:
        """Hand a message to the cell that it is for."""
        if isinstance(message, Return):
            route = self._routes.pop(message.call_number, None)
            if route is not None:
                key, number = route
                own = Return(message.kind, message.responder, number, message.value)
                self._hand(self.cell(key), own)
        elif isinstance(message, Call):
            if message.method == TIMER_METHOD:
                for due in msgspec.json.decode(message.arguments, type=list[tuple[str, int, int]]):
                    if (cell := self.find(due[0])) is not None:
                        one = msgspec.json.encode([due])
                        self._hand(cell, Call(TIMER_METHOD, RpcType.IMPULSE, one))
            else:
                self._call(message)

    def _call(self, message: Call) -> None:
        if message.method in (OUTSIDE_METHOD, ATTEMPT_METHOD):
            key = msgspec.json.decode(message.arguments)[-1]
            if (cell := self.find(key)) is not None:
                self._hand(cell, message)
            return
        if message.method == FULFIL_METHOD:
            token = _field(message.arguments, "token")
            cell = self.find(str(token).partition("@")[2]) or self._engine.cell
        elif message.method == CANCEL_METHOD:
            number = _field(message.arguments, "call")
            called = (each for each in self.live.values() if isinstance(number, int) and number in each.origin)
            cell = next(called, self._engine.cell)
        else:
            key = key_in(message.arguments)
            if key is None:
                missing = StateError(f"{self._engine.name} is keyed: name the instance with `key`")
                self._engine.cell._ended(f"#{message.method}", message, None, missing)
                return
            cell = self.cell(key)
        if cell is self._engine.cell:
            cell.process(message)
        else:
            self._hand(cell, message)

    def _hand(self, cell: Cell, message: Call | Return) -> None:
        clock = Call(CLOCK_METHOD, RpcType.IMPULSE, self._engine.now_us.to_bytes(8, "little"))
        cell.journal(codec.encode(clock) + codec.encode(message), JOURNAL_BYTES_MAX)
        cell.process(message)

    def number_call(self, cell: Cell, number: int) -> int:
        """The number on the wire of a cell's call."""
        assert cell.key is not None
        self._call_count += 1
        self._routes[self._call_count] = cell.key, number
        return self._call_count

    # --- cells --------------------------------------------------------------------------------------------------

    def find(self, key: str | None) -> Cell | None:
        """The cell of a key, if there is one."""
        return self.cell(key) if key is not None and (key in self.live or key in self.idle) else None

    def cell(self, key: str) -> Cell:
        """The cell of a key: in memory, loaded, or new."""
        cell = self.live.get(key)
        if cell is None:
            cell = self._load(key, self.idle.pop(key)) if key in self.idle else self._make(key)
            self.live[key] = cell
            self._evict()
        self.live.move_to_end(key)
        return cell

    def look(self, key: str | None) -> Immortal:
        """The object of a key, to read; none is made for a key that was never called."""
        cell = self.find(key)
        if cell is None:
            raise LookupError(f"{self._engine.name} has no instance {key!r}: it was never called")
        return cell.immortal

    def has_idle_timer(self, key: str, number: int, deadline_us: int) -> bool:
        """Whether an instance that is not in memory has that timer."""
        return (deadline_us, number) in self._idle_timers.get(key, ())

    def _make(self, key: str) -> Cell:
        cell = Cell(self._engine, key, self._engine.factory())
        begin = codec.InitialMessage(b"")
        cell.journal(codec.encode(begin), JOURNAL_BYTES_MAX)
        cell.process(begin)
        return cell

    def _load(self, key: str, blob: bytes, *, arm: bool = False) -> Cell:
        saved = msgspec.msgpack.decode(blob, type=SavedState)
        cell = Cell(self._engine, key, self._engine.fresh(saved.kind))
        cell.restore(saved, arm=arm)
        cell.saved = saved
        self._idle_timers.pop(key, None)
        return cell

    def _evict(self) -> None:
        """Let those go that were not used for longest; ones in which a method waits stay."""
        excess = len(self.live) - self._live_max
        for key in list(self.live)[:-1] if excess > 0 else ():
            if excess <= 0:
                return
            cell = self.live[key]
            if cell.quiet:
                self.idle[key] = msgspec.msgpack.encode(cell.remember())
                if cell.timers:
                    self._idle_timers[key] = [(timer.deadline_us, number) for number, timer in cell.timers.items()]
                del self.live[key]
                del cell.immortal._cell  # so that both are gone at once
                excess -= 1

    # --- checkpoints --------------------------------------------------------------------------------------------

    def save(self) -> bytes:
        """All of it."""
        cells = dict(self.idle)
        waiting: list[str] = []
        timers = dict(self._idle_timers)
        for key, cell in self.live.items():
            if cell.saved is None or cell.quiet:
                cell.remember()
            if not cell.quiet:
                waiting.append(key)
            elif cell.timers:
                timers[key] = [(timer.deadline_us, number) for number, timer in cell.timers.items()]
            cells[key] = msgspec.msgpack.encode(cell.saved)
        engine = self._engine
        routes = [(number, key, own) for number, (key, own) in self._routes.items()]
        saved = SavedCells(self.FORMAT, engine.now_us, engine.seed, self._call_count, routes, cells, waiting, timers)
        return msgspec.msgpack.encode(saved)

    def load(self, blob: bytes) -> None:
        """The opposite."""
        engine = self._engine
        first = msgspec.msgpack.decode(blob, type=list[msgspec.Raw])[0]
        if msgspec.msgpack.decode(first) != self.FORMAT:
            raise StateError(f"the checkpoint of {engine.name} is of an immortal that is not keyed, and this class is")
        saved = msgspec.msgpack.decode(blob, type=SavedCells)
        engine.now_us, engine.seed = saved.now_us, saved.seed
        self.idle = saved.cells
        for key in saved.waiting:
            cell = self.live[key] = self._load(key, self.idle.pop(key), arm=True)
            assert cell.saved is not None
            journal = cell.saved.journal
            cell.remember()
            engine.now_us = 0
            for payload in journal:
                engine.replay_into(cell, payload)
        engine.now_us = saved.now_us
        self._call_count = saved.call_count
        self._routes = {number: (key, own) for number, key, own in saved.routes}
        self._idle_timers = saved.timers
        for key, due in saved.timers.items():
            for time_us, number in due:
                engine.due_at(time_us, key, number)
