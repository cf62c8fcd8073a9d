"""A debugging session: a port pair of its own, on which one binding is served the past and can change nothing."""

from __future__ import annotations

from collections.abc import Callable

from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.coordinator.link import Link
from headrace.protocols.ambrosia.coordinator.ports import PortPair


class DebugSession:
    """Opened by `immortal.replay`; ends with its binding, or when someone ends it."""

    def __init__(self, checkpoint: CheckpointInfo, end: int) -> None:
        self.checkpoint = checkpoint
        self.end = end
        """Logged messages below this index are replayed."""
        self.ports: PortPair
        self.link: Link | None = None
        self.unwatch: Callable[[], None] = lambda: None
        """Ends the watch over the rights of whoever opened it."""

    @property
    def state(self) -> str:
        """In a word, for people."""
        if self.link is None:
            return "waiting"
        return "replayed" if self.position >= self.end else "replaying"

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
