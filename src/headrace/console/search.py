"""One search over everything that has a name: streams, tables, cursors, sessions, pipelines. The hub searches, and
sends a few of each."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec

from headrace.admin.requests import Asked, is_shown
from headrace.console.pipelines import PipelineViews
from headrace.console.views import fits
from headrace.security import Principal, acting_as, current

if TYPE_CHECKING:
    from headrace.hub import Hub

FOUND_MAX = 8


class SearchRequest(Asked, frozen=True):
    """What a name contains, or a pattern that it fits."""

    text: Annotated[str, msgspec.Meta(min_length=1, max_length=500)]


class Found(msgspec.Struct, frozen=True):
    """Something with a name, and the page that shows it."""

    kind: str
    title: str
    page: list[str]
    detail: str = ""


class Search:
    """The handler, around one hub."""

    def __init__(self, hub: Hub, pipelines: PipelineViews) -> None:
        self._hub = hub
        self._pipelines = pipelines

    def register(self) -> None:
        self._hub.verbs.register(
            "console.search", SearchRequest, self.search, right="read", summary="Find by name", filters=True
        )

    async def search(self, asked: SearchRequest) -> list[Found]:
        """Names that begin with the text first."""
        sessions = [
            Found("session", f"{info.protocol} {info.peer}", ["sessions", str(info.id)])
            for info in self._hub.sessions.list()
            if current().may("read") and (fits(info.peer, asked.text) or fits(info.protocol, asked.text))
        ]
        named = await asyncio.to_thread(self._named, asked.text, current())
        return named + sessions[:FOUND_MAX]

    def _named(self, text: str, principal: Principal) -> list[Found]:
        with acting_as(principal):
            streams = (info.name for info in self._hub.streams() if is_shown(info.name, text, everything=False))
            tables = (info.name for info in self._hub.streams(kind="table") if is_shown(info.name, text, False))
            cursors = (each for each in self._hub.cursors() if principal.may("read", each.stream))
            readers = {(each.name, each.stream) for each in cursors if fits(each.name, text)}
            pipelines = [status.name for status in self._pipelines.statuses] if principal.may("read") else []
            return [
                *(Found("stream", name, ["stream", name]) for name in _best(streams, text)),
                *(Found("table", name, ["table", name]) for name in _best(tables, text)),
                *(Found("cursor", name, ["stream", stream], stream) for name, stream in sorted(readers)[:FOUND_MAX]),
                *(Found("pipeline", name, ["pipelines", name]) for name in _best(pipelines, text)),
            ]


def _best(names: Iterable[str], text: str) -> list[str]:
    found = (name for name in names if fits(name, text))
    return list(islice(sorted(found, key=lambda name: (not name.startswith(text), len(name), name)), FOUND_MAX))
