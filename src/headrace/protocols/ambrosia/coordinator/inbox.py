"""What a record of an immortal's inbox calls.

    type         payload                                     calls
    42           any                                         method 42
    order        {"item": "pear"}                            order(item="pear"); `inbox_method` wins over a name
    any          {"@method": "order", "item": "pear"}        order(item="pear")
    any          {"@method": "add", "@key": "alice", …}      add(…) of the instance alice, as does the record's `key`

Some protocols choose the type themselves, or have none: with `@method` each of them calls a method by its name. It
counts only for programs that have said what their methods are called; the arguments of others are bytes of their own.
"""

from __future__ import annotations

from typing import Final

import msgspec

from headrace.jsontext import check_utf8
from headrace.protocols.ambrosia.binding.methods import OWN_NAMES, method_id, with_key
from headrace.protocols.ambrosia.interface import KEY_FIELD, METHOD_FIELD

INT32_MAX: Final = 2**31 - 1
_METHOD_FIELD_BYTES: Final = f'"{METHOD_FIELD}"'.encode()


class Inbox(msgspec.Struct, frozen=True):
    """How one immortal reads its inbox."""

    default_method: int | None = None
    described: bool = False
    keyed: bool = False

    def call(self, kind: str | None, key: bytes | None, payload: bytes) -> tuple[int, bytes]:
        """The number of the method that a record calls, and its arguments."""
        said: str | None = None
        if self.described:
            said, payload = _named(payload)
        if self.keyed and key is not None and f'"{KEY_FIELD}"'.encode() not in payload:
            payload = with_key(payload, key.decode(errors="replace"))
        return self._method(kind) if said is None else method_id(said), payload

    def _method(self, kind: str | None) -> int:
        """From the record's `type`: a number, else the default, else a method's name as the Python binding numbers
        it."""
        if kind and kind.isdecimal() and int(kind) <= INT32_MAX:
            return int(kind)
        if kind in OWN_NAMES:
            return OWN_NAMES[kind]
        if self.default_method is not None:
            return self.default_method
        return method_id(kind) if kind else 0


def _named(payload: bytes) -> tuple[str | None, bytes]:
    """The method that a payload names, and the arguments without that."""
    if _METHOD_FIELD_BYTES not in payload:
        return None, payload
    try:
        check_utf8(payload)
        arguments = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
        said = msgspec.json.decode(arguments.pop(METHOD_FIELD, b"null"), type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None, payload
    return said, msgspec.json.encode(arguments)
