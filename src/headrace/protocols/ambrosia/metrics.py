"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class AmbrosiaMetrics:
    """AMBROSIA immortals."""

    def __init__(self, make: Maker) -> None:
        self.immortals = make.gauge("headrace_ambrosia_immortals", "Immortals known", ["state"])
        self.answers = make.gauge("headrace_ambrosia_answers", "Calls with an idempotency key that are known")
        self.calls = make.counter("headrace_ambrosia_calls_total", "Calls received from bindings")
        self.duplicates = make.counter("headrace_ambrosia_duplicates_total", "Calls sent again by recovering bindings")
        self.links_closed = make.counter("headrace_ambrosia_links_closed_total", "Links closed for a fault")
        self.checkpoints = make.counter("headrace_ambrosia_checkpoints_total", "Checkpoints made durable")
        self.checkpoint_bytes = make.counter("headrace_ambrosia_checkpoint_bytes_total", "Bytes of those checkpoints")
