"""Frames: one transaction each, with checksums that fail apart."""

from __future__ import annotations

import pytest

from headrace.log import frame
from headrace.log.frame import (
    Salt,
    decode_directory,
    decode_header,
    encode_event,
    encode_frame,
    encode_records,
    encode_salted_frame,
)
from headrace.log.ops import StreamOptions

EVENTS: list[frame.AnyEvent] = [
    frame.StreamCreated(3, "näme", "stream", StreamOptions(retention_age_s=1.5, labels={"a": "b"}), 99, [0, 7]),
    frame.StreamGrown(3, [0]),
    frame.OptionsChanged(3, StreamOptions(ack="processed:x")),
    frame.StreamDeleted(3, [12, 0]),
    frame.StreamTrimmed(3, 1, 2**62),
    frame.CursorSaved("c", 3, 0, 5, 6),
    frame.CursorDeleted("c", 3, 0),
    frame.ProducerSet(3, 0, "p", 2**64 - 1),
    frame.ProducerSet(3, 0, "p", None),
    frame.CheckpointAdded(1, 3, 10, 2**40, 5, {"k": "v"}),
    frame.CheckpointDropped(1),
]


def test_the_header_is_as_documented() -> None:
    encoded = b"".join(encode_frame(5, 4, b"\x01" * 3, b"\x02" * 8))
    assert len(encoded) == 40 + 8 + 8
    assert encoded[:4] == b"HRF1"
    assert encoded[4:12] == (8).to_bytes(4, "little") + (8).to_bytes(4, "little")
    assert encoded[24:40] == (5).to_bytes(8, "little") + (4).to_bytes(8, "little")
    header = decode_header(encoded, 0)
    assert header is not None
    assert (header.sequence, header.durable, header.frame_bytes) == (5, 4, 56)


def test_entries_come_back() -> None:
    directory = encode_records(1, 2, 3, 4, -5, "prödücer".encode(), 2**64 - 1, 16)
    directory += encode_records(1, 2, 3, 4, 5, b"", 0, 8)
    directory += b"".join(map(encode_event, EVENTS))
    entries = decode_directory(directory + b"\0" * 7)
    assert entries == [
        frame.RecordsEntry(1, 2, 3, 4, -5, "prödücer", 2**64 - 1, 16),
        frame.RecordsEntry(1, 2, 3, 4, 5, None, 0, 8),
        *EVENTS,
    ]


def test_an_empty_directory_is_a_mark() -> None:
    assert decode_directory(b"") == []


def test_a_frame_of_another_salt_is_none() -> None:
    salt = Salt(0x01020304, 5)
    encoded = b"".join(encode_salted_frame(salt, 5, 4, b"12345678"))
    assert encoded[:4] == bytes([4, 3, 2, 1])
    assert decode_header(encoded, 0, salt) is not None
    for other in (Salt(0x01020304, 6), Salt(0x01020305, 5), frame.PLAIN):
        assert decode_header(encoded, 0, other) is None


def test_a_random_salt_never_looks_like_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.randbelow", lambda below: 0)
    assert frame.random_salt().magic > 0


@pytest.mark.parametrize("bit", range(40 * 8))
def test_any_flipped_bit_in_the_header_is_noticed(bit: int) -> None:
    encoded = bytearray(b"".join(encode_frame(5, 4, b"12345678", b"87654321")))
    encoded[bit // 8] ^= 1 << bit % 8
    assert decode_header(bytes(encoded), 0) is None


def test_a_header_cut_short_is_none() -> None:
    encoded = b"".join(encode_frame(5, 4, b"", b""))
    assert decode_header(encoded, 0) is not None
    assert decode_header(encoded[:-1], 0) is None
    assert decode_header(encoded, 8) is None
