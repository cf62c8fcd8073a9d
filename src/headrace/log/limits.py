"""Limits of names and numbers of the log."""

from __future__ import annotations

from typing import Final

from headrace.config.sections import Log
from headrace.errors import BadRequest, LimitExceeded
from headrace.log import frame
from headrace.log.partition import Partition

PATTERN_CHARS_MAX: Final = 512


def check_name(settings: Log, what: str, name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in name):
        raise BadRequest(f"{name!r} is not a valid name for a {what}: it is empty or has control characters")
    if size > settings.name_bytes_max:
        raise LimitExceeded(f"bytes of a {what}'s name", size, settings.name_bytes_max, "log.name_bytes_max")


def check_pattern(pattern: str) -> None:
    """Raises `BadRequest`. To make sense of a long shell pattern may take seconds, in which everybody waits."""
    if len(pattern) > PATTERN_CHARS_MAX:
        raise BadRequest(f"a pattern has at most {PATTERN_CHARS_MAX} characters, not {len(pattern)}")


def check_partitions(settings: Log, name: str, partitions: int) -> None:
    if partitions < 1:
        raise BadRequest(f"stream {name!r} needs at least one partition, not {partitions}")
    if partitions > settings.partitions_max:
        raise LimitExceeded(f"partitions of stream {name!r}", partitions, settings.partitions_max, "log.partitions_max")


def check_producer(settings: Log, partition: Partition, producer: str) -> None:
    """Refuse a producer that is new in a partition."""
    size = len(producer.encode(errors="ignore"))  # nothing is left of what UTF-8 does not have
    if not 0 < size <= frame.PRODUCER_BYTES_MAX or size != len(producer.encode(errors="surrogatepass")):
        raise BadRequest(f"a producer's name has 1 to {frame.PRODUCER_BYTES_MAX} bytes of UTF-8")
    count = len(partition.producers)
    if count >= settings.producers_max:
        what = f"producers of stream {partition.stream!r} partition {partition.number}"
        raise LimitExceeded(what, count + 1, settings.producers_max, "log.producers_max")
