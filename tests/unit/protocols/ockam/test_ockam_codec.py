"""The stream protocol's payloads, and the loops that handle them by the thousand."""

from __future__ import annotations

from typing import Any

import bare as oracle
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support import ockam_application

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.ockam import codec, routing
from headrace.protocols.ockam.bare import UINT_MAX, encode_uint
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import Framing, LegacyFraming, Message, constant_head, encode_wire, local

UINTS = st.integers(0, UINT_MAX) | st.integers(0, 300)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CREATES = st.builds(codec.CreateRequest, st.just(codec.CREATE), st.none() | NAMES) | st.builds(
    codec.CreateRequest, st.sampled_from([codec.CREATE_PARTITIONED, codec.CREATE_PARTITIONS]), st.none() | NAMES, UINTS
)
PLAIN_INDEX = st.just(codec.INDEX)
PARTITIONED_INDEX = st.sampled_from([codec.INDEX, codec.INDEX_PARTITIONED])
GETS = st.builds(codec.GetIndex, PLAIN_INDEX, NAMES, NAMES) | st.builds(
    codec.GetIndex, PARTITIONED_INDEX, NAMES, NAMES, UINTS
)
SAVES = st.builds(codec.SaveIndex, PLAIN_INDEX, NAMES, NAMES, UINTS) | st.builds(
    codec.SaveIndex, PARTITIONED_INDEX, NAMES, NAMES, UINTS, UINTS
)
PUSHES = st.builds(codec.PushRequest, UINTS, st.binary(max_size=200))
PULLS = st.builds(codec.PullRequest, UINTS, UINTS, UINTS)
RECORDS = st.lists(st.builds(codec.StreamMessage, UINTS, st.binary(max_size=30)), max_size=5)
RESPONSES = st.one_of(
    st.builds(codec.Init, st.just(codec.CREATE), NAMES),
    st.builds(codec.Init, st.sampled_from([codec.CREATE_PARTITIONED, codec.CREATE_PARTITIONS]), NAMES, UINTS),
    st.builds(codec.PushConfirm, UINTS, st.booleans(), UINTS),
    st.builds(codec.PullResponse, UINTS, RECORDS),
    st.builds(codec.Index, PLAIN_INDEX, NAMES, NAMES, st.none() | UINTS),
    st.builds(codec.Index, PARTITIONED_INDEX, NAMES, NAMES, st.none() | UINTS, UINTS),
    st.builds(codec.Error, NAMES),
)


def struct(**values: Any) -> bytes:
    """Fields in order, by the independent encoder: int → uint, str → string, bytes → data."""
    kinds = {int: oracle.UInt, str: oracle.Str, bytes: oracle.Data}
    return b"".join(bytes(kinds[type(value)](value).pack()) for value in values.values() if value is not None)


def present(value: int | str | None) -> bytes:
    return b"\x00" if value is None else b"\x01" + struct(value=value)


def oracle_request(request: codec.Request) -> tuple[str, bytes]:
    match request:
        case codec.CreateRequest(protocol, name, partitions):
            return protocol, present(name) + struct(n=partitions)
        case codec.PushRequest(request_id, data):
            return "stream_push", struct(request_id=request_id, data=data)
        case codec.PullRequest(request_id, index, limit):
            return "stream_pull", struct(request_id=request_id, index=index, limit=limit)
        case codec.GetIndex(protocol, client, name, partition):
            return protocol, struct(tag=0, client=client, name=name, partition=partition)
        case codec.SaveIndex(protocol, client, name, index, partition):
            return protocol, struct(tag=1, client=client, name=name, partition=partition, index=index)


def oracle_response(response: codec.Response) -> tuple[str, bytes]:
    match response:
        case codec.Init(protocol, name, partition):
            return protocol, struct(name=name, partition=partition)
        case codec.PushConfirm(request_id, ok, index):
            return "stream_push", struct(request_id=request_id, status=0 if ok else 1, index=index)
        case codec.PullResponse(request_id, messages):
            records = b"".join(struct(index=one.index, data=one.data) for one in messages)
            return "stream_pull", struct(request_id=request_id, count=len(messages)) + records
        case codec.Index(protocol, client, name, index, partition):
            return protocol, struct(client=client, name=name, partition=partition) + present(index)
        case codec.Error(reason):
            return "error", struct(reason=reason)


@given(st.one_of(CREATES, GETS, SAVES, PUSHES, PULLS))
def test_requests_like_the_oracle(request: codec.Request) -> None:
    protocol, body = oracle_request(request)
    raw = codec.encode_request(request)
    assert raw == struct(protocol=protocol, body=body)
    assert codec.decode_request(raw) == request


@given(RESPONSES)
def test_responses_like_the_oracle(response: codec.Response) -> None:
    protocol, body = oracle_response(response)
    raw = codec.encode_response(response)
    assert raw == struct(protocol=protocol, body=body)
    partitioned = isinstance(response, codec.Index) and response.partition is not None
    assert codec.decode_response(raw, partitioned=partitioned) == response


@given(st.one_of(CREATES, GETS, SAVES, PUSHES, PULLS), st.data())
def test_a_cut_or_padded_request_is_refused(request: codec.Request, data: st.DataObject) -> None:
    raw = codec.encode_request(request)
    cut = data.draw(st.integers(0, len(raw) - 1))
    with pytest.raises(RemoteProtocolError):
        codec.decode_request(raw[:cut])
    with pytest.raises(RemoteProtocolError):
        codec.decode_request(raw + b"\x00")


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("stream_destroy", b""),
        ("error", b"\x01x"),
        (codec.CREATE, b"\x02\x01a"),
        (codec.CREATE, b"\x01\x02\xff\xfe"),
        (codec.CREATE, b"\x01\x02s1\x03"),
        (codec.CREATE_PARTITIONED, b"\x01\x02s1"),
        (codec.PUSH, b"\x01\x05abc"),
        (codec.PULL, b"\x01\x02"),
        (codec.INDEX, b"\x02\x01c\x01s"),
        (codec.INDEX, b"\x01\x01c\x01s"),
        (codec.INDEX, b"\x00\x01c\x01s\x01\x02"),
        (codec.INDEX, b"\x01\x01c\x01s\x01\x02\x03"),
        (codec.INDEX_PARTITIONED, b"\x00\x01c\x01s"),
        (codec.INDEX_PARTITIONED, b"\x01\x01c\x01s\x05"),
    ],
)
def test_bad_requests(protocol: str, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode_request(codec.encode_payload(protocol, body))


@pytest.mark.parametrize(
    ("protocol", "body"),
    [
        ("stream_destroy", b""),
        (codec.PUSH, b"\x01\x02\x00"),
        (codec.PULL, b"\x01\x02\x00\x00"),
        (codec.PULL, b"\x01\xff\xff\xff\xff\x0f"),
        (codec.CREATE, b"\x01a\x00"),
    ],
)
def test_bad_responses(protocol: str, body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode_response(codec.encode_payload(protocol, body))


# --- pushes by the thousand ---

ONWARD, BACK = (local("ST_S_0123456789abcdef"),), (local("client"),)
HEAD = constant_head(ONWARD, BACK)


def push_frame(request_id: int, data: bytes, back: tuple[Any, ...] = BACK) -> bytes:
    payload = codec.encode_request(codec.PushRequest(request_id, data))
    return LegacyFraming().encode(Message(ONWARD, back, payload))


def scan(buffer: bytes, position: int = 0, largest: int = 63_900) -> tuple[int, list[bytes], list[bytes]]:
    ids: list[bytes] = []
    records: list[bytes] = []
    end = codec.scan_pushes(buffer, position, HEAD, largest, ids, records)
    return end, ids, records


SIZES = st.sampled_from(
    [0, 1, 100, 109, 110, 111, 112, 126, 127, 128, 129, 16_360, 16_370, 16_383, 16_384, 16_385, 63_900]
)


@given(
    st.lists(
        st.tuples(st.integers(0, (1 << 63) - 1) | st.integers(0, 300), st.binary(max_size=40) | SIZES.map(bytes)),
        max_size=6,
    )
)
def test_scan_takes_every_push(pushes: list[tuple[int, bytes]]) -> None:
    buffer = b"".join(push_frame(request_id, data) for request_id, data in pushes)
    end, ids, records = scan(buffer)
    assert end == len(buffer)
    assert ids == [encode_uint(request_id) for request_id, _ in pushes]
    assert records == [data for _, data in pushes]


@pytest.mark.parametrize("size", [*range(90, 160), *range(16_330, 16_390)])
def test_scan_at_every_length_boundary(size: int) -> None:
    frame = push_frame(5, bytes(size))
    assert scan(frame) == (len(frame), [b"\x05"], [bytes(size)])


def check_against_the_general_decoder(buffer: bytes) -> int:
    """What the scan takes, the general decoder must read the same way. Returns how many that were."""
    end, ids, records = scan(buffer)
    position = 0
    for taken_id, record in zip(ids, records, strict=True):
        size = int.from_bytes(buffer[position : position + 2], "big")
        message = LegacyFraming().decode(buffer[position + 2 : position + 2 + size])
        assert (message.onward, message.returning) == (ONWARD, BACK)
        request = codec.decode_request(message.payload)
        assert isinstance(request, codec.PushRequest)
        assert request.data == record
        assert encode_uint(request.request_id) == taken_id
        position += 2 + size
    assert position == end
    return len(ids)


@given(st.integers(0, 200), st.binary(max_size=150), st.data())
@example(300, b"", None)
def test_scan_agrees_with_the_general_decoder_on_damaged_frames(
    request_id: int, data: bytes, draw: st.DataObject | None
) -> None:
    frame = bytearray(push_frame(request_id, data))
    if draw is not None:
        at = draw.draw(st.integers(0, len(frame) - 1))
        frame[at] = draw.draw(st.integers(0, 255))
    check_against_the_general_decoder(bytes(frame) + push_frame(1, b"next"))


@given(st.sampled_from([1, 100, 126, 300, 16_380]), st.integers(0, 40), st.integers(0, 90), st.integers(0, 255))
def test_scan_agrees_on_a_damaged_frame_among_many_alike(first_id: int, which: int, at: int, value: int) -> None:
    frames = [bytearray(push_frame(first_id + number, b"record %02d" % number)) for number in range(41)]
    at %= len(frames[which])
    harmless = frames[which][at] == value
    frames[which][at] = value
    taken = check_against_the_general_decoder(b"".join(frames))
    assert taken >= which
    assert not harmless or taken == 41


def test_scan_takes_thousands_alike_and_every_mixture_of_sizes() -> None:
    for sizes in (
        [100] * 3_000,
        [100, 101] * 500,
        [7] * 15 + [8] * 17 + [9],
        [100, 100, 5] * 100,
        list(range(200)) * 3,
    ):
        pushes = [(number, bytes([number % 251]) * size) for number, size in enumerate(sizes)]
        buffer = b"".join(push_frame(request_id, data) for request_id, data in pushes)
        end, ids, records = scan(buffer + b"\x00\x00")
        assert end == len(buffer)
        assert ids == [encode_uint(request_id) for request_id, _ in pushes]
        assert records == [data for _, data in pushes]


def test_scan_stops_where_the_general_decoder_must_look() -> None:
    good = push_frame(1, b"good")
    other_route = push_frame(2, b"x", (local("elsewhere"),))
    pull = LegacyFraming().encode(Message(ONWARD, BACK, codec.encode_request(codec.PullRequest(1, 0, 9))))
    huge_id = push_frame(UINT_MAX, b"x")
    for stop in (other_route, pull, huge_id, b"\x00\x00", b"\x00", good[:-1], b""):
        assert scan(good + stop) == (len(good), [b"\x01"], [b"good"])
    assert scan(good + good, len(good))[0] == 2 * len(good)
    assert scan(push_frame(1, bytes(11)), largest=10) == (0, [], [])
    assert scan(push_frame(1, bytes(10)), largest=10)[2] == [bytes(10)]


@pytest.mark.parametrize(
    "body",
    [
        b"\x80\x00\x01x",
        b"\xff" * 5,
        b"\x05",
        b"\x05\x02x",
        b"\x05\x01xx",
        b"\x05\x81\x00x",
        b"",
    ],
    ids=["overlong id", "endless id", "no data", "short data", "long data", "overlong length", "nothing"],
)
def test_scan_leaves_malformed_pushes(body: bytes) -> None:
    wire = encode_wire(Message(ONWARD, BACK, codec.encode_payload(codec.PUSH, body)))
    frame = len(wire).to_bytes(2, "big") + wire
    assert scan(frame) == (0, [], [])
    assert scan(frame + push_frame(1, b"stream_push")) == (0, [], [])


@pytest.mark.parametrize("framing", [LegacyFraming(), CborFraming()], ids=lambda framing: framing.name)
@given(st.lists(st.integers(0, UINT_MAX), min_size=1, max_size=8), st.integers(0, 1 << 40) | st.none())
@example([1, 2, 3], 126)
@example([1, 2, 3], 16_383)
@example(list(range(100, 160)), 100)
@example(list(range(100, 160)), None)
@example([5] * 40, (1 << 63) - 41)
def test_confirms_like_one_by_one(framing: Framing, ids: list[int], first: int | None) -> None:
    expected = b"".join(
        framing.encode(
            Message(
                BACK,
                ONWARD,
                codec.encode_response(
                    codec.PushConfirm(request_id, first is not None, 0 if first is None else first + at)
                ),
            )
        )
        for at, request_id in enumerate(ids)
    )
    assert codec.encode_confirms(framing, BACK, ONWARD, [encode_uint(one) for one in ids], first) == expected


@given(st.integers(0, UINT_MAX), st.integers(0, 1 << 40), st.lists(st.binary(max_size=50), max_size=20))
@example(7, 120, [b"x"] * 20)
def test_pull_replies_like_one_by_one(request_id: int, first: int, records: list[bytes]) -> None:
    indexes = range(first, first + len(records))
    messages = [codec.StreamMessage(index, data) for index, data in zip(indexes, records, strict=True)]
    payload, count = codec.encode_pull(request_id, indexes, records, 1 << 20)
    assert count == len(records)
    assert payload == codec.encode_response(codec.PullResponse(request_id, messages))


def test_pull_replies_are_cut_to_what_fits() -> None:
    records = [bytes(100)] * 10
    one = 1 + 1 + 100
    for fits in range(11):
        assert codec.encode_pull(1, range(10), records, fits * one)[1] == fits
        assert codec.encode_pull(1, range(10), records, fits * one + one - 1)[1] == fits
    payload, _ = codec.encode_pull(1, range(10), records, 3 * one)
    assert len(codec.decode_response(payload).messages) == 3


def test_other_payloads_of_published_clients_are_not_mistaken() -> None:
    with pytest.raises(RemoteProtocolError, match="not known"):
        ockam_application.decode_client_request(codec.encode_request(codec.PushRequest(1, b"")))
    with pytest.raises(RemoteProtocolError, match="left over"):
        ockam_application.decode_client_request(codec.encode_payload("binary", b"\x00\x00"))
    for host in ("10.1.2.3", "2001:db8::1"):
        assert ockam_application.decode_old_tcp_value(ockam_application.encode_old_tcp_value(host, 4000)) == (
            host,
            4000,
        )
    with pytest.raises(RemoteProtocolError, match="old form"):
        ockam_application.decode_old_tcp_value(b"localhost:4000")
    with pytest.raises(RemoteProtocolError, match="left over"):
        routing.decode_bidirectional_record(b"\x01a\x04\x01\x00\x00\x00\x00")
