"""HTTP: paths, methods, sizes, codings, media types, channels."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest

from headrace.protocols.futoin import codec, server
from headrace.protocols.futoin.codec import Coding
from headrace.serving.listener import Listener
from headrace.testing import memory_hub

PING = b'{"f":"futoin.ping:1.0:ping","p":{"echo":7},"sec":"evtuser:evtpass"}'
ADD = b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"A","data":%b},"sec":"evtuser:evtpass"}'
INSECURE = {"insecure": True}
LOOPBACK = ("127.0.0.1", 9)


async def test_post_is_answered(asgi: Any) -> None:
    status, headers, body = await asgi.http(PING)
    assert (status, body) == (200, b'{"r":{"echo":7}}')
    assert headers == {"content-type": "application/futoin+json", "content-length": "16"}


@pytest.mark.parametrize("path", ["/events", "/events/", "/a%2Fb", "/%C3%A9/", "/events;partition=0"])
async def test_stream_paths(asgi: Any, path: str) -> None:
    assert (await asgi.http(PING, path))[2] == b'{"r":{"echo":7}}'


@pytest.mark.parametrize(
    "path", ["", "/", "/a/b", "/a/b/c", "/a/b/c/d/e/f", "/a;partition=x", "/a;partition=123456", "/%ff"]
)
async def test_paths_that_name_nothing(asgi: Any, path: str) -> None:
    assert (await asgi.http(PING, path))[0] == 404


async def test_percent_encoded_name_reaches_the_log(asgi: Any) -> None:
    await asgi.http(ADD % b"1", "/a%2Fb%20c")
    assert asgi.hub.bounds("a/b c").next == 1


async def test_partition_in_the_path(asgi: Any) -> None:
    await asgi.hub.create_stream("wide", partitions=2)
    assert json.loads((await asgi.http(ADD % b"1", "/wide;partition=1"))[2]) == {"r": "1"}
    assert asgi.hub.bounds("wide", 1).next == 1
    assert asgi.hub.bounds("wide", 0).next == 0
    assert json.loads((await asgi.http(ADD % b"1", "/wide;partition=2"))[2])["e"] == "UnknownInterface"


@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS", "DELETE"])
async def test_only_post_on_an_endpoint(asgi: Any, method: str) -> None:
    status, headers, _ = await asgi.http(PING, method=method)
    assert (status, headers["allow"]) == (405, "POST")


async def test_body_in_chunks(asgi: Any) -> None:
    assert (await asgi.http([PING[:5], b"", PING[5:]]))[2] == b'{"r":{"echo":7}}'


async def test_client_that_leaves_gets_nothing(asgi: Any) -> None:
    assert (await asgi.http([PING[:5]], leaves=True))[0] == 0
    assert (await asgi.http([]))[0] == 0


async def test_bodies_over_the_limit(asgi: Any) -> None:
    limit = asgi.hub.config.futoin.message_bytes_max
    exact = PING[:-1] + b" " * (limit - len(PING)) + b"}"
    assert (await asgi.http(exact))[0] == 200
    for request in (exact + b" ", [exact, b" "]):
        status, headers, body = await asgi.http(request)
        assert status == 413
        assert headers["connection"] == "close"
        assert json.loads(body)["e"] == "InvalidRequest"
        assert "futoin.message_bytes_max" in json.loads(body)["edesc"]


async def test_declared_length_over_the_limit_is_not_read(asgi: Any) -> None:
    status, _, _ = await asgi.http([], headers={"content-length": "100000000"})
    assert status == 413


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"5", b'"x"', b"{bad", b"\xff\xfe", b"MPCK", b"MPCK\xc1", b"CBOR", b"CBOR\xff", b"[" * 60_000,
     b'{"a":' * 10_000, b"MPCK" + b"\x91" * 60_000, b"CBOR" + b"\x81" * 60_000, b"MPCK\xdd\xff\xff\xff\xff",
     b"CBOR\x9b" + b"\xff" * 8],
    ids=lambda body: repr(body[:12]),
)  # fmt: skip
async def test_bodies_that_are_no_request(asgi: Any, body: bytes) -> None:
    status, headers, reply = await asgi.http(body)
    assert status == 200
    coding = codec.coding_of(reply)
    assert codec.decode_object(reply, coding)["e"] == "InvalidRequest"
    assert headers["content-type"] == f"application/futoin+{coding.value}"


@pytest.mark.parametrize("coding", list(Coding))
async def test_reply_in_the_coding_of_the_request(asgi: Any, coding: Coding) -> None:
    message = {"f": "futoin.evt.gen:1.0:ping", "p": {"echo": -5}, "sec": "evtuser:evtpass", "rid": "C9"}
    _, headers, body = await asgi.http(codec.encode_object(message, coding))
    assert codec.coding_of(body) is coding
    assert codec.decode_object(body, coding) == {"r": {"echo": -5}, "rid": "C9"}
    assert headers["content-type"] == f"application/futoin+{coding.value}"


@pytest.mark.parametrize("header", ["content-type", "accept"])
async def test_vendor_media_type_on_request(asgi: Any, header: str) -> None:
    _, headers, _ = await asgi.http(PING, headers={header: "application/vnd.futoin+json"})
    assert headers["content-type"] == "application/vnd.futoin+json"


async def test_duplicate_keys_last_one_counts(asgi: Any) -> None:
    body = b'{"f":"futoin.ping:1.0:ping","p":{"echo":1,"echo":2},"sec":"a:b","sec":"evtuser:evtpass"}'
    assert json.loads((await asgi.http(body))[2]) == {"r": {"echo": 2}}


@pytest.mark.parametrize("first", [b"x", b"futoin.anonping:1.0:ping", b"futoin.evt.gen:1.1:ping"])
async def test_two_functions_in_one_message_are_refused(asgi: Any, first: bytes) -> None:
    """What is called must be what was signed, whichever of two equal keys a decoder takes."""
    body = b'{"f":"%b","f":"futoin.ping:1.0:ping","p":{"echo":1},"sec":"evtuser:evtpass"}' % first
    assert json.loads((await asgi.http(body))[2])["e"] == "InvalidRequest"


@pytest.mark.parametrize(
    ("path", "reply"),
    [
        ("/events/futoin.ping/1.0/ping/evtuser%3Aevtpass?echo=5", {"r": {"echo": 5}}),
        ("/events/futoin.ping/1.0/ping/evtuser%3Aevtpass/?echo=5", {"r": {"echo": 5}}),
        ("/events/futoin.evt.gen/1.1/addEvent/evtuser%3Aevtpass?type=A&data=%7B%22a%22%3A1%7D", {"r": "1"}),
        ("/events/futoin.evt.gen/1.1/addEvent/evtuser%3Aevtpass?type=A&data=plain+text", {"r": "1"}),
        ("/events/futoin.evt.poll/1.1/pollEvents/evtuser%3Aevtpass?component=LIVE&want=%5B%22A%22%5D", {"r": []}),
        ("/events/futoin.ping/1.0/ping/evtuser%3Awrong?echo=5", {"e": "SecurityError"}),
        ("/events/futoin.ping/1.0/ping?echo=5", {"e": "SecurityError"}),
        ("/events/futoin.ping/1.0/ping/evtuser%3Aevtpass?echo=x", {"e": "InvalidRequest"}),
    ],
)
async def test_path_form(asgi: Any, path: str, reply: dict[str, Any]) -> None:
    status, _, body = await asgi.http(path=path, method="GET")
    found = json.loads(body)
    found.pop("edesc", None)
    assert (status, found) == (200, reply)


@pytest.mark.parametrize(
    ("header", "good"),
    [
        ("Basic " + base64.b64encode(b"evtuser:evtpass").decode(), True),
        ("Basic " + base64.b64encode(b"evtuser:no").decode(), False),
        ("Basic ***", False),
        ("Bearer token", False),
    ],
)
async def test_path_form_with_basic_authorization(asgi: Any, header: str, good: bool) -> None:
    path = "/events/futoin.ping/1.0/ping?echo=5"
    _, _, body = await asgi.http(path=path, method="GET", headers={"Authorization": header})
    assert ("r" in json.loads(body)) is good


async def test_path_form_keeps_data_types(asgi: Any) -> None:
    for text in ("5", "plain", "null", "%7B%22a%22%3A1%7D"):
        await asgi.http(path=f"/events/futoin.evt.gen/1.1/addEvent/evtuser%3Aevtpass?type=A&data={text}")
    reply = await asgi.call("futoin.evt.poll:1.1:pollEvents", component="LIVE")
    assert [event["data"] for event in reply["r"]] == [5, "plain", None, {"a": 1}]


async def test_authorization_header_is_not_read_in_message_form(asgi: Any) -> None:
    header = {"Authorization": "Basic " + base64.b64encode(b"evtuser:evtpass").decode()}
    _, _, body = await asgi.http(b'{"f":"futoin.ping:1.0:ping","p":{"echo":7}}', headers=header)
    assert json.loads(body)["e"] == "SecurityError"


async def test_long_paths_of_strangers_are_not_remembered(asgi: Any) -> None:
    tracemalloc.start()
    try:
        for number in range(100):
            assert (await asgi.http(b"{}", f"/{number}" + "x" * 60_000))[0] == 200
        assert tracemalloc.get_traced_memory()[0] < 3_000_000
    finally:
        tracemalloc.stop()


class TestChannels:
    """SecureChannel, BiDirectChannel, and what `futoin.insecure` opens."""

    ANONYMOUS_ADD = b'{"f":"futoin.evt.gen:1.1:addEvent","p":{"type":"A","data":1}}'

    async def reply(self, asgi: Any, body: bytes, **how: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((await asgi.http(body, **how))[2])
        return found

    async def test_adding_needs_tls(self, asgi: Any) -> None:
        reply = await self.reply(asgi, ADD % b"1", scheme="http", client=LOOPBACK)
        assert reply == {"e": "SecurityError", "edesc": "Insecure channel"}
        assert await self.reply(asgi, ADD % b"1", scheme="https") == {"r": "1"}

    async def test_polling_does_not(self, asgi: Any) -> None:
        await asgi.add(1)
        body = b'{"f":"futoin.evt.poll:1.1:pollEvents","p":{"component":"LIVE"},"sec":"evtuser:evtpass"}'
        assert len((await self.reply(asgi, body, scheme="http"))["r"]) == 1

    async def test_nobody_is_refused(self, asgi: Any) -> None:
        reply = await self.reply(asgi, self.ANONYMOUS_ADD)
        assert reply == {"e": "SecurityError", "edesc": "Anonymous not allowed"}

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    @pytest.mark.parametrize("client", [LOOPBACK, ("::1", 9), None])
    async def test_insecure_lets_this_machine_in(self, asgi: Any, client: Any) -> None:
        assert await self.reply(asgi, self.ANONYMOUS_ADD, scheme="http", client=client) == {"r": "1"}

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    async def test_insecure_lets_nobody_else_in(self, asgi: Any) -> None:
        reply = await self.reply(asgi, self.ANONYMOUS_ADD, scheme="http", client=("192.0.2.1", 9))
        assert reply["e"] == "SecurityError"

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    @pytest.mark.parametrize(
        "how",
        [
            {"scheme": "https", "client": ("192.0.2.1", 9)},
            {"scheme": "https", "client": LOOPBACK, "headers": {"Origin": "http://evil.example"}},
        ],
    )
    async def test_nobody_else_is_taken_for_this_machine(self, asgi: Any, how: dict[str, Any]) -> None:
        """An empty `sec` is that of nobody, also a moment after a program on this machine was let in without one."""
        assert await self.reply(asgi, self.ANONYMOUS_ADD, scheme="http", client=LOOPBACK) == {"r": "1"}
        body = self.ANONYMOUS_ADD[:-1] + b',"sec":""}'
        assert await self.reply(asgi, body, **how) == {"e": "SecurityError", "edesc": "Anonymous not allowed"}

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    @pytest.mark.parametrize(
        ("origin", "good"),
        [("http://evil.example", False), ("http://127.0.0.1:8080", True), ("null", False), ("http://[", False)],
    )
    async def test_insecure_is_closed_to_pages_of_other_sites(self, asgi: Any, origin: str, good: bool) -> None:
        headers = {"Origin": origin, "Host": "127.0.0.1:8080"}
        reply = await self.reply(asgi, self.ANONYMOUS_ADD, scheme="http", client=LOOPBACK, headers=headers)
        assert ("r" in reply) is good

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    @pytest.mark.parametrize(("site", "good"), [("cross-site", False), ("same-site", False), ("none", True)])
    async def test_insecure_is_closed_to_images_of_other_sites(self, asgi: Any, site: str, good: bool) -> None:
        path = "/events/futoin.evt.gen/1.1/addEvent?type=A&data=1"
        headers = {"Sec-Fetch-Site": site}
        _, _, body = await asgi.http(path=path, method="GET", scheme="http", client=LOOPBACK, headers=headers)
        assert ("r" in json.loads(body)) is good

    @pytest.mark.parametrize("config", [INSECURE], indirect=True)
    async def test_insecure_still_refuses_a_wrong_secret(self, asgi: Any) -> None:
        body = self.ANONYMOUS_ADD[:-1] + b',"sec":"evtuser:wrong"}'
        assert (await self.reply(asgi, body, client=LOOPBACK))["e"] == "SecurityError"

    async def test_pushing_needs_a_websocket(self, asgi: Any) -> None:
        reply = await asgi.call("futoin.evt.push:1.1:readyToReceive", component="A")
        assert reply == {"e": "InvalidRequest", "edesc": "Bi-Direct Channel is required"}

    async def test_anonymous_ping(self, asgi: Any) -> None:
        assert await asgi.call("futoin.anonping:1.0:ping", sec=None, echo=3) == {"r": {"echo": 3}}


async def test_start_mounts_and_close_unmounts() -> None:
    async with memory_hub() as hub:
        listener = await server.start(hub)
        assert isinstance(listener, Listener)
        assert list(hub.mounts) == ["/futoin"]
        await listener.close()
        assert list(hub.mounts) == []


@pytest.mark.parametrize("config", [{"enabled": False}], indirect=True)
async def test_start_does_nothing_when_off(config: Any) -> None:
    async with memory_hub(config) as hub:
        assert await server.start(hub) is None


async def test_other_scopes_are_left_alone(asgi: Any) -> None:
    await asgi.app({"type": "lifespan"}, None, None)
