"""The verbs of cursors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.admin.requests import Asked, Done, Index, Moment, check_at_least, first_number, index_of, may_read
from headrace.errors import BadRequest
from headrace.log.ops import CursorInfo
from headrace.pages import Listed

if TYPE_CHECKING:
    from headrace.hub import Hub


class CursorList(Listed, frozen=True):
    """Cursors by pattern, of one stream or of all."""

    pattern: str = "*"
    stream: str | None = None


class CursorName(Asked, frozen=True):
    """Names a cursor in one partition."""

    cursor: str
    stream: str
    partition: int = 0


class CursorSave(Asked, frozen=True):
    """Set the next index to read. It goes back only with `rewind`."""

    cursor: str
    stream: str
    index: int
    partition: int = 0
    rewind: bool = False


class CursorReset(Asked, frozen=True):
    """Move a cursor in one partition (null: all) to an index, a time, the earliest or the latest record."""

    cursor: str
    stream: str
    to: int | Literal["earliest", "latest"] | Moment
    partition: int | None = None
    dry_run: bool = False


class CursorMove(msgspec.Struct, frozen=True):
    """What a reset does: from `before` (null: there was no cursor) to `after`."""

    partition: int
    before: int | None
    after: int
    read_again: int
    skipped: int


class Cursors:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        """Add the verbs to the hub."""
        add = self._hub.verbs.register
        add(
            "cursor.list",
            CursorList,
            self.named,
            right="read",
            summary="List cursors",
            filters=True,
            listed_by=lambda each: [self._hub.stream(each.stream).id, each.name, each.partition],
        )
        add("cursor.get", CursorName, self.get, right="read", summary="The position of a cursor")
        add("cursor.save", CursorSave, self.save, right="write", summary="Move a cursor on", moves_cursor=True)
        add("cursor.reset", CursorReset, self.reset, right="admin", summary="Move a cursor anywhere", moves_cursor=True)
        add("cursor.delete", CursorName, self.delete, right="admin", summary="Forget a cursor", moves_cursor=True)

    async def named(self, asked: CursorList) -> Iterable[CursorInfo]:
        """The cursors of streams that the caller may read."""
        cursors = self._hub.cursors_after(first_number(asked), asked.pattern, asked.stream)
        return (info for info in cursors if may_read(info.stream))

    async def get(self, asked: CursorName) -> Index:
        """One cursor."""
        self._hub.bounds(asked.stream, asked.partition)
        return Index(self._hub.cursor(asked.cursor, asked.stream, asked.partition))

    async def save(self, asked: CursorSave) -> Index:
        """Move on; the position now stored."""
        check_at_least("index", asked.index, 0)
        saved = await self._hub.save_cursor(
            asked.cursor, asked.stream, asked.index, partition=asked.partition, rewind=asked.rewind
        )
        return Index(saved)

    async def reset(self, asked: CursorReset) -> list[CursorMove]:
        """Move anywhere, or only say what that would do."""
        info = self._hub.stream(asked.stream)
        numbers = range(info.partitions) if asked.partition is None else [asked.partition]
        before = {number: self._hub.cursor(asked.cursor, asked.stream, number) for number in numbers}
        moves = [await planned_move(self._hub, asked.stream, *one, asked.to) for one in before.items()]
        if not asked.dry_run:
            for move in moves:
                await self._hub.save_cursor(
                    asked.cursor, asked.stream, move.after, partition=move.partition, rewind=True
                )
        return moves

    async def delete(self, asked: CursorName) -> Done:
        """Forget."""
        await self._hub.delete_cursor(asked.cursor, asked.stream, asked.partition)
        return Done()


async def planned_move(
    hub: Hub, stream: str, partition: int, before: int | None, to: int | Literal["earliest", "latest"] | Moment
) -> CursorMove:
    """What it means to move a cursor in one partition from `before` to somewhere else."""
    bounds = hub.bounds(stream, partition)
    after = await hub.index_at_time(stream, to.time_us, partition) if isinstance(to, Moment) else index_of(to, bounds)
    if not bounds.first <= after <= bounds.next:
        raise BadRequest(
            f"'to' is {after}, outside {bounds.first} to {bounds.next}, the records of stream {stream!r} "
            f"partition {partition}"
        )
    read_again = 0 if before is None else max(0, min(before, bounds.next) - after)
    skipped = max(0, after - max(bounds.first, before or 0))
    return CursorMove(partition, before, after, read_again, skipped)
