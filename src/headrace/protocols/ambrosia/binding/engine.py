"""The binding without its sockets: records in, bytes out. Everything replayable happens here, step by step.

What a checkpoint holds. A coroutine cannot be saved, and neither can something that is being done outside. So while one
is under way, a checkpoint is the state of the last moment in which none was, plus the messages since then; loading it
processes those again with nothing sent. The state of such a moment is taken anew whenever the messages since it exceed
`JOURNAL_BYTES_MAX` and the size of the state.

An upgrade needs such a moment too, since a coroutine of the old class cannot go on in an object of the new one. If it
is asked for at another one, it comes behind the record that brings a quiet one, in every replay the same, and the
checkpoint says that it is to come.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError, UpgradeRefused
from headrace.protocols.ambrosia.binding.proxies import proxy_of
from headrace.protocols.ambrosia.binding.results import RemoteError, Result, Task
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return, RpcType, Type
from headrace.protocols.ambrosia.record_reader import Record

logger = logging.getLogger("headrace.immortal")
SAVED_FORMAT: Final = 1
JOURNAL_BYTES_MAX: Final = 1 << 20
OUTSIDE_METHOD: Final = -101  # negative numbers are reserved for bindings
DEADLINE_METHOD: Final = -102
Said = TypeVar("Said")


class ImpulseRefused(RuntimeError):
    """An impulse was sent where the protocol does not allow it."""


class NotInMethod(RuntimeError):
    """A fork or call was made by code that no replay would run again."""


class SavedState(msgspec.Struct, array_like=True):
    """A checkpoint: the state of a quiet moment, and the messages since then."""

    format: int
    kind: str
    state: bytes
    calls: int
    effects: int
    random: tuple[Any, ...]
    journal: list[bytes]
    upgrade_at: int | None = None
    """Behind how many of these messages an upgrade was asked for that still waits for a quiet moment."""


@dataclass(eq=False, slots=True)
class Effect:
    """Something to do outside, whose result is awaited inside."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    result: Result[Any]
    is_sleep: bool = False
    deadline: float | None = None
    """Of a sleep: when it ends, in seconds since 1970, once that is logged."""
    running: bool = False


class Engine:
    """One immortal and its deterministic surroundings."""

    def __init__(self, factory: Callable[[], Immortal], name: str) -> None:
        self.factory = factory
        self.name = name
        self.primary = False
        self.replayed = False
        """A debugging session has told that its log is over."""
        self.effects: dict[int, Effect] = {}
        self.immortal: Immortal
        self.random = random.Random(name)
        self._out: list[bytes] = []
        self._muted = False
        self._in_message = False
        self._restored = False
        self._attached: set[str] = set()
        self._calls: dict[int, tuple[Result[Any], Any]] = {}
        self._call_count = 0
        self._effect_count = 0
        self._tasks: set[Task] = set()
        self._blob: list[bytes] = []
        self._saved: SavedState | None = None
        self._journal_bytes = 0
        self._adopt(factory())

    def _adopt(self, immortal: Immortal) -> None:
        self.immortal = immortal
        immortal._engine = self

    # --- in and out ---------------------------------------------------------------------------------------------

    def receive(self, item: Record | codec.Blob) -> None:
        """A record from the hub, or a piece of the checkpoint."""
        if isinstance(item, codec.Blob):
            self._blob.append(item.data)
            if item.last:
                blob, self._blob = b"".join(self._blob), []
                self._restore(blob)
        elif item.sequence >= 0:
            self._messages(item.payload)
        elif item.sequence == codec.SEQUENCE_CONTROL:
            for message in codec.decode_messages(item.payload, addressed=False):
                if isinstance(message, codec.Signal):
                    self._signal(message.type)

    def take_output(self) -> bytes:
        """Bytes for the hub."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def _signal(self, kind: Type) -> None:
        if kind == Type.UPGRADE_TAKE_CHECKPOINT or kind == Type.UPGRADE_SERVICE:
            self._upgrade()
        if kind == Type.UPGRADE_SERVICE:
            return
        if kind == Type.TAKE_BECOMING_PRIMARY_CHECKPOINT and not self._restored:
            self._out.append(codec.encode(codec.InitialMessage(b"headrace")))
            self._restored = True
        if kind != Type.TAKE_CHECKPOINT:
            self.primary = True
        elif not self.primary:
            self.replayed = True
        if kind != Type.BECOMING_PRIMARY:
            self._checkpoint()

    # --- checkpoints --------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        """Send the state. Between messages, so it is the state after exactly the records received."""
        if self._saved is None or self._quiet:
            self._remember()
        blob = msgspec.msgpack.encode(self._saved)
        self._out += [codec.encode(codec.Checkpoint(len(blob))), blob]

    @property
    def _quiet(self) -> bool:
        """Whether the state is all there is: no method waits, and nothing is to be done outside."""
        return not self._tasks and not self.effects

    def _remember(self) -> SavedState:
        """Note the state of a quiet moment."""
        kind, state = self.immortal.__saved_as__, self.immortal.save_state()
        self._saved = SavedState(
            SAVED_FORMAT, kind, state, self._call_count, self._effect_count, self.random.getstate(), []
        )
        self._journal_bytes = 0
        return self._saved

    def _restore(self, blob: bytes) -> None:
        saved = msgspec.msgpack.decode(blob, type=SavedState)
        if saved.format != SAVED_FORMAT:
            raise StateError(f"the checkpoint of {self.name} has format {saved.format}; {SAVED_FORMAT} is read here")
        self._adopt(self._fresh(saved.kind))
        self.immortal.load_state(saved.state)
        self._call_count, self._effect_count = saved.calls, saved.effects
        version, numbers, gauss = saved.random
        self.random.setstate((version, tuple(numbers), gauss))
        self._restored = True
        self._remember()
        self._muted = True  # what these messages led to was sent before the checkpoint was taken
        for number, message in enumerate(saved.journal, 1):
            self._messages(message)
            if number == saved.upgrade_at:
                self._upgrade()
        self._muted = False

    def _fresh(self, kind: str) -> Immortal:
        """An object for a saved state. A program that can still upgrade makes objects of its first version; the state
        may be of a later one. It is never loaded into another class: the next checkpoint would lose what that does not
        know."""
        first = immortal = self.factory()
        known = [immortal.__saved_as__]
        with contextlib.suppress(UpgradeRefused):
            while known[-1] != kind and known[-1] not in known[:-1]:
                immortal._engine = self
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
        if self._quiet:
            self._adopt(self.immortal.upgrade())
            self._remember()
            return
        saved = self._saved
        assert saved is not None  # only messages make it anything but quiet, and they are noted there
        if type(self.immortal).upgrade is Immortal.upgrade:
            self.immortal.upgrade()  # says that there is none, now rather than later
        if saved.upgrade_at is not None:
            raise UpgradeRefused(f"the upgrade of {self.name} before this one still waits for its methods to end")
        saved.upgrade_at = len(saved.journal)
        logger.warning("%s: the upgrade waits until no method waits and nothing is being done outside", self.name)

    # --- messages -----------------------------------------------------------------------------------------------

    def _messages(self, payload: bytes) -> None:
        saved = self._saved  # a large state is not saved more often than it pays
        if saved is None or (self._quiet and self._journal_bytes > max(JOURNAL_BYTES_MAX, len(saved.state))):
            saved = self._remember()
        saved.journal.append(payload)
        self._journal_bytes += len(payload)
        for message in codec.decode_messages(payload, addressed=False):
            for call in message.calls if isinstance(message, codec.RpcBatch) else (message,):
                self._in_message = True
                try:
                    self._message(call)
                finally:
                    self._in_message = False
        if saved.upgrade_at is not None and self._quiet:
            self._upgrade()
            logger.info("%s: upgraded", self.name)

    def _message(self, message: codec.Message) -> None:
        if isinstance(message, Call):
            self._call(message)
        elif isinstance(message, Return):
            self._answer(message)
        elif isinstance(message, codec.InitialMessage):
            self._run("first_start", lambda: self.immortal.first_start(), None)

    def _call(self, message: Call) -> None:
        if message.method == OUTSIDE_METHOD:
            self._effect_done(message.arguments)
            return
        if message.method == DEADLINE_METHOD:
            self._deadline_logged(message.arguments)
            return
        methods = self.immortal.__methods__
        method = methods.get(message.method)
        if method is None:
            text = f"no method {message.method}"
            if message.rpc_type != RpcType.ASYNC:  # an answer has to stay what it was when methods are added
                text += ": " + (", ".join(f"{each.name} is {each.id}" for each in methods.values()) or "there is none")
            self._ended(f"#{message.method}", message, None, LookupError(text))
            return
        self._run(method.name, lambda: method.invoke(self.immortal, message.arguments), message)

    def _run(self, name: str, invoke: Callable[[], Any], message: Call | None) -> None:
        try:
            value = invoke()
        except Exception as error:
            self._ended(name, message, None, error)
            return
        if inspect.iscoroutine(value):

            def ended(task: Task, value: Any, error: Exception | None) -> None:
                self._tasks.discard(task)
                self._ended(name, message, value, error)

            task = Task(value, ended)
            self._tasks.add(task)
            task.step()
        else:
            self._ended(name, message, value, None)

    def _ended(self, name: str, message: Call | None, value: Any, error: Exception | None) -> None:
        """A method is done: answer whoever waits for it."""
        if message is None or message.rpc_type != RpcType.ASYNC:
            if error is not None:
                self.immortal.on_error(name, error)
            return
        kind, data = BodyKind.EMPTY, b""
        if error is None and value is not None:
            try:
                kind, data = BodyKind.VALUE, msgspec.json.encode(value)
            except (TypeError, ValueError) as unsayable:
                error = unsayable
        if error is not None:
            kind, data = BodyKind.EXCEPTION, msgspec.json.encode(f"{type(error).__name__}: {error}")
        destination = message.caller.decode(errors="replace")
        if not destination or destination.encode() != message.caller:
            self.immortal.on_error(name, ValueError(f"no answer can be sent to a caller named {message.caller!r}"))
            return
        answer = Return(kind, self.name.encode(), message.call_number, data, self._address(destination))
        self._emit(destination, answer)

    def _answer(self, message: Return) -> None:
        waiting = self._calls.pop(message.call_number, None)
        if waiting is None:
            return
        result, returns = waiting
        if message.kind == BodyKind.EXCEPTION:
            result.resolve(None, RemoteError(_text(message.value)))
        elif message.kind == BodyKind.EMPTY:
            result.resolve(None)
        else:
            try:
                value = msgspec.json.decode(message.value, type=returns)
            except msgspec.MsgspecError as error:
                result.resolve(None, RemoteError(f"the answer is not what was declared: {error}"))
                return
            result.resolve(value)

    # --- what immortals and proxies use -------------------------------------------------------------------------

    def proxy_to_self(self) -> Any:
        """A proxy whose calls come back through the log."""
        return proxy_of(type(self.immortal))(self, self.name)

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
            self._need_message()
        self._emit(destination, Call(method, rpc_type, arguments, self._address(destination)))

    def ask(self, destination: str, method: int, arguments: bytes, returns: Any) -> Result[Any]:
        """A call with an answer."""
        self._need_message()
        self._call_count += 1
        result: Result[Any] = Result()
        self._calls[self._call_count] = (result, returns)
        address, caller = self._address(destination), self.name.encode()
        self._emit(destination, Call(method, RpcType.ASYNC, arguments, address, caller, self._call_count))
        return result

    def outside(self, function: Callable[..., Any], args: tuple[Any, ...], *, is_sleep: bool = False) -> Result[Any]:
        """Something to be done outside once the binding is primary."""
        self._need_message()
        self._effect_count += 1
        result: Result[Any] = Result()
        self.effects[self._effect_count] = Effect(function, args, result, is_sleep)
        return result

    def report_effect(self, number: int, value: Any, error: str | None) -> None:
        """An effect is done: its result becomes an impulse to oneself, and counts once that is logged."""
        try:
            arguments = msgspec.json.encode([number, value, error])
        except (TypeError, ValueError) as unsayable:
            arguments = msgspec.json.encode([number, None, f"the result cannot be logged: {unsayable}"])
        self._emit(self.name, Call(OUTSIDE_METHOD, RpcType.IMPULSE, arguments, b""))

    def report_deadline(self, number: int, deadline: float) -> None:
        """A sleep has begun: whoever goes on with it after a crash sleeps for what is left. A message of its own, which
        programs from before there were deadlines take for a call of a method that they do not have."""
        self._emit(self.name, Call(DEADLINE_METHOD, RpcType.IMPULSE, msgspec.json.encode([number, deadline]), b""))

    def _deadline_logged(self, arguments: bytes) -> None:
        number, deadline = self._decode_own(arguments, tuple[int, float | None], (0, None))
        effect = self.effects.get(number)
        if effect is not None and effect.deadline is None:  # the first one counts, as it does for who sleeps
            effect.deadline = deadline

    def _effect_done(self, arguments: bytes) -> None:
        number, value, error = self._decode_own(arguments, tuple[int, Any, str | None], (0, None, None))
        effect = self.effects.pop(number, None)
        if effect is not None:  # else it ran twice, because a crash hid the first result
            effect.result.resolve(value, None if error is None else RemoteError(error))

    def _decode_own(self, arguments: bytes, kind: type[Said], nothing: Said) -> Said:
        try:
            return msgspec.json.decode(arguments, type=kind)
        except msgspec.MsgspecError as malformed:  # not ours: somebody else used our number
            self.immortal.on_error("outside", malformed)
            return nothing

    def _need_message(self) -> None:
        if not self._in_message:
            raise NotInMethod("forks and calls belong into methods of an immortal; from outside send an impulse")

    def _address(self, destination: str) -> bytes:
        return b"" if destination == self.name else destination.encode()

    def _emit(self, destination: str, message: Call | Return) -> None:
        if self._muted:
            return
        if destination != self.name and destination not in self._attached:
            self._attached.add(destination)
            self._out.append(codec.encode(codec.AttachTo(destination.encode())))
        self._out.append(codec.encode(message))


def _text(data: bytes) -> str:
    try:
        return str(msgspec.json.decode(data))
    except msgspec.DecodeError:
        return data.decode(errors="replace")
