"""How a program says which two sockets are its own, where several programs of one immortal connect at a time.

The protocol has no name for it: a coordinator pairs sockets in the order in which they come, and with a standby around
it may pair the halves of two bindings. Our own binding therefore connects to the send port first, and begins on the
other socket with an AttachTo to `@pair:PORT`, where PORT are the five digits of the first socket's own port. One that
only follows and takes checkpoints says `@take:PORT`. It asks before whether the hub knows that (`ImmortalInfo.pairs`,
`ImmortalInfo.takes_checkpointers`). No immortal has a name that begins with @.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from headrace.protocols.ambrosia.codec import AttachTo, encode

_DIGITS: Final = 5
_PAIR, _TAKE = b"@pair:", b"@take:"
_PREFIXES: Final = {
    encode(AttachTo(word + b"0" * _DIGITS))[:-_DIGITS]: takes for word, takes in ((_PAIR, False), (_TAKE, True))
}
MARK_BYTES: Final = len(next(iter(_PREFIXES))) + _DIGITS


class Mark(NamedTuple):
    """What a program says of itself."""

    port: int
    """Of its other socket."""
    takes_checkpoints: bool = False
    """It only follows and takes checkpoints."""


def mark_of(port: int, takes_checkpoints: bool = False) -> bytes:
    """What is said first on the socket whose other half comes from this port."""
    return encode(AttachTo((_TAKE if takes_checkpoints else _PAIR) + b"%0*d" % (_DIGITS, port)))


def mark_in(begin: bytes) -> Mark | None:
    """What the first bytes of a socket say; None if they are no mark."""
    prefix, digits = begin[: MARK_BYTES - _DIGITS], begin[MARK_BYTES - _DIGITS : MARK_BYTES]
    if prefix not in _PREFIXES or len(digits) != _DIGITS or not digits.isdigit():
        return None
    return Mark(int(digits), _PREFIXES[prefix])


def takes_checkpoints(destination: bytes) -> bool:
    """Whether an AttachTo is the mark of a program that only takes checkpoints."""
    return destination.startswith(_TAKE)
