"""Fuzz target of the Ockam parsers: any bytes, on both framings and as every kind of payload.

Run for long by hand with any fuzzer that calls `fuzz(data)`; `test_fuzz_ockam.py` runs it for seconds.
"""

from __future__ import annotations

from support import ockam_application

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.ockam import codec
from headrace.protocols.ockam.cbor import CborFraming
from headrace.protocols.ockam.routing import Framing, LegacyFraming
from headrace.protocols.ockam.session import Create, Get, Pull, Save, Session, State, Worker

WORKER = Worker(b"ST_S_0011223344556677", "orders", 0)
RESOLVE = {WORKER.address: WORKER}.get


def fuzz(data: bytes) -> None:
    """Nothing but a `RemoteProtocolError` may escape, and nothing that is accepted may change when written again."""
    for framing in (LegacyFraming(), CborFraming()):
        whole = run_session(framing, [data])
        if whole is not None:
            assert whole == run_session(framing, [data[:7], data[7:20], data[20:]])
        round_trip_message(framing, data)
    round_trip_payload(data)


def run_session(framing: Framing, chunks: list[bytes]) -> list[list[object]] | None:
    """What a session makes of the bytes: records, other requests, replies and drops, each in order.

    None when the connection ended: then it depends on the cut how much was looked at before."""
    session = Session(framing, RESOLVE)
    if framing.greeting:
        session.receive(framing.greeting)
    records: list[object] = []
    requests: list[object] = []
    replies: list[object] = []
    dropped: list[object] = []
    for chunk in chunks:
        turn = session.receive(chunk)
        for batch in turn.pushes.values():
            assert batch.count() >= len(batch.records)
            session.confirmed(batch, 0)
            session.confirmed(batch, None)
            records += batch.records
        for request in turn.requests:
            match request:
                case Create():
                    session.created(request, "name", [WORKER])
                case Pull():
                    session.pulled(request, [1, 2], [b"a", b"b"])
                case Get():
                    session.index(request, 7)
                case Save():
                    pass
        requests += turn.requests
        replies += turn.replies
        dropped += turn.dropped
        assert (turn.ended is not None) == (session.state is State.CLOSED) or not chunk
        if session.state is State.CLOSED:
            return None
    return [records, requests, replies, dropped]


def round_trip_message(framing: Framing, data: bytes) -> None:
    try:
        message = framing.decode(data)
    except RemoteProtocolError:
        return
    again = framing.encode(message)[framing.header_bytes :]
    assert framing.decode(again) == message


def round_trip_payload(data: bytes) -> None:
    try:
        request = codec.decode_request(data)
    except RemoteProtocolError:
        pass
    else:
        assert codec.encode_request(request) == data
    for partitioned in (False, True):
        try:
            response = codec.decode_response(data, partitioned=partitioned)
        except RemoteProtocolError:
            continue
        assert codec.encode_response(response) == data
    try:
        extra = ockam_application.decode_client_request(data)
    except RemoteProtocolError:
        return
    assert ockam_application.encode_client_request(extra) == data
