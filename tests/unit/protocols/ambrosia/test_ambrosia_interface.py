"""Which arguments a method takes, as far as the hub looks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.errors import BadRequest
from headrace.protocols.ambrosia.interface import Interface, MethodInterface

VALUES = {
    "string": [b'"a"', b'""'],
    "integer": [b"0", b"-12", b"123456789012345678901234567890"],
    "number": [b"1.5", b"-1e3", b"1E999"],
    "boolean": [b"true", b"false"],
    "array": [b"[]", b"[1, 2]"],
    "object": [b"{}", b'{"a": 1}'],
    "null": [b"null"],
}


def check(schema: dict[str, Any], value: bytes) -> None:
    method = MethodInterface("do", 1, parameters={"it": schema})
    Interface("Thing", [method]).check("thing", method, {"it": msgspec.Raw(value)}, None)


@pytest.mark.parametrize("wanted", VALUES)
def test_an_argument_of_another_kind_is_refused(wanted: str) -> None:
    for kind, values in VALUES.items():
        for value in values:
            if kind == wanted or (kind, wanted) == ("integer", "number"):
                check({"type": wanted}, value)
                check({"anyOf": [{"type": wanted}, {"type": "null"}]}, value)
            else:
                with pytest.raises(BadRequest, match=f"thing.do: 'it' must be of type {wanted}, not "):
                    check({"type": wanted}, value)


def test_a_wrong_argument_is_shown_up_to_a_length() -> None:
    for value, shown in ((b"true", "True"), (b"1e999", "1e999"), (b'["%b"]' % (b"x" * 100), '["' + "x" * 55 + "…")):
        with pytest.raises(BadRequest) as refused:
            check({"type": "string"}, value)
        assert str(refused.value).endswith(f", not {shown}")
