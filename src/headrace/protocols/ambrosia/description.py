"""Logged messages described for people: what `headrace immortal log` and `headrace immortal decode` show."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgspec

from headrace.protocols.ambrosia.call_reader import RETURN_NAMES, name_of_rpc_type
from headrace.protocols.ambrosia.codec import Call, InitialMessage, Message, Return, RpcBatch, RpcType, decode_messages
from headrace.protocols.errors import RemoteProtocolError

TEXT_BYTES_MAX: Final = 4096


class DescribedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a log record."""

    sequence: int | None
    """None for a record that somebody else appended."""
    kind: str
    method: int | None = None
    caller: str | None = None
    call_number: int | None = None
    text: str | None = None
    """Arguments or value, if they are text."""
    base64: str | None = None
    """Arguments or value, if they are not."""
    bytes: int = 0


def describe_messages(payload: bytes) -> list[dict[str, Any]]:
    """The fields of `DescribedMessage`, but for the sequence id, of each message in a record; batches are opened."""
    try:
        messages = decode_messages(payload, addressed=False)
    except RemoteProtocolError:  # somebody else appended it to the log
        return [{"kind": "not-a-message", **_describe_bytes(payload)}]
    return [
        _describe(call)
        for message in messages
        for call in (message.calls if isinstance(message, RpcBatch) else (message,))
    ]


def _describe(message: Message) -> dict[str, Any]:
    match message:
        case Call(method, rpc_type, arguments, _, caller, number):
            fields: dict[str, Any] = {"kind": name_of_rpc_type(rpc_type), "method": method}
            if rpc_type == RpcType.ASYNC:
                fields |= {"caller": caller.decode(errors="replace"), "call_number": number}
            return fields | _describe_bytes(arguments)
        case Return(kind, responder, number, value, _):
            fields = {"kind": RETURN_NAMES[kind], "caller": responder.decode(errors="replace"), "call_number": number}
            return fields | _describe_bytes(value)
        case InitialMessage(data):
            return {"kind": "initial", **_describe_bytes(data)}
        case _:
            return {"kind": type(message).__name__}


def _describe_bytes(data: bytes) -> dict[str, Any]:
    shown = data[:TEXT_BYTES_MAX]
    try:
        text = shown.decode()
        if text.isprintable():
            return {"text": text, "bytes": len(data)}
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(shown).decode(), "bytes": len(data)}
