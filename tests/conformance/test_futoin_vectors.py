"""Captured bytes of published FutoIn clients and servers, against the codec and against a running hub."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from websockets.asyncio.client import connect
from websockets.frames import Frame
from websockets.streams import StreamReader

import headrace.serving.http
from headrace.config import Config, Futoin, SecuritySection, User
from headrace.protocols.futoin import codec, mac, server
from headrace.protocols.futoin.codec import Coding
from headrace.testing import memory_hub

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "futoin.json").read_text())
CODINGS = {"JSON": Coding.JSON, "MPCK": Coding.MESSAGEPACK, "CBOR": Coding.CBOR}
ALGORITHMS = {**mac.HMAC_ALGORITHMS, **mac.SMAC_ALGORITHMS}
MAC_KEY = b"MyLongTestSecretKey-0123456789"
IDS_DEPEND_ON_THE_LOG = "r is the next event id"

CONFIG = Config(
    futoin=Futoin(path="/ftn", insecure=True, mac_keys={"macuser": base64.b64encode(MAC_KEY).decode()}),
    security=SecuritySection(
        users={
            "evtuser": User(secret="evtpass", roles=["writer"]),
            "other": User(secret="otherpass", roles=["writer"]),
            "macuser": User(secret="unused", roles=["writer"]),
        },
        anonymous="none",
    ),
)


def of_kind(*kinds: str) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in VECTORS if vector["kind"] in kinds]


def raw(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode()


class Served:
    """A hub, and a stream of its own for each test: `/ftn/` of the captures becomes `/ftn/<stream>/`."""

    def __init__(self, address: str, stream: str) -> None:
        self.http = httpx.AsyncClient(base_url=f"http://{address}")
        self.prefix = f"/ftn/{stream}"
        self.websocket_url = f"ws://{address}{self.prefix}"

    async def post(self, body: bytes, path: str = "/ftn/", content_type: str = "") -> httpx.Response:
        headers = {"content-type": content_type} if content_type else {}
        return await self.http.post(self.own(path), content=body, headers=headers)

    def own(self, text: str) -> str:
        return text.replace("/ftn", self.prefix, 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def address() -> AsyncIterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        # The captures come from users with a secret; whoever gives none is refused although this is loopback.
        patch.setattr(server.Application, "_channel", _strict_channel)
        async with memory_hub(CONFIG) as hub:
            futoin = await server.start(hub)
            assert futoin is not None
            listener = await headrace.serving.http.serve(hub, "127.0.0.1:0")
            try:
                yield listener.address
            finally:
                await listener.close()
                await futoin.close()


@pytest_asyncio.fixture(loop_scope="module")
async def served(address: str, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    endpoint = Served(address, f"stream{abs(hash(request.node.name))}")
    try:
        yield endpoint
    finally:
        await endpoint.http.aclose()


def _strict_channel(self: server.Application, scope: Any, bidirectional: bool, foreign_page: bool) -> server.Channel:
    return server.Channel(secure=True, bidirectional=bidirectional, open_to_all=False)


def test_every_kind_of_vector_is_used() -> None:
    assert {vector["kind"] for vector in VECTORS} == {
        "http-request", "http-response", "http-body", "http-path-form", "ws-upgrade-request", "ws-upgrade-response",
        "ws-frame", "ws-payload", "mac",
    }  # fmt: skip


@pytest.mark.parametrize("vector", of_kind("mac"))
def test_signatures(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    message = json.loads(vector["text"])
    assert mac.base(message).decode() == fields["base"]
    if "signature" in fields:
        algorithm = ALGORITHMS[fields["algorithm"]]
        key = bytes.fromhex(fields["key_hex"])
        assert mac.sign(key, algorithm, message) == fields["signature"]
        assert mac.verify(key, algorithm, message, fields["signature"].rstrip("="))
        assert not mac.verify(key + b"x", algorithm, message, fields["signature"])


def messages() -> list[Any]:
    found = []
    for vector in VECTORS:
        fields = vector["fields"]
        if "coding" not in fields or "message" not in fields:
            continue
        if vector["kind"] in ("http-request", "http-response"):
            body = raw(vector).partition(b"\r\n\r\n")[2]
        elif vector["kind"] == "ws-frame":
            body = unframed(raw(vector)).data
        else:
            body = raw(vector)
        found.append(pytest.param(body, fields, vector["direction"], id=vector["name"]))
    return found


def unframed(data: bytes) -> Frame:
    reader = StreamReader()
    reader.feed_data(data)
    parsing = Frame.parse(reader.read_exact, mask=bool(data[1] & 0x80))
    try:
        while True:
            next(parsing)
    except StopIteration as done:
        frame: Frame = done.value
        return frame


@pytest.mark.parametrize(("body", "fields", "direction"), messages())
def test_messages_are_read_and_written_alike(body: bytes, fields: dict[str, Any], direction: str) -> None:
    coding = codec.coding_of(body)
    assert coding is CODINGS[fields["coding"]]
    assert codec.decode_object(body, coding) == fields["message"]
    assert codec.encode_object(fields["message"], coding) == body
    decoded = codec.decode(body, coding)
    is_call = "f" in fields["message"] and not fields["message"]["f"].startswith("futoin.evt.receiver")
    assert isinstance(decoded, codec.Deviation) != is_call


@pytest.mark.parametrize("vector", of_kind("ws-frame"))
def test_frames_are_binary(vector: dict[str, Any]) -> None:
    assert unframed(raw(vector)).opcode == 2


def probes() -> list[Any]:
    return [vector for vector in of_kind("http-body") if "reply" in vector.values[0]["fields"]]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("vector", probes())
async def test_http_bodies_get_the_captured_reply(served: Served, vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    if vector["name"] == "probe/mp-poll-live":
        await served.post(
            b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"PT_B","data":"two"},"sec":"evtuser:evtpass"}'
        )
    response = await served.post(raw(vector), fields.get("path") or "/ftn/", fields.get("request_content_type", ""))
    assert response.status_code == fields["http_status"]
    assert response.headers["content-type"] == fields["reply_content_type"]
    coding = codec.coding_of(response.content)
    reply = codec.decode_object(response.content, coding)
    assert_same_reply(reply, fields["reply"])
    if "reply_hex" in fields and reply == fields["reply"]:
        assert response.content.hex() == fields["reply_hex"]


def assert_same_reply(reply: dict[str, Any], captured: dict[str, Any]) -> None:
    assert set(reply) == set(captured)
    if isinstance(captured.get("r"), str):
        assert reply["r"].isdigit()
    elif isinstance(captured.get("r"), list):
        assert [(event["type"], event["data"]) for event in reply["r"]] == [
            (event["type"], event["data"]) for event in captured["r"]
        ]
    elif "e" in captured:
        assert reply["e"] == captured["e"]
    else:
        assert reply == captured


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("vector", of_kind("http-path-form"))
async def test_path_form_gets_the_captured_reply(served: Served, vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    headers = {}
    if fields["authorization"]:
        scheme, _, credentials = fields["authorization"].partition(" ")
        headers["authorization"] = f"{scheme} {base64.b64encode(credentials.encode()).decode()}"
    response = await served.http.request(fields["method"], served.own(fields["path"]), headers=headers)
    assert response.status_code == fields["http_status"]
    assert response.headers["content-type"] == fields["reply_content_type"]
    assert_same_reply(response.json(), fields["reply"])


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("vector", of_kind("http-request"))
async def test_captured_requests_are_served(served: Served, vector: dict[str, Any]) -> None:
    """Byte for byte as the published client sent them, but for the path."""
    host, port = served.http.base_url.host, served.http.base_url.port
    reader, writer = await asyncio.open_connection(host, port)
    head, _, body = raw(vector).partition(b"\r\n\r\n")
    writer.write(served.own(head.decode()).encode() + b"\r\n\r\n" + body)
    status = await reader.readline()
    headers = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    assert status == b"HTTP/1.1 200 OK\r\n"
    coding = CODINGS[vector["fields"]["coding"]]
    assert b"content-type: application/futoin+" + coding.value.encode() + b"\r\n" in headers


@pytest.mark.asyncio(loop_scope="module")
async def test_captured_frames_are_answered(served: Served) -> None:
    """The client's side of the captured push session, with our replies compared to the captured ones."""
    session = [v for v in VECTORS if v["name"].startswith("push-server/ws/") and v["direction"] == "client->server"]
    async with connect(served.websocket_url, compression=None) as websocket:
        await websocket.send(unframed(raw(session[0])).data)  # registerConsumer
        assert await websocket.recv() == b'{"r":true,"rid":"C1"}'
        await served.post(
            b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"AB_C","data":{"x":1}},"sec":"evtuser:evtpass"}'
        )
        await websocket.send(unframed(raw(session[1])).data)  # readyToReceive
        assert await websocket.recv() == b'{"r":true,"rid":"C2"}'
        pushed = await websocket.recv()
        assert isinstance(pushed, bytes)
        captured = next(v for v in VECTORS if v["name"] == "push-server/ws/onEvents-request-1")["fields"]["message"]
        message = json.loads(pushed)
        assert list(message) == list(captured)
        assert message["f"] == captured["f"]
        assert message["rid"] == "S1"
        assert message["p"]["seq"] == 0
        first, first_captured = message["p"]["events"][0], captured["p"]["events"][0]
        assert list(first) == list(first_captured)
        assert (first["id"], first["type"], first["data"]) == ("1", "AB_C", {"x": 1})
        await websocket.send(unframed(raw(session[2])).data)  # the consumer's reply to S1


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("vector", of_kind("ws-upgrade-request"))
async def test_captured_upgrades_are_accepted(served: Served, vector: dict[str, Any]) -> None:
    reader, writer = await asyncio.open_connection(served.http.base_url.host, served.http.base_url.port)
    writer.write(served.own(vector["text"]).encode())
    headers = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    number = vector["name"].rpartition("-")[2]
    answer = vector["name"].replace(f"upgrade-request-{number}", f"upgrade-response-{number}")
    captured = next(v for v in VECTORS if v["name"] == answer)["fields"]["headers"]
    assert headers.startswith(b"HTTP/1.1 101 ")
    assert captured["sec-websocket-accept"].encode() in headers
