"""The pair of errors that every protocol has: the peer's, and ours.

A protocol derives its own kinds from these where it has something to say to the peer: a status, a name, a reason.
"""

from __future__ import annotations


class ProtocolError(Exception):
    """Something that a protocol does not allow."""


class RemoteProtocolError(ProtocolError):
    """The peer's fault. The text is for the peer and holds no secrets; a subclass carries what else to send."""


class LocalProtocolError(ProtocolError):
    """Ours: we were about to do or say what the protocol does not have. A bug in Headrace."""
