"""Calls from outside: whoever is no immortal calls a method and is given what it returns.

Such a call is logged like any other, as an async RPC whose caller is `OUTSIDE`, so that every binding can answer it.
The answer is what the method says to that name, and it never enters a log: a recovering binding says it again, until a
checkpoint is durable. An answer to a call with an idempotency key is durable before such a checkpoint counts; until
then it waits for `FLUSH_S`, and all that came meanwhile are stored together.

    ambrosia/answers    table: [immortal, idempotency key] → `Kept`: a call that was logged, and its answer once known
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Final

import msgspec
import xxhash

from headrace.errors import BadRequest, Busy, LimitExceeded
from headrace.hub import Hub
from headrace.log.ops import Delete, Op, Put
from headrace.protocols.ambrosia.call_reader import Calls, label_of_call
from headrace.protocols.ambrosia.codec import BodyKind, Call, Return, RpcType, decode_messages, encode
from headrace.protocols.ambrosia.coordinator.instance import Instance
from headrace.protocols.ambrosia.lineage import Lineage
from headrace.protocols.ambrosia.settings import Ambrosia

OUTSIDE: Final = "@outside"
ANSWERS_TABLE: Final = "ambrosia/answers"
FLUSH_S: Final = 0.1
SAVED_BYTES: Final = 4 << 20
SWEEP_S: Final = 300
SWEEP_COUNT: Final = 500
"""So many rows are looked at in one turn."""
TURN_S: Final = 0.02
NUMBER_BITS: Final = 62
IDEMPOTENCY_KEY_BYTES_MAX: Final = 256
ANSWERS_SHOWN_MAX: Final = 1_000
ANSWER_SHOWN_BYTES: Final = 2_000
STANDBY_WAIT_S: Final = 5.0
"""A standby that has not answered by then is not waited for; the running binding is asked."""


class Kept(msgspec.Struct, omit_defaults=True):
    """A call with an idempotency key. `kind` is None until its answer is known."""

    number: int
    digest: int
    """Of method and arguments: the same key for another call is a mistake."""
    time_s: int
    kind: int | None = None
    value: bytes = b""

    @property
    def answer(self) -> Return | None:
        """The answer, if it is known."""
        return None if self.kind is None else Return(BodyKind(self.kind), b"", self.number, self.value)


def _row(name: str, key: str) -> bytes:
    return msgspec.json.encode([name, key])


def _decoded(value: bytes) -> Kept | None:
    try:
        return msgspec.msgpack.decode(value, type=Kept)
    except msgspec.MsgspecError:  # it was set aside when the hub opened
        return None


def read_kept(key: bytes, value: bytes) -> tuple[str, str, Kept]:
    """A row of `ambrosia/answers`: the immortal, the idempotency key, and the call."""
    name, idempotency_key = msgspec.json.decode(key, type=tuple[str, str])
    return name, idempotency_key, msgspec.msgpack.decode(value, type=Kept)


class Answered(msgspec.Struct, frozen=True):
    """What a method said, the beginning of it, and when; kept for a while for people who look."""

    kind: BodyKind
    value: bytes
    time_us: int


class Asked(msgspec.Struct, frozen=True):
    """What a query said; None if nobody could answer in time. `age_s` is set by a standby: no message older than that
    was still on its way to it."""

    answer: Return | None = None
    age_s: float | None = None


def _give_up(future: asyncio.Future[Return | None]) -> None:
    if not future.done():
        future.set_result(None)


async def _within(wait_s: float, future: asyncio.Future[Return | None]) -> Return | None:
    """The answer; None if it takes longer."""
    timer = asyncio.get_running_loop().call_later(wait_s, _give_up, future)
    try:
        return await future
    finally:
        timer.cancel()


def _parts(unsaved: dict[str, Kept], bytes_max: int) -> Iterator[dict[str, Kept]]:
    """Answers that are stored together: as many as a transaction may well hold."""
    part: dict[str, Kept] = {}
    room = bytes_max
    for key, kept in unsaved.items():
        if part and len(kept.value) > room:
            yield part
            part, room = {}, bytes_max
        part[key] = kept
        room -= len(kept.value)
    if part:
        yield part


class OutsideCalls:
    """All calls from outside that are under way, and the answers that are kept."""

    def __init__(self, hub: Hub, settings: Ambrosia, message_bytes_max: int, lineage: Lineage) -> None:
        self._hub = hub
        self._settings = settings
        self._lineage = lineage
        self._message_bytes_max = message_bytes_max
        self._waiting: dict[tuple[str, int], list[asyncio.Future[Return | None]]] = {}
        self._keys: dict[tuple[str, int], str] = {}  # of calls with a key that have no durable answer yet
        self._numbers: dict[tuple[str, str], Kept] = {}  # the same from the other side
        self._unsaved: dict[str, dict[str, Kept]] = defaultdict(dict)
        self._saving: dict[str, set[asyncio.Future[int]]] = defaultdict(set)
        self._answers: OrderedDict[tuple[str, int], Answered] = OrderedDict()
        self._flush: asyncio.TimerHandle | None = None
        self._sweep: asyncio.TimerHandle | None = None

    @property
    def under_way(self) -> int:
        """Calls that somebody waits for."""
        return len(self._waiting)

    async def open(self) -> None:
        """Take up the calls whose answers are still to come."""
        await self._hub.create_table(ANSWERS_TABLE)
        for name, key, kept in self._hub.set_aside.read(ANSWERS_TABLE, self._hub.items(ANSWERS_TABLE), read_kept):
            if kept.kind is None:
                self._keys[name, kept.number] = key
                self._numbers[name, key] = kept
        self._sweep_in(SWEEP_S)

    def close(self) -> None:
        """Let nobody wait any longer."""
        for timer in (self._flush, self._sweep):
            if timer is not None:
                timer.cancel()
        for waiting in self._waiting.values():
            for future in waiting:
                future.cancel()

    # --- calls --------------------------------------------------------------------------------------------------

    async def call(
        self, instance: Instance, method: int, arguments: bytes, key: str | None, wait_s: float
    ) -> Return | None:
        """Log a call, and wait for its answer: None if it takes longer. With a key that was used before, the answer of
        that call."""
        name = instance.name
        if key is None:
            return await self._make(instance, method, arguments, secrets.randbits(NUMBER_BITS), wait_s, ())
        if not 0 < len(key.encode()) <= IDEMPOTENCY_KEY_BYTES_MAX:
            raise BadRequest(f"an idempotency key has 1 to {IDEMPOTENCY_KEY_BYTES_MAX} bytes, not {len(key.encode())}")
        digest = xxhash.xxh64_intdigest(b"%d " % method + arguments, seed=1) >> 1
        kept = self._numbers.get((name, key)) or self._stored(name, key)
        if kept is None:
            kept = Kept(secrets.randbits(NUMBER_BITS), digest, int(time.time()))
            self._numbers[name, key] = kept  # before anything is awaited: the same call may come twice at once
            self._keys[name, kept.number] = key
            put = Put(ANSWERS_TABLE, _row(name, key), msgspec.msgpack.encode(kept))
            return await self._make(instance, method, arguments, kept.number, wait_s, (put,))
        if kept.digest != digest:
            raise BadRequest(
                f"the idempotency key {key!r} was used for another call of {name!r}: the method or its arguments "
                "differ; use a key of its own for each call"
            )
        if kept.kind is not None:
            return kept.answer
        with self._answer(name, kept.number) as future:
            return await _within(wait_s, future)

    def number_of(self, name: str, key: str) -> int:
        """The number of the call that was made with a key."""
        kept = self._numbers.get((name, key)) or self._stored(name, key)
        if kept is None:
            raise BadRequest(f"no call of {name!r} with the idempotency key {key!r} is known")
        return kept.number

    def _stored(self, name: str, key: str) -> Kept | None:
        value = self._hub.get(ANSWERS_TABLE, _row(name, key))
        return None if value is None else _decoded(value)

    async def _make(
        self, instance: Instance, method: int, arguments: bytes, number: int, wait_s: float, ops: tuple[Op, ...]
    ) -> Return | None:
        """Log a call, and wait for its answer: that comes only once the call is durable, so nothing else is waited for
        unless it takes too long."""
        with self._answer(instance.name, number) as future:
            try:
                message = self._message(method, arguments, number)
                if instance.full:
                    await instance.wait_for_room()
            except BaseException:
                self._unmake(instance.name, number)
                raise
            logged = self._log(instance, method, message, number, ops)
            answer = await _within(wait_s, future) if wait_s else None
            if answer is None:
                await asyncio.shield(logged)
            return answer

    def _message(self, method: int, arguments: bytes, number: int) -> bytes:
        limit = self._settings.outside_calls_max
        if len(self._waiting) > limit:  # this one is among them
            raise Busy(f"{limit} calls from outside are under way; the limit is set by 'ambrosia.outside_calls_max'")
        message = encode(Call(method, RpcType.ASYNC, arguments, None, OUTSIDE.encode(), number))
        if len(message) > self._message_bytes_max:
            raise LimitExceeded("bytes of a call", len(message), self._message_bytes_max, "ambrosia.message_bytes_max")
        return message

    def _log(
        self, instance: Instance, method: int, message: bytes, number: int, ops: tuple[Op, ...]
    ) -> asyncio.Future[None]:
        """Send a call to the log. Whoever made it may go: it is logged."""
        name, queue = instance.name, instance.queue
        calls = Calls(b"", label_of_call(method, RpcType.ASYNC), True, [len(message)], [message])
        queue.add(None, calls, None, ops, self._lineage.outside())
        queue.commit()
        logged = queue.flushing()
        logged.add_done_callback(lambda done: self._logged(name, number, done))
        return logged

    def _logged(self, name: str, number: int, done: asyncio.Future[None]) -> None:
        error = done.exception()
        if error is not None:
            self._unmake(name, number)
            for future in self._waiting.get((name, number), ()):
                if not future.done():
                    future.set_exception(error)

    def _unmake(self, name: str, number: int) -> None:
        """A call was not logged: its key is free again."""
        key = self._keys.pop((name, number), None)
        if key is not None:
            self._numbers.pop((name, key), None)

    @contextlib.contextmanager
    def _answer(self, name: str, number: int) -> Iterator[asyncio.Future[Return | None]]:
        """The answer, while the block lasts. Any number of callers may wait for the same one."""
        future: asyncio.Future[Return | None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault((name, number), [])
        waiting.append(future)
        try:
            yield future
        finally:
            waiting.remove(future)
            if not waiting:
                self._waiting.pop((name, number), None)

    async def ask(
        self, instance: Instance, method: int, arguments: bytes, wait_s: float, max_age_s: float | None = None
    ) -> Asked:
        """Have a query answered, by a standby whose state is not older than `max_age_s`, or by the running binding;
        nothing is logged."""
        number = secrets.randbits(NUMBER_BITS)
        message = encode(Call(method, RpcType.ASYNC, arguments, None, OUTSIDE.encode(), number))
        standby = None if max_age_s is None else await instance.standby_within(max_age_s)
        if standby is not None:
            link, age_s = standby
            with self._answer(instance.name, number) as future:
                link.feed.send_control(message)
                if (answer := await _within(min(wait_s, STANDBY_WAIT_S), future)) is not None:
                    return Asked(answer, age_s)
        with self._answer(instance.name, number) as future:
            running = instance.running_now
            if running is None or not running.feed.position:
                try:
                    async with asyncio.timeout(wait_s):
                        running = await instance.running()
                        await running.feed.reached(1)  # a query sees what the first start has made
                except TimeoutError:
                    return Asked()
            running.feed.send_control(message)
            return Asked(await _within(wait_s, future))

    # --- answers ------------------------------------------------------------------------------------------------

    def answered(self, name: str, calls: Calls) -> None:
        """What a binding says to the outside. Nobody waits for an answer that is said again in a recovery."""
        for message in decode_messages(calls.payload(), addressed=False):
            if not isinstance(message, Return):
                continue
            self._note(name, message)
            for future in self._waiting.get((name, message.call_number), ()):
                if not future.done():
                    future.set_result(message)
            key = self._keys.get((name, message.call_number))
            if key is not None:
                kept = self._numbers[name, key]
                kept.kind, kept.value = int(message.kind), message.value
                self._unsaved[name][key] = kept
        if self._unsaved and self._flush is None:
            self._flush = asyncio.get_running_loop().call_later(FLUSH_S, self._flush_all)

    def _note(self, name: str, message: Return) -> None:
        """The first counts: in a recovery it is said again."""
        said = Answered(message.kind, message.value[:ANSWER_SHOWN_BYTES], self._hub.clock.now_us())
        self._answers.setdefault((name, message.call_number), said)
        if len(self._answers) > ANSWERS_SHOWN_MAX:
            self._answers.popitem(last=False)

    def answer_to(self, name: str, number: int) -> Answered | None:
        """What was answered to one of the last calls."""
        return self._answers.get((name, number))

    def _flush_all(self) -> None:
        self._flush = None
        for name in list(self._unsaved):
            self._save(name)

    def _save(self, name: str) -> None:
        bytes_max = min(SAVED_BYTES, self._hub.config.log.batch_bytes_max // 2)
        for unsaved in _parts(self._unsaved.pop(name, {}), bytes_max):
            rows = [_row(name, key) for key in unsaved]
            future = self._hub.put_many(ANSWERS_TABLE, rows, list(map(msgspec.msgpack.encode, unsaved.values())))
            self._saving[name].add(future)
            future.add_done_callback(functools.partial(self._saved, name, unsaved))

    def _saved(self, name: str, unsaved: dict[str, Kept], done: asyncio.Future[int]) -> None:
        self._saving[name].discard(done)
        if done.cancelled() or done.exception() is not None:
            self._unsaved[name] = {**unsaved, **self._unsaved.get(name, {})}
            return
        if self.answers > self._settings.answers_max + SWEEP_COUNT:
            self._sweep_in(0)
        for key, kept in unsaved.items():
            self._numbers.pop((name, key), None)
            self._keys.pop((name, kept.number), None)

    async def flushed(self, instance: Instance) -> None:
        """Until every answer that the binding has given is durable: no recovery from a later checkpoint repeats it."""
        self._save(instance.name)
        await asyncio.gather(*self._saving[instance.name], instance.queue.flushed())

    # --- what is kept -------------------------------------------------------------------------------------------

    @property
    def answers(self) -> int:
        """Calls with a key that are known."""
        return self._hub.table_size(ANSWERS_TABLE) if self._hub.has_stream(ANSWERS_TABLE) else 0

    def _sweep_in(self, delay_s: float, offset: int = 0) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        self._sweep = asyncio.get_running_loop().call_later(delay_s, self._sweep_old, offset)

    def _sweep_old(self, offset: int = 0) -> None:
        """Forget the oldest answers: what was kept long enough, and what there is above the limit. Rows are in the
        order of their calls; those before `offset` stay, since their answers are not known yet."""
        oldest_s = int(time.time()) - int(self._settings.answers_kept_s)
        surplus = self.answers - self._settings.answers_max
        rows = self._hub.page(ANSWERS_TABLE, offset, SWEEP_COUNT)
        gone: list[Op] = []
        for row, value in rows:
            kept = _decoded(value)
            if kept is None or kept.kind is None:
                offset += 1
            elif kept.time_s < oldest_s or len(gone) < surplus:
                gone.append(Delete(ANSWERS_TABLE, row))
            else:
                rows = []
                break
        if gone:
            self._hub.transact(gone).add_done_callback(lambda done: done.cancelled() or done.exception())
        self._sweep_in(SWEEP_S if len(rows) < SWEEP_COUNT else TURN_S, offset if rows else 0)

    async def forget(self, name: str) -> None:
        """Drop all answers of an immortal that is no more."""
        rows = self._hub.set_aside.read(ANSWERS_TABLE, self._hub.items(ANSWERS_TABLE), read_kept)
        self._unsaved.pop(name, None)
        self._numbers = {place: kept for place, kept in self._numbers.items() if place[0] != name}
        self._keys = {place: key for place, key in self._keys.items() if place[0] != name}
        gone: list[Op] = [Delete(ANSWERS_TABLE, _row(owner, key)) for owner, key, _ in rows if owner == name]
        if gone:
            await self._hub.transact(gone)
