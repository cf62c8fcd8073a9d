"""The verbs of streams: create, list, describe, grow, trim and so on; and the checkpoints of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

import msgspec

from headrace.admin.requests import (
    Done,
    Index,
    PartitionOf,
    StreamName,
    check_at_least,
    first_number,
    is_shown,
)
from headrace.log.ops import CheckpointInfo, CursorInfo, SegmentInfo, StreamInfo, StreamOptions
from headrace.pages import Listed

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.security import Principal


class StreamCreate(StreamName, frozen=True):
    """A new stream. With `exist_ok` an existing one is left as it is."""

    partitions: int = 1
    options: StreamOptions = StreamOptions()
    exist_ok: bool = True


class StreamList(Listed, frozen=True):
    """Streams by pattern, such as `orders.*`; `kind` is `stream`, `table` or both. `all`: also what the hub keeps for
    itself."""

    pattern: str = "*"
    kind: Literal["stream", "table"] | None = "stream"
    all: bool = False


class CheckpointList(Listed, frozen=True, kw_only=True):
    """The checkpoints of a stream."""

    stream: str


class StreamGrow(StreamName, frozen=True):
    """More partitions; never fewer."""

    partitions: int


class StreamTrim(StreamName, frozen=True):
    """Forget records below the index `before`."""

    before: int
    partition: int = 0


class StreamSetOptions(StreamName, frozen=True):
    """Replace the options of a stream."""

    options: StreamOptions


class IndexAtTime(StreamName, frozen=True):
    """The first record accepted at `time_us` (microseconds since 1970) or later."""

    time_us: int
    partition: int = 0


class PartitionBounds(msgspec.Struct, frozen=True):
    """The durable records of a partition: first ≤ index < next."""

    partition: int
    first: int
    next: int


class StreamSummary(msgspec.Struct, frozen=True):
    """A stream at a glance."""

    name: str
    id: int
    kind: str
    partitions: int
    records: int
    created_us: int
    options: StreamOptions


class StreamDescription(StreamSummary, frozen=True):
    """Everything about a stream."""

    bounds: list[PartitionBounds]
    cursors: list[CursorInfo]


class PartitionSegments(PartitionBounds, frozen=True):
    """The sealed Arrow files of a partition. Records of first ≤ index < next that no file holds are the hub's."""

    segments: list[SegmentInfo]


class StreamSegments(msgspec.Struct, frozen=True):
    """Where the records of a stream lie. `stream_id` changes when a stream is deleted and created again."""

    stream: str
    stream_id: int
    partitions: list[PartitionSegments]


def shown_streams(hub: Hub, asked: StreamList, kind: str | None) -> Iterator[StreamInfo]:
    """Those of a list that the caller may read, from where the page before ended."""
    found = hub.streams_after(first_number(asked), asked.pattern, kind)
    return (info for info in found if is_shown(info.name, asked.pattern, asked.all))


class Streams:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        """Add the verbs to the hub."""
        add = self._hub.verbs.register
        add("stream.create", StreamCreate, self.create, right="write", summary="Create a stream")
        add(
            "stream.list",
            StreamList,
            self.named,
            right="read",
            summary="List streams",
            filters=True,
            listed_by=lambda each: [each.id],
        )
        add("stream.describe", StreamName, self.describe, right="read", summary="Bounds, options, cursors")
        add(
            "stream.delete",
            StreamName,
            self.delete,
            right="admin",
            allows=self._may_delete,
            summary="Delete a stream and its records",
        )
        add("stream.trim", StreamTrim, self.trim, right="admin", summary="Forget records below an index")
        add("stream.grow", StreamGrow, self.grow, right="admin", summary="Give a stream more partitions")
        add("stream.set-options", StreamSetOptions, self.set_options, right="admin", summary="Replace options")
        add("stream.bounds", PartitionOf, self.bounds, right="read", summary="First and next index")
        add("stream.index-at-time", IndexAtTime, self.index_at_time, right="read", summary="First index at a time")
        add("stream.segments", PartitionOf, self.segments, right="read", summary="Sealed Arrow files of a stream")
        add(
            "checkpoint.list",
            CheckpointList,
            self.checkpoints,
            right="read",
            summary="Checkpoints of a stream",
            listed_by=lambda each: [each.id],
        )

    async def create(self, asked: StreamCreate) -> StreamSummary:
        """Create, and say what is there now."""
        check_at_least("partitions", asked.partitions, 1)
        info = await self._hub.create_stream(
            asked.stream, partitions=asked.partitions, options=asked.options, exist_ok=asked.exist_ok
        )
        return self._summary(info)

    async def named(self, asked: StreamList) -> Iterable[StreamSummary]:
        """The streams that the caller may read, in the order in which they were made."""
        return map(self._summary, shown_streams(self._hub, asked, asked.kind))

    def _summary(self, info: StreamInfo) -> StreamSummary:
        records = sum(each.next - each.first for each in self._bounds(info))
        return StreamSummary(info.name, info.id, info.kind, info.partitions, records, info.created_us, info.options)

    def _bounds(self, info: StreamInfo) -> list[PartitionBounds]:
        numbers = range(info.partitions)
        return [PartitionBounds(number, *self._hub.bounds(info.name, number)) for number in numbers]

    async def describe(self, asked: StreamName) -> StreamDescription:
        """Everything about one stream."""
        info = self._hub.stream(asked.stream)
        summary = msgspec.structs.asdict(self._summary(info))
        return StreamDescription(**summary, bounds=self._bounds(info), cursors=self._hub.cursors(stream=info.name))

    def _may_delete(self, principal: Principal, asked: StreamName) -> bool:
        """A stream in the place of one of the hub's own tables is not the hub's: its admins delete it."""
        from headrace.hub.set_aside import is_misplaced  # the SDK has these structs, and no hub

        may = principal.granted if is_misplaced(self._hub, asked.stream) else principal.may
        return may("admin", asked.stream, verb="stream.delete")

    async def delete(self, asked: StreamName) -> Done:
        """Delete."""
        await self._hub.delete_stream(asked.stream)
        return Done()

    async def trim(self, asked: StreamTrim) -> PartitionBounds:
        """Trim; the bounds after it."""
        check_at_least("before", asked.before, 0)
        await self._hub.trim(asked.stream, asked.before, partition=asked.partition)
        return PartitionBounds(asked.partition, *self._hub.bounds(asked.stream, asked.partition))

    async def grow(self, asked: StreamGrow) -> StreamSummary:
        """Grow."""
        await self._hub.grow_stream(asked.stream, asked.partitions)
        return self._summary(self._hub.stream(asked.stream))

    async def set_options(self, asked: StreamSetOptions) -> StreamSummary:
        """Set."""
        await self._hub.set_options(asked.stream, asked.options)
        return self._summary(self._hub.stream(asked.stream))

    async def bounds(self, asked: PartitionOf) -> list[PartitionBounds]:
        """Bounds of one partition or of all."""
        if asked.partition is None:
            return self._bounds(self._hub.stream(asked.stream))
        return [PartitionBounds(asked.partition, *self._hub.bounds(asked.stream, asked.partition))]

    async def index_at_time(self, asked: IndexAtTime) -> Index:
        """Look up by time."""
        return Index(await self._hub.index_at_time(asked.stream, asked.time_us, asked.partition))

    async def segments(self, asked: PartitionOf) -> StreamSegments:
        """Sealed files, for readers on the same machine."""
        info = self._hub.stream(asked.stream)
        numbers = range(info.partitions) if asked.partition is None else [asked.partition]
        partitions = [
            PartitionSegments(number, *self._hub.bounds(info.name, number), self._hub.segments(info.name, number))
            for number in numbers
        ]
        return StreamSegments(info.name, info.id, partitions)

    async def checkpoints(self, asked: CheckpointList) -> Iterable[CheckpointInfo]:
        """Checkpoints of one stream."""
        return self._hub.checkpoints(asked.stream)
