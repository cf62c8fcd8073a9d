"""FTN3 messages: bytes to requests and answers, results and errors to bytes. No I/O, no clock, no hub.

    first bytes   coding        HTTP media type
    {             JSON          application/futoin+json
    MPCK          MessagePack   application/futoin+msgpack
    CBOR          CBOR          application/futoin+cbor
    else          JSON is tried

    request    {"f": "iface:major.minor:func", "p": {…}, "rid": "C1", "sec": "user:secret", "forcersp": …, "obf": …}
    result     {"r": …, "rid": "C1", "sec": "signature"}
    error      {"rid": "C1", "e": "Name", "edesc": "text", "sec": "signature"}

Decoding has two ways. A request that keeps every rule is decoded in one step into a struct made for exactly its `f`,
with the parameters' types checked on the way. Anything else comes back as `Deviation` with the plain object, and
`explain` finds the rule that was broken first, in the order that FTN3 executors check them.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable
from enum import Enum
from typing import Annotated, Any, Protocol, cast

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Raw, UnsetType

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.futoin import cbor
from headrace.protocols.futoin.errors import INVALID_REQUEST, NOT_SUPPORTED_VERSION, UNKNOWN_INTERFACE, PeerError
from headrace.protocols.futoin.interface import CALLS, FUNCTION_PARAMS, INTERFACES, RECEIVER, Call, Interface, Params

DATA_DEPTH_MAX = 100
"""Nesting of event data. JavaScript, Python and msgspec all go far deeper; nobody means it."""

Rid = str | int | float
"""FTN3 has text; the reference takes numbers too, and what came is echoed as it came."""
_RID = str | Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | float
"""Those that can be written again in every coding."""

OPTIONAL_FIELDS = {"rid": _RID | None, "forcersp": bool | None, "sec": str | dict[str, Any] | None, "obf": Any}
"""What a request may have besides `f` and `p`."""


class Coding(Enum):
    """How a message is written."""

    JSON = "json"
    MESSAGEPACK = "msgpack"
    CBOR = "cbor"


PREFIXES = {Coding.JSON: b"", Coding.MESSAGEPACK: b"MPCK", Coding.CBOR: b"CBOR"}
PREFIX_BYTES = 4
_CODINGS = {prefix: coding for coding, prefix in PREFIXES.items()}

Sign = Callable[[dict[str, Any]], str]
"""Makes the signature of a message."""


class Request(Protocol):
    """What every request struct has; `CALL_OF[type(request)]` tells which function it calls."""

    p: Params
    rid: Rid | None
    sec: str | dict[str, Any] | None
    forcersp: bool | None
    obf: Any


class Deviation(msgspec.Struct):
    """A message that is no plain good request: an answer, or something to `explain`."""

    fields: Any

    @property
    def rid(self) -> Rid | None:
        rid: Rid | None = self._get("rid")
        return rid if _fits(rid, OPTIONAL_FIELDS["rid"]) else None

    @property
    def sec(self) -> Any:
        return self._get("sec")

    def _get(self, name: str) -> Any:
        return self.fields.get(name) if isinstance(self.fields, dict) else None

    @property
    def is_answer(self) -> bool:
        """Whether this answers a call of ours: `r` or `e`, and no `f`."""
        fields = self.fields
        return isinstance(fields, dict) and "f" not in fields and ("r" in fields or "e" in fields)


class Undecodable(RemoteProtocolError):
    """The bytes are in none of the codings."""


def _request_type(call: Call) -> type[msgspec.Struct]:
    return msgspec.defstruct(
        f"{call.interface.name.replace('.', '_')}_{call.minor}_{call.function}",
        [("p", FUNCTION_PARAMS[call.function]), *((name, kind, None) for name, kind in OPTIONAL_FIELDS.items())],
        tag_field="f",
        tag=call.name,
        forbid_unknown_fields=True,
    )


REQUEST_TYPES = {call.name: _request_type(call) for call in CALLS.values()}
CALL_OF: dict[type, Call] = {REQUEST_TYPES[name]: call for name, call in CALLS.items()}


_REQUESTS: Any = functools.reduce(operator.or_, REQUEST_TYPES.values())
_decode_json = msgspec.json.Decoder(_REQUESTS).decode
_decode_msgpack = msgspec.msgpack.Decoder(_REQUESTS).decode
_decode_json_object = msgspec.json.Decoder().decode
_decode_msgpack_object = msgspec.msgpack.Decoder().decode
_encode_json = msgspec.json.Encoder().encode
_encode_msgpack = msgspec.msgpack.Encoder().encode


def coding_of(message: bytes) -> Coding:
    """FTN3 1.13: the first bytes tell the coding."""
    return _CODINGS.get(bytes(message[:PREFIX_BYTES]), Coding.JSON)


def decode(message: bytes, coding: Coding) -> Request | Deviation:
    """One message. Raises `Undecodable` when the bytes are not what `coding` says."""
    try:
        if coding is Coding.JSON:
            return cast(Request, _decode_json(message))
        if coding is Coding.MESSAGEPACK:
            return cast(Request, _decode_msgpack(memoryview(message)[PREFIX_BYTES:]))
        return cast(Request, _decode_msgpack(_encode_msgpack(decode_object(message, coding))))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, OverflowError):
        return Deviation(decode_object(message, coding))


def decode_object(message: bytes, coding: Coding) -> Any:
    """One message as plain objects, without a look at what it says."""
    try:
        if coding is Coding.JSON:
            return _decode_json_object(message)
        if coding is Coding.MESSAGEPACK:
            return _decode_msgpack_object(memoryview(message)[PREFIX_BYTES:])
        return cbor.decode(memoryview(message)[PREFIX_BYTES:])
    except (msgspec.DecodeError, RemoteProtocolError, RecursionError, ValueError, OverflowError) as error:
        raise Undecodable(str(error)) from error


def encode_object(message: Any, coding: Coding) -> bytes:
    """Plain objects (and structs) as one message."""
    if coding is Coding.JSON:
        return _encode_json(message)
    if coding is Coding.MESSAGEPACK:
        return b"MPCK" + _encode_msgpack(message)
    return b"CBOR" + cbor.encode(msgspec.to_builtins(message, builtin_types=(bytes,)))


class Result(msgspec.Struct):
    """A good answer; the order of keys is the one on the wire."""

    r: Any
    rid: Rid | UnsetType = UNSET
    sec: str | UnsetType = UNSET


class Failure(msgspec.Struct):
    """An error answer."""

    rid: Rid | UnsetType
    e: str
    edesc: str | UnsetType = UNSET
    sec: str | UnsetType = UNSET


class Event(msgspec.Struct, gc=False):
    """FTN18 3.1. `data` is `Raw` in JSON and plain objects in the binary codings."""

    id: str
    type: str
    data: Any
    ts: str


def result(value: Any, rid: Rid | None, coding: Coding, sign: Sign | None = None) -> bytes:
    """The reply to a call that went well, signed where the request was."""
    return _reply(Result(value, UNSET if rid is None else rid), coding, sign)


def failure(error: PeerError, rid: Rid | None, coding: Coding, sign: Sign | None = None) -> bytes:
    """The reply to a call that did not."""
    text = UNSET if error.text is None else error.text
    return _reply(Failure(UNSET if rid is None else rid, error.name, text), coding, sign)


def _reply(reply: Result | Failure, coding: Coding, sign: Sign | None) -> bytes:
    message = encode_object(reply, coding)
    if sign is None:
        return message
    reply.sec = sign(decode_object(message, coding))  # what is signed is what the peer decodes
    return encode_object(reply, coding)


def on_events(seq: int, events: list[Event] | Raw, rid: str, minor: int, coding: Coding) -> bytes:
    """The call that pushes a group to a consumer (FTN18 3.3.3); the events may be encoded already."""
    message = {"f": f"{RECEIVER}:1.{minor}:onEvents", "p": {"seq": seq, "events": events}, "rid": rid}
    return encode_object(message, coding)


def request(call: str, params: dict[str, Any], rid: str | None, sec: str | None, coding: Coding) -> bytes:
    """A request, with the keys in the order of stock clients: f, p, rid, sec."""
    message: dict[str, Any] = {"f": call, "p": params}
    if rid is not None:
        message["rid"] = rid
    if sec is not None:
        message["sec"] = sec
    return encode_object(message, coding)


def event_payload(data: Raw, coding: Coding, bytes_max: int) -> bytes:
    """The payload to store for an event's data: JSON, as it came, or rewritten from a binary coding.

    Byte strings of binary codings become base64 text, since JSON has none.
    """
    try:
        payload = bytes(data) if coding is Coding.JSON else _encode_json(_decode_msgpack_object(data))
        _decode_json_object(payload)  # `Raw` was only skipped over: text and number ranges are not checked yet
    except (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError, ValueError, OverflowError) as error:
        raise PeerError(INVALID_REQUEST, f"Event data cannot be kept as JSON: {error}") from error
    if len(payload) > bytes_max:
        raise PeerError(
            INVALID_REQUEST,
            f"Event data has {len(payload)} bytes as JSON; at most {bytes_max} fit ('futoin.message_bytes_max')",
        )
    if nesting(payload) > DATA_DEPTH_MAX:
        raise PeerError(INVALID_REQUEST, f"Event data is nested more than {DATA_DEPTH_MAX} deep")
    return payload


_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = np.zeros(256, np.int32)
_STEPS[list(b"[{")] = 1
_STEPS[list(b"]}")] = -1


def nesting(payload: bytes) -> int:
    """How deep a JSON text is nested, or something below the limit when that is plain at a glance."""
    if payload.count(b"[") + payload.count(b"{") <= DATA_DEPTH_MAX:
        return 0
    brackets = (_STRING.sub(b"", payload) if b'"' in payload else payload).translate(None, _NO_BRACKETS)
    return int(_STEPS[np.frombuffer(brackets, np.uint8)].cumsum().max(initial=0))


def explain(fields: Any, *, authenticated: bool, check: Callable[[Interface], None]) -> PeerError:
    """Why a message is not a good request: the first rule broken, in the order of FTN3 executors.

    `check` raises when the channel does not meet the constraints of an interface. A caller that is not known does not
    learn which interfaces and functions exist (FTN8 2.4).
    """
    try:
        call = _named_call(fields, authenticated)
        check(call.interface)
        _check_fields(fields)
        _check_params(call, fields["p"])
    except PeerError as error:
        return error
    return PeerError(INVALID_REQUEST, "Invalid message")


def _named_call(fields: Any, authenticated: bool) -> Call:
    name = fields.get("f") if isinstance(fields, dict) else None
    if not isinstance(name, str):
        raise PeerError(INVALID_REQUEST, "Missing req.f")
    parts = name.split(":")
    if len(parts) != 3:
        raise PeerError(INVALID_REQUEST, "Invalid req.f")
    interface_name, version, function = parts
    if re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", version) is None:
        raise PeerError(INVALID_REQUEST, "Invalid req.f (version)")
    interface = INTERFACES.get(interface_name)
    if interface is None:
        raise PeerError(UNKNOWN_INTERFACE, f"Unknown interface: {interface_name}")
    try:
        return _served_call(interface, version, function)
    except PeerError:
        if authenticated or interface.anonymous:
            raise
        raise PeerError(UNKNOWN_INTERFACE, f"Unknown interface: {interface_name}") from None


def _served_call(interface: Interface, version: str, function: str) -> Call:
    major, minor = (int(part) for part in version.split("."))
    if major != interface.major:
        raise PeerError(NOT_SUPPORTED_VERSION, f"Different major version: {interface.name}:{major}")
    if minor > interface.minor:
        raise PeerError(NOT_SUPPORTED_VERSION, f"Iface version is too old: {interface.name}:{major}.{minor}")
    if function not in interface.functions:
        raise PeerError(INVALID_REQUEST, f"Unknown interface function: {function}")
    return CALLS[f"{interface.name}:{major}.{minor}:{function}"]


def _check_fields(fields: dict[Any, Any]) -> None:
    for key in fields:
        if key not in ("f", "p") and key not in OPTIONAL_FIELDS:
            raise PeerError(INVALID_REQUEST, f"Unknown request field: {key}")
    if not isinstance(fields.get("p"), dict):
        raise PeerError(INVALID_REQUEST, "Invalid message: p")
    for name, kind in OPTIONAL_FIELDS.items():
        if not _fits(fields.get(name), kind):
            raise PeerError(INVALID_REQUEST, f"Invalid message: {name}")


def _fits(value: Any, kind: Any) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _check_params(call: Call, params: dict[Any, Any]) -> None:
    kind = FUNCTION_PARAMS[call.function]
    for name in params:
        if name not in kind.__struct_fields__:
            raise PeerError(INVALID_REQUEST, f"Unknown parameter: {call.name}({name})")
    for field in msgspec.structs.fields(kind):
        if field.name not in params:
            if field.required:
                raise PeerError(INVALID_REQUEST, f"Missing parameter: {call.name}({field.name})")
        elif field.type is not Raw and not _fits(params[field.name], field.type):
            shown = str(params[field.name])[:100]
            raise PeerError(INVALID_REQUEST, f'Type mismatch for parameter: {call.name}({field.name}) = "{shown}"')


class Answer(msgspec.Struct):
    """What a consumer said to a call of ours, or a server to a call of our client."""

    rid: str
    value: Any = None
    error: str | None = None
    text: str | None = None


def answer(fields: dict[str, Any]) -> Answer | None:
    """The answer in a `Deviation` that `is_answer`; None when it names no call."""
    rid = fields.get("rid")
    if not isinstance(rid, str):
        return None
    error = fields.get("e")
    if error is None:
        return Answer(rid, fields.get("r"))
    text = fields.get("edesc")
    return Answer(rid, None, str(error), text if isinstance(text, str) else None)
