"""The state machine of a connection."""

from __future__ import annotations

from uuid import UUID

import pytest

from headrace.protocols.errors import LocalProtocolError
from headrace.protocols.perper.errors import FrameError
from headrace.protocols.perper.ignite import codec
from headrace.protocols.perper.ignite.session import Session, State

HELLO = codec.encode_handshake(codec.Handshake((1, 7, 0), 2, b"\x04"))
GET = codec.encode_request(codec.Request(1000, 1, (b"\x08\x01",), 5))


def session() -> Session:
    return Session(UUID(int=1), 1000)


def ready() -> Session:
    made = session()
    handshake = made.receive_handshake(HELLO)
    assert handshake is not None
    made.welcome(handshake)
    return made


def test_a_handshake_byte_by_byte_and_what_follows_it() -> None:
    made = session()
    for byte in HELLO[:-1]:
        assert made.receive_handshake(bytes((byte,))) is None
    handshake = made.receive_handshake(HELLO[-1:] + GET + GET[:5])
    assert handshake is not None
    assert made.state is State.LOGIN
    assert codec.decode_response  # the answer is the vectors' business
    made.welcome(handshake)
    assert len(made.receive(b"")) == 1
    assert len(made.receive(GET[5:])) == 1


def test_answers_leave_in_the_order_of_the_requests() -> None:
    made = ready()
    first, second, third = made.reserve(), made.reserve(), made.reserve()
    third.data = b"3"
    second.data = b"2"
    assert made.take_answers() == b""
    assert made.waiting == 3
    first.data = b"1"
    assert made.take_answers() == b"123"
    assert made.waiting == 0


@pytest.mark.parametrize(("version", "told"), [((2, 0, 0), (1, 7, 0)), ((1, 8, 0), (1, 7, 0)), ((1, 0, 0), (1, 2, 0))])
def test_other_versions_are_told_the_nearest(version: codec.Version, told: codec.Version) -> None:
    made = session()
    handshake = made.receive_handshake(codec.frame(b"\x01" + codec._VERSION.pack(*version) + b"\x02"))
    assert handshake is not None
    assert made.state is State.CLOSED
    assert made.refuse_version(handshake)[5:11] == codec._VERSION.pack(*told)


def test_other_kinds_of_client_are_refused() -> None:
    made = session()
    handshake = made.receive_handshake(codec.encode_handshake(codec.Handshake((1, 6, 0), 1)))
    assert handshake is not None
    assert b"only thin clients" in made.refuse_version(handshake)


def test_broken_frames_close() -> None:
    made = session()
    with pytest.raises(FrameError):
        made.receive_handshake(b"\xff\xff\xff\xff")
    assert made.state is State.CLOSED
    made = ready()
    with pytest.raises(FrameError):
        made.receive(codec.frame(b"short"))
    assert made.state is State.CLOSED


def test_large_handshakes_are_refused_before_anybody_is_known() -> None:
    with pytest.raises(FrameError):
        Session(UUID(int=1), 1 << 30).receive_handshake(codec.I32.pack(codec.HANDSHAKE_BYTES_MAX + 1))


def test_misuse_is_our_own_error() -> None:
    made = session()
    with pytest.raises(LocalProtocolError):
        made.refuse_login("no")


def test_logins_are_refused() -> None:
    made = session()
    made.receive_handshake(HELLO)
    assert b"no!" in made.refuse_login("no!")
    assert made.state is State.CLOSED
