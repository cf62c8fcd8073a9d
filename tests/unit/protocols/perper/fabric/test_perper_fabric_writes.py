"""What the listeners put on the wire, counted: how many writes and frames, and in which order."""

from __future__ import annotations

import asyncio

import pytest
from support.perper_peer import key, new_stream, put_execution, served
from support.until import until

from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.ignite.session import Session

DATA_FRAME = 0


def data_frames(data: bytes) -> int:
    """How many DATA frames stand in bytes of HTTP/2 that begin and end with a frame."""
    count = position = 0
    while position < len(data):
        count += data[position + 3] == DATA_FRAME
        position += http2.FRAME_HEADER_BYTES + int.from_bytes(data[position : position + 3], "big")
    return count


async def test_a_backlog_of_keys_goes_out_in_few_large_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    send = http2.GrpcConnection.data_to_send

    def counted(connection: http2.GrpcConnection) -> bytes:
        data = send(connection)
        if data and not connection._client:
            writes.append(data)
        return data

    backlog = 10_000
    async with served() as pair:
        client, rpc = await pair.client(), await pair.rpc()
        await new_stream(client, "s")
        await asyncio.gather(*[client.request(1002, key(number), b"\x08\x01", cache="s") for number in range(backlog)])
        monkeypatch.setattr(http2.GrpcConnection, "data_to_send", counted)
        call = rpc.start("/perper.Fabric/StreamItems", {"stream": "s", "startKey": 0, "stride": 1})
        for number in range(backlog):
            message = await asyncio.wait_for(call.next(), 60)
            assert message is not None
            assert message.key == number
        call.cancel()
    assert len(writes) <= backlog / 1000, f"{len(writes)} writes for {backlog} keys"
    frames = sum(map(data_frames, writes))
    assert frames <= backlog / 500, f"{frames} frames for {backlog} keys"


async def test_who_changes_an_execution_has_the_answer_before_others_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    answer = Session.take_answers

    def noted(session: Session) -> bytes:
        data = answer(session)
        if data:
            order.append("answer")
        return data

    async with served() as pair:
        client = await pair.client()
        await put_execution(client, "warm")
        monkeypatch.setattr(Session, "take_answers", noted)
        pair.fabric.executions.watch("a", lambda name, before, now: order.append("told"))
        await put_execution(client, "x")
        assert pair.fabric.executions.get("x") is not None
        await put_execution(client, "x", finished=True)
        await client.request(1016, key("x"), cache="executions")
        await until(lambda: len(order) == 6)
    assert order == ["answer", "told"] * 3
