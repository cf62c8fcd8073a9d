"""Reading captured bytes of a connection, in every generation of the protocol: for people who look for a fault.

The draft put the length first so that traffic "might be captured and recorded for analysis after the fact".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.protocols.wallaroo import two_phase
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect
from headrace.protocols.wallaroo.codec_v2 import V2_2018_12, V2_2019_03
from headrace.protocols.wallaroo.frames import Frame, Message, PeerFault

GENERATIONS: dict[str, Dialect] = {dialect.name: dialect for dialect in (DRAFT, V2_2018_12, V2_2019_03, V3)}


class CapturedFrame(NamedTuple):
    """One frame of a capture. `frame` is `None` and `fault` says why when it cannot be read."""

    offset: int
    length: int
    frame: Frame | None
    inner: two_phase.Inner | None
    fault: str | None


def read_trace(data: bytes, dialect: Dialect) -> Iterator[CapturedFrame]:
    """The frames of one direction of a connection. A frame that cannot be read does not hide those behind it."""
    offset = 0
    while offset < len(data):
        length = int.from_bytes(data[offset : offset + 4], "little" if dialect.order == "<" else "big")
        body = data[offset + 4 : offset + 4 + length]
        if len(data) - offset < 4 or len(body) < length:
            yield CapturedFrame(offset, len(data) - offset, None, None, "the capture ends in the middle of a frame")
            return
        yield _captured(offset, body, dialect)
        offset += 4 + length


def _captured(offset: int, body: bytes, dialect: Dialect) -> CapturedFrame:
    try:
        frame = dialect.decode(body)
    except PeerFault as fault:
        return CapturedFrame(offset, len(body), None, None, str(fault))
    inner = None
    if dialect is V3 and isinstance(frame, Message) and frame.stream_id == 0 and frame.payload:
        try:
            inner = two_phase.decode(frame.payload)
        except PeerFault:
            inner = None  # stream 0 is an ordinary stream for sources
    return CapturedFrame(offset, len(body), frame, inner, None)
