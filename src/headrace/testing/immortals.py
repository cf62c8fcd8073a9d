"""Immortals in memory, for tests of whoever writes them: no hub, no sockets, a clock that skips, and kills.

    def test_an_order_survives_everything():
        def scenario(world: World) -> object:
            world.add(Shop, "shop")
            receipt = world.immortal("shop").order(item="pear", qty=2)
            world.skip("3d")                              # timers fire on the way
            return receipt, world.immortal("shop").books()

        survives(scenario)        # once as it is, once with a kill behind each log write, once with a kill behind all

A `World` does what a hub does: it logs messages, delivers them, knows what was said before, and compares what a
recovering program says again. Effects run for real, unless the test replaces them (`world.effects[charge] = lambda …`).
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from headrace.protocols.ambrosia import codec
from headrace.protocols.ambrosia.binding.cell import MICROSECONDS, Effect
from headrace.protocols.ambrosia.binding.engine import Engine
from headrace.protocols.ambrosia.binding.immortal import Immortal
from headrace.protocols.ambrosia.binding.methods import CANCEL_METHOD, CLOCK_METHOD, FULFIL_METHOD, Method
from headrace.protocols.ambrosia.binding.results import RemoteError
from headrace.protocols.ambrosia.binding.schedule import Delay, seconds_of
from headrace.protocols.ambrosia.binding.values import from_json, to_json
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return, RpcType, Type
from headrace.protocols.ambrosia.record_reader import Record

OUTSIDE: Final = "@outside"
START: Final = datetime(2030, 1, 1, tzinfo=UTC)
STEPS_MAX: Final = 100_000


class Diverged(AssertionError):
    """A program says something else in its recovery than it had said before: it depends on something that no log
    knows."""


class NothingHappens(AssertionError):
    """A call is not answered, and nothing is left that could change that."""


class Handle:
    """An immortal of a world, to call: `world.immortal("shop").order(item="pear")`."""

    def __init__(self, world: World, name: str, key: str | None) -> None:
        self._world = world
        self._name = name
        self._key = key

    def __getattr__(self, method: str) -> Callable[..., Any]:
        if method.startswith("_"):
            raise AttributeError(method)

        def call(*args: Any, idempotency_key: str | None = None, **kwargs: Any) -> Any:
            return self._world._call(self._name, self._key, method, args, kwargs, idempotency_key)

        return call

    def start(self, method: str, *args: Any, **kwargs: Any) -> int:
        """Call a method and do not wait for it; the number is for `world.result` and `world.cancel`."""
        return self._world._start(self._name, self._key, method, args, kwargs)

    def fulfil(self, token: str, value: Any = None) -> None:
        """Give a method what it waits for."""
        arguments = to_json({"token": token, "value": value})
        self._world._value(self._world._wait(self._world._say(self._name, FULFIL_METHOD, arguments)))


class _Home:
    """One immortal: its log, its checkpoint, and the program that is alive now."""

    def __init__(self, world: World, factory: Callable[[], Immortal], name: str) -> None:
        self.factory = factory
        self.name = name
        self.log: list[bytes] = []
        self.said: dict[str, list[bytes]] = defaultdict(list)
        """All replayable messages to each destination, in order."""
        self.repeating: dict[str, int] = {}
        """How many of those the program that is alive has said."""
        self.checkpoint: tuple[bytes, int, dict[str, int]] = (b"", 0, {})
        self.effects: deque[tuple[str | None, int, Effect]] = deque()
        self.waiting_effects: list[tuple[float, str | None, int, Effect]] = []
        self.engine = Engine(factory, name)
        self._world = world

    def begin(self) -> None:
        """Its first start."""
        self.engine.receive(_signal(Type.TAKE_BECOMING_PRIMARY_CHECKPOINT))
        self._world._messages(self)
        initial = codec.InitialMessage(b"headrace" + self.name.encode().ljust(16, b"."))
        self.log.append(self._world._time() + codec.encode(initial))
        self.deliver(0)
        self._world._messages(self)

    def deliver(self, place: int) -> None:
        """One record of the log."""
        self.engine.receive(Record(1, place, self.log[place]))

    def take_checkpoint(self) -> None:
        """As a hub asks for one now and then."""
        self.engine.receive(_signal(Type.TAKE_CHECKPOINT))
        self._world._messages(self)

    def recover(self) -> None:
        """The program was killed: another one begins with the checkpoint, and is told what came since."""
        blob, position, said = self.checkpoint
        self.engine = Engine(self.factory, self.name)
        self.repeating = dict(said)
        self.effects.clear()
        self.waiting_effects.clear()
        self.engine.receive(codec.Blob(blob, True))
        for place in range(position, len(self.log)):
            self.deliver(place)
            self._world._messages(self)
        self.engine.receive(_signal(Type.BECOMING_PRIMARY))
        self._world._messages(self)


class World:
    """Immortals, their logs and a clock. Everything happens in the calling thread, in the same order each time."""

    def __init__(self, *, kill_after: Callable[[int], bool] | None = None, checkpoint_every: int = 0) -> None:
        """`kill_after(n)` says whether the program that log write `n` was for is killed behind it; `checkpoint_every`
        writes of a log there is a checkpoint, 0 for none but the first."""
        self.now = START
        self.writes = 0
        self.effects: dict[Callable[..., Any], Callable[..., Any]] = {}
        """What is done in place of a function that methods pass to `self.effect`."""
        self._kill_after = kill_after or (lambda write: False)
        self._checkpoint_every = checkpoint_every
        self._homes: dict[str, _Home] = {}
        self._pending: deque[tuple[_Home, bytes]] = deque()
        self._answers: dict[int, Return] = {}
        self._numbers = itertools.count(1)
        self._keys: dict[tuple[str, str], int] = {}

    def add(self, factory: Callable[[], Immortal], name: str) -> Handle:
        """Start an immortal."""
        home = self._homes[name] = _Home(self, factory, name)
        home.begin()
        self.run()
        return self.immortal(name)

    def immortal(self, name: str, *, key: str | None = None) -> Handle:
        """An immortal, to call."""
        return Handle(self, name, key)

    def state(self, name: str, *, key: str | None = None) -> Immortal:
        """The object itself, to look at."""
        engine = self._homes[name].engine
        return engine.immortal if engine.keyed is None else engine.keyed.look(key)

    def kill(self, name: str) -> None:
        """Kill a program and start it again."""
        self._homes[name].recover()
        self.run()

    def replace(self, name: str, factory: Callable[[], Immortal]) -> None:
        """Stop a program, and start another version of it."""
        home = self._homes[name]
        home.take_checkpoint()
        before = home.factory, home.engine
        home.factory = factory
        try:
            self.kill(name)
        except BaseException:
            home.factory, home.engine = before
            raise

    def skip(self, delay: Delay) -> None:
        """Let time pass; what is due on the way happens."""
        end = self.now.timestamp() + seconds_of(delay)
        self.run()
        while (due := self._next_due()) is not None and due <= end:
            self._pass_to(due)
        self.now = datetime.fromtimestamp(end, UTC)

    def run(self) -> None:
        """Deliver what is under way, without letting time pass."""
        for _ in range(STEPS_MAX):
            if self._pending:
                self._write(*self._pending.popleft())
            elif not self._do_effects():
                return
        raise NothingHappens(f"after {STEPS_MAX} messages there are still more: a method calls itself for ever?")

    def result(self, number: int) -> Any:
        """What a call has returned that was made with `start`; time passes until it has."""
        return self._value(self._wait(number))

    def cancel(self, name: str, number: int) -> None:
        """Cancel a call that was made with `start`."""
        self._value(self._wait(self._say(name, CANCEL_METHOD, to_json({"call": number}))))

    # --- calls --------------------------------------------------------------------------------------------------

    def _call(
        self, name: str, key: str | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], once: str | None
    ) -> Any:
        declared = self._method(name, method)
        if declared.is_query:
            return self._ask(name, declared, declared.encode(args, kwargs, key))
        number = self._keys.get((name, once)) if once is not None else None
        if number is None:
            number = self._start(name, key, method, args, kwargs)
            if once is not None:
                self._keys[name, once] = number
        return self._value(self._wait(number), declared.returns)

    def _start(self, name: str, key: str | None, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        declared = self._method(name, method)
        return self._say(name, declared.id, declared.encode(args, kwargs, key))

    def _say(self, name: str, method: int, arguments: bytes) -> int:
        number = next(self._numbers)
        call = Call(method, RpcType.ASYNC, arguments, None, OUTSIDE.encode(), number)
        self._pending.append((self._homes[name], codec.encode(call)))
        return number

    def _method(self, name: str, method: str) -> Method:
        methods = self._homes[name].engine.immortal.__methods__.values()
        for each in methods:
            if each.name == method:
                return each
        raise AttributeError(f"{name} has no method {method}; it has {', '.join(each.name for each in methods)}")

    def _ask(self, name: str, method: Method, arguments: bytes) -> Any:
        self.run()
        home = self._homes[name]
        before = {cell.key: cell.immortal.save_state() for cell in home.engine.cells()}
        call = Call(method.id, RpcType.ASYNC, arguments, None, OUTSIDE.encode(), next(self._numbers))
        home.engine.receive(Record(1, codec.SEQUENCE_CONTROL, codec.encode(call)))
        self._messages(home)
        after = {cell.key: cell.immortal.save_state() for cell in home.engine.cells()}
        if any(after.get(key, state) != state for key, state in before.items()):
            raise AssertionError(f"the query {name}.{method.name} has changed the state: make it a @method")
        return self._value(self._answers[call.call_number], method.returns)

    def _wait(self, number: int) -> Return:
        self.run()
        while number not in self._answers:
            due = self._next_due()
            if due is None:
                raise NothingHappens("the call waits for something that nobody does: a token to fulfil, perhaps")
            self._pass_to(due)
        return self._answers[number]

    @staticmethod
    def _value(answer: Return, returns: Any = Any) -> Any:
        if answer.kind == BodyKind.EXCEPTION:
            raise RemoteError(from_json(answer.value))
        return None if answer.kind == BodyKind.EMPTY else from_json(answer.value, returns)

    # --- what a hub does ----------------------------------------------------------------------------------------

    def _write(self, home: _Home, message: bytes) -> None:
        """Log a message and deliver it; then, perhaps, kill."""
        home.log.append(self._time() + message)
        self.writes += 1
        if self._kill_after(self.writes):
            home.recover()
        else:
            home.deliver(len(home.log) - 1)
            self._messages(home)
        if self._checkpoint_every and len(home.log) % self._checkpoint_every == 0:
            home.take_checkpoint()

    def _time(self) -> bytes:
        """The message that tells a program the time."""
        time_us = int(self.now.timestamp() * MICROSECONDS)
        return codec.encode(Call(CLOCK_METHOD, RpcType.IMPULSE, time_us.to_bytes(8, "little")))

    def _messages(self, home: _Home) -> None:
        """What a program has said."""
        out = home.engine.take_output()
        at = 0
        while at < len(out):
            size, at = codec.read_int(out, at, len(out))
            message = codec.decode(out, at, at + size, addressed=True)
            at += size
            if isinstance(message, codec.Checkpoint):
                home.checkpoint = out[at : at + message.size], len(home.log), dict(home.repeating)
                at += message.size
            elif isinstance(message, Call | Return):
                self._route(home, message)
        for (key, number), effect in home.engine.to_start.items() if home.engine.primary else ():
            home.effects.append((key, number, effect))
        if home.engine.primary:
            home.engine.to_start = {}

    def _route(self, home: _Home, message: Call | Return) -> None:
        destination = (message.destination or b"").decode() or home.name
        if destination == OUTSIDE:
            assert isinstance(message, Return)
            self._answers.setdefault(message.call_number, message)
            return
        plain = _plain(message)
        if not (isinstance(message, Call) and message.rpc_type == RpcType.IMPULSE):
            place = home.repeating.get(destination, 0)
            home.repeating[destination] = place + 1
            said = home.said[destination]
            if place < len(said):
                if said[place] != plain:
                    raise Diverged(
                        f"{home.name} says something else to {destination} in its recovery: message {place + 1} was "
                        f"{_shown(said[place])}, and is {_shown(plain)}"
                    )
                return
            said.append(plain)
        if destination not in self._homes:
            raise AssertionError(f"{home.name} calls {destination}, which is not in this world: world.add(…) it")
        self._pending.append((self._homes[destination], plain))

    # --- time and effects ---------------------------------------------------------------------------------------

    def _next_due(self) -> float | None:
        deadlines = [home.engine.next_deadline_us for home in self._homes.values()]
        due = [deadline / MICROSECONDS for deadline in deadlines if deadline is not None]
        due += [when for home in self._homes.values() for when, *_ in home.waiting_effects]
        return min(due) if due else None

    def _pass_to(self, due: float) -> None:
        self.now = max(self.now, datetime.fromtimestamp(due + 1e-6, UTC))
        now_us = int(self.now.timestamp() * MICROSECONDS) + 1
        for home in self._homes.values():
            home.engine.report_due(now_us)
            ready = [each for each in home.waiting_effects if each[0] * MICROSECONDS <= now_us]
            home.waiting_effects = [each for each in home.waiting_effects if each not in ready]
            home.effects.extend((key, number, effect) for _, key, number, effect in ready)
            self._messages(home)
        self.run()

    def _do_effects(self) -> bool:
        """Do one thing outside; whether there was one."""
        for home in self._homes.values():
            if home.effects:
                key, number, effect = home.effects.popleft()
                if not effect.result.done:
                    self._do(home, key, number, effect)
                    self._messages(home)
                return True
        return False

    def _do(self, home: _Home, key: str | None, number: int, effect: Effect) -> None:
        function = effect.function
        assert function is not None
        now = self.now.timestamp()
        if effect.not_before > now:
            home.waiting_effects.append((effect.not_before, key, number, effect))
            return
        try:
            value = self.effects.get(function, function)(*effect.args)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            effect.attempts += 1
            pause_s = effect.retry.pause_s(effect.attempts, failure)
            if pause_s is None:
                home.engine.report_effect(number, None, error, key)
                return
            effect.not_before, effect.last_error = now + pause_s, error
            home.engine.report_attempt(number, effect.attempts, effect.not_before, error, key)
            home.waiting_effects.append((effect.not_before, key, number, effect))
        else:
            home.engine.report_effect(number, value, None, key)


def survives(scenario: Callable[[World], Any], *, checkpoint_every: int = 3) -> Any:
    """Run a scenario as it is; then with a kill behind each single log write, with a kill behind every one, and with
    checkpoints between. It must come to the same end each time: what it returns. That is returned here, too."""
    plain = World()
    expected = scenario(plain)
    runs: list[tuple[str, World]] = [
        (f"a kill behind log write {write}", World(kill_after=lambda n, write=write: n == write))  # type: ignore[misc]
        for write in range(1, plain.writes + 1)
    ]
    runs.append(("a kill behind every log write", World(kill_after=lambda n: True)))
    between = World(kill_after=lambda n: True, checkpoint_every=checkpoint_every)
    runs.append(("a kill behind every log write, and checkpoints", between))
    for what, world in runs:
        try:
            found = scenario(world)
        except Diverged as error:
            raise Diverged(f"with {what}: {error}") from error
        if found != expected:
            raise AssertionError(f"with {what} the end is {found!r}, and without {expected!r}")
    return expected


def _signal(kind: Type) -> Record:
    return Record(1, codec.SEQUENCE_CONTROL, codec.frame(kind, b""))


def _plain(message: Call | Return) -> bytes:
    """As it is delivered."""
    if isinstance(message, Call):
        plain: Call | Return = Call(
            message.method, message.rpc_type, message.arguments, None, message.caller, message.call_number
        )
    else:
        plain = Return(message.kind, message.responder, message.call_number, message.value)
    return codec.encode(plain)


def _shown(message: bytes) -> str:
    (said,) = codec.decode_messages(message, addressed=False)
    if isinstance(said, Call):
        return f"a call of method {said.method} with {said.arguments.decode(errors='replace')}"
    assert isinstance(said, Return)
    return f"the answer {said.value.decode(errors='replace')}"
