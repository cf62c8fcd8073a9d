"""What a session asks of the hub."""

from __future__ import annotations

import msgspec

from headrace.protocols.wallaroo.scan import Rows


class Greet(msgspec.Struct, frozen=True):
    """The handshake is good; answer with `greeted`."""

    program: bytes
    instance: bytes


class Open(msgspec.Struct, frozen=True):
    """A stream was introduced; answer with `opened` or `refused`."""

    stream_id: int
    name: bytes
    point: int | None


class Ticket(msgspec.Struct, frozen=True, gc=False):
    """What to hand back to `stored`. It holds no data, so it may be kept for as long as a pipeline takes."""

    stream_id: int
    last_id: int
    frames: int
    generation: int


class Store(msgspec.Struct, frozen=True):
    """Rows to append, in order; answer with `stored(ticket)` when they are durable.

    `position` is the resume point that goes into the same commit, `None` when no row is one. `increasing` says that
    ids only grow, so that the hub's own check of the sequence is right. `rows` is `None` for a lone boundary.
    """

    ticket: Ticket
    rows: Rows | None
    position: int | None
    increasing: bool


class Release(msgspec.Struct, frozen=True):
    """Nothing of this stream is under way any more and it is closed: others may open it."""

    stream_id: int


class Close(msgspec.Struct, frozen=True):
    """Write what is there to write, then close. `reason` is `None` for a clean end."""

    reason: str | None


Request = Greet | Open | Store | Release | Close
