"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class OckamMetrics:
    """Ockam stream protocol."""

    def __init__(self, make: Maker) -> None:
        self.pulls = make.counter("headrace_ockam_pulls_total", "Pull requests served")
        self.pulls_failed = make.counter(
            "headrace_ockam_pulls_failed_total", "Pulls answered by an empty list: no disk"
        )
        self.pulls_trimmed = make.counter(
            "headrace_ockam_pulls_below_first_total", "Pulls that asked for records already removed by retention"
        )
        self.pushes_refused = make.counter("headrace_ockam_pushes_refused_total", "Pushes confirmed with status ERROR")
        self.dropped = make.counter("headrace_ockam_dropped_total", "Messages not answered, by reason", ["reason"])
        self.damaged = make.counter("headrace_ockam_damaged_skipped_total", "Damaged records that pulls stepped over")
