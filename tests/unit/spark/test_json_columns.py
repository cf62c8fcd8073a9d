from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.client.json_columns import decode_json

FIELDS = pa.schema([("n", pa.int32()), ("s", pa.string())])


def decode(*payloads: bytes | None) -> tuple[list[object], list[str | None]]:
    values, errors = decode_json(pa.array(payloads, pa.binary()), FIELDS)
    assert len(values) == len(errors) == len(payloads)
    return values.to_pylist(), errors.to_pylist()


def test_good_rows() -> None:
    values, errors = decode(b'{"n": 1, "s": "x"}', b'{"s": "y"}', b"{}")
    assert values == [{"n": 1, "s": "x"}, {"n": None, "s": "y"}, {"n": None, "s": None}]
    assert errors == [None, None, None]


def test_nothing() -> None:
    assert decode() == ([], [])


@pytest.mark.parametrize(
    "bad",
    [
        b"", b"  \n ", b"{", b"not json", b"[1]", b"3", b'{"n": "text"}', b'{"n": 1}{"n": 2}', b'{"n": 1}\n{"n": 2}',
        b"\xff\xfe", b'{"n": 99999999999}',
    ],
)  # fmt: skip
def test_a_bad_row_is_named_and_harms_no_other(bad: bytes) -> None:
    good = [b'{"n": %d}' % number for number in range(7)]
    values, errors = decode(*good[:3], bad, *good[3:])
    assert [value and value["n"] for value in values] == [0, 1, 2, None, 3, 4, 5, 6]  # type: ignore[index]
    assert [error is None for error in errors] == [True] * 3 + [False] + [True] * 4
    assert values[3] is None


def test_reasons() -> None:
    _, errors = decode(b"", b"\xff", b"{}{}")
    assert errors == [
        "the payload is empty",
        "the payload is not UTF-8",
        "the payload is not exactly one JSON object",
    ]


def test_a_double_and_an_empty_row_do_not_cancel_out() -> None:
    values, errors = decode(b'{"n": 1}{"n": 2}', b"", b'{"n": 3}')
    assert values == [None, None, {"n": 3, "s": None}]
    assert errors[2] is None


def test_line_breaks_between_tokens_are_white_space() -> None:
    values, errors = decode(b'{\n"n":\r\n 4\n}', b'{"s": "a\\nb"}')
    assert errors == [None, None]
    assert values == [{"n": 4, "s": None}, {"n": None, "s": "a\nb"}]


def test_a_field_that_must_be_there() -> None:
    fields = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("s", pa.string())])
    values, errors = decode_json(pa.array([b'{"n": 1}', b'{"s": "x"}', b'{"n": null}', b"{"]), fields)
    assert values.is_valid().to_pylist() == [True, False, False, False]
    assert errors.to_pylist()[:3] == [None, "field 'n' is missing", "field 'n' is missing"]
    assert values[0].as_py() == {"n": 1, "s": None}


@pytest.mark.parametrize("payload", [b"null", b" null", b"nullx", b"true", b"[1]", b'"text"', b"{} null", b"7"])
def test_what_is_no_object_is_bad_wherever_it_stands(payload: bytes) -> None:
    """Arrow's own reader crashes the process on a block that begins with null."""
    good = b'{"n": 1}'
    for payloads, bad in (((payload,), 0), ((payload, good), 0), ((good, payload), 1)):
        values, errors = decode(*payloads)
        assert errors[bad] is not None
        assert values[bad] is None
        assert [error is None for error in errors].count(True) == len(payloads) - 1


def test_unknown_fields_are_passed_over() -> None:
    values, errors = decode(b'{"other": {"deep": [1]}, "n": 5}')
    assert (values, errors) == ([{"n": 5, "s": None}], [None])


@given(
    st.lists(
        st.one_of(
            st.builds(
                lambda n, s: json.dumps({"n": n, "s": s}).encode(),
                st.integers(-(2**31), 2**31 - 1),
                st.text(max_size=8),
            ),
            st.binary(max_size=12),
        ),
        max_size=20,
    )
)
def test_every_row_is_answered_as_if_it_were_alone(payloads: list[bytes]) -> None:
    values, errors = decode(*payloads)
    for payload, value, error in zip(payloads, values, errors, strict=True):
        alone_values, alone_errors = decode(payload)
        assert value == alone_values[0]
        assert (error is None) == (alone_errors[0] is None)


def test_payloads_that_are_no_objects_cannot_shift_those_between_them() -> None:
    """Two objects in one payload and one object in two payloads are as many objects as payloads."""
    payloads = [b'{"v":1} {"v":2}', b'{"v":3}', b'{"v":4}', b'{"z":', b'{"x":1}}']
    values, errors = decode_json(pa.array(payloads, pa.binary()), pa.schema([("v", pa.int64())]))
    assert values.to_pylist() == [None, {"v": 3}, {"v": 4}, None, None]
    assert [error is None for error in errors.to_pylist()] == [False, True, True, False, False]
