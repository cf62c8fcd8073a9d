"""Sessions for people: where each stands in the state machine it runs by, its credits, its last error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from headrace.admin.requests import Asked
from headrace.console.state_machines import Machine, machines
from headrace.hub.sessions import SessionInfo
from headrace.hub.verbs import Nothing
from headrace.protocols.descriptor import Place, protocols

if TYPE_CHECKING:
    from headrace.hub import Hub

SESSIONS_MAX = 500
SHOWN_APART = frozenset(
    ["state", "error", "last_error", "credits", "credits_max", "permits", "call_states", "streams", "receivers"]
)
WAITING = {"unconfirmed_pushes": "pushes not confirmed", "waiting": "answers not sent", "to_write": "messages to write"}


class SessionsRequest(Asked, frozen=True):
    """`text` narrows by protocol, peer or stream; `ended` shows the last ended sessions instead of the open ones; `id`
    names one that is wanted, whatever page it is on."""

    text: str = ""
    ended: bool = False
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=SESSIONS_MAX)] = 100
    id: int | None = None


class Flow(msgspec.Struct, frozen=True):
    """Something that is counted to keep a peer from sending too much: credits, permits, what is not confirmed."""

    name: str
    value: int
    most: int | None = None


class SessionRow(msgspec.Struct, frozen=True):
    """One session. `reason` says why an ended one ended."""

    id: int
    protocol: str
    peer: str
    opened_us: int
    closed_us: int | None
    reason: str | None
    state: str
    places: list[Place]
    flow: list[Flow]
    error: str | None
    writes: list[str]
    reads: list[str]
    facts: dict[str, str]


class SessionsPage(msgspec.Struct, frozen=True):
    """`total` counts all that match; `rows` are a page of them; `chosen` is the one that was asked for by its id."""

    total: int
    rows: list[SessionRow]
    chosen: SessionRow | None = None


class SessionViews:
    """The handlers, around one hub."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def register(self) -> None:
        add = self._hub.verbs.register
        add("console.sessions", SessionsRequest, self.sessions, right="read", summary="Sessions and their states")
        add("console.machines", Nothing, self.machines, right="read", summary="State machines of the protocols")

    async def machines(self, asked: Nothing) -> list[Machine]:
        """All of them; they never change while the hub runs."""
        return machines()

    async def sessions(self, asked: SessionsRequest) -> SessionsPage:
        """Open ones oldest first, ended ones newest first."""
        listed = self._hub.sessions.list(ended=asked.ended)
        infos = [info for info in listed if _fits(info, asked.text.lower())]
        page = infos[asked.offset : asked.offset + asked.limit]
        chosen = next((row_of(info) for info in listed if info.id == asked.id), None)
        return SessionsPage(len(infos), [row_of(info) for info in page], chosen)


def _fits(info: SessionInfo, text: str) -> bool:
    return not text or any(text in word.lower() for word in (info.protocol, info.peer, *info.writes, *info.reads))


def row_of(info: SessionInfo) -> SessionRow:
    """A session as the page shows it."""
    details = info.details
    places = places_of(info.protocol, details)
    error = details.get("last_error") or details.get("error")
    apart = SHOWN_APART | WAITING.keys()
    return SessionRow(
        **{name: getattr(info, name) for name in SessionRow.__struct_fields__ if hasattr(info, name)},
        state=str(details.get("state") or _together(places)),
        places=places,
        flow=_flow(details),
        error=str(error) if error else None,
        facts={name: _text(value) for name, value in details.items() if name not in apart and value is not None},
    )


def places_of(label: str, details: dict[str, Any]) -> list[Place]:
    """The states of a session, its streams, receivers or calls, each with the machine that it is a state of."""
    return [place for each in protocols() if label in each.labels for place in each.shown().places(label, details)]


def _together(places: list[Place]) -> str:
    """One word for a session that has several states: the connection itself is simply open."""
    return ", ".join(dict.fromkeys(place.state for place in places)) or "open"


def _flow(details: dict[str, Any]) -> list[Flow]:
    flows = []
    if "credits" in details:
        flows.append(Flow("credits left", details["credits"], details.get("credits_max")))
    if details.get("permits") is not None:
        flows.append(Flow("permits left", details["permits"]))
    receivers = details.get("receivers", ())
    if receivers:
        flows.append(Flow("groups under way", sum(receiver["in_flight"] for receiver in receivers)))
    return flows + [Flow(words, details[name]) for name, words in WAITING.items() if name in details]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
