"""The words of a line: a plain connection on which a client asks and the hub answers, as often as the client likes.

A call through gRPC costs more than most of what is asked. So the Flight endpoint offers a line to a client that asks
often, and the client opens it at the HTTP listener:

    do_action  Action.type = "line.open"                                                            → `LineOffer`
    GET /api/v1/line, Upgrade: headrace-line, Headrace-Ticket: <ticket>
               101, Headrace-Proof: <hub_proof(secret)>
    <client_proof(secret)>, then frames both ways: length as four bytes, the highest first, and JSON
               {"verb": "stream.bounds", "params": {"stream": "orders"}}                            → `Request`
               {"append": {"stream": "orders", "records": [{"text": "pear"}]}}
               {"result": [{"partition": 0, "first": 0, "next": 3}]}                                → `Answer`

Requests with an `id` are begun as they come and answered as they are done, with that id; those without are done one
after the other.

A ticket is good for one line and a short time, and the secret never travels on the line itself: whoever else listens at
that address, such as behind a tunnel, learns nothing and is not believed. Pure, as codec.py is.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

import msgspec

from headrace.admin.records import StreamAppend
from headrace.errors import BadRequest, HeadraceError
from headrace.jsontext import check_utf8
from headrace.protocols.flight.codec import ErrorBody, encode

OFFER_ACTION: Final = "line.open"
PATH: Final = "/api/v1/line"
UPGRADE: Final = "headrace-line"
TICKET_HEADER: Final = "headrace-ticket"
PROOF_HEADER: Final = "headrace-proof"
PROOF_BYTES: Final = 64
LENGTH_BYTES: Final = 4
REQUEST_BYTES_MAX: Final = 64 << 10
"""For an offer that names no limit of its own."""


class LineOffer(msgspec.Struct, frozen=True):
    """Where a line can be opened, and how each side knows the other. No address: not at this hub, or not now. A request
    of more than `request_bytes_max` is to be a call of its own: it would keep the hub's event loop from others. So many
    requests with an id may be under way; a hub that does not say so knows no ids."""

    address: str | None = None
    tls: bool = False
    ticket: str = ""
    secret: str = ""
    request_bytes_max: int = REQUEST_BYTES_MAX
    requests_max: int = 0


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A verb with its parameters, or a small append. `trace` is the W3C trace context that the headers of a call would
    have."""

    verb: str = ""
    params: msgspec.Raw = msgspec.Raw(b"{}")
    append: StreamAppend | None = None
    trace: dict[str, str] = {}
    id: int | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of the verb, or where the records stand; or the error. `next` is where the rest of a list begins, for
    a caller that did not ask for a page. After a `last` one, which answers no request, nothing is done any more."""

    result: msgspec.Raw = msgspec.Raw(b"null")
    next: str | None = None
    error: ErrorBody | None = None
    last: bool = False
    id: int | None = None


_REQUEST = msgspec.json.Decoder(Request)
_ANSWER = msgspec.json.Decoder(Answer)


def hub_proof(secret: str) -> bytes:
    """By which the hub shows that it made the offer."""
    return _proof(secret, b"hub")


def client_proof(secret: str) -> bytes:
    """By which the client shows that it was made to it."""
    return _proof(secret, b"client")


def _proof(secret: str, who: bytes) -> bytes:
    return hmac.new(secret.encode(), who, hashlib.sha256).hexdigest().encode()


def framed(message: Request | Answer) -> bytes:
    """A message as it travels."""
    body = encode(message)
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


def decode_request(data: bytes) -> Request:
    """What a client asks."""
    try:
        check_utf8(data)
        request = _REQUEST.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(f"the request is not valid: {error}") from None
    if bool(request.verb) == (request.append is not None):
        raise BadRequest("the request is not valid: give either 'verb' or 'append'")
    return request


def decode_answer(data: bytes) -> Answer:
    """What the hub answers."""
    try:
        return _ANSWER.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HeadraceError(f"this version of the SDK cannot read the hub's answer: {error}") from None
