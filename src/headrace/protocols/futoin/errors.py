"""What the peer did wrong, with the FTN3 name to send."""

from __future__ import annotations

from headrace import errors
from headrace.errors import HeadraceError
from headrace.protocols.errors import RemoteProtocolError

# FTN3 2.3: names that may stand in `e`; anything else a stock client turns into InternalError.
UNKNOWN_INTERFACE = "UnknownInterface"
NOT_SUPPORTED_VERSION = "NotSupportedVersion"
NOT_IMPLEMENTED = "NotImplemented"
UNAUTHORIZED = "Unauthorized"
INTERNAL_ERROR = "InternalError"
INVALID_REQUEST = "InvalidRequest"
DEFENSE_REJECTED = "DefenseRejected"
SECURITY_ERROR = "SecurityError"
# FTN18 3.3.
LIVE_NOT_ALLOWED = "LiveNotAllowed"
NOT_REGISTERED = "NotRegistered"


class FutoinError(HeadraceError):
    """An error as it travels: a name of FTN3 or FTN18 and a text."""

    code = "futoin"

    def __init__(self, name: str, text: str | None = None) -> None:
        self.name = name
        self.text = text
        super().__init__(f"{name}: {text}" if text else name)


class PeerError(RemoteProtocolError, FutoinError):
    """The peer's fault: the reply to send it."""


def from_hub(error: BaseException) -> PeerError:
    """What the hub refused, in FutoIn's words. The hub's own code stands first in the text."""
    if isinstance(error, PeerError):
        return error
    if isinstance(error, errors.UnknownStream):
        return PeerError(UNKNOWN_INTERFACE, f"No event stream {error.stream!r} here")
    if isinstance(error, errors.Forbidden | errors.Unauthenticated):
        return PeerError(UNAUTHORIZED, str(error))
    if isinstance(error, errors.Busy):
        return PeerError(DEFENSE_REJECTED, str(error))
    if isinstance(error, errors.BadRequest | errors.LimitExceeded):
        return PeerError(INVALID_REQUEST, str(error))
    if isinstance(error, HeadraceError):
        return PeerError(INTERNAL_ERROR, f"{error.code}: {error}")
    return PeerError(INTERNAL_ERROR, "Not expected error")
