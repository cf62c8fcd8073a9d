"""Time for what waits in a hub's intake, without waiting for it."""

from __future__ import annotations

import time

from headrace.hub.base import HubBase


def later(hub: HubBase, seconds: float) -> None:
    """So much later, and looked at."""
    intake = hub.intake
    before = intake._clock_s() - time.monotonic()
    intake._clock_s = lambda: time.monotonic() + before + seconds
    intake.sweep()


def ended(hub: HubBase, listener: str, reason: str) -> float:
    """How many connections of a listener had to go for a reason."""
    value: float = hub.metrics.intake.ended.labels(protocol=listener, reason=reason)._value.get()
    return value
