"""How a program says which two sockets are its own, where several programs of one immortal connect at a time.

The protocol has no name for it: a coordinator pairs sockets in the order in which they come, and with a standby around
it may pair the halves of two bindings. Our own binding therefore connects to the send port first, and begins on the
other socket with an AttachTo to `@pair:PORT`, where PORT are the five digits of the first socket's own port. It asks
before whether the hub knows that (`ImmortalInfo.pairs`). No immortal has a name that begins with @.
"""

from __future__ import annotations

from typing import Final

from headrace.protocols.ambrosia.codec import AttachTo, encode

_DIGITS: Final = 5
_PREFIX: Final = encode(AttachTo(b"@pair:" + b"0" * _DIGITS))[:-_DIGITS]
MARK_BYTES: Final = len(_PREFIX) + _DIGITS


def mark_of(port: int) -> bytes:
    """What is said first on the socket whose other half comes from this port."""
    return _PREFIX + b"%0*d" % (_DIGITS, port)


def port_in(begin: bytes) -> int | None:
    """The port that the first bytes of a socket name; None if they are no mark."""
    digits = begin[len(_PREFIX) : MARK_BYTES]
    return int(digits) if begin.startswith(_PREFIX) and len(digits) == _DIGITS and digits.isdigit() else None
