"""A debugging session: a port pair of its own, on which one binding is served the past and can change nothing."""

from __future__ import annotations

from collections.abc import Callable

from headrace.log.ops import CheckpointInfo
from headrace.protocols.ambrosia.coordinator.link import Link
from headrace.protocols.ambrosia.coordinator.ports import PortPair
from headrace.protocols.ambrosia.session import Input


class DebugSession:
    """Opened by `immortal.replay`; ends with its binding, or when someone ends it.

    A binding is not told that the replay has ended, as by the published coordinator, unless `tells_end`: then it is
    asked for a checkpoint, which is not kept. To the binding that is the end; its answer tells the hub that it has gone
    through all that it was sent.
    """

    def __init__(self, checkpoint: CheckpointInfo, end: int, tells_end: bool) -> None:
        self.checkpoint = checkpoint
        self.end = end
        """Logged messages below this index are replayed."""
        self.ports: PortPair
        self.link: Link | None = None
        self.unwatch: Callable[[], None] = lambda: None
        """Ends the watch over the rights of whoever opened it."""
        self._tells_end = tells_end
        self._answered = False

    def serve(self, link: Link, how: Input) -> None:
        """The binding has come."""
        self.link = link
        link.on_replayed = self._replayed
        link.on_skipped = self._skipped
        link.start(how, self.checkpoint)

    def _replayed(self) -> None:
        if self._tells_end and self.link is not None:
            self.link.input(Input.CHECKPOINT_WANTED)

    def _skipped(self) -> None:
        self._answered = self.position >= self.end

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
