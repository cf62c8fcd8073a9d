"""The layout of journal messages, byte for byte."""

from __future__ import annotations

import struct

import pytest
from google_crc32c import value as crc32c
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.messages import (
    BODY_BYTES_MAX,
    HEAD,
    Claim,
    Kind,
    Message,
    claim_message,
    commit_messages,
    decode,
    encode,
    leave_message,
)


def test_the_layout_is_fixed() -> None:
    message = Message(Kind.COMMIT, 1, 2, 3, 4, 5, b"body")
    head = struct.pack("<IIQQII", 0, 0, 3, 4, 5, crc32c(b"body"))
    assert HEAD.size == 36
    assert encode(message) == b"HRK1" + b"\2\0" + b"\1\0" + b"\2\0" + b"\0\0" + head[8:] + b"body"
    assert decode(encode(message), 7) == message


def test_claims_and_leaves() -> None:
    claim = Claim("hub", 1, "0.1", {"flight": "a:1"})
    found = decode(claim_message(9, 8, claim), 0)
    assert found is not None
    assert (found.kind, found.epoch, found.sequence, found.claim) == (Kind.CLAIM, 9, 8, claim)
    left = decode(leave_message(9, 8), 0)
    assert left == Message(Kind.LEAVE, 0, 1, 9, 8, 0, b"")


@given(st.lists(st.lists(st.binary(max_size=50), max_size=3).map(tuple), max_size=5), st.integers(1, 40))
def test_parts_are_the_frames_cut(frames: list[tuple[bytes, ...]], size: int) -> None:
    messages = [decode(value, 0) for value in commit_messages(3, 4, frames, size)]
    whole = b"".join(piece for frame in frames for piece in frame)
    assert b"".join(message.body for message in messages if message) == whole
    assert [(message.part, message.parts) for message in messages if message] == [
        (part, len(messages)) for part in range(max(1, -(-len(whole) // size)))
    ]
    heads = {(message.epoch, message.sequence, message.frames) for message in messages if message}
    assert heads == {(3, 4, len(frames))}


def test_a_large_commit_has_parts_that_fit_a_broker() -> None:
    values = commit_messages(1, 0, [(bytes(64 * 1024 * 1024),)])
    assert len(values) == 75
    assert max(map(len, values)) == BODY_BYTES_MAX + HEAD.size < 2**20


@pytest.mark.parametrize("value", [None, b"", b"HRK1", b"x" * 100, b"HRK0" + bytes(40)])
def test_what_others_wrote_is_not_ours(value: bytes | None) -> None:
    assert decode(value, 0) is None


def test_damage_is_named_by_its_offset() -> None:
    value = bytearray(leave_message(1, 1) + b"!")
    with pytest.raises(Unrecoverable, match="offset 12 .* checksum"):
        decode(bytes(value), 12)


def test_a_kind_of_the_future_stops_the_reader() -> None:
    value = bytearray(leave_message(1, 1))
    value[4] = 9
    with pytest.raises(Unrecoverable, match="newer"):
        decode(bytes(value), 12)
