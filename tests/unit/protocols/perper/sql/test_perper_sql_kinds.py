"""Types of columns, and the data objects of their values."""

import struct
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper.errors import BinaryError, Refused
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.sql import kinds


def read_back(kind, value):
    data = kinds.write(kind, value)
    return kinds.read(kind, data, 0, len(data))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (kinds.BOOLEAN, True),
        (kinds.TINYINT, -128),
        (kinds.SMALLINT, 32767),
        (kinds.INTEGER, -(2**31)),
        (kinds.BIGINT, 2**63 - 1),
        (kinds.REAL, 0.5),
        (kinds.DOUBLE, 0.1),
        (kinds.VARCHAR, "süß"),
        (kinds.UUID, uuid.UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")),
        (kinds.BYTES, b"\0\xff"),
        (kinds.DATE, 10957),
        (kinds.MOMENT, 1_000),
        (kinds.TIMESTAMP, 1_234_567),
        (kinds.TIME, 86_399_999_000),
        (kinds.OBJECT, {"object": b"\x03\1\0\0\0"}),
    ],
)
def test_each_type_is_read_as_it_was_written(kind, value):
    assert read_back(kind, value) == value
    assert kinds.write(kind, None) == b"\x65"
    assert kinds.read(kind, b"\x65", 0, 1) is None


@given(st.decimals(allow_nan=False, allow_infinity=False, places=15, min_value=-(10**22), max_value=10**22))
def test_decimals_are_read_as_they_were_written(value):
    assert read_back(kinds.decimal(), value) == value


def test_a_decimal_on_the_wire():
    assert kinds.write(kinds.decimal(scale=1), Decimal("-2.40")) == b"\x1e" + struct.pack("<ii", 1, 1) + b"\x98"
    assert kinds.write(kinds.decimal(scale=1), Decimal("128")) == b"\x1e" + struct.pack("<ii", 0, 2) + b"\0\x80"
    assert kinds.write(kinds.decimal(scale=1), Decimal(0)) == b"\x1e" + struct.pack("<ii", 0, 1) + b"\0"
    empty = b"\x1e" + struct.pack("<ii", 0, 0)
    assert kinds.read(kinds.decimal(), empty, 0, len(empty)) == 0


def test_how_many_digits_decimals_have():
    assert kinds.decimal().arrow == pa.decimal128(38, 15)
    assert kinds.decimal(11, 2).arrow == pa.decimal128(38, 15)
    assert kinds.decimal(38, 10).arrow == pa.decimal128(38, 10)
    assert kinds.decimal(38, 20).arrow == pa.decimal128(38, 20)
    assert kinds.decimal(65535, 32767).arrow == pa.decimal128(38, 38)


def test_a_value_of_the_same_family_fits():
    assert kinds.object_as(kinds.INTEGER, encode_long(5)) == b"\x03\5\0\0\0"
    assert kinds.object_as(kinds.DOUBLE, encode_long(5)) == b"\x06" + struct.pack("<d", 5.0)
    assert kinds.read(kinds.decimal(), encode_long(5), 0, 9) == 5
    assert kinds.object_as(kinds.VARCHAR, b"\x07\x41\0") == encode_string("A")
    assert kinds.object_as(kinds.TIMESTAMP, b"\x0b" + struct.pack("<q", 7)) == b"\x21" + struct.pack("<qi", 7, 0)
    assert kinds.object_as(kinds.OBJECT, encode_long(5)) == encode_long(5)
    assert kinds.object_as(kinds.INTEGER, b"\x65") == b"\x65"
    for kind, data in (
        (kinds.INTEGER, encode_long(2**31)),
        (kinds.INTEGER, encode_string("5")),
        (kinds.VARCHAR, encode_long(5)),
        (kinds.DOUBLE, encode_string("5")),
        (kinds.DATE, encode_long(5)),
        (kinds.decimal(), encode_string("5")),
        (kinds.decimal(), kinds.write(kinds.decimal(scale=1), Decimal("1e-16"))),
        (kinds.decimal(), kinds.write(kinds.decimal(scale=1), Decimal(10**23))),
        (kinds.INTEGER, b"\x17\0\0\0\0"),
    ):
        assert kinds.object_as(kind, data) is None
    with pytest.raises(BinaryError, match="is not INTEGER"):
        kinds.read(kinds.INTEGER, encode_string("5"), 0, 6)


def test_names_of_types():
    assert kinds.by_java("java.lang.Integer") is kinds.INTEGER
    assert kinds.by_java("byte[]") is kinds.BYTES
    assert kinds.by_java("my.Class") is kinds.by_java(None) is kinds.OBJECT
    assert kinds.by_java("java.math.BigDecimal", 38, 3).arrow.scale == 3
    assert kinds.by_sql("VARCHAR") is kinds.VARCHAR
    assert kinds.by_sql("GEOMETRY") is None
    assert kinds.by_sql("NUMBER", 38, 0).arrow.scale == 0


def test_types_of_results():
    for arrow, sql, kind in (
        (pa.string(), "UUID", kinds.UUID),
        (pa.string(), "VARCHAR", kinds.VARCHAR),
        (pa.list_(pa.int32()), "INTEGER[]", kinds.VARCHAR),
        (kinds.OBJECT.arrow, kinds.OBJECT.sql, kinds.OBJECT),
        (pa.uint32(), "UINTEGER", kinds.BIGINT),
        (pa.timestamp("us", "UTC"), "TIMESTAMP WITH TIME ZONE", kinds.TIMESTAMP),
        (pa.int16(), "SMALLINT", kinds.SMALLINT),
        (pa.date32(), "DATE", kinds.DATE),
    ):
        assert kinds.by_result(arrow, sql) is kind
    whole = kinds.by_result(pa.decimal128(38, 0), "HUGEINT")
    assert kinds.write(whole, Decimal(5)) == encode_long(5)
    assert kinds.write(whole, Decimal(2**63))[0] == 30


def test_arguments():
    assert kinds.parameter(encode_long(5)) == (5, "BIGINT")
    assert kinds.parameter(encode_string("a")) == ("a", None)
    assert kinds.parameter(b"\x65") == (None, None)
    assert kinds.parameter(b"\x08\1") == (True, "BOOLEAN")
    number = uuid.uuid4()
    assert kinds.parameter(kinds.write(kinds.UUID, number)) == (str(number), "UUID")
    assert kinds.parameter(kinds.write(kinds.decimal(scale=1), Decimal("-1.25"))) == ("-1.25", "DECIMAL(38,2)")
    assert kinds.parameter(b"\x21" + struct.pack("<qi", 1500, 1000)) == ("1970-01-01 00:00:01.500001", "TIMESTAMP")
    assert kinds.parameter(b"\x24" + struct.pack("<q", 1500)) == ("00:00:01.500000", "TIME")
    assert kinds.parameter(b"\x17\0\0\0\0") == ({"object": b"\x17\0\0\0\0"}, kinds.OBJECT.sql)
    with pytest.raises(Refused, match="more than 38 digits"):
        kinds.parameter(kinds.write(kinds.decimal(scale=1), Decimal(10**38)))
