"""New code held against the past: what was logged is processed again, and what the program says is compared."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

import msgspec

from headrace.client import Client
from headrace.errors import HeadraceError
from headrace.protocols.ambrosia.binding.declaring import interface_of
from headrace.protocols.ambrosia.binding.engine import Engine
from headrace.protocols.ambrosia.binding.immortal import Immortal
from headrace.protocols.ambrosia.client import Host
from headrace.protocols.ambrosia.codec import Message
from headrace.protocols.ambrosia.verbs import DebuggingInfo, DebugPorts, ImmortalInfo

LOOK_AGAIN_S: Final = 0.05


class Checked(msgspec.Struct, frozen=True):
    """How it went: the messages that were processed again, those of the log from `first` on and before `next`, and the
    first difference."""

    checkpoint: int
    first: int
    next: int
    messages: int
    difference: str | None


async def check(
    factory: Callable[[], Immortal],
    name: str,
    client: Client,
    checkpoint: int | None = None,
    *,
    until: int | None = None,
    observer: Callable[[Engine, Message, list[bytes]], None] | None = None,
) -> Checked:
    """Replay an immortal's log since a checkpoint, the oldest kept if none is given, to another program. Nothing of it
    leaves the session: no call is made, and nothing is done outside. What the code cannot load or replay is raised.
    `observer` is told of each message and what it led to."""
    interface_of(type(factory()))
    if checkpoint is None:
        found = [info for info in client.entries("immortal.list", {}, ImmortalInfo) if info.name == name]
        checkpoint = found[0].checkpoints[0].id if found and found[0].checkpoints else None
    request = {"name": name, "checkpoint": checkpoint, "until": until, "tell_end": True}
    ports = await asyncio.to_thread(client.request, "immortal.replay", request, DebugPorts)
    host = Host(factory, name=name, receive=ports.receive, send=ports.send)
    host.observer = observer
    running, replayed = asyncio.ensure_future(host.run()), asyncio.ensure_future(host.wait_replayed())
    try:
        await asyncio.wait((running, replayed), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            await running
        while (session := await asyncio.to_thread(_session, client, ports)).state != "replayed":  # noqa: ASYNC110 - the hub has to be asked
            await asyncio.sleep(LOOK_AGAIN_S)
        return Checked(ports.checkpoint, ports.first, ports.next, host.engine.processed, session.difference)
    finally:
        replayed.cancel()
        with contextlib.suppress(HeadraceError):  # it has ended with its binding
            await asyncio.to_thread(client.call, "immortal.end-replay", {"name": name, "receive": ports.receive})
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await running


def _session(client: Client, ports: DebugPorts) -> DebuggingInfo:
    for session in client.request("immortal.debugging", {}, list[DebuggingInfo]):
        if session.receive == ports.receive:
            return session
    raise HeadraceError("the replay was ended before all was compared: somebody ended it, or the hub was restarted")
