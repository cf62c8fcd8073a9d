"""One object and its deterministic surroundings: what it has called, what it waits for, what is to be done outside.

A plain immortal is one cell. A keyed one has a cell for each key, and each is saved, loaded and replayed by itself.

A coroutine cannot be saved, and neither can something that is being done outside. So while one is under way, what is
saved is the state of the last moment in which none was, plus the messages since then; loading processes those again
with nothing sent. The state of such a moment is taken anew whenever the messages since it exceed a number of bytes, and
the size of the state. Timers are data, and stand in the way of nothing.
"""

from __future__ import annotations

import hashlib
import inspect
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.methods import (
    ATTEMPT_METHOD,
    CANCEL_METHOD,
    DEADLINE_METHOD,
    FULFIL_METHOD,
    OUTSIDE_METHOD,
    TIMER_METHOD,
)
from headrace.protocols.ambrosia.binding.results import (
    Cancelled,
    EffectError,
    RemoteError,
    Result,
    Task,
    started,
    starting,
)
from headrace.protocols.ambrosia.binding.retry import ONCE, Retry
from headrace.protocols.ambrosia.binding.schedule import Cron
from headrace.protocols.ambrosia.binding.values import from_json, to_json
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return, RpcType

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.binding.engine import Engine
    from headrace.protocols.ambrosia.binding.immortal import Immortal

SAVED_FORMAT: Final = 2
SAVED_FORMATS: Final = (1, SAVED_FORMAT)
"""1 had the state of a Mersenne twister as its random numbers, and no timers."""
MICROSECONDS: Final = 1_000_000
Said = TypeVar("Said")


class CountedRandom(random.Random):
    """Random numbers whose whole state is how many were drawn: a replay draws the same, and a million keys keep a
    number each. `self.random()` is one between 0 and 1."""

    def __init__(self, seed: bytes, drawn: int = 0) -> None:
        super().__init__(0)
        self._seed = seed
        self.drawn = drawn

    def random(self) -> float:
        """Between 0 and 1."""
        return self.getrandbits(53) / (1 << 53)

    __call__ = random

    def getrandbits(self, k: int, /) -> int:
        """So many random bits."""
        bits = b""
        while len(bits) * 8 < k:
            self.drawn += 1
            bits += hashlib.blake2b(self.drawn.to_bytes(8, "little"), key=self._seed[:64], digest_size=32).digest()
        return int.from_bytes(bits, "little") & ((1 << k) - 1)


class Timer(msgspec.Struct, array_like=True):
    """A call to come."""

    deadline_us: int
    destination: str
    method: int
    arguments: bytes
    cron: str | None = None


class SavedState(msgspec.Struct, array_like=True):
    """A cell: the state of a quiet moment, and the messages since then."""

    format: int
    kind: str
    state: bytes
    calls: int
    effects: int
    random: Any
    """How many numbers were drawn; in format 1 the state of a Mersenne twister."""
    journal: list[bytes]
    upgrade_at: int | None = None
    """Behind how many of these messages an upgrade was asked for that still waits for a quiet moment."""
    timers: dict[int, Timer] = {}
    now_us: int = 0
    seed: bytes = b""


@dataclass(eq=False, slots=True)
class Effect:
    """Something to do outside, whose result is awaited inside: a function, a sleep, or what others do (a token)."""

    function: Callable[..., Any] | None
    args: tuple[Any, ...]
    result: Result[Any]
    is_sleep: bool = False
    deadline: float | None = None
    """Of a sleep: when it ends, in seconds since 1970, once that is logged."""
    retry: Retry = ONCE
    timeout_s: float | None = None
    returns: Any = Any
    token: str | None = None
    attempts: int = 0
    """How many have failed, as the log knows."""
    not_before: float = 0.0
    last_error: str = ""


class Cell:
    """An object of an immortal's class, with all that belongs to it."""

    __slots__ = (
        "busy", "call_count", "calls", "effect_count", "effects", "engine", "immortal",
        "journal_bytes", "key", "origin", "random", "saved", "tasks", "timers", "waiting_calls",
    )  # fmt: skip

    def __init__(self, engine: Engine, key: str | None, immortal: Immortal) -> None:
        self.engine = engine
        self.key = key
        self.calls: dict[int, tuple[Result[Any], Any, str, int]] = {}
        self.call_count = 0
        self.effects: dict[int, Effect] = {}
        self.effect_count = 0
        self.timers: dict[int, Timer] = {}
        self.tasks: dict[Task[Any], str] = {}
        self.origin: dict[int, Task[Any]] = {}
        """Tasks of calls from outside, by the number of the call."""
        self.random: random.Random = CountedRandom(engine.seed_of(key))
        self.saved: SavedState | None = None
        self.journal_bytes = 0
        self.busy = False
        self.waiting_calls: deque[tuple[str, Callable[[], Any], Call | None]] = deque()
        self.adopt(immortal)

    def adopt(self, immortal: Immortal) -> None:
        """Be another object: a fresh one, or the next version."""
        self.immortal = immortal
        immortal._cell = self

    # --- what is saved ------------------------------------------------------------------------------------------

    @property
    def quiet(self) -> bool:
        """Whether the state is all there is: no method waits, and nothing is to be done outside."""
        return not self.tasks and not self.effects and not self.waiting_calls

    def remember(self) -> SavedState:
        """Note the state of a quiet moment."""
        drawn = self.random.drawn if isinstance(self.random, CountedRandom) else self.random.getstate()
        self.saved = SavedState(
            SAVED_FORMAT,
            self.immortal.__saved_as__,
            self.immortal.save_state(),
            self.call_count,
            self.effect_count,
            drawn,
            [],
            None,
            dict(self.timers),
            self.engine.now_us,
            self.engine.seed,
        )
        self.journal_bytes = 0
        return self.saved

    def restore(self, saved: SavedState, *, arm: bool = True) -> None:
        """Be as at the quiet moment; the messages since then are the caller's to process. `arm`: nobody watches its
        timers yet."""
        self.immortal.load_state(saved.state)
        self.call_count, self.effect_count = saved.calls, saved.effects
        if isinstance(saved.random, int):
            self.random = CountedRandom(self.engine.seed_of(self.key), saved.random)
        else:
            version, numbers, gauss = saved.random
            self.random = random.Random()
            self.random.setstate((version, tuple(numbers), gauss))
        self.timers = dict(saved.timers)
        if arm:
            self.engine.due_all(self.timers, self.key)

    def journal(self, payload: bytes, bytes_max: int) -> SavedState:
        """Messages are about to be processed."""
        saved = self.saved  # a large state is not saved more often than it pays
        if saved is None or (self.quiet and self.journal_bytes > max(bytes_max, len(saved.state))):
            saved = self.remember()
        saved.journal.append(payload)
        self.journal_bytes += len(payload)
        return saved

    # --- messages -----------------------------------------------------------------------------------------------

    def process(self, message: codec.Message) -> None:
        """One message that is in the log."""
        starting(self.start)
        try:
            if isinstance(message, Call):
                self._called(message)
            elif isinstance(message, Return):
                self._answered(message)
            elif isinstance(message, codec.InitialMessage):
                self._run("first_start", lambda: self.immortal.first_start(), None)
        finally:
            started()

    def _called(self, message: Call) -> None:
        own = OWN_METHODS.get(message.method)
        if own is not None:
            own(self, message)
            return
        methods = self.immortal.__methods__
        method = methods.get(message.method)
        if method is None:
            text = f"no method {message.method}"
            if message.rpc_type != RpcType.ASYNC:  # an answer has to stay what it was when methods are added
                text += ": " + (", ".join(f"{each.name} is {each.id}" for each in methods.values()) or "there is none")
            self._ended(f"#{message.method}", message, None, LookupError(text))
            return
        known = method

        def invoke() -> Any:
            return known.invoke(self.immortal, message.arguments)

        if self.busy and self.key is not None:
            self.waiting_calls.append((method.name, invoke, message))
        else:
            self._run(method.name, invoke, message)

    def _run(self, name: str, invoke: Callable[[], Any], message: Call | None) -> None:
        self.engine.watch(self, name, message)
        try:
            value = invoke()
        except Exception as error:
            self._ended(name, message, None, error)
            return
        if not inspect.iscoroutine(value):
            self._ended(name, message, value, None)
            return
        task: Task[Any] = Task(value)
        self.tasks[task] = name
        self.busy = True
        if message is not None and message.rpc_type == RpcType.ASYNC:
            self.origin[message.call_number] = task

        def ended() -> None:
            del self.tasks[task]
            self.busy = False
            if message is not None:
                self.origin.pop(message.call_number, None)
            self._ended(name, message, task._value, task._error)
            while not begins and self.waiting_calls and not self.busy:
                self._run(*self.waiting_calls.popleft())

        begins = True  # one that ends at once leaves the calls behind it to whoever began it
        task.when_done(ended)
        task.step()
        begins = False

    def start(self, coroutine: Any) -> Task[Any]:
        """Run a coroutine of a method beside it."""
        task: Task[Any] = Task(coroutine)
        self.tasks[task] = getattr(coroutine, "__name__", "task")
        task.when_done(lambda: self._forget(task))
        task.step()
        return task

    def _forget(self, task: Task[Any]) -> None:
        del self.tasks[task]

    def _ended(self, name: str, message: Call | None, value: Any, error: BaseException | None) -> None:
        """A method is done: answer whoever waits for it."""
        self.engine.watched(self, name, message, value, error)
        if message is None or message.rpc_type != RpcType.ASYNC:
            if isinstance(error, Exception):
                self.immortal.on_error(name, error)
            return
        kind, data = BodyKind.EMPTY, b""
        if error is None and value is not None:
            try:
                kind, data = BodyKind.VALUE, to_json(value)
            except (TypeError, ValueError) as unsayable:
                error = unsayable
        if error is not None:
            kind, data = BodyKind.EXCEPTION, to_json(f"{type(error).__name__}: {error}")
        self.engine.answer(self, name, message, kind, data)

    def _answered(self, message: Return) -> None:
        waiting = self.calls.pop(message.call_number, None)
        if waiting is None:
            return
        result, returns, _, _ = waiting
        if message.kind == BodyKind.EXCEPTION:
            result.resolve(None, RemoteError(_text(message.value)))
        elif message.kind == BodyKind.EMPTY:
            result.resolve(None)
        else:
            try:
                value = from_json(message.value, returns)
            except (msgspec.MsgspecError, TypeError) as error:
                result.resolve(None, RemoteError(f"the answer is not what was declared: {error}"))
                return
            result.resolve(value)

    # --- what methods ask for -----------------------------------------------------------------------------------

    @property
    def now_us(self) -> int:
        """When the message was logged that is being processed."""
        return self.engine.now_us

    def ask(self, destination: str, method: int, arguments: bytes, returns: Any) -> Result[Any]:
        """A call with an answer."""
        self.engine.need_message()
        self.call_count += 1
        result: Result[Any] = Result()
        self.calls[self.call_count] = (result, returns, destination, method)
        self.engine.emit_call(self, destination, method, arguments, self.call_count)
        return result

    def effect(self, effect: Effect) -> Result[Any]:
        """Something to be done outside once the binding is primary."""
        self.engine.need_message()
        self.effect_count += 1
        number = self.effect_count
        self.effects[number] = effect
        if effect.is_sleep and self.now_us:
            (seconds,) = effect.args
            effect.deadline = (self.now_us + int(seconds * MICROSECONDS)) / MICROSECONDS
            self.engine.due_at(int(effect.deadline * MICROSECONDS), self.key, number)
        elif effect.function is not None:
            self.engine.to_start[self.key, number] = effect
        effect.result.when_done(lambda: self._dropped(number))
        return effect.result

    def await_token(self, result: Result[Any], token: str, kind: Any) -> None:
        """Something that others do."""
        self.effect(Effect(None, (), result, returns=kind, token=token))

    def _dropped(self, number: int) -> None:
        self.effects.pop(number, None)
        self.engine.to_start.pop((self.key, number), None)

    def later(self, timer: Timer) -> int:
        """A call to come; its number."""
        self.engine.need_message()
        self.effect_count += 1
        self.timers[self.effect_count] = timer
        self.engine.due_at(timer.deadline_us, self.key, self.effect_count)
        return self.effect_count

    # --- messages of our own ------------------------------------------------------------------------------------

    def _own(self, message: Call, kind: type[Said]) -> Said | None:
        try:
            return from_json(message.arguments, kind)  # type: ignore[no-any-return]
        except msgspec.MsgspecError as malformed:  # not ours: somebody else used our number
            self.immortal.on_error("outside", malformed)
            return None

    def _effect_done(self, message: Call) -> None:
        said = self._own(message, _Done)
        if said is None or (effect := self.effects.get(said.number)) is None:
            return  # it ran twice, because a crash hid the first result
        value, error = said.value, said.error
        if error is None:
            try:
                effect.result.resolve(from_json(msgspec.json.encode(value), effect.returns))
                return
            except (msgspec.MsgspecError, TypeError) as mismatch:
                error = f"the result is not what was declared: {mismatch}"
        effect.result.resolve(None, RemoteError(error) if effect.retry is ONCE else EffectError(error))

    def _deadline_logged(self, message: Call) -> None:
        said = self._own(message, tuple[int, float | None])
        effect = None if said is None else self.effects.get(said[0])
        if said is not None and effect is not None and effect.deadline is None:  # the first one counts
            effect.deadline = said[1]

    def _attempt_failed(self, message: Call) -> None:
        said = self._own(message, _Failed)
        if said is not None and (effect := self.effects.get(said.number)) is not None:
            effect.attempts = max(effect.attempts, said.attempt)
            effect.not_before, effect.last_error = said.not_before, said.error

    def _timers_due(self, message: Call) -> None:
        said = self._own(message, list[tuple[str | None, int, int]])
        for _, number, deadline_us in said or ():
            timer = self.timers.get(number)
            if (effect := self.effects.get(number)) is not None and effect.is_sleep:
                effect.result.resolve(None)
            elif timer is not None and timer.deadline_us == deadline_us:  # or it was told twice, and due before a crash
                del self.timers[number]
                self._fire(number, timer)

    def _fire(self, number: int, timer: Timer) -> None:
        if timer.cron is not None:
            now = datetime.fromtimestamp(max(self.now_us, timer.deadline_us) / MICROSECONDS, UTC)
            deadline_us = int(Cron(timer.cron).next(now).timestamp() * MICROSECONDS)
            self.timers[number] = msgspec.structs.replace(timer, deadline_us=deadline_us)
            self.engine.due_at(deadline_us, self.key, number)
        self.engine.emit_fork(timer.destination, timer.method, timer.arguments)

    def _fulfilled(self, message: Call) -> None:
        said = self._own(message, _Fulfilment)
        effects = [each for each in self.effects.values() if said is not None and each.token == said.token]
        error: Exception | None = None
        if said is not None and not effects:
            error = LookupError(
                f"nobody waits for the token {said.token}: it was fulfilled, or is none of {self.engine.name}"
            )
        for effect in effects:
            assert said is not None
            if said.error is not None:
                effect.result.resolve(None, RemoteError(said.error))
                continue
            try:
                effect.result.resolve(from_json(msgspec.json.encode(said.value), effect.returns))
            except (msgspec.MsgspecError, TypeError) as mismatch:
                error = ValueError(f"the token {said.token} waits for something else: {mismatch}")
        self._ended("fulfil", message, None, error)

    def _cancelled(self, message: Call) -> None:
        said = self._own(message, _Cancellation)
        task = None if said is None else self.origin.get(said.call)
        if task is None:
            self._ended(
                "cancel", message, None, LookupError("the call is not under way: it has ended, or was never made")
            )
            return
        assert said is not None
        task.cancel(said.reason)
        self._ended("cancel", message, None, None)


class _Done(msgspec.Struct, array_like=True):
    """Behind it stands the key, in a keyed immortal."""

    number: int
    value: Any
    error: str | None


class _Failed(msgspec.Struct, array_like=True):
    """As above."""

    number: int
    attempt: int
    not_before: float
    error: str


class _Fulfilment(msgspec.Struct):
    token: str
    value: Any = None
    error: str | None = None


class _Cancellation(msgspec.Struct):
    call: int
    reason: str = "cancelled"


OWN_METHODS: Final[dict[int, Callable[[Cell, Call], None]]] = {
    OUTSIDE_METHOD: Cell._effect_done,
    DEADLINE_METHOD: Cell._deadline_logged,
    TIMER_METHOD: Cell._timers_due,
    ATTEMPT_METHOD: Cell._attempt_failed,
    FULFIL_METHOD: Cell._fulfilled,
    CANCEL_METHOD: Cell._cancelled,
}


def _text(data: bytes) -> str:
    try:
        return str(from_json(data))
    except msgspec.DecodeError:
        return data.decode(errors="replace")


__all__ = ["Cancelled", "Cell", "CountedRandom", "Effect", "SavedState", "Timer"]
