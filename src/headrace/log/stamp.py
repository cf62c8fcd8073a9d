"""Stamps: what a name in a shared store says of its blob, so that whoever knows the name can find and check it.

    name?size.crc                          where the name alone is enough to find it
    name?size.crc.first.last.parts         in a topic: the offsets of its first and last part, and how many there are

`size` and the numbers are decimal, `crc` is the CRC-32C of all bytes as eight hexadecimal digits. The stamp is known
when the blob is finished. It travels with the name, through events and snapshots. A store that finds blobs by their
bare names knows nothing of stamps.
"""

from __future__ import annotations

from typing import NamedTuple

MARK = "?"


class Stamp(NamedTuple):
    """Of a finished blob."""

    size: int
    crc: int
    first: int = -1
    last: int = -1
    parts: int = 0


def stamped(name: str, stamp: Stamp) -> str:
    text = f"{name}{MARK}{stamp.size}.{stamp.crc:08x}"
    return f"{text}.{stamp.first}.{stamp.last}.{stamp.parts}" if stamp.parts else text


def split(name: str) -> tuple[str, Stamp | None]:
    """The bare name, and the stamp if it has one. Raises a `ValueError` for a stamp that is none."""
    bare, mark, text = name.rpartition(MARK)
    if not mark:
        return name, None
    size, crc, *place = text.split(".")
    return bare, Stamp(int(size), int(crc, 16), *map(int, place))
