"""The FutoIn application called as ASGI, by HTTP and by WebSocket: no sockets, so that tests are quick and exact."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from support.until import DEADLINE_S

from headrace.config import Config, Futoin, Grant, SecuritySection, User
from headrace.hub import Hub
from headrace.protocols.futoin.server import Application
from headrace.protocols.futoin.settings import MasterKey

MAC_KEY = b"MyLongTestSecretKey-0123456789"
MASTER_KEY = bytes(range(48))
MASTER_ID = "8JpzKjVWTt2vqz3vO5zZ1g"
SEC = "evtuser:evtpass"


def make_config(**settings: Any) -> Config:
    settings.setdefault("mac_keys", {"macuser": base64.b64encode(MAC_KEY).decode(), "ghost": "Z2hvc3Q="})
    master = base64.b64encode(MASTER_KEY).decode()
    settings.setdefault(
        "master_keys",
        {
            MASTER_ID: MasterKey(user="macuser", key=master),
            "of-adder": MasterKey(user="adder", key=master),
            "of-ghost": MasterKey(user="ghost", key=master),
        },
    )
    settings.setdefault("global_id", "hub.example")
    return Config(
        futoin=Futoin(**settings),
        security=SecuritySection(
            users={
                "evtuser": User(secret="evtpass", roles=["writer"]),
                "other": User(secret="other:pass", roles=["writer"]),
                "macuser": User(secret="unused", roles=["writer"]),
                "reader": User(secret="r", roles=["reader"]),
                "adder": User(secret="a", roles=["adds_only"]),
                "poller": User(secret="p", roles=["polls_only"]),
            },
            roles={
                "adds_only": [Grant(rights=["write"], streams=["events"], verbs=["futoin.add"])],
                "polls_only": [Grant(rights=["read"], streams=["ev*"], verbs=["futoin.poll"])],
            },
        ),
    )


class Asgi:
    """Calls the application as an HTTP server would."""

    def __init__(self, hub: Hub, app: Application) -> None:
        self.hub = hub
        self.app = app

    async def http(
        self,
        body: bytes | list[bytes] = b"",
        path: str = "/events",
        *,
        method: str = "POST",
        scheme: str = "https",
        headers: dict[str, str] | None = None,
        client: tuple[str, int] | None = ("192.0.2.1", 5),
        leaves: bool = False,
    ) -> tuple[int, dict[str, str], bytes]:
        chunks = [body] if isinstance(body, bytes) else list(body)
        incoming: list[dict[str, Any]] = [
            {"type": "http.request", "body": chunk, "more_body": leaves or at + 1 < len(chunks)}
            for at, chunk in enumerate(chunks)
        ]
        incoming.append({"type": "http.disconnect"})
        outgoing: list[Any] = []

        async def receive() -> dict[str, Any]:
            return incoming.pop(0)

        async def send(message: Any) -> None:
            outgoing.append(message)

        await self.app(self._scope("http", path, scheme, headers, client, method), receive, send)
        if not outgoing:
            return 0, {}, b""
        head, content = outgoing
        return head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, content["body"]

    def _scope(
        self, kind: str, path: str, scheme: str, headers: Any, client: Any, method: str = "GET"
    ) -> dict[str, Any]:
        raw_path, _, query = path.partition("?")
        return {
            "type": kind,
            "method": method,
            "path": f"/futoin{raw_path}",
            "raw_path": f"/futoin{raw_path}".encode(),
            "root_path": "/futoin",
            "query_string": query.encode(),
            "scheme": scheme,
            "client": client,
            "headers": [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()],
        }

    async def call(self, function: str, sec: str | None = SEC, path: str = "/events", **params: Any) -> Any:
        """The reply to a JSON call, decoded."""
        message: dict[str, Any] = {"f": function, "p": params}
        if sec is not None:
            message["sec"] = sec
        status, _, body = await self.http(json.dumps(message).encode(), path)
        assert status == 200
        return json.loads(body)

    async def add(self, data: Any, type: str = "EVT", **more: Any) -> int:
        reply = await self.call("futoin.evt.gen:1.1:addEvent", type=type, data=data, **more)
        return int(reply["r"])

    def websocket(self, path: str = "/events", scheme: str = "wss", **more: Any) -> Peer:
        headers, client = more.get("headers"), more.get("client", ("192.0.2.1", 5))
        return Peer(self.app, self._scope("websocket", path, scheme, headers, client))


class Peer:
    """The client's end of a WebSocket, without the socket."""

    def __init__(self, app: Application, scope: dict[str, Any]) -> None:
        self._app = app
        self._scope = scope
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.from_app: asyncio.Queue[Any] = asyncio.Queue()
        self.sent: list[bytes] = []
        self.closed: int | None = None
        self.accepted: dict[str, Any] | None = None
        self._opened = asyncio.Event()
        self.taking = asyncio.Event()
        self.taking.set()
        self._rids = 0

    async def __aenter__(self) -> Peer:
        self._to_app.put_nowait({"type": "websocket.connect"})
        self.task = asyncio.create_task(self._app(self._scope, self._to_app.get, self._send))
        await asyncio.wait_for(self._opened.wait(), DEADLINE_S)
        return self

    async def _send(self, message: Any) -> None:
        if message["type"] == "websocket.accept":
            self.accepted = message
            self._opened.set()
        elif message["type"] == "websocket.close":
            self.closed = message["code"]
            self._opened.set()
        else:
            await self.taking.wait()
            self.from_app.put_nowait(message["bytes"])

    async def __aexit__(self, *_: object) -> None:
        self.leave()
        await asyncio.wait_for(self.task, DEADLINE_S)

    def leave(self) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})

    def send(self, message: bytes | str | dict[str, Any]) -> None:
        if isinstance(message, dict):
            message = json.dumps(message).encode()
        key = "bytes" if isinstance(message, bytes) else "text"
        self._to_app.put_nowait({"type": "websocket.receive", key: message})

    async def next_bytes(self) -> bytes:
        found: bytes = await asyncio.wait_for(self.from_app.get(), DEADLINE_S)
        return found

    async def next(self) -> Any:
        return json.loads(await self.next_bytes())

    async def call(self, function: str, sec: str | None = SEC, **params: Any) -> Any:
        """Call and take the next message as the reply."""
        self._rids += 1
        message: dict[str, Any] = {"f": function, "p": params, "rid": f"C{self._rids}"}
        if sec is not None:
            message["sec"] = sec
        self.send(message)
        reply = await self.next()
        assert reply.pop("rid") == f"C{self._rids}"
        return reply

    async def ready(self, component: str, want: list[str] | None = None, minor: int = 1, sec: str = SEC) -> None:
        if component != "LIVE":
            call = f"futoin.evt.push:1.{minor}:registerConsumer"
            assert await self.call(call, sec, component=component) == {"r": True}
        call = f"futoin.evt.push:1.{minor}:readyToReceive"
        assert await self.call(call, sec, component=component, want=want) == {"r": True}

    async def group(self) -> tuple[str, int, list[dict[str, Any]]]:
        """The next group pushed: its rid, seq and events."""
        message = await self.next()
        assert message["f"].startswith("futoin.evt.receiver:1.")
        return message["rid"], message["p"]["seq"], message["p"]["events"]

    def confirm(self, rid: str, result: Any = True) -> None:
        self.send({"r": result, "rid": rid})

    def refuse(self, rid: str) -> None:
        self.send({"rid": rid, "e": "InternalError", "edesc": "no"})
