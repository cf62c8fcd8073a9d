"""What a line means, and the state of a connection: no socket, no hub."""

from enum import Enum

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.state_machine import StateMachine


class State(Enum):
    READY = "ready"
    BUSY = "busy"
    ENDED = "ended"


class Event(Enum):
    LINE = "line"
    ANSWERED = "answered"
    TOO_LONG = "line too long"
    LOST = "connection lost"


CONNECTION = StateMachine(
    "lines/connection",
    State.READY,
    {
        State.READY: {Event.LINE: State.BUSY, Event.TOO_LONG: State.ENDED},
        State.BUSY: {Event.ANSWERED: State.READY},
    },
    everywhere={Event.LOST: State.ENDED},
)


class Refused(RemoteProtocolError):
    """A line that is answered with an error."""

    def __init__(self, code: str, why: str) -> None:
        self.code = code
        super().__init__(why)


def parse(line: bytes) -> tuple[str, str, bytes]:
    """The command in a line, its stream, and the text or index behind it."""
    command, _, rest = line.rstrip(b"\r").partition(b" ")
    stream, _, argument = rest.partition(b" ")
    if stream and (command == b"append" or (command == b"read" and argument.isdigit())):
        return command.decode(), stream.decode(errors="replace"), argument
    raise Refused("bad-line", "say `append STREAM TEXT` or `read STREAM INDEX`")


def record_line(index: int, text: bytes) -> bytes:
    """A record as it is sent."""
    if b"\n" in text:
        raise Refused("not-a-line", f"record {index} has more than one line")
    return b"record %d %s\n" % (index, text)
