"""Retention: which records may go. A registered cursor that still needs a record keeps it, unless max-hold says no."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import BadRequest
from headrace.log.ops import StreamOptions
from headrace.log.partition import Partition
from headrace.log.segment import SegmentDamaged, SegmentRef
from headrace.log.state import TABLE, Stream

if TYPE_CHECKING:
    from headrace.log.log import Log


SECONDS_MAX = 10**12
"""The longest that records can be told to stay: some thirty thousand years."""
BYTES_MAX = 2**63 - 1


class Verdict(NamedTuple):
    """Records below `first` may go; `overruled` names the cursors that still needed some of them."""

    first: int
    overruled: list[str]


def applies(options: StreamOptions) -> bool:
    """Whether anything but a trim ever removes records of such a stream."""
    return (
        options.retention_age_s is not None
        or options.retention_bytes is not None
        or options.retention_cursors
        or options.max_hold_s is not None
    )


def check_options(name: str, kind: str, options: StreamOptions) -> None:
    """Numbers that the journal can hold and retention can reckon with."""
    if kind == TABLE and applies(options):
        raise BadRequest(f"{name!r} is a table: it keeps the value of every key, and takes no retention")
    limits = {"retention_age_s": SECONDS_MAX, "max_hold_s": SECONDS_MAX, "retention_bytes": BYTES_MAX}
    for option, most in limits.items():
        value = getattr(options, option)
        if value is not None and not 0 <= value <= most:
            raise BadRequest(f"{name!r}: the option {option!r} is {value}, outside 0 to {most}")


def decide(log: Log, stream: Stream, partition: Partition, now_us: int) -> Verdict:
    """By age and size whole segments only: what is in the tail is young. What all cursors have passed goes at once."""
    options = stream.info.options
    cursors = {
        name: position.index
        for (name, number), position in list(log.state.cursors.get(stream.info.id, {}).items())
        if number == partition.number
    }
    wanted = partition.first
    if options.retention_age_s is not None:
        wanted = max(wanted, _older_than(log, partition, now_us - int(options.retention_age_s * 1_000_000)))
    if options.retention_bytes is not None:
        wanted = max(wanted, _beyond_bytes(partition, options.retention_bytes))
    if cursors:
        lowest = min(min(cursors.values()), partition.next)
        wanted = min(wanted, max(partition.first, _whole_segments(partition, lowest)))
        if options.retention_cursors:
            wanted = max(wanted, lowest)
    overruled: list[str] = []
    if options.max_hold_s is not None:
        held_to = _older_than(log, partition, now_us - int(options.max_hold_s * 1_000_000))
        if held_to > wanted:
            overruled = sorted(name for name, index in cursors.items() if index < held_to)
            wanted = held_to
    return Verdict(wanted, overruled)


def _older_than(log: Log, partition: Partition, before_us: int) -> int:
    """The index behind the last segment that has only records older than a time."""
    first = partition.first
    for ref in partition.segments:
        newest_us = _newest_us(log, ref)
        if newest_us is None:
            continue  # goes when a later segment is old enough
        if newest_us >= before_us:
            break
        first = ref.next
    return first


def _newest_us(log: Log, ref: SegmentRef) -> int | None:
    """The time of a segment's last record; None when damage hides it."""
    try:
        return log.opened.get(ref).manifest.batches[-1].time_max_us
    except SegmentDamaged:
        return None


def _beyond_bytes(partition: Partition, bytes_max: int) -> int:
    """The index behind the oldest segments that exceed a size together."""
    excess = partition.sealed_bytes - bytes_max
    first = partition.first
    for ref in partition.segments:
        if excess <= 0:
            break
        excess -= ref.bytes
        first = ref.next
    return first


def _whole_segments(partition: Partition, index: int) -> int:
    """The largest segment boundary that is not above an index."""
    first = partition.first
    for ref in partition.segments:
        if ref.next > index:
            break
        first = ref.next
    return first
