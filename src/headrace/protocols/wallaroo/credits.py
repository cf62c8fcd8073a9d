"""The credits of one connection. They count frames, and are given out by bytes as well.

The published connector drops the rest of a partial send, so it must never have more under way than sockets hold: a
window of 1,000 frames of 4 kB made it corrupt some. How large its frames are is seen from those that came.
"""

from __future__ import annotations

from headrace.protocols.wallaroo.frames import PeerFault

OVERDRAFT_MIN = 16
"""Published clients send NOTIFY at zero credits, so a tiny window needs some slack."""
FIRST_FRAME_BYTES = 64 * 1024
"""Taken for the size of a peer's frames until some have come: four times the largest that the original worker took."""


class Credits:
    """What a peer may send. It has `window - used`."""

    def __init__(self, window: int, credit_bytes: int) -> None:
        self.window = window
        self.used = self.due = window
        """Frames taken whose credits have not gone back yet, and credits that the peer never had; of these, how many
        may go to it now."""
        self._window_bytes = window * credit_bytes
        self._frame_bytes = FIRST_FRAME_BYTES

    def use(self, count: int) -> None:
        """So many frames came."""
        self.used += count
        under_way = self.used - self.due
        if under_way > self.window + max(self.window, OVERDRAFT_MIN):
            raise PeerFault(f"Credit exceeded: {under_way} frames under way, {self.window} were granted")

    def saw(self, frame_bytes: int) -> None:
        """Frames of this size came. Larger ones count at once, smaller ones by and by."""
        self._frame_bytes = max(frame_bytes, (7 * self._frame_bytes + frame_bytes) // 8, 1)

    def take(self) -> int:
        """What goes to the peer now. It may have two whatever the size: with one and two streams it waits for ever."""
        allowed = min(self.window, max(2, self._window_bytes // self._frame_bytes))
        credits = max(0, self.due - (self.window - allowed))
        self.due -= credits
        self.used -= credits
        return credits
