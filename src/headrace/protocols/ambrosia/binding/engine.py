"""The binding without its sockets: records in, bytes out. Everything replayable happens here, step by step.

An engine knows whose message a record holds and hands it to that cell (`cell.py`): to its only one, or, in a keyed
immortal, to the cell of the key. What cells say goes out in the order in which they say it.

An upgrade needs a quiet moment, since a coroutine of the old class cannot go on in an object of the new one. If it
is asked for at another one, it comes behind the record that brings a quiet one, in every replay the same, and the
checkpoint says that it is to come.
"""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol

import msgspec

from headrace.collection import without_collection
from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.cell import SAVED_FORMATS, Cell, CountedRandom, Effect, SavedState, Timer
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError, UpgradeRefused
from headrace.protocols.ambrosia.binding.keyed import KeyedCells
from headrace.protocols.ambrosia.binding.methods import (
    ATTEMPT_METHOD,
    CLOCK_METHOD,
    DEADLINE_METHOD,
    OUTSIDE_METHOD,
    TIMER_METHOD,
)
from headrace.protocols.ambrosia.binding.queries import answer_query
from headrace.protocols.ambrosia.binding.values import to_json
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return, RpcType, Type
from headrace.protocols.ambrosia.lineage import END, mark_of
from headrace.protocols.ambrosia.record_reader import Record

OUTSIDE: Final = b"@outside"
HEAD_BYTES: Final = 16  # within which a message names its destination
logger = logging.getLogger("headrace.immortal")
JOURNAL_BYTES_MAX: Final = 1 << 20
TIMERS_AT_ONCE: Final = 1_000
TIME: Final = struct.Struct("<q")
SEED_BYTES: Final = 16
INITIAL: Final = b"headrace"


class ImpulseRefused(RuntimeError):
    """An impulse was sent where the protocol does not allow it."""


class NotInMethod(RuntimeError):
    """A fork or call was made by code that no replay would run again."""


class Watcher(Protocol):
    """Who is told what the immortal does."""

    def called(self, cell: Cell, method: str, message: Call | None) -> None:
        """A method begins."""

    def ended(self, cell: Cell, method: str, message: Call | None, value: Any, error: BaseException | None) -> None:
        """It has returned or raised."""


class Engine:
    """One immortal and its deterministic surroundings."""

    def __init__(self, factory: Callable[[], Immortal], name: str) -> None:
        self.factory = factory
        self.name = name
        self.primary = False
        self.replayed = False
        """A debugging session has told that its log is over."""
        self.now_us = 0
        """When the record being processed was logged; 0 if the hub does not say."""
        self.seed = b""
        self.to_start: dict[tuple[str | None, int], Effect] = {}
        """What is to be done outside and has not been begun."""
        self.watcher: Watcher | None = None
        self.observer: Callable[[Engine, codec.Message, list[bytes]], None] | None = None
        """Told of each message that the hub sends, and of what it led to."""
        self.marks = False
        """Whether the hub is told what was said after which message."""
        self.processed = 0
        """Messages so far."""
        self.queries = 0
        self.spoilt = False
        """A query has changed the state: only a recovery knows what it was."""
        self._deadlines: list[tuple[int, str, int, str | None]] = []
        self._out: list[bytes] = []
        self._muted = False
        self._in_message = False
        self.restored = False
        """It has its state: that of a checkpoint, or the first one."""
        self._attached: set[str] = set()
        self._blob: list[bytes] = []
        first = factory()
        self.keyed = KeyedCells(self) if first.__keyed__ else None
        self.cell = Cell(self, None, first)

    @property
    def immortal(self) -> Immortal:
        """The object of a plain immortal."""
        return self.cell.immortal

    @property
    def random(self) -> Any:
        """Its random numbers."""
        return self.cell.random

    @property
    def effects(self) -> dict[int, Effect]:
        """What a plain immortal has to be done outside."""
        return self.cell.effects

    def cells(self) -> Iterator[Cell]:
        """All that are in memory."""
        return iter((self.cell,)) if self.keyed is None else iter(self.keyed.live.values())

    def cell_of(self, key: str | None) -> Cell | None:
        """The cell of a key, if there is one."""
        return self.cell if self.keyed is None else self.keyed.find(key)

    # --- in and out ---------------------------------------------------------------------------------------------

    def receive(self, item: Record | codec.Blob) -> None:
        """A record from the hub, or a piece of the checkpoint."""
        if isinstance(item, codec.Blob):
            self._blob.append(item.data)
            if item.last:
                blob, self._blob = b"".join(self._blob), []
                with without_collection():
                    self._restore(blob)
        elif item.sequence >= 0:
            self.messages(item.payload, item.sequence)
        elif item.sequence == codec.SEQUENCE_CONTROL:
            for message in codec.decode_messages(item.payload, addressed=False):
                if isinstance(message, codec.Signal):
                    self._signal(message.type)
                elif isinstance(message, Call):
                    self._out.append(codec.encode(answer_query(self, message)))

    def take_output(self) -> bytes:
        """Bytes for the hub."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def _signal(self, kind: Type) -> None:
        if kind == Type.UPGRADE_TAKE_CHECKPOINT or kind == Type.UPGRADE_SERVICE:
            self._upgrade()
        if kind == Type.UPGRADE_SERVICE:
            return
        if kind == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT and not self.restored:
            self._out.append(codec.encode(codec.InitialMessage(INITIAL + os.urandom(SEED_BYTES))))
            self.restored = True
        if kind != Type.TAKE_CHECKPOINT:
            self.primary = True
        elif not self.primary:
            self.replayed = True
        if kind != Type.BECOMING_PRIMARY:
            self._checkpoint()

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Send the state. Between messages, so it is the state after exactly the records received."""
        if self.keyed is not None:
            blob = self.keyed.save()
        else:
            if self.cell.saved is None or self.cell.quiet:
                self.cell.remember()
            blob = msgspec.msgpack.encode(self.cell.saved)
        self._out += [codec.encode(codec.Checkpoint(len(blob))), blob]

    def _restore(self, blob: bytes) -> None:
        self.restored = True
        if self.keyed is not None:
            with self.muted():
                self.keyed.load(blob)
            return
        saved = self.read_saved(blob)
        self.seed, self.now_us = saved.seed, saved.now_us
        self.cell.adopt(self.fresh(saved.kind))
        self.cell.restore(saved)
        self.cell.remember()
        with self.muted():  # what these messages led to was sent before the checkpoint was taken
            for number, message in enumerate(saved.journal, 1):
                self.messages(message)
                if number == saved.upgrade_at:
                    self._upgrade()

    def read_saved(self, blob: bytes) -> SavedState:
        """A cell as it was saved."""
        saved = msgspec.msgpack.decode(blob, type=SavedState)
        if saved.format not in SAVED_FORMATS:
            is_keyed = "; it is of a keyed immortal, and this class is not" if saved.format == KeyedCells.FORMAT else ""
            raise StateError(
                f"the checkpoint of {self.name} has format {saved.format}; {' and '.join(map(str, SAVED_FORMATS))} are "
                f"read here{is_keyed}"
            )
        return saved

    @contextlib.contextmanager
    def muted(self) -> Iterator[None]:
        """While something is processed again that has been said."""
        self._muted = True
        try:
            yield
        finally:
            self._muted = False

    def fresh(self, kind: str) -> Immortal:
        """An object for a saved state. A program that can still upgrade makes objects of its first version; the state
        may be of a later one. It is never loaded into another class: the next checkpoint would lose what that does not
        know."""
        first = immortal = self.factory()
        known = [immortal.__saved_as__]
        with contextlib.suppress(UpgradeRefused):
            while known[-1] != kind and known[-1] not in known[:-1]:
                immortal._cell = self.cell
                immortal = immortal.upgrade()
                known.append(immortal.__saved_as__)
        if known[-1] != kind:
            raise StateError(
                f"the checkpoint of {self.name} is of class {kind}, and this program has {' and '.join(known)}: start "
                f"a program that has {kind}, or that gets there by upgrade(). If the class was only renamed, declare "
                f'it as `class {type(first).__name__}(Immortal, saved_as="{kind}")`'
            )
        return immortal

    def _upgrade(self) -> None:
        """Become the next version: now, or behind the first record after which no method waits and nothing is to be
        done outside."""
        if self.keyed is not None:
            raise UpgradeRefused(f"{self.name} is keyed: change the class in place (renamed=, load_unknown)")
        cell = self.cell
        if cell.quiet:
            cell.adopt(cell.immortal.upgrade())
            cell.remember()
            return
        saved = cell.saved
        assert saved is not None  # only messages make it anything but quiet, and they are noted there
        if type(self.immortal).upgrade is Immortal.upgrade:
            self.immortal.upgrade()  # says that there is none, now rather than later
        if saved.upgrade_at is not None:
            raise UpgradeRefused(f"the upgrade of {self.name} before this one still waits for its methods to end")
        saved.upgrade_at = len(saved.journal)
        logger.warning("%s: the upgrade waits until no method waits and nothing is being done outside", self.name)

    # --- messages -----------------------------------------------------------------------------------------------

    def messages(self, payload: bytes, record: int | None = None) -> None:
        """The messages of a record. With its number, the hub is told what each of them led to."""
        saved = None if self.keyed is not None else self.cell.journal(payload, JOURNAL_BYTES_MAX)
        place = 0
        for message in codec.decode_messages(payload, addressed=False):
            for call in message.calls if isinstance(message, codec.RpcBatch) else (message,):
                self.processed += 1
                said = len(self._out)
                self._message(call)
                if self.marks and record is not None and self.primary and self._led_to_calls(said):
                    self._out.insert(said, mark_of(record, place))
                    self._out.append(END)
                place += 1
                if self.observer is not None and record is not None:
                    self.observer(self, call, self._out[said:])
        if saved is not None and saved.upgrade_at is not None and self.cell.quiet:
            self._upgrade()
            logger.info("%s: upgraded", self.name)

    def _led_to_calls(self, said: int) -> bool:
        """Whether something else was said since than an answer to the outside, which nobody logs."""
        new = len(self._out) - said
        return new > 1 or (new == 1 and OUTSIDE not in self._out[said][:HEAD_BYTES])

    def _message(self, message: codec.Message) -> None:
        if isinstance(message, Call) and message.method == CLOCK_METHOD and len(message.arguments) == TIME.size:
            (time_us,) = TIME.unpack(message.arguments)
            self.now_us = max(self.now_us, time_us)
            return
        if isinstance(message, codec.InitialMessage):
            self._begin(message.data.removeprefix(INITIAL))
        with self._processing():
            if self.keyed is None:
                self.cell.process(message)
            else:
                self.keyed.process(message)

    def _begin(self, seed: bytes) -> None:
        """The first message of its life. Programs of the first versions sent no seed."""
        if seed:
            self.seed = seed
            self.cell.random = CountedRandom(self.seed_of(None))

    def replay_into(self, cell: Cell, payload: bytes) -> None:
        """Messages that a cell has processed before."""
        cell.journal(payload, JOURNAL_BYTES_MAX)
        for message in codec.decode_messages(payload, addressed=False):
            if isinstance(message, Call) and message.method == CLOCK_METHOD:
                (self.now_us,) = TIME.unpack(message.arguments)
                continue
            with self._processing():
                cell.process(message)

    @contextlib.contextmanager
    def _processing(self) -> Iterator[None]:
        self._in_message = True
        try:
            yield
        finally:
            self._in_message = False

    # --- what cells use -----------------------------------------------------------------------------------------

    def seed_of(self, key: str | None) -> bytes:
        """Where the random numbers of a cell begin."""
        seed = self.seed or self.name.encode()[:32]
        return seed if key is None else seed + key.encode()

    def watch(self, cell: Cell, method: str, message: Call | None) -> None:
        """A method begins."""
        if self.watcher is not None and not self._muted:
            self.watcher.called(cell, method, message)

    def watched(self, cell: Cell, method: str, message: Call | None, value: Any, error: BaseException | None) -> None:
        """A method has ended."""
        if self.watcher is not None and not self._muted:
            self.watcher.ended(cell, method, message, value, error)

    def need_message(self) -> None:
        """Refuse what no replay would do again."""
        if not self._in_message:
            raise NotInMethod("forks and calls belong in methods of an immortal; from outside send an impulse")

    def send(self, destination: str, method: int, rpc_type: RpcType, arguments: bytes) -> None:
        """A fork from a method, or an impulse from outside."""
        if rpc_type == RpcType.IMPULSE:
            if self._in_message:
                raise ImpulseRefused(
                    "a method of an immortal cannot send an impulse: its replay would be refused; send a fork, or "
                    "send the impulse from on_primary"
                )
            if not self.primary:
                raise ImpulseRefused("an impulse cannot be sent while logged messages are replayed")
        else:
            self.need_message()
        self._emit(destination, Call(method, rpc_type, arguments, self._address(destination)))

    def emit_fork(self, destination: str, method: int, arguments: bytes) -> None:
        """A call without an answer."""
        self._emit(destination, Call(method, RpcType.FORK, arguments, self._address(destination)))

    def emit_call(self, cell: Cell, destination: str, method: int, arguments: bytes, number: int) -> None:
        """A call with an answer."""
        said = number if self.keyed is None else self.keyed.number_call(cell, number)
        address, caller = self._address(destination), self.name.encode()
        self._emit(destination, Call(method, RpcType.ASYNC, arguments, address, caller, said))

    def answer(self, cell: Cell, method: str, message: Call, kind: BodyKind, data: bytes) -> None:
        """The answer to a call."""
        destination = message.caller.decode(errors="replace")
        if not destination or destination.encode() != message.caller:
            refusal = ValueError(f"no answer can be sent to a caller named {message.caller!r}")
            cell.immortal.on_error(method, refusal)
            return
        answer = Return(kind, self.name.encode(), message.call_number, data, self._address(destination))
        self._emit(destination, answer)

    def due_at(self, time_us: int, key: str | None, number: int) -> None:
        """A timer or sleep of a cell ends at that time."""
        heapq.heappush(self._deadlines, (time_us, key or "", number, key))

    def due_all(self, timers: dict[int, Timer], key: str | None) -> None:
        """Many at once, which may be a million."""
        if len(timers) < len(self._deadlines):
            for number, timer in timers.items():
                self.due_at(timer.deadline_us, key, number)
        else:
            self._deadlines += [(timer.deadline_us, key or "", number, key) for number, timer in timers.items()]
            heapq.heapify(self._deadlines)

    def _address(self, destination: str) -> bytes:
        return b"" if destination == self.name else destination.encode()

    def _emit(self, destination: str, message: Call | Return) -> None:
        if self._muted:
            return
        if destination != self.name and destination not in self._attached:
            self._attached.add(destination)
            self._out.append(codec.encode(codec.AttachTo(destination.encode())))
        self._out.append(codec.encode(message))

    # --- what the host uses -------------------------------------------------------------------------------------

    @property
    def next_deadline_us(self) -> int | None:
        """When the next timer is due."""
        while self._deadlines and not self._is_armed(*self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    @property
    def pending_deadlines(self) -> int:
        """Timers and sleeps that are to come."""
        return len(self._deadlines)

    def _is_armed(self, deadline_us: int, _: str, number: int, key: str | None) -> bool:
        """Whether somebody still waits for it: what a recovery has processed again is over."""
        cell = self.cell
        if self.keyed is not None and key is not None:
            found = self.keyed.live.get(key)
            if found is None:
                return self.keyed.has_idle_timer(key, number, deadline_us)
            cell = found
        timer = cell.timers.get(number)
        return number in cell.effects if timer is None else timer.deadline_us == deadline_us

    def report_due(self, now_us: int) -> None:
        """Timers are due: that becomes an impulse to oneself, and counts once it is logged."""
        due: list[tuple[str | None, int, int]] = []
        while self._deadlines and self._deadlines[0][0] <= now_us and len(due) < TIMERS_AT_ONCE:
            entry = heapq.heappop(self._deadlines)
            if self._is_armed(*entry):
                deadline_us, _, number, key = entry
                due.append((key, number, deadline_us))
        if due:
            self._impulse(TIMER_METHOD, msgspec.json.encode(due))

    def report_effect(self, number: int, value: Any, error: str | None, key: str | None = None) -> None:
        """An effect is done: its result becomes an impulse to oneself, and counts once that is logged."""
        keys = [] if key is None else [key]
        try:
            arguments = to_json([number, value, error, *keys])
        except (TypeError, ValueError) as unsayable:
            arguments = to_json([number, None, f"the result cannot be logged: {unsayable}", *keys])
        self._impulse(OUTSIDE_METHOD, arguments)

    def report_attempt(self, number: int, attempt: int, not_before: float, error: str, key: str | None = None) -> None:
        """An attempt has failed, and another is to follow: whoever makes it after a crash knows that."""
        keys = [] if key is None else [key]
        self._impulse(ATTEMPT_METHOD, to_json([number, attempt, not_before, error, *keys]))

    def report_deadline(self, number: int, deadline: float) -> None:
        """A sleep has begun, and the hub does not tell the time: whoever goes on with it after a crash sleeps for what
        is left. A message of its own, which programs from before there were deadlines take for a call of a method that
        they do not have."""
        self._impulse(DEADLINE_METHOD, msgspec.json.encode([number, deadline]))

    def _impulse(self, method: int, arguments: bytes) -> None:
        self._emit(self.name, Call(method, RpcType.IMPULSE, arguments, b""))
