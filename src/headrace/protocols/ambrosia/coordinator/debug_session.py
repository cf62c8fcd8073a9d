"""A debugging session: a port pair of its own, on which one binding is served the past and can change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.call_reader import Calls
from headrace.protocols.ambrosia.coordinator.instance import Instance
from headrace.protocols.ambrosia.coordinator.link import Link
from headrace.protocols.ambrosia.coordinator.ports import PortPair
from headrace.protocols.ambrosia.coordinator.repeats import Repeats
from headrace.protocols.ambrosia.session import Input
from headrace.protocols.errors import RemoteProtocolError

if TYPE_CHECKING:
    from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator


class DebugSession:
    """Opened by `immortal.replay`; ends with its binding, or when someone ends it.

    A binding is not told that the replay has ended, as by the published coordinator, unless `tells_end`: then it is
    asked for a checkpoint, which is not kept. To the binding that is the end; its answer tells the hub that it has gone
    through all that it was sent.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        instance: Instance,
        checkpoint: CheckpointInfo,
        until: int | None,
        tells_end: bool,
    ) -> None:
        self._coordinator = coordinator
        self._instance = instance
        self._repeats = Repeats(coordinator.hub, instance.name)
        self._made: dict[str, int] = {}
        """How many calls were made to whom, where all of the past is replayed."""
        self.difference: str | None = None
        """What the binding says otherwise than it was said before, if it does; known when all is replayed."""
        self.checkpoint = checkpoint
        self.end = coordinator.hub.bounds(instance.names.log).next if until is None else until
        """Logged messages below this index are replayed."""
        self.ports: PortPair
        self.link: Link | None = None
        self.unwatch: Callable[[], None] = lambda: None
        """Ends the watch over the rights of whoever opened it."""
        self._tells_end = tells_end
        self._answered = False
        if until is None:
            others = coordinator.instances.values()
            self._made = {other.name: other.queue.durable_count(instance.name) for other in others}

    def serve(self, link: Link, how: Input) -> None:
        """The binding has come."""
        self.link = link
        link.on_replayed = self._replayed
        link.on_skipped = self._skipped
        link.on_discarded = self._said
        link.start(how, self.checkpoint, self.end)

    def _replayed(self) -> None:
        if self._tells_end and self.link is not None:
            self.link.input(Input.CHECKPOINT_WANTED)

    def _said(self, calls: Calls) -> None:
        """The binding says something, which goes nowhere: it is held against what was said at the time."""
        assert self.link is not None
        name = calls.destination.decode(errors="replace") or self._instance.name
        destination = self._coordinator.instances.get(name)
        if not calls.replayable or destination is None:
            return
        last = self.link.sent.get(name, 0) + calls.count
        self.link.sent[name] = last
        known = destination.queue.durable_count(self._instance.name)
        repeated = min(calls.count, max(0, known - (last - calls.count)))
        if repeated:
            self._repeats.add(destination, last - calls.count + 1, calls, repeated)

    def _skipped(self) -> None:
        if self.position >= self.end:
            self._coordinator.spawn(self._compare())

    async def _compare(self) -> None:
        try:
            await self._repeats.compare()
        except RemoteProtocolError as error:
            self.difference = str(error)
        assert self.link is not None
        for name, made in self._made.items():
            missing = made - self.link.sent.get(name, 0)
            if missing > 0 and self.difference is None:
                self.difference = f"{missing} of the calls to {name} that were made are not made again"
        self._answered = True

    @property
    def state(self) -> str:
        """In a word, for people."""
        if self.link is None:
            return "waiting"
        is_over = self._answered if self._tells_end else self.position >= self.end
        return "replayed" if is_over else "replaying"

    @property
    def position(self) -> int:
        """The index of the next message to replay."""
        return self.checkpoint.position if self.link is None else self.link.feed.position

    async def close(self) -> None:
        """Free the ports, and end the binding's link."""
        self.unwatch()
        if self.link is not None:
            self.link.close("the debugging session was ended")
        await self.ports.close()
