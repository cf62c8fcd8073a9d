"""Frames, handshakes, requests and responses: limits, and what cannot be read."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.perper_peer import read_answer

from headrace.protocols.perper.errors import BinaryError, FrameError, PeerError
from headrace.protocols.perper.ignite import codec, shapes
from headrace.protocols.perper.ignite.codec import decode_answer
from headrace.protocols.perper.ignite.configuration import (
    Configuration,
    QueryEntity,
    QueryField,
    QueryIndex,
    read_configuration,
    write_answer,
    write_request,
)
from headrace.protocols.perper.ignite.reader import Reader
from headrace.protocols.perper.ignite.types import BinaryType, Field, for_clients, merge, read_type, write_type


@given(st.lists(st.binary(max_size=40), max_size=10), st.integers(1, 30))
def test_frames_are_found_however_they_are_cut(payloads: list[bytes], step: int) -> None:
    data = b"".join(map(codec.frame, payloads))
    buffer = codec.FrameBuffer(1000)
    found: list[bytes] = []
    for start in range(0, len(data), step):
        chunk, spans = buffer.feed(data[start : start + step])
        found += [chunk[a:b] for a, b in spans]
    assert found == payloads
    assert buffer.kept_bytes == 0


def test_a_large_frame_is_joined_once() -> None:
    buffer = codec.FrameBuffer(1 << 20)
    data = codec.frame(bytes(1 << 20))
    pieces = [buffer.feed(data[at : at + 1000])[1] for at in range(0, len(data), 1000)]
    assert pieces[-1] == [(4, len(data))]
    assert not any(pieces[:-1])


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_frames_beyond_the_limit_are_refused_by_their_length(length: int) -> None:
    with pytest.raises(FrameError, match=r"perper\.frame_bytes_max"):
        codec.FrameBuffer(1000).feed(struct.pack("<i", length))


@pytest.mark.parametrize("step", [1, 3, 100])
def test_what_follows_the_first_frame_is_not_looked_at_with_it(step: int) -> None:
    """It may be larger than the first may be."""
    buffer = codec.FrameBuffer(3)
    data = codec.frame(b"one") + codec.frame(b"three") + b"\x01"
    fed = [buffer.feed_first(data[at : at + step]) for at in range(0, 7, step)]
    assert fed == [None] * (len(fed) - 1) + [b"one"]
    buffer.bytes_max = 1000
    chunk, spans = buffer.feed(data[len(fed) * step :] + b"\x00\x00\x00!")
    assert [chunk[a:b] for a, b in spans] == [b"three", b"!"]


@pytest.mark.parametrize(
    "payload", [b"", b"\x01", b"\x02" + bytes(7), b"\x01\x01\x00\x07\x00\x00\x00\x02\x09\xff\xff\xff\x7f"]
)
def test_handshakes_that_cannot_be_read(payload: bytes) -> None:
    with pytest.raises(FrameError):
        codec.decode_handshake(payload)


def test_handshakes_of_other_versions_are_not_read_further() -> None:
    handshake = codec.decode_handshake(b"\x01" + struct.pack("<hhh", 9, 0, 0) + b"\x02whatever")
    assert handshake.version == (9, 0, 0)


def test_handshakes_with_user_attributes() -> None:
    attributes = b"\x19\x00\x00\x00\x00\x01"
    payload = b"\x01" + struct.pack("<hhh", 1, 7, 0) + b"\x02\x0c\x01\x00\x00\x00\x05" + attributes
    assert codec.decode_handshake(payload).features == b"\x05"
    odd = b"\x01" + struct.pack("<hhh", 1, 7, 0) + b"\x02\x65"
    assert codec.decode_handshake(odd).features == b""


def test_common_features() -> None:
    assert codec.common_features(b"\xff\xff") == b"\x04"
    assert codec.common_features(b"") == b"\x00"


def request(op: int, body: bytes) -> Any:
    data = struct.pack("<hq", op, 7) + body
    return codec.decode_request(data, 0, len(data))


def test_short_requests_end_the_connection() -> None:
    with pytest.raises(FrameError):
        codec.decode_request(b"\x00" * 9, 0, 9)


def test_unknown_operations() -> None:
    bad = request(9999, b"")
    assert isinstance(bad, codec.BadRequest)
    assert (bad.request_id, bad.error.status, bad.error.message) == (7, 2, "Invalid request op code: 9999")


@pytest.mark.parametrize("op", sorted(shapes.OPERATIONS))
def test_every_operation_with_too_little_and_too_much(op: int) -> None:
    operation = shapes.OPERATIONS[op]
    if operation.parts or operation.has_cache:
        assert isinstance(request(op, b""), codec.BadRequest)
    assert isinstance(request(op, b"\xff" * 100), codec.BadRequest)


@given(st.sampled_from(sorted(shapes.OPERATIONS)), st.binary(max_size=120))
def test_any_body_is_a_request_or_an_error(op: int, body: bytes) -> None:
    found = request(op, body)
    if isinstance(found, codec.BadRequest):
        assert found.error.message
    elif op not in (1053, 1054, 2000):  # a length nobody may trust, and a filter's platform byte
        assert isinstance(codec.encode_request(found), bytes)


def test_scans_with_a_filter_carry_a_platform() -> None:
    found = request(2000, struct.pack("<iB", 1, 0) + b"\x08\x01" + b"\x01" + struct.pack("<iiB", 5, -1, 0))
    assert isinstance(found, codec.Request)
    assert found.arguments == (b"\x08\x01", 5, -1, False)


def test_requests_with_expiry_and_transaction_go_both_ways() -> None:
    made = codec.Request(1001, 5, (b"\x08\x01", b"\x65"), 12, 6, (1, -1, -2), 9)
    data = codec.encode_request(made)
    assert codec.decode_request(data, 4, len(data)) == made


def test_byte_counts_and_negative_numbers() -> None:
    found = request(1020, struct.pack("<iB", 1, 0) + struct.pack("<i", 2) + b"ab")
    assert isinstance(found, codec.Request)
    assert found.arguments == (b"ab",)
    data = codec.encode_request(found)
    assert codec.decode_request(data, 4, len(data)) == found


def test_answers_of_every_shape() -> None:
    pages = shapes.Page([(b"\x08\x01", b"\x65")], True, 3)
    for op, value in ((2000, pages), (2001, pages._replace(cursor=0)), (1003, [(b"\x65", b"\x65")]), (1050, ["a"])):
        assert decode_answer(op, codec.encode_answer(op, value, codec.NEWEST)) == value
    for op, value in (
        (1002, True),
        (1020, 5),
        (5000, -1),
        (4000, 7),
        (3000, "name"),
        (1000, b"\x08\x00"),
        (1001, None),
    ):
        assert decode_answer(op, codec.encode_answer(op, value, codec.NEWEST)) == value
    assert decode_answer(1000, codec.encode_answer(1000, None, codec.NEWEST)) == b"\x65"
    assert decode_answer(3002, codec.encode_answer(3002, None, codec.NEWEST)) is None
    assert decode_answer(3002, codec.encode_answer(3002, PERSON, codec.NEWEST)) == PERSON
    assert decode_answer(1101, codec.encode_answer(1101, [1], codec.NEWEST))


def test_readers_do_not_pass_the_end() -> None:
    reader = Reader(b"\x01\x02")
    assert reader.byte() == 1
    for read in (reader.int, reader.long, reader.short):
        with pytest.raises(BinaryError):
            read()
    with pytest.raises(BinaryError):
        Reader(b"\x65").text()
    with pytest.raises(BinaryError, match="left over"):
        reader.finish()
    assert Reader(b"\xff").byte() == -1
    with pytest.raises(BinaryError):
        Reader(struct.pack("<i", -1)).count()


# types

PERSON = BinaryType(5, "Person", None, [Field("name", 9, 1)], False, [], {77: (1,)})


def test_types_go_both_ways() -> None:
    colour = BinaryType(6, "Colour", "name", [], True, [("red", 0), (None, 1)], {})
    for kind in (PERSON, colour):
        assert read_type(Reader(write_type(kind))) == kind


def test_merging_types() -> None:
    newer = BinaryType(5, "Person", None, [Field("name", 9, 1), Field("age", 3, 2)], False, [], {78: (1, 2)})
    merged = merge(PERSON, newer)
    assert [field.name for field in merged.fields] == ["name", "age"]
    assert merged.schemas == {77: (1,), 78: (1, 2)}
    assert merge(None, PERSON) == PERSON
    assert merge(merged, PERSON) == merged


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Other"},
        {"affinity_field": "name"},
        {"is_enum": True},
        {"fields": [Field("name", 3, 1)]},
        {"schemas": {77: (2,)}},
    ],
)
def test_types_that_contradict(change: dict[str, Any]) -> None:
    with pytest.raises(PeerError, match="conflicts"):
        merge(PERSON, PERSON._replace(**change))


def test_types_need_a_name() -> None:
    with pytest.raises(BinaryError, match="no name"):
        merge(None, PERSON._replace(name=None))


def test_schemas_with_unknown_fields_are_not_shown() -> None:
    odd = PERSON._replace(schemas={77: (1,), 79: (1, 99)})
    assert for_clients(odd).schemas == {77: (1,)}


# configuration

FULL = Configuration(
    {
        0: "all",
        5: True,
        301: 2**40,
        1: 2,
        200: [
            QueryEntity(
                ("k", "v", None, None, None),
                [QueryField("f", "t", False, True, b"\x65", 1, 2)],
                [("f", "alias")],
                [QueryIndex("i", -1, 10, [("f", True)])],
            )
        ],
        401: [("t", "f")],
        407: (1, -1, -2),
    }
)


def test_configurations_go_both_ways() -> None:
    assert read_configuration(Reader(write_request(FULL))) == FULL
    none = Configuration({0: "n", 407: None})
    assert read_configuration(Reader(write_request(none))) == none


def test_configurations_as_they_are_answered() -> None:
    for version in ((1, 6, 0), (1, 5, 0)):
        answer = read_answer(Reader(write_answer(FULL, version)), version)
        for code in (0, 1, 5, 301, 401):
            assert answer.properties[code] == FULL.properties[code]
        assert answer.expiry == (FULL.expiry if version >= (1, 6, 0) else None)


def answered(properties: dict[int, Any]) -> Configuration:
    return read_answer(Reader(write_answer(Configuration(properties), (1, 7, 0))), (1, 7, 0))


def test_a_replicated_cache_has_backups_everywhere() -> None:
    assert answered({0: "r", 1: 1, 3: 2}).properties[3] == 2**31 - 1
    assert answered({0: "p", 1: 2, 3: 2}).properties[3] == 2
    assert answered({0: "d"}).properties[3] == 0


@pytest.mark.parametrize(
    ("escape", "table", "aliases", "index"),
    [
        (False, "TABLE", [("id", "ID"), ("home.city", "CITY"), ("f", "ALIAS")], "I"),
        (True, "Table", [("f", "Alias"), ("other", "o"), ("id", "id"), ("home.city", "city")], "i"),
    ],
)
def test_query_entities_are_shown_with_the_names_of_sql(
    escape: bool, table: str, aliases: list[tuple[str, str]], index: str
) -> None:
    fields = [QueryField(name, "t", False, False, b"\x65", -1, -1) for name in ("id", "home.city", "f")]
    given = QueryEntity(
        ("k", "v", "Table", "id", None),
        fields,
        [("f", "Alias"), ("other", "o")],
        [QueryIndex("i", 0, -1, [("id", False)])],
    )
    shown = answered({0: "q", 200: [given], 205: escape}).properties[200][0]
    assert shown.names == ("k", "v", table, "id", None)
    assert shown.fields == fields
    assert shown.aliases == aliases
    assert [each.name for each in shown.indexes] == [index]


@pytest.mark.parametrize("body", [struct.pack("<ih", 0, -1), struct.pack("<ih", 0, 65), struct.pack("<ihh", 0, 1, 999)])
def test_configurations_that_cannot_be_read(body: bytes) -> None:
    with pytest.raises(BinaryError):
        read_configuration(Reader(body))
