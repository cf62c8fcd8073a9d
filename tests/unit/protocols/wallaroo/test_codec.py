"""The codec's faults: what a peer may not send, and what we may not ask for. The vectors cover what is right."""

from __future__ import annotations

import pytest

from headrace.protocols.wallaroo import frames, two_phase
from headrace.protocols.wallaroo.codec import DRAFT, V3, Dialect, detect, error_bytes
from headrace.protocols.wallaroo.codec_v2 import V2_2018_12, V2_2019_03, flags_are_legal
from headrace.protocols.wallaroo.frames import Flag, LocalFault, Message, PeerFault

LEGAL_V2 = [0, 1, 2, 4, 5, 6, 8, 12, 16, 17, 18, 20, 21, 22, 24, 28, 32, 33, 36, 37, 40, 44, 48, 49, 52, 53, 56, 60]


@pytest.mark.parametrize("dialect", [DRAFT, V3, V2_2018_12, V2_2019_03], ids=lambda d: d.name)
def test_empty_and_unknown_frames(dialect: Dialect) -> None:
    with pytest.raises(PeerFault, match="length 0"):
        dialect.decode(b"")
    with pytest.raises(PeerFault, match="unknown tag 255"):
        dialect.decode(b"\xff")


@pytest.mark.parametrize("dialect", [DRAFT, V3], ids=lambda d: d.name)
def test_every_truncation_of_a_hello_is_a_fault(dialect: Dialect) -> None:
    body = dialect.encode(frames.Hello(b"0.0.1", b"cookie", b"program", b"instance"))[4:]
    for size in range(1, len(body)):
        with pytest.raises(PeerFault, match=r"Unable to decode HELLO|Unknown protocol version"):
            dialect.decode(body[:size])


def test_another_version_is_named_before_the_rest_is_decoded() -> None:
    body = b"\0" + b"\0\x05" + b"9.9.9" + b"\xff\xff"
    with pytest.raises(PeerFault, match=r"Unknown protocol version: 9\.9\.9"):
        V3.decode(body)
    with pytest.raises(PeerFault, match="Unable to decode HELLO"):
        V3.decode(body.replace(b"9.9.9", b"0.0.1"))


def test_the_draft_is_strict_and_v3_tolerant_of_trailing_bytes() -> None:
    notify = frames.Notify(1, b"a", 0)
    with pytest.raises(PeerFault, match="1 bytes too many"):
        DRAFT.decode(DRAFT.encode(notify)[4:] + b"x")
    assert V3.decode(V3.encode(notify)[4:] + b"x") == notify


def test_draft_lists_are_whole_pairs() -> None:
    with pytest.raises(PeerFault, match="not pairs of 16 bytes"):
        DRAFT.decode(DRAFT.encode(frames.Ack(1, ((1, 2),)))[4:-1])


@pytest.mark.parametrize(
    "body", [b"\x06" + b"\0\0\0\1" + b"\xff\xff\xff\xff", b"\x09" + bytes(8) + b"\xff\xff\xff\xff"]
)
def test_a_count_that_cannot_be_is_refused_before_anything_is_built(body: bytes) -> None:
    with pytest.raises(PeerFault, match=r"4294967295 .* cannot be in 0 bytes"):
        V3.decode(body)


@pytest.mark.parametrize(
    ("flags", "reason"), [(32, "reserved bits"), (0x8000, "reserved bits"), (2 | 16, "EVENT_TIME")]
)
def test_draft_flags(flags: int, reason: str) -> None:
    body = b"M" + bytes(8) + flags.to_bytes(2, "little") + bytes(16)
    with pytest.raises(PeerFault, match=reason):
        DRAFT.decode(body)


def test_a_draft_message_we_cannot_mean() -> None:
    wrong = [
        Message(None, 1, b""),
        Message(1, None, b""),
        Message(1, 1, b"", key=b"k"),
        Message(1, 1, b"x", flags=Flag.BOUNDARY),
        Message(1, 1, None, event_time=5),
        Message(1, 1, b"", flags=64),
        Message(1, 1, b"", event_time=-1),
        Message(2**64, 1, b""),
    ]
    for message in wrong:
        with pytest.raises(LocalFault):
            DRAFT.encode(message)


def test_a_v3_message_we_cannot_mean() -> None:
    wrong = [
        Message(None, 1, b""),
        Message(1, None, b""),
        Message(1, 1, None),
        Message(1, 1, b"", flags=1),
        Message(1, 1, b"", key=bytes(65536)),
    ]
    for message in wrong:
        with pytest.raises(LocalFault):
            V3.encode(message)


def test_frames_of_the_other_dialect_cannot_be_encoded() -> None:
    with pytest.raises(LocalFault, match="Restart does not exist in draft"):
        DRAFT.encode(frames.Restart())
    with pytest.raises(LocalFault, match="Nack does not exist in v3"):
        V3.encode(frames.Nack(1, 1, 1))


def test_v2_flags_match_the_published_table() -> None:
    assert [flags for flags in range(256) if flags_are_legal(flags)] == LEGAL_V2


def test_v2_messages_round_trip_for_every_legal_set() -> None:
    for flags in LEGAL_V2:
        message = Message(
            7,
            None if flags & Flag.EPHEMERAL else 9,
            None if flags & Flag.BOUNDARY else b"data",
            event_time=-1 if flags & Flag.EVENT_TIME else None,
            key=b"k" if flags & Flag.KEY else None,
            flags=flags,
        )
        assert V2_2019_03.decode(V2_2019_03.encode(message)[4:]) == message


def test_v2_faults() -> None:
    with pytest.raises(PeerFault, match="Bad MessageMsg flags"):
        V2_2018_12.decode(b"\x05" + bytes(8) + b"\x03" + bytes(8))
    for message in (Message(None, 1, b""), Message(1, 1, b"", flags=3), Message(1, 1, b"", flags=1)):
        with pytest.raises(LocalFault):
            V2_2018_12.encode(message)
    with pytest.raises(LocalFault, match="no address"):
        V2_2018_12.encode(frames.Restart(b"h:1"))
    with pytest.raises(LocalFault, match="names each"):
        V2_2018_12.encode(frames.Ok(1, ((1, 2),)))
    assert V2_2019_03.decode(V2_2019_03.encode(frames.Restart(b"h:1"))[4:]) == frames.Restart(b"h:1")


def test_two_phase_faults() -> None:
    with pytest.raises(PeerFault, match="unknown tag 200"):
        two_phase.decode(b"\xc8")
    with pytest.raises(PeerFault, match="tag needs 1 bytes"):
        two_phase.decode(b"")


def test_detection() -> None:
    assert detect(b"\x3d\0\0\0H") is DRAFT
    assert detect(b"\0\0\0\x3d\0") is V3
    assert detect(b"\0\0\0\x05\x01") is V3
    assert detect(b"\x05\0\0\0O") is DRAFT
    for garbage in (b"GET /", b"\x16\x03\x01\x02\x00"[:4] + b"\x0a", b"\0\0\0\0\xff"):
        assert detect(garbage) is None
    with pytest.raises(LocalFault):
        detect(b"GET")


def test_a_long_reason_is_cut_to_its_field() -> None:
    for dialect in (DRAFT, V3):
        error = dialect.decode(error_bytes(dialect, "x" * 70_000)[4:])
        assert isinstance(error, frames.Error)
        assert len(error.reason) == 65_535


@pytest.mark.parametrize("dialect", [V2_2018_12, V2_2019_03], ids=lambda d: d.name)
def test_a_v2_connector_ends_at_the_hubs_ok(dialect: Dialect) -> None:
    """Before its messages could be taken for v3's, and stored cut short."""
    with pytest.raises(PeerFault):
        dialect.decode(V3.encode(frames.Ok(500))[4:])
