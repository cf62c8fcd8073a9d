"""CBOR (RFC 8949) as FutoIn messages use it: the data model of JSON, and byte strings. The work is cbor2's.

Lengths are taken only when that many bytes are there, nesting has a limit, and tags are stepped over.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import cbor2

from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError

NESTING_MAX = 200
INTEGER_BITS_MAX = 64

# What cbor2 would make of these tags refers to other values or is no JSON; all others it leaves to `tag_hook`.
_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)
_SCALARS = frozenset((int, str, bytes, float, bool, type(None)))


def _stepped_over(value: Any, _immutable: bool) -> Any:
    return value


_DECODERS = dict.fromkeys(_TAGS, _stepped_over)


def decode(data: bytes | memoryview) -> Any:
    """The one value that `data` holds."""
    file = BytesIO(data)
    try:
        value = cbor2.load(
            file, tag_hook=lambda tag, _immutable: tag.value, semantic_decoders=_DECODERS, max_depth=NESTING_MAX
        )
    except cbor2.CBORError as error:
        raise RemoteProtocolError(str(error)) from error
    if file.tell() != len(data):
        raise RemoteProtocolError(f"{len(data) - file.tell()} bytes follow the value")
    return _plain(value)


def _plain(value: Any) -> Any:
    """The value as JSON's data model has it."""
    kind = type(value)
    if kind in _SCALARS:
        return value
    if kind is list or kind is tuple:  # cbor2 makes what stands behind a tag unchangeable
        return [_plain(item) for item in value]
    if kind is dict or kind is cbor2.frozendict:
        if not all(type(key) is str for key in value):
            raise RemoteProtocolError("a map has a key that is not text")
        return {key: _plain(item) for key, item in value.items()}
    if value is cbor2.undefined:
        return None
    raise RemoteProtocolError(f"{value!r} means nothing here")


def encode(value: Any) -> bytes:
    """`value`, made of None, bool, int, float, str, bytes, list and dict, in the shortest form."""
    _check(value)
    try:
        return cbor2.dumps(value)
    except cbor2.CBORError as error:
        raise LocalProtocolError(str(error)) from error


def _check(value: Any) -> None:
    """cbor2 writes longer integers in a form that our own reader would not take for one, and has no limit of nesting:
    some thousand levels end the process. Python's own limit is met here before."""
    kind = type(value)
    if kind is int:
        if (value if value >= 0 else ~value) >> INTEGER_BITS_MAX:
            raise LocalProtocolError(f"{value} needs more than {INTEGER_BITS_MAX} bits")
    elif kind is list:
        for item in value:
            _check(item)
    elif kind is dict:
        for item in value.values():
            _check(item)
