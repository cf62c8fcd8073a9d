"""Serves the console's page and its pulse on the hub's HTTP port.

    GET /                  the page, with its style: one answer is all that the first paint waits for
    GET /console/<file>    its scripts
    GET /console/live      server-sent events until the page goes (pulse.py); needs the right to read
                           ?stream=NAME&partition=0&next=INDEX also says when that stream has records from INDEX on

The page may run only its own scripts, have only its own style and talk only to this hub (Content-Security-Policy); it
shows what records hold as text and never as markup.
"""

from __future__ import annotations

import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from importlib import resources
from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.console.alarms import Alarms
from headrace.console.changes import Changes
from headrace.console.history import History
from headrace.console.map import Maps
from headrace.console.parquet import Downloads
from headrace.console.pipelines import PipelineViews
from headrace.console.pulse import Pulse, Sample, Shown, refusal
from headrace.console.search import Search
from headrace.console.sessions import SessionViews
from headrace.console.trace import Traces
from headrace.console.traffic import Traffic
from headrace.console.views import Views
from headrace.console.words import Reading
from headrace.errors import BadRequest, HeadraceError
from headrace.security import Principal
from headrace.security.admission import from_header
from headrace.serving.http import error_response, peer_of
from headrace.serving.http_connection import recognized
from headrace.serving.listener import Listener

if TYPE_CHECKING:
    from headrace.hub import Hub

STATIC = resources.files("headrace.console").joinpath("static")
STYLE = STATIC.joinpath("style.css").read_bytes()
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'sha256-{b64encode(sha256(STYLE).digest()).decode()}'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def load_files() -> dict[str, tuple[bytes, str]]:
    """Path → contents and media type, for everything that the package ships. The page holds its style, and names all
    scripts, so that the browser asks for them at once, and not for each only when another has named it."""
    files: dict[str, tuple[bytes, str]] = {}
    for file in STATIC.iterdir():
        kind = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if kind is not None:
            files[f"/console/{file.name}"] = (file.read_bytes(), kind)
    page, kind = files.pop("/console/index.html")
    scripts = sorted(path for path in files if path.endswith(".js"))
    links = "".join(f'<link rel="modulepreload" href="{path}">' for path in scripts).encode()
    head = b"<style>" + STYLE + b"</style>" + links + b"</head>"
    return {"/": (page.replace(b"</head>", head), kind)} | files


class Console:
    """The ASGI application."""

    def __init__(self, hub: Hub, pulse: Pulse) -> None:
        self._hub = hub
        self._pulse = pulse
        self._files = load_files()
        self._tags = {path: f'"{sha256(file).hexdigest()[:16]}"' for path, (file, _) in self._files.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except HeadraceError as error:
            response = error_response(error)
        with contextlib.suppress(OSError):
            await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        if request.method not in ("GET", "HEAD"):
            return Response("only GET", 405, {"Allow": "GET, HEAD"})
        if path == "/console/live":
            principal, shown = await self._watched(request)
            self._pulse.check_room()  # here, where it can still be said: an answer that has begun can only break off
            return StreamingResponse(self._events(shown, principal), headers=HEADERS, media_type="text/event-stream")
        file = self._files.get(path)
        if file is None:
            return Response(f"there is nothing at {path}", 404, HEADERS, media_type="text/plain")
        contents, kind = file
        headers = HEADERS | {"ETag": self._tags[path]}
        if self._tags[path] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(contents, headers=headers, media_type=kind)

    async def _watched(self, request: Request) -> tuple[Principal, Shown | None]:
        """Who asks, and the stream that the page shows, if it does; whoever may not read is refused."""
        shown_by = from_header(request.headers.get("authorization"))
        message = "sign in to see the pulse of this hub"
        principal = await self._hub.admission.admit("http", peer_of(request), shown_by, message)
        recognized(request.scope)
        asked = request.query_params
        shown = None
        try:
            if "stream" in asked:
                shown = Shown(asked["stream"], int(asked.get("partition", "0")), int(asked.get("next", "0")))
        except ValueError:
            raise BadRequest("'partition' and 'next' are whole numbers") from None
        if (refused := refusal(principal, shown)) is not None:
            raise refused
        if shown is None:
            return principal, None
        self._hub.bounds(shown.stream, shown.partition)  # raises for one that does not exist
        return principal, shown

    async def _events(self, shown: Shown | None, principal: Principal) -> AsyncIterator[bytes]:
        async for event in self._pulse.watch(shown, principal):
            yield event.encoded()


async def start(hub: Hub) -> Listener | None:
    """Mount the console, unless `http.console` is off."""
    if not hub.config.http.console:
        return None
    views = Views(hub)
    views.register()
    Reading(hub).register()
    SessionViews(hub).register()
    traffic = Traffic(hub)
    pipelines = PipelineViews(hub, traffic)
    pipelines.register()
    Maps(hub, views, pipelines, traffic).register()
    Traces(hub, pipelines, traffic).register()
    Search(hub, pipelines).register()
    Downloads(hub).register()
    alarms = Alarms(hub)
    alarms.sources.insert(1, pipelines.alarms)
    alarms.register()
    history = History(hub, views, pipelines) if hub.config.http.history else None
    if history is not None:
        history.register()
        Changes(hub, history).register()

    async def beside(sample: Sample) -> None:
        await pipelines.take()
        if history is not None:
            history.take(sample)

    pulse = Pulse(hub, beside, alarms)
    hub.mounts.mount("", Console(hub, pulse))

    async def close() -> None:
        hub.mounts.unmount("")
        await pulse.close()
        if history is not None:
            await history.close()

    return Listener("", close)
