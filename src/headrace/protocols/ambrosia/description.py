"""Messages in words, for people who look at a log."""

from __future__ import annotations

import base64
from typing import Any, Final

from headrace.protocols.ambrosia.call_reader import RETURN_NAMES, name_of_rpc_type
from headrace.protocols.ambrosia.codec import Call, InitialMessage, Message, Return, RpcBatch, RpcType, decode_messages
from headrace.protocols.errors import RemoteProtocolError

TEXT_BYTES_MAX: Final = 4096


def messages_in_words(payload: bytes) -> list[dict[str, Any]]:
    """The messages of a record: kind, method, caller, call number and arguments, batches opened."""
    words = []
    try:
        messages = decode_messages(payload, addressed=False)
    except RemoteProtocolError:  # somebody else appended it to the log
        return [{"kind": "not-a-message", **_bytes(payload)}]
    for message in messages:
        words += [_words(each) for each in (message.calls if isinstance(message, RpcBatch) else (message,))]
    return words


def _words(message: Message) -> dict[str, Any]:
    match message:
        case Call(method, rpc_type, arguments, _, caller, number):
            words: dict[str, Any] = {"kind": name_of_rpc_type(rpc_type), "method": method}
            if rpc_type == RpcType.ASYNC:
                words |= {"caller": caller.decode(errors="replace"), "call_number": number}
            return words | _bytes(arguments)
        case Return(kind, responder, number, value, _):
            words = {"kind": RETURN_NAMES[kind], "caller": responder.decode(errors="replace"), "call_number": number}
            return words | _bytes(value)
        case InitialMessage(data):
            return {"kind": "initial", **_bytes(data)}
        case _:
            return {"kind": type(message).__name__}


def _bytes(data: bytes) -> dict[str, Any]:
    shown = data[:TEXT_BYTES_MAX]
    try:
        text = shown.decode()
        if text.isprintable():
            return {"text": text, "bytes": len(data)}
    except UnicodeDecodeError:
        pass
    return {"base64": base64.b64encode(shown).decode(), "bytes": len(data)}
