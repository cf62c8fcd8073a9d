from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import BadRequest
from headrace.protocols.wallaroo.frames import PeerFault
from headrace.protocols.wallaroo.naming import check_rule, printable, stream_name

RULE = "{instance}.{stream}"


@pytest.mark.parametrize(
    ("rule", "program", "instance", "stream", "name"),
    [
        (RULE, b"p", b"warehouse", b"orders", "warehouse.orders"),
        (RULE, b"p", b"", b"orders", "orders"),
        ("{program}/{instance}/{stream}", b"", b"i", b"s", "i/s"),
        ("{stream}", b"p", b"i", b"s", "s"),
        ("in-{stream}", b"p", b"i", b"s", "in-s"),
        (RULE, b"p", b"\xffi", b"a%b\n", "%FFi.a%25b%0A"),
        (RULE, b"p", "größe".encode(), "ж".encode(), "größe.ж"),
        (RULE, b"p", b"{stream}", b"s", "{stream}.s"),
    ],
)
def test_names(rule: str, program: bytes, instance: bytes, stream: bytes, name: str) -> None:
    assert stream_name(rule, program, instance, stream) == name


def test_a_stream_without_a_name() -> None:
    with pytest.raises(PeerFault):
        stream_name(RULE, b"p", b"i", b"")


@pytest.mark.parametrize("rule", ["{instance}", "{stream}{host}", ""])
def test_rules_that_cannot_be(rule: str) -> None:
    with pytest.raises(BadRequest, match="wallaroo.stream_name"):
        check_rule(rule)


def test_rules_that_can_be() -> None:
    for rule in (RULE, "{stream}", "{program}-{stream}"):
        check_rule(rule)


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=20), st.binary(min_size=1, max_size=20))
def test_different_names_stay_different_and_can_be_stored(one: bytes, other: bytes) -> None:
    assert (printable(one) == printable(other)) == (one == other)
    printable(one).encode()
    assert all(character >= " " for character in printable(one))
