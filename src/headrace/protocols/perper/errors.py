"""What the peer did wrong, with the answer it gets."""

from __future__ import annotations

from enum import IntEnum

from headrace.errors import Forbidden, HeadraceError, UnknownStream
from headrace.protocols.errors import RemoteProtocolError


class Status(IntEnum):
    """Status codes of the thin protocol."""

    OK = 0
    FAILED = 1
    INVALID_OP_CODE = 2
    CACHE_DOES_NOT_EXIST = 1000
    CACHE_EXISTS = 1001
    TOO_MANY_CURSORS = 1010
    RESOURCE_DOES_NOT_EXIST = 1011
    NOT_AUTHORIZED = 1012
    TX_LIMIT_EXCEEDED = 1020
    TX_NOT_FOUND = 1021
    LOGIN_FAILED = 2000


class PeerError(RemoteProtocolError):
    """The peer asked for something it may not have. The connection goes on; `status` and the text are the answer."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        self.message = message
        super().__init__(message)


class Refused(PeerError):
    """A request that is not done for a reason without a status of its own."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.FAILED, message)


class BinaryError(Refused):
    """A data object or a request body that cannot be read."""


class FrameError(RemoteProtocolError):
    """The byte stream itself cannot be followed any further: the connection must close."""


def cache_does_not_exist(cache_id: int) -> PeerError:
    """The answer for an unknown cache; clients look for this text."""
    return PeerError(Status.CACHE_DOES_NOT_EXIST, f"Cache does not exist [cacheId= {cache_id}]")


def cache_exists(name: str) -> PeerError:
    """The answer to the second creation of a cache."""
    return PeerError(
        Status.CACHE_EXISTS, f"Failed to start cache (a cache with the same name is already started): {name}"
    )


def translate(error: BaseException) -> tuple[int, str]:
    """An error in the protocol's own words."""
    if isinstance(error, PeerError):
        return int(error.status), error.message
    if isinstance(error, Forbidden):
        return int(Status.NOT_AUTHORIZED), str(error)
    if isinstance(error, UnknownStream):
        return int(Status.CACHE_DOES_NOT_EXIST), f"Cache does not exist: {error}"
    if isinstance(error, HeadraceError):
        return int(Status.FAILED), f"{error.code}: {error}"
    return int(Status.FAILED), f"internal error: {error!r}"
