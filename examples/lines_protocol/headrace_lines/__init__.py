"""Lines of text over TCP, as a protocol of Headrace: try it with `nc 127.0.0.1 7200`.

    append STREAM TEXT     ok INDEX              once the text is durable
    read STREAM INDEX      record INDEX TEXT
    anything else          error CODE WHY        the connection stays; after a line that is too long it ends

This module is loaded by every hub; the server and the console's part only when they are wanted.
"""

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from headrace.config.sections import Bytes, Section
from headrace.protocols.descriptor import ListenerKind, Protocol

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class Lines(Section, frozen=True):
    """Lines of text over TCP."""

    line_bytes_max: Annotated[Bytes, Meta(description="The longest line")] = 64 * 1024
    create_streams: Annotated[bool, Meta(description="Create a stream when a line is first appended to it")] = True


class LinesMetrics:
    """Lines of text over TCP."""

    def __init__(self, make: "Maker") -> None:
        self.lines = make.counter("headrace_lines_total", "Lines received", ["command"])


PROTOCOL = Protocol(
    name="lines",
    title="Lines of text over TCP",
    authentication="client certificate",
    settings=Lines,
    metrics=LinesMetrics,
    listeners=(
        ListenerKind("lines", "lines", "Lines of text over TCP", "headrace_lines.server:serve", "127.0.0.1:7200"),
    ),
    console="headrace_lines.console:CONSOLE",
)
