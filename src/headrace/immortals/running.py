"""A program that is an immortal: one line that registers it, finds its ports, recovers it and serves it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from headrace.client import Client
from headrace.errors import HeadraceError, Unreachable
from headrace.immortals.showing import Shown
from headrace.protocols.ambrosia.binding.declaring import interface_of
from headrace.protocols.ambrosia.binding.immortal import Immortal, StateError, UpgradeRefused
from headrace.protocols.ambrosia.binding.methods import DeclarationError
from headrace.protocols.ambrosia.client import Host
from headrace.protocols.ambrosia.session import State
from headrace.protocols.ambrosia.verbs import ImmortalInfo

logger = logging.getLogger("headrace.immortal")
Kind = TypeVar("Kind", bound=Immortal)
CHECKPOINT_S: Final = 10.0
LOOK_S: Final = 0.5
_only_read: ContextVar[bool] = ContextVar("_only_read", default=False)


@contextlib.contextmanager
def only_read() -> Iterator[None]:
    """Programs that are imported meanwhile are looked at, and not run: `run` does nothing."""
    token = _only_read.set(True)
    try:
        yield
    finally:
        _only_read.reset(token)


class _Place:
    """Where the hub has the ports of an immortal; it is registered there if it is not yet."""

    def __init__(self, factory: Callable[[], Immortal], name: str, hub: str | None, options: dict[str, Any]) -> None:
        self._name = name
        self._interface = interface_of(type(factory()))
        self._client = Client(hub, **options)
        self._described = False

    @property
    def hub(self) -> str:
        return self._client.address

    def find(self) -> ImmortalInfo:
        """Where the hub's receive and send ports are."""
        info = self._registered()
        if not self._described:
            self._client.call("immortal.describe", {"name": self._name, "interface": self._interface})
            self._described = True
        return info

    def _registered(self) -> ImmortalInfo:
        known = {info.name: info for info in self._client.entries("immortal.list", {}, ImmortalInfo)}
        info = known.get(self._name)
        if info is None or not info.registered:
            options = {"clock": True, "delivery": "counted", "standby": True}
            return self._client.request("immortal.register", {"name": self._name, "options": options}, ImmortalInfo)
        if not info.clock:
            raise HeadraceError(
                f"immortal {self._name!r} was registered without a clock, for programs of another kind; "
                f"`headrace immortal register {self._name} --clock` changes that"
            )
        return info

    def is_served(self) -> bool:
        """Whether a program serves it now, this one or another."""
        found = self._client.entries("immortal.list", {}, ImmortalInfo)
        return any(info.name == self._name and info.state == State.RUNNING.value for info in found)

    def checkpoint(self) -> None:
        """So that the next start has nothing to process again."""
        with contextlib.suppress(HeadraceError):
            self._client.call("immortal.checkpoint", {"name": self._name})

    def close(self) -> None:
        self._client.close()


@contextlib.asynccontextmanager
async def serve(
    factory: Callable[[], Kind],
    name: str,
    *,
    hub: str | None = None,
    show: bool = False,
    checkpointer: bool = False,
    **connect: Any,
) -> AsyncIterator[Kind]:
    """Serve an immortal in this event loop for as long as the block lasts. The object is for looking: its state changes
    through its methods only. If the immortal itself cannot go on, the block is cancelled, and its error is raised.
    A `checkpointer` only follows the program that runs and takes its checkpoints, so that it never pauses for one.
    `hub` and the rest are those of `headrace.connect`."""
    place = await asyncio.to_thread(_Place, factory, name, hub, connect)
    shown = Shown(name) if show else None

    async def addresses() -> tuple[str, str]:
        found = await asyncio.to_thread(place.find)
        if checkpointer and not found.takes_checkpointers:
            raise HeadraceError(
                f"immortal {name!r} cannot have a checkpointer: it was registered without a standby, or by an old hub. "
                f"`headrace immortal register {name} --clock --standby --delivery counted` registers it with one"
            )
        host.says_pair, host.says_cause = found.pairs, found.traces
        return str(found.receive), str(found.send)

    host = Host(
        factory, name=name, receive="", send="", addresses=addresses, watcher=shown, takes_checkpoints=checkpointer
    )
    telling = None
    if shown is not None:
        host.on_away, host.on_primary = shown.away, lambda: shown.ready(place.hub, host.engine.processed)
        telling = asyncio.ensure_future(_tell(host, place, shown))
    serving = asyncio.ensure_future(host.run())
    ready = asyncio.ensure_future(host.wait_following() if checkpointer else host.wait_primary())
    try:
        await asyncio.wait((serving, ready), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            await serving
        async with _cancelled_with(serving):
            yield host.immortal  # type: ignore[misc]
    finally:
        ready.cancel()
        if telling is not None:
            telling.cancel()
        if not serving.done() and host.is_primary:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(place.checkpoint), CHECKPOINT_S)
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        place.close()


async def _tell(host: Host, place: _Place, shown: Shown) -> None:
    """Say so if it has its state and does not serve."""
    await host.wait_following()
    if host.takes_checkpoints:
        shown.takes_checkpoints(place.hub)
        return
    with contextlib.suppress(HeadraceError):
        while not host.is_primary:
            if await asyncio.to_thread(place.is_served) and not host.is_primary:
                shown.stands_by(place.hub)
                return
            await asyncio.sleep(LOOK_S)


@contextlib.asynccontextmanager
async def _cancelled_with(other: asyncio.Future[None]) -> AsyncIterator[None]:
    """A block that is cancelled when something else ends, and raises what that raised."""
    task = asyncio.current_task()
    assert task is not None

    def cancel(_: asyncio.Future[None]) -> None:
        task.cancel()

    other.add_done_callback(cancel)
    try:
        yield
    except asyncio.CancelledError:
        if not other.done():
            raise
        task.uncancel()
    finally:
        other.remove_done_callback(cancel)
    if other.done():
        await other


def run(
    factory: Callable[[], Immortal],
    name: str,
    hub: str | None = None,
    *,
    quiet: bool = False,
    checkpointer: bool = False,
    **connect: Any,
) -> None:
    """Be the immortal `name` until the process is stopped: register it if need be, recover it, and serve it.

    `hub` is the address of `headrace.connect` (127.0.0.1:7070, or `HEADRACE_HUB`), and so are `token`, `user`,
    `password` and `tls`. What it does is shown on standard error, unless `quiet`. A `checkpointer` never serves: it
    follows the program that does and takes its checkpoints, so that it need not pause for them.
    """
    if _only_read.get():
        return
    with contextlib.suppress(KeyboardInterrupt):
        try:
            asyncio.run(_run(factory, name, hub, {"show": not quiet, "checkpointer": checkpointer, **connect}))
        except (HeadraceError, OSError, StateError, UpgradeRefused, DeclarationError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            raise SystemExit(5 if isinstance(error, Unreachable) else 1) from None


async def _run(factory: Callable[[], Immortal], name: str, hub: str | None, options: dict[str, Any]) -> None:
    """A program that stands by, or waits for its hub, is stopped as well: it has nothing to leave in order."""
    stopped = asyncio.Event()
    is_serving = False
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        stopped.set()
        if not is_serving:
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError):  # not in the main thread, or on Windows
            loop.add_signal_handler(number, stop)
    try:
        async with serve(factory, name, hub=hub, **options):
            is_serving = True
            await stopped.wait()
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
