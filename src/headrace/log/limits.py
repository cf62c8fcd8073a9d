"""Limits of names and numbers of the log."""

from __future__ import annotations

from headrace.config.sections import Log
from headrace.errors import BadRequest, LimitExceeded


def check_name(settings: Log, what: str, name: str) -> None:
    size = len(name.encode("utf-8", "surrogatepass"))
    if not name or any(ord(character) < 32 or 0xD800 <= ord(character) < 0xE000 for character in name):
        raise BadRequest(f"{name!r} is no name for a {what}: it is empty or has control characters")
    if size > settings.name_bytes_max:
        raise LimitExceeded(f"bytes of a {what}'s name", size, settings.name_bytes_max, "log.name_bytes_max")


def check_partitions(settings: Log, name: str, partitions: int) -> None:
    if partitions < 1:
        raise BadRequest(f"stream {name!r} needs at least one partition, not {partitions}")
    if partitions > settings.partitions_max:
        raise LimitExceeded(f"partitions of stream {name!r}", partitions, settings.partitions_max, "log.partitions_max")
