"""What somebody should look at, in words, each with the page that it leads to; and who has muted which until when.

An alarm has a key that stays the same while its cause lasts. A mute is a row of the table `console/mutes` under that
key: it is known to every page, survives a restart and ends by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from headrace.admin.requests import Asked, Done
from headrace.errors import LimitExceeded
from headrace.hub.health import NOT_FOR_ALL
from headrace.protocols.descriptor import is_holding_cursor
from headrace.security import Principal, current
from headrace.units import format_bytes

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.log.ops import CursorInfo

MUTES = "console/mutes"
MUTED_S_MAX = 30 * 86400
STUCK_S = 60.0
STUCK_KEPT = 200
STUCK_SAID = 20
"""Cursors that have stopped: so many are known one by one, and so many of them are told to one page."""
DISK_FREE_LOW_BYTES = 1 << 30
USERS = "users"
"""The part of the hub's health that its warnings tell of, too."""

Kind = Literal["unready", "disk", "cursor", "pipeline", "note", "warning"]
FOR_READERS_OF_ALL: tuple[Kind, ...] = ("cursor", "pipeline", "note")
"""Those of them that name no stream may still tell of any."""


class Mute(msgspec.Struct, frozen=True):
    """Nobody wants to hear of an alarm until `until_us`; `by` said so."""

    by: str
    until_us: int
    note: str = ""


class Alarm(msgspec.Struct, frozen=True, omit_defaults=True):
    """One cause for concern. `page` is where the console shows it; those who may not read `stream` are not told."""

    key: str
    kind: Kind
    title: str
    detail: str = ""
    page: list[str] = []
    since_us: int | None = None
    stream: str | None = None
    muted: Mute | None = None
    more: int = 0
    """How many of them this stands for, when they are too many to be told one by one."""

    def shown_to(self, principal: Principal) -> Alarm | None:
        """The alarm with what `principal` may know of it, or nothing."""
        if self.stream is not None and not principal.may("read", self.stream):
            return None
        if self.stream is None and self.kind in FOR_READERS_OF_ALL and not principal.may("read"):
            return None
        if self.kind == "unready" and not principal.may("read"):
            return msgspec.structs.replace(self, detail=NOT_FOR_ALL)
        return self


class MuteRequest(Asked, frozen=True):
    """Say nothing of the alarm with this key for `for_s` seconds; `note` says why."""

    alarm: Annotated[str, msgspec.Meta(min_length=1, max_length=2000)]
    for_s: Annotated[float, msgspec.Meta(gt=0, le=MUTED_S_MAX)]
    note: Annotated[str, msgspec.Meta(max_length=500)] = ""


class UnmuteRequest(Asked, frozen=True):
    """Hear of the alarm with this key again."""

    alarm: str


def read_mute(key: bytes, value: bytes) -> tuple[str, Mute]:
    """A row of the table."""
    return key.decode(), msgspec.msgpack.decode(value, type=Mute)


class Alarms:
    """The alarms of one hub, and their mutes."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._mutes: dict[str, Mute] | None = None
        self.sources: list[Callable[[], Iterable[Alarm]]] = [self._unready, self._disk, self.stuck, self._remarks]
        """Whoever has alarms to raise, the gravest first."""

    def register(self) -> None:
        add = self._hub.verbs.register
        add("alarm.mute", MuteRequest, self.mute, right="admin", summary="Say nothing of an alarm for some time")
        add("alarm.unmute", UnmuteRequest, self.unmute, right="admin", summary="Say it again")
        self._muted()  # rows that mean nothing are named at the start
        self._hub.metrics.before_scrape(lambda: self._hub.metrics.console.mutes.set(len(self._muted())))

    def take(self) -> list[Alarm]:
        """All of them now."""
        mutes = self._muted()
        return [
            msgspec.structs.replace(alarm, muted=mutes[alarm.key]) if alarm.key in mutes else alarm
            for source in self.sources
            for alarm in source()
        ]

    async def mute(self, asked: MuteRequest) -> Mute:
        """Until a moment that the answer names."""
        limit = self._hub.config.http.console_mutes_max
        if asked.alarm not in self._muted() and len(self._muted()) >= limit:
            self._hub.metrics.console.refused.labels(limit="http.console_mutes_max").inc()
            raise LimitExceeded("muted alarms", limit + 1, limit, "http.console_mutes_max")
        until_us = self._hub.clock.now_us() + int(asked.for_s * 1_000_000)
        made = Mute(current().name, until_us, asked.note)
        await self._hub.create_table(MUTES)
        ended = [key.encode() for key in self._stored() if key not in self._muted()]
        if ended:
            await self._hub.delete_many(MUTES, ended)
        await self._hub.put(MUTES, asked.alarm.encode(), msgspec.msgpack.encode(made))
        self._mutes = None
        return made

    async def unmute(self, asked: UnmuteRequest) -> Done:
        """Nothing happens to one that is not muted."""
        if asked.alarm in self._stored():
            await self._hub.delete(MUTES, asked.alarm.encode())
            self._mutes = None
        return Done()

    def _stored(self) -> dict[str, Mute]:
        if self._mutes is None:
            rows = self._hub.items(MUTES) if self._hub.has_stream(MUTES) else ()
            self._mutes = dict(self._hub.set_aside.read(MUTES, rows, read_mute))
        return self._mutes

    def _muted(self) -> dict[str, Mute]:
        now_us = self._hub.clock.now_us()
        return {key: mute for key, mute in self._stored().items() if mute.until_us > now_us}

    def _unready(self) -> Iterator[Alarm]:
        for part, reason in self._hub.health.report().reasons.items():
            if part != USERS:
                yield Alarm(f"unready/{part}", "unready", f"The hub is not ready: {part}", reason)

    def _disk(self) -> Iterator[Alarm]:
        free_bytes = self._hub.gauges()["free_bytes"]
        if free_bytes < DISK_FREE_LOW_BYTES:
            left = format_bytes(free_bytes)
            yield Alarm("disk", "disk", f"The disk has {left} left", "A full disk refuses appends.", ["overview"])

    def _remarks(self) -> Iterator[Alarm]:
        for part, note in self._hub.health.report().notes.items():
            page = "cluster" if part == "cluster" else "overview"
            yield Alarm(f"note/{part}", "note", f"{part}: {note}", page=[page])
        for text in self._hub.security.warnings():
            problem, _, advice = text.partition(": ")
            yield Alarm(f"warning/{problem}", "warning", problem, advice, ["users"])

    def stuck(self) -> Iterator[Alarm]:
        """Cursors that have records to read and do not move: one alarm for each, however many partitions it reads."""
        now_us = self._hub.clock.now_us()
        late = sorted((each for each in self._hub.cursors() if is_stuck(each, now_us)), key=_reader)
        readers = [(reader, list(cursors)) for reader, cursors in groupby(late, key=_reader)]
        for (stream, name), cursors in readers[:STUCK_KEPT]:
            lag = sum(cursor.lag for cursor in cursors)
            waits = f"{lag:,} {'record waits' if lag == 1 else 'records wait'}"
            places = "" if len(cursors) == 1 else f" in {len(cursors)} partitions"
            since_us = max(cursor.updated_us for cursor in cursors)
            title = f"Cursor {name} in {stream} has stopped"
            yield Alarm(
                f"cursor/{stream}/{name}", "cursor", title, f"{waits}{places}.", ["stream", stream], since_us, stream
            )
        if len(readers) > STUCK_KEPT:
            yield _more(len(readers) - STUCK_KEPT)


def told_to(principal: Principal, alarms: Iterable[Alarm]) -> list[Alarm]:
    """Those that concern them. Of very many cursors only some: others' never take the place of theirs."""
    shown = [each for alarm in alarms if (each := alarm.shown_to(principal)) is not None]
    late = [alarm for alarm in shown if alarm.kind == "cursor"]
    if sum(alarm.more or 1 for alarm in late) <= STUCK_SAID:
        return shown
    at = shown.index(late[0])
    said = [alarm for alarm in late if not alarm.more][:STUCK_SAID]
    rest = _more(sum(alarm.more or 1 for alarm in late) - len(said))
    return [*shown[:at], *said, rest, *(alarm for alarm in shown[at:] if alarm.kind != "cursor")]


def _more(count: int) -> Alarm:
    what = "cursor has" if count == 1 else "cursors have"
    return Alarm("cursors", "cursor", f"{count:,} more {what} stopped", page=["cursors"], more=count)


def is_stuck(cursor: CursorInfo, now_us: int) -> bool:
    """Whether its consumer should have moved it long ago. One that only holds records never moves."""
    is_late = cursor.lag > 0 and now_us - cursor.updated_us > STUCK_S * 1_000_000
    return is_late and not is_holding_cursor(cursor.name, cursor.stream)


def _reader(cursor: CursorInfo) -> tuple[str, str]:
    return cursor.stream, cursor.name
