import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import websockets

from headrace.cli.tls import make_self_signed
from headrace.config import Config, Grant, Http, Limits, Listen, SecuritySection, Tls, User
from headrace.errors import HeadraceError, UnknownStream
from headrace.hub.base import HubBase
from headrace.hub.health import NOT_FOR_ALL
from headrace.hub.verbs import HttpForm
from headrace.pages import Listed
from headrace.serving.http import PIECE_BYTES, serve


class Echo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str


ECHO = "/api/v1/text.echo"
HELLO = {"text": "hello"}


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    about: Any = None
    by: str = ""


class NoStatus(HeadraceError):
    code = "no-status-for-this"


async def echo(request: Echo) -> Echo:
    return request


async def fails(request: Echo) -> None:
    match request.text:
        case "unknown":
            raise UnknownStream("orders")
        case "odd":
            raise NoStatus("odd")
        case _:
            raise ZeroDivisionError("a bug")


def frame(tmp_path: Path, **sections: Any) -> HubBase:
    hub = HubBase(Config(**sections), tmp_path)
    hub.verbs.register("text.echo", Echo, echo, right="write", summary="Say it again")
    hub.verbs.register("text.fail", Echo, fails, right="read")
    return hub


@asynccontextmanager
async def serving(hub: HubBase, **options: Any) -> AsyncIterator[httpx.AsyncClient]:
    listener = await serve(hub, "127.0.0.1:0")
    try:
        async with httpx.AsyncClient(base_url=f"http://{listener.address}", **options) as client:
            yield client
    finally:
        await listener.close()


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(frame(tmp_path)) as made:
        yield made


class TestApi:
    async def test_a_verb(self, client: httpx.AsyncClient) -> None:
        answer = await client.post("/api/v1/text.echo", json={"text": "hello"})
        assert (answer.status_code, answer.json()) == (200, {"text": "hello"})
        assert answer.headers["content-type"] == "application/json"

    async def test_a_list_says_where_its_rest_begins(self, tmp_path: Path) -> None:
        hub = frame(tmp_path)

        async def numbers(request: Listed) -> Iterable[int]:
            return range(1_001)

        hub.verbs.register("number.list", Listed, numbers, right="read", listed_by=lambda number: [number])
        async with serving(hub) as client:
            first = await client.post("/api/v1/number.list", json={})
            assert first.json() == list(range(1_000))
            rest = await client.post("/api/v1/number.list", json={"after": first.headers["Headrace-Next"]})
            assert rest.json() == {"items": [1_000], "next": None}
            assert "Headrace-Next" not in rest.headers

    @pytest.mark.parametrize(
        ("path", "body", "status", "code"),
        [
            ("/api/v1/text.echo", b'{"text":1}', 400, "bad-request"),
            ("/api/v1/text.echo", b"{", 400, "bad-request"),
            ("/api/v1/text.echo", b"", 400, "bad-request"),
            ("/api/v1/text.echo", b"\xff", 400, "bad-request"),
            ("/api/v1/no.such", b"{}", 404, "unknown-verb"),
            ("/api/v1/text.fail", b'{"text":"unknown"}', 404, "unknown-stream"),
            ("/api/v1/text.fail", b'{"text":"odd"}', 400, "no-status-for-this"),
            ("/api/v1/text.fail", b'{"text":""}', 500, "internal"),
            ("/api/v1/a/b", b"{}", 404, "unknown-path"),
            ("/nothing/here", b"{}", 404, "unknown-path"),
        ],
    )
    async def test_refusals_have_a_code_and_a_sentence(
        self, client: httpx.AsyncClient, path: str, body: bytes, status: int, code: str
    ) -> None:
        answer = await client.post(path, content=body, headers={"content-type": "application/json"})
        assert answer.status_code == status
        assert answer.json()["error"]["code"] == code
        assert answer.json()["error"]["message"]
        assert "ZeroDivision" not in answer.text

    async def test_other_methods_are_refused(self, client: httpx.AsyncClient) -> None:
        answer = await client.get("/api/v1/text.echo")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")

    async def test_openapi_names_every_verb(self, client: httpx.AsyncClient) -> None:
        document = (await client.get("/api/openapi.json")).json()
        assert document["openapi"] == "3.1.0"
        assert set(document["paths"]) == {"/api/v1/text.echo", "/api/v1/text.fail"}

    async def test_verbs_are_measured_and_unknown_names_make_no_series(self, tmp_path: Path) -> None:
        hub = frame(tmp_path)
        async with serving(hub) as client:
            await client.post("/api/v1/text.echo", json={"text": "x"})
            await client.post("/api/v1/made.up", json={})
        text = hub.metrics.text().decode()
        assert 'headrace_verb_seconds_count{verb="text.echo"} 1.0' in text
        assert 'headrace_verb_errors_total{code="unknown-verb",verb="unknown"} 1.0' in text
        assert "made.up" not in text


class TestLimits:
    async def test_a_declared_length_above_the_limit(self, tmp_path: Path) -> None:
        async with serving(frame(tmp_path, http=Http(request_bytes_max=100))) as client:
            answer = await client.post("/api/v1/text.echo", json={"text": "x" * 100})
            assert answer.status_code == 413
            assert "http.request_bytes_max" in answer.json()["error"]["message"]

    async def test_a_body_without_length_that_grows_above_the_limit(self, tmp_path: Path) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(20):
                yield b" " * 10

        async with serving(frame(tmp_path, http=Http(request_bytes_max=100))) as client:
            headers = {"content-type": "application/json"}
            answer = await client.post("/api/v1/text.echo", content=chunks(), headers=headers)
            assert answer.status_code == 413

    @pytest.mark.parametrize("size", [PIECE_BYTES - 100, PIECE_BYTES, 3 * PIECE_BYTES + 1])
    async def test_a_body_in_pieces_is_put_together_beside_the_event_loop_when_it_is_large(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        hub = frame(tmp_path)
        apart: list[Any] = []
        beside = hub.intake.apart

        async def noted(work: Any) -> Any:
            apart.append(work)
            return await beside(work)

        monkeypatch.setattr(hub.intake, "apart", noted)
        text = "".join(chr(97 + number % 26) for number in range(1009)) * (size // 1009 + 1)
        async with serving(hub) as client:
            answer = await client.post(ECHO, json={"text": text[:size]}, timeout=60)
        assert answer.json() == {"text": text[:size]}
        assert len(apart) == (size >= PIECE_BYTES)

    async def test_more_values_than_may_be_in_a_verb_and_in_a_path_of_its_own(self, tmp_path: Path) -> None:
        hub = frame(tmp_path, limits=Limits(json_values_max=10))

        async def noted(request: Note) -> Note:
            return request

        path = HttpForm("/api/notes/{name}", body="about", headers={"x-by": "by"})
        hub.verbs.register("note.make", Note, noted, right="write", stream_field=None, http=path)
        async with serving(hub, headers={"content-type": "application/json"}) as client:
            fits = await client.post("/api/notes/a", content=b"[1,2]", headers={"x-by": "ann"})
            assert fits.json() == {"name": "a", "about": [1, 2], "by": "ann"}
            for where, body in (("notes/a", b"[%b]"), ("v1/note.make", b'{"name":"a","about":[%b]}')):
                answer = await client.post(f"/api/{where}", content=body % b",".join([b"[]"] * 20))
                assert (answer.status_code, answer.json()["error"]["code"]) == (422, "limit-exceeded")
                assert "limits.json_values_max" in answer.json()["error"]["message"]
            broken = await client.post("/api/notes/a", content=b'1,"name":"b"')
            assert (broken.status_code, broken.json()["error"]["code"]) == (400, "bad-request")
        assert 'headrace_verb_too_many_values_total{verb="note.make"} 2.0' in hub.metrics.text().decode()


class TestBrowsers:
    @pytest.mark.parametrize(
        "media_type", ["text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"]
    )
    async def test_forms_of_other_pages_cannot_post(self, client: httpx.AsyncClient, media_type: str) -> None:
        answer = await client.post("/api/v1/text.echo", content=b'{"text":"x"}', headers={"content-type": media_type})
        assert answer.status_code == 415

    async def test_another_origin_is_refused_and_our_own_is_not(self, client: httpx.AsyncClient) -> None:
        foreign = await client.post("/api/v1/text.echo", json={"text": "x"}, headers={"origin": "http://evil.example"})
        assert foreign.status_code == 421
        broken = await client.post("/api/v1/text.echo", json={"text": "x"}, headers={"origin": "http://["})
        assert broken.status_code == 421
        own = {"origin": str(client.base_url).rstrip("/")}
        assert (await client.post("/api/v1/text.echo", json={"text": "x"}, headers=own)).status_code == 200

    async def test_a_name_pointed_at_this_machine_is_refused(self, tmp_path: Path) -> None:
        foreign = ("evil.example", "[", "127.evil.example", "127.0.0.1.evil.example:80", "10.0.0.1", "localhost.evil")
        own = ("hub.lan:8080", "HUB.LAN", "localhost:1", "[::1]:80", "127.0.0.1")
        async with serving(frame(tmp_path, http=Http(hosts=["Hub.lan"]))) as client:
            for host in (*foreign, *own):
                headers = {"host": host, "origin": f"http://{host}"}
                for ask in (client.get("/health", headers=headers), client.post(ECHO, json=HELLO, headers=headers)):
                    assert (await ask).status_code == (421 if host in foreign else 200), host

    @pytest.mark.parametrize(
        "hosts", [("127.0.0.1", "evil.example"), ("evil.example", "127.0.0.1"), ("localhost",) * 2]
    )
    async def test_two_hosts_are_none(self, client: httpx.AsyncClient, hosts: tuple[str, ...]) -> None:
        """The part that answers might look at the other one."""
        reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
        named = "".join(f"host: {host}\r\n" for host in hosts)
        writer.write(f"GET /health HTTP/1.1\r\n{named}\r\n".encode())
        assert (await reader.readline()).split()[1] == b"421"
        writer.close()

    async def test_a_listener_is_on_loopback_however_the_settings_write_it(self, tmp_path: Path) -> None:
        listener = await serve(frame(tmp_path), "127.1:0")
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{listener.address.rpartition(':')[2]}") as client:
                assert (await client.get("/health", headers={"host": "evil.example"})).status_code == 421
        finally:
            await listener.close()


class TestSecurity:
    @pytest.fixture
    async def guarded(self, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
        users = {
            "reader": User(secret="reader-secret", roles=["reader"]),
            "writer": User(tokens=["writer-token"], roles=["writer"]),
            "nobody": User(tokens=["nobody-token"]),
        }
        async with serving(frame(tmp_path, security=SecuritySection(users=users))) as client:
            yield client

    async def test_who_are_you(self, guarded: httpx.AsyncClient, caplog: pytest.LogCaptureFixture) -> None:
        answer = await guarded.post("/api/v1/text.echo", json={"text": "x"})
        assert answer.status_code == 401
        assert "Bearer" in answer.headers["www-authenticate"]
        with caplog.at_level("WARNING", "headrace.security"):
            wrong = await guarded.post("/api/v1/text.echo", json={"text": "x"}, auth=("reader", "wrong-secret"))
        assert wrong.status_code == 401
        assert [record.getMessage() for record in caplog.records] == ["login refused"]
        assert "wrong-secret" not in repr([vars(record) for record in caplog.records])

    async def test_the_right_is_needed(self, guarded: httpx.AsyncClient) -> None:
        answer = await guarded.post("/api/v1/text.echo", json={"text": "x"}, auth=("reader", "reader-secret"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "forbidden")
        headers = {"authorization": "Bearer writer-token"}
        assert (await guarded.post("/api/v1/text.echo", json={"text": "x"}, headers=headers)).status_code == 200

    async def test_metrics_need_the_right_to_read_and_health_does_not(self, guarded: httpx.AsyncClient) -> None:
        assert (await guarded.get("/health")).status_code == 200
        assert (await guarded.get("/metrics")).status_code == 401
        assert (await guarded.get("/metrics", headers={"authorization": "Bearer nobody-token"})).status_code == 403
        answer = await guarded.get("/metrics", auth=("reader", "reader-secret"))
        assert answer.status_code == 200
        assert 'headrace_refused_logins_total{protocol="http"}' in answer.text

    async def test_the_api_document_is_for_those_who_may_read(self, guarded: httpx.AsyncClient) -> None:
        path = "/api/openapi.json"
        assert (await guarded.get(path)).status_code == 401
        assert (await guarded.get(path, headers={"authorization": "Bearer nobody-token"})).status_code == 403
        assert (await guarded.get(path, auth=("reader", "reader-secret"))).json()["openapi"] == "3.1.0"

    async def test_users_that_are_lost_leave_the_door_shut(self, tmp_path: Path) -> None:
        hub = frame(tmp_path)
        hub.security.add_user("alice", None, ["admin"])
        async with serving(hub) as client:
            for content in ("{}", "{", None):
                file = tmp_path / "users.json"
                file.unlink() if content is None else file.write_text(content)
                for headers in ({}, {"authorization": "Bearer x"}):
                    answer = await client.post(ECHO, json=HELLO, headers=headers)
                    assert answer.status_code == 401
                    assert str(tmp_path) not in answer.text
                health = await client.get("/health")
                assert (health.status_code, health.json()["reasons"]) == (503, {})
                assert hub.health.report().reasons == {"users": hub.security.trouble()}

    async def test_tls(self, tmp_path: Path) -> None:
        key, certificate = make_self_signed(["localhost", "127.0.0.1"])
        (tmp_path / "key.pem").write_bytes(key)
        (tmp_path / "certificate.pem").write_bytes(certificate)
        tls = Tls(certificate=str(tmp_path / "certificate.pem"), key=str(tmp_path / "key.pem"))
        listener = await serve(frame(tmp_path, tls=tls), "127.0.0.1:0")
        try:
            trust = ssl.create_default_context(cafile=tls.certificate)
            async with httpx.AsyncClient(verify=trust) as client:
                assert (await client.get(f"https://{listener.address}/health")).status_code == 200
            async with httpx.AsyncClient() as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"http://{listener.address}/health")
        finally:
            await listener.close()


class TestHealth:
    async def test_ready_and_not(self, tmp_path: Path) -> None:
        hub = frame(tmp_path)
        reasons: list[str] = []
        hub.health.check("log", lambda: reasons[0] if reasons else None)
        async with serving(hub) as client:
            assert (await client.get("/health")).json() == {"live": True, "ready": True, "reasons": {}}
            reasons.append("the disk is full")
            answer = await client.get("/health/ready")
            assert (answer.status_code, answer.json()["reasons"]) == (503, {"log": "the disk is full"})
            assert (await client.get("/health/live")).status_code == 200

    async def test_strangers_learn_that_it_is_not_ready_and_readers_of_all_why(self, tmp_path: Path) -> None:
        roles = {"clerk": [Grant(rights=["read"], streams=["orders"])]}
        users = {name: User(tokens=[name], roles=[name]) for name in ("reader", "clerk")}
        hub = frame(tmp_path, security=SecuritySection(users=users, roles=roles))
        hub.health.check("damage", lambda: "records of secret are damaged")
        async with serving(hub) as client:
            said = [
                (await client.get("/health", headers={"authorization": f"Bearer {token}"} if token else {})).json()
                for token in ("", "wrong", "clerk", "reader")
            ]
        assert [answer["ready"] for answer in said] == [False] * 4
        assert [answer["reasons"] for answer in said] == [
            {},
            {},
            {"damage": NOT_FOR_ALL},
            {"damage": "records of secret are damaged"},
        ]


class TestMounts:
    async def test_http_and_websocket_applications_see_their_root_path(self, tmp_path: Path) -> None:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            seen = json.dumps([scope["path"], scope["root_path"]])
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": seen.encode()})
            else:
                await receive()
                await send({"type": "websocket.accept"})
                await send({"type": "websocket.send", "text": seen})
                await send({"type": "websocket.close", "code": 1000})

        hub = frame(tmp_path)
        hub.mounts.mount("/futoin", app)
        async with serving(hub) as client:
            assert (await client.get("/futoin/events")).json() == ["/futoin/events", "/futoin"]
            base = str(client.base_url).replace("http://", "ws://")
            async with websockets.connect(f"{base}/futoin/ws") as peer:
                assert json.loads(await peer.recv()) == ["/futoin/ws", "/futoin"]
            for path in ("/nothing", "/api/v1/text.echo"):
                with pytest.raises(websockets.InvalidStatus, match="403"):
                    await websockets.connect(f"{base}{path}")


class TestListening:
    async def test_a_taken_port_is_an_error(self, tmp_path: Path) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            with pytest.raises(OSError, match="in use"):
                await serve(frame(tmp_path), f"127.0.0.1:{other.getsockname()[1]}")

    @pytest.mark.slow
    async def test_an_answer_without_end_does_not_keep_a_hub_from_stopping(self, tmp_path: Path) -> None:
        async def endless(scope: Any, receive: Any, send: Any) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True})
            await asyncio.Event().wait()

        hub = frame(tmp_path)
        hub.mounts.mount("/live", endless)
        listener = await serve(hub, "127.0.0.1:0")
        async with (
            httpx.AsyncClient() as client,
            client.stream("GET", f"http://{listener.address}/live") as answer,
        ):
            assert await anext(answer.aiter_bytes()) == b"data: 1\n\n"
            began = asyncio.get_running_loop().time()
            await listener.close()
            assert asyncio.get_running_loop().time() - began < 5

    async def test_closing_frees_the_port_and_ends_open_connections(self, tmp_path: Path) -> None:
        listener = await serve(frame(tmp_path, listen=Listen()), "127.0.0.1:0")
        host, port = listener.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await listener.close()
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))
