"""Data objects: measuring, wrapping, fields of complex objects, and hostile ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.protocols.perper.errors import BinaryError
from headrace.protocols.perper.ignite import binary


def i32(number: int) -> bytes:
    return struct.pack("<i", number)


def objects() -> st.SearchStrategy[bytes]:
    """Well-formed objects, built by hand from the layout."""
    text = st.text(max_size=5).map(lambda t: b"\x09" + i32(len(t.encode())) + t.encode())
    leaves = st.one_of(
        st.just(b"\x65"),
        st.integers(-(2**63), 2**63 - 1).map(lambda n: b"\x04" + struct.pack("<q", n)),
        st.binary(max_size=6).map(lambda d: b"\x0c" + i32(len(d)) + d),
        st.booleans().map(lambda b: bytes((8, b))),
        text,
        st.integers(0, 99).map(lambda n: b"\x66" + i32(n)),
        st.integers(0, 99).map(lambda n: binary.encode_complex(n, [(n, b"\x08\x01")])),
        st.just(b"\x1e" + i32(2) + i32(1) + b"\x85"),
        st.just(b"\x1c" + i32(5) + i32(1)),
        st.just(b"\x26" + i32(0) + b"\x09" + i32(1) + b"E" + i32(1)),
        st.just(b"\x20" + i32(0) + b"\x09" + i32(1) + b"C"),
        st.just(b"\x20" + i32(7)),
        st.just(b"\xfe" + i32(3) + b"abc"),
        st.just(b"\x1d" + i32(5) + i32(1) + b"\x1c" + i32(5) + i32(1)),
        st.just(b"\x14" + i32(2) + b"\x65\x65"),
    )

    def nests(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
        many = st.lists(inner, max_size=3)
        return st.one_of(
            many.map(lambda p: b"\x17" + i32(-1) + i32(len(p)) + b"".join(p)),
            many.map(lambda p: b"\x17" + i32(0) + b"\x09" + i32(1) + b"T" + i32(len(p)) + b"".join(p)),
            many.map(lambda p: b"\x18" + i32(len(p)) + b"\x01" + b"".join(p)),
            many.map(lambda p: b"\x19" + i32(len(p)) + b"\x01" + b"".join(p + p)),
        )

    return st.recursive(leaves, nests, max_leaves=8)


@given(objects(), st.binary(max_size=4), st.binary(max_size=4))
def test_an_object_ends_where_it_ends(value: bytes, before: bytes, after: bytes) -> None:
    data = before + value + after
    assert binary.skip(data, len(before), len(data)) == len(before) + len(value)
    for cut in range(len(value)):
        with pytest.raises(BinaryError):
            binary.skip(value[:cut], 0, cut)


@given(objects())
def test_wrapping_and_unwrapping_are_opposites(value: bytes) -> None:
    wrapped = binary.wrap(value)
    assert binary.skip(wrapped, 0, len(wrapped)) == len(wrapped)
    assert binary.unwrap(wrapped) == value
    stored, after = binary.read_object(wrapped, 0, len(wrapped))
    assert (stored, after) == (value, len(wrapped))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_an_error(data: bytes) -> None:
    try:
        value, after = binary.read_object(data, 0, len(data))
    except BinaryError:
        return
    assert 0 < after <= len(data)
    assert binary.skip(value, 0, len(value)) == len(value)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x00",
        b"\x23" + i32(0),  # a proxy: never from thin clients
        b"\x09" + i32(2**31 - 1),
        b"\x09" + i32(-1),
        b"\x0f" + i32(2**28) + bytes(8),
        b"\x17" + i32(-1) + i32(2**31 - 1) + b"\x65",
        b"\x18" + i32(2**31 - 1) + b"\x01\x65",
        b"\x19" + i32(2**30) + b"\x01\x65\x65",
        b"\x1b" + i32(2**31 - 1) + b"x",
        b"\x1e" + i32(1) + i32(-5),
        b"\x67\x01",
        binary.encode_complex(1, [(1, b"\x65")])[:12] + i32(2**31 - 1) + binary.encode_complex(1, [(1, b"\x65")])[16:],
        binary.encode_complex(1, [(1, b"\x65")])[:12] + i32(3) + binary.encode_complex(1, [(1, b"\x65")])[16:],
        binary.encode_complex(1, [(1, b"\x65")])[:20] + i32(2) + binary.encode_complex(1, [(1, b"\x65")])[24:],
        b"\x1b" + i32(1) + b"\x65" + i32(9),
        b"\x1b" + i32(1) + b"\x65" + i32(-1),
    ],
)
def test_hostile_objects_are_refused(value: bytes) -> None:
    with pytest.raises(BinaryError):
        binary.read_object(value, 0, len(value))


def test_nesting_has_a_limit() -> None:
    value = b"\x65"
    for _ in range(200):
        value = b"\x18" + i32(1) + b"\x01" + value
    with pytest.raises(BinaryError, match=r"perper\.nesting_max"):
        binary.skip(value, 0, len(value))


def nested(inner: bytes, depth: int) -> bytes:
    for _ in range(depth):
        inner = b"\x18" + i32(1) + b"\x01" + inner
    return inner


@pytest.mark.parametrize("code", [b"\x14", b"\x17" + i32(-1), b"\x1d" + i32(5)])
def test_elements_have_a_limit_that_is_checked_before_they_are_read(code: bytes) -> None:
    limits = binary.Limits(elements_max=1_000)
    value = code + i32(1_000) + b"\x65" * 1_000
    assert binary.skip(value, 0, len(value), limits) == len(value)
    limits.begin()
    # The bytes are no objects: had the first been looked at, the error would be about that.
    value = code + i32(1_001) + b"\xff" * 1_001
    with pytest.raises(BinaryError, match=r"perper\.elements_max"):
        binary.skip(value, 0, len(value), limits)


def test_elements_of_all_levels_count_together() -> None:
    row = b"\x18" + i32(10) + b"\x01" + b"\x65" * 10
    value = b"\x18" + i32(10) + b"\x01" + row * 10
    assert binary.skip(value, 0, len(value), binary.Limits(elements_max=110)) == len(value)
    with pytest.raises(BinaryError, match=r"perper\.elements_max"):
        binary.skip(value, 0, len(value), binary.Limits(elements_max=109))


def test_every_element_is_looked_at_once_however_deep_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = binary.encode_complex(1, [(1, b"\x65")])
    envelope = b"\x1b" + i32(len(inner)) + inner + i32(0)
    row = b"\x18" + i32(50) + b"\x01" + envelope * 50
    value, stored = nested(row, 60), nested(b"\x18" + i32(50) + b"\x01" + inner * 50, 60)
    looks = 0
    complex_length = binary._complex_length

    def counted(*arguments: object) -> int:
        nonlocal looks
        looks += 1
        return complex_length(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(binary, "_complex_length", counted)
    assert binary.read_object(value, 0, len(value)) == (stored, len(value))
    assert looks == 50
    looks = 0
    assert binary.wrap(stored) == value
    assert looks == 50


def test_a_root_inside_of_a_graph_is_taken_out_of_it() -> None:
    inner = binary.encode_complex(1, [(1, b"\x65")])
    for before, after in ((b"", b""), (b"\x65", b""), (b"", b"\x65"), (inner, inner), (b"\x67" * 30, b"\x09")):
        graph = before + inner + after
        value = b"\x1b" + i32(len(graph)) + graph + i32(len(before))
        assert binary.unwrap(value) == inner
        row = b"\x18" + i32(2) + b"\x01" + value + b"\x65"
        assert binary.unwrap(row) == b"\x18" + i32(2) + b"\x01" + inner + b"\x65"


@pytest.mark.parametrize("offset", [-1, 1_000, 2**31 - 1])
def test_a_root_outside_of_its_envelope_is_refused(offset: int) -> None:
    inner = binary.encode_complex(1, [(1, b"\x65")])
    value = b"\x1b" + i32(len(inner)) + inner + i32(offset)
    with pytest.raises(BinaryError, match="outside"):
        binary.read_object(value, 0, len(value))


def test_a_root_that_passes_the_end_of_its_envelope_is_refused() -> None:
    inner = binary.encode_complex(1, [(1, b"\x65")])
    value = b"\x1b" + i32(len(inner)) + b"\x65" + inner[:-1] + i32(1)
    with pytest.raises(BinaryError, match="complex object"):
        binary.read_object(value, 0, len(value))


def test_wrapped_primitives_stay_as_they_came() -> None:
    value = b"\x1b" + i32(2) + b"\x08\x01" + i32(0)
    assert binary.unwrap(value) == value


def test_offsets_of_one_two_and_four_bytes() -> None:
    for size, flag in ((10, 8), (300, 16), (70_000, 0)):
        value = binary.encode_complex(7, [(1, binary.encode_byte_array(bytes(size))), (2, b"\x08\x01")])
        header = binary.ComplexHeader(value)
        assert header.flags & 24 == flag
        places = binary.field_positions(value, header, (1, 2))
        assert binary.decode_bool(value, places[2], header.footer) is True


def test_full_footers_need_no_schema() -> None:
    body = b"\x08\x01\x04" + struct.pack("<q", 5)
    footer = i32(11) + b"\x18" + i32(22) + b"\x1a"
    length = 24 + len(body) + len(footer)
    header = struct.pack("<BBHiiiii", 103, 1, 1 | 2 | 8, 9, 0, length, 0, 24 + len(body))
    value = header + body + footer
    places = binary.field_positions(value, binary.ComplexHeader(value), None)
    assert places == {11: 24, 22: 26}
    assert binary.decode_long(value, 26, 35) == 5


def test_raw_data_after_the_schema() -> None:
    plain = binary.encode_complex(9, [(1, b"\x08\x01")])
    flags = struct.unpack_from("<H", plain, 2)[0] | 4
    length = len(plain) + 4
    value = plain[:2] + struct.pack("<H", flags) + plain[4:12] + i32(length) + plain[16:] + i32(26)
    assert binary.field_positions(value, binary.ComplexHeader(value), (1,)) == {1: 24}


def test_objects_without_a_schema_have_no_fields() -> None:
    value = binary.encode_complex(9, [])
    assert binary.field_positions(value, binary.ComplexHeader(value), None) == {}


@pytest.mark.parametrize(
    ("change", "schema"),
    [
        (lambda value: value, None),  # not registered
        (lambda value: value, (1,)),  # registered with another number of fields
        (lambda value: value[:-1] + b"\xff", (1, 2)),  # an offset behind the data
        (lambda value: value[:-1] + b"\x03", (1, 2)),  # an offset inside of the header
        (lambda value: value[:2] + struct.pack("<H", 1 | 2 | 16) + value[4:], (1, 2)),  # entries that do not divide
    ],
)
def test_footers_that_lie(change: object, schema: tuple[int, ...] | None) -> None:
    value = change(binary.encode_complex(9, [(1, b"\x08\x01"), (2, b"\x65")]))  # type: ignore[operator]
    with pytest.raises(BinaryError):
        binary.field_positions(value, binary.ComplexHeader(value), schema)


@pytest.mark.parametrize("value", [b"", b"\x67", b"\x66" + bytes(30), b"\x67\x02" + bytes(30)])
def test_headers_that_lie(value: bytes) -> None:
    with pytest.raises(BinaryError):
        binary.ComplexHeader(value)


def test_header_whose_parts_do_not_fit() -> None:
    value = struct.pack("<BBHiiiii", 103, 1, 0, 0, 0, 100, 0, 24)
    with pytest.raises(BinaryError, match="24 bytes present"):
        binary.ComplexHeader(value)


def test_scalars_of_the_wrong_kind() -> None:
    for read in (binary.decode_long, binary.decode_bool):
        with pytest.raises(BinaryError):
            read(b"\x65", 0, 1)
    with pytest.raises(BinaryError, match="string expected"):
        binary.decode_string(b"\x08\x01", 0, 2)
    with pytest.raises(BinaryError, match="not UTF-8"):
        binary.decode_string(b"\x09" + i32(1) + b"\xff", 0, 6)
    assert binary.decode_string(b"\x65", 0, 1) == (None, 1)


def test_hashes_beyond_the_basic_plane() -> None:
    assert binary.java_hash("\U0001f600") == 1772899
    assert binary.code_point_hash("\U0001f600") == 128512
    assert binary.code_point_hash("executions") == binary.java_hash("executions")
    assert binary.code_point_hash("stream-listeners") == -1302551502
