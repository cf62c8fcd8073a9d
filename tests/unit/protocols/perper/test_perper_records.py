"""The two record types the fabric reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite import binary
from headrace.protocols.perper.records import (
    EXECUTION_TYPE,
    LISTENER_TYPE,
    Execution,
    StreamListener,
    read_execution,
    read_listener,
    write_execution,
    write_listener,
)


def nothing(type_id: int, schema_id: int) -> None:
    return None


@given(st.builds(Execution, st.text(), st.text(), st.text(), st.booleans()))
def test_executions_go_both_ways(execution: Execution) -> None:
    assert read_execution(write_execution(execution), nothing) == execution


@given(st.builds(StreamListener, st.text(), st.integers(-(2**63), 2**63 - 1)))
def test_listeners_go_both_ways(listener: StreamListener) -> None:
    assert read_listener(write_listener(listener), nothing) == listener


def test_fields_in_the_order_of_net_agents() -> None:
    names = sorted(("stream", "position"))
    objects = {"stream": binary.encode_string("s"), "position": binary.encode_long(5)}
    value = binary.encode_complex(LISTENER_TYPE, [(binary.field_id(name), objects[name]) for name in names])
    assert read_listener(value, nothing) == StreamListener("s", 5)


def test_schemas_of_the_registry() -> None:
    fields = [(binary.field_id("delegate"), binary.encode_string("D")), (123, b"\x65")]
    value = binary.encode_complex(EXECUTION_TYPE, fields)
    with pytest.raises(BinaryError, match="not registered"):
        read_execution(value, nothing)
    assert read_execution(value, lambda *_: (fields[0][0], 123)) == Execution("", "", "D", False)


def test_null_means_empty_and_unfinished() -> None:
    names = ("agent", "finished")
    value = binary.encode_complex(EXECUTION_TYPE, [(binary.field_id(name), b"\x65") for name in names])
    assert read_execution(value, lambda *_: tuple(map(binary.field_id, names))) == Execution("", "", "", False)


@pytest.mark.parametrize("value", [b"\x65", b"\x09\x00\x00\x00\x00", binary.encode_complex(5, [(1, b"\x65")])])
def test_other_values_are_refused(value: bytes) -> None:
    with pytest.raises(BinaryError, match="expected"):
        read_execution(value, nothing)
    with pytest.raises(BinaryError, match="expected"):
        read_listener(value, nothing)


def test_a_listener_without_a_position() -> None:
    value = binary.encode_complex(LISTENER_TYPE, [(binary.field_id("stream"), binary.encode_string("s"))])
    with pytest.raises(BinaryError, match="no field 'position'"):
        read_listener(value, lambda *_: (binary.field_id("stream"),))
