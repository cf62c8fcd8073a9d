"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class FutoinMetrics:
    """FutoIn FTN18."""

    def __init__(self, make: Maker) -> None:
        self.polls = make.counter("headrace_futoin_polls_total", "Polls served")
        self.groups = make.counter("headrace_futoin_pushed_groups_total", "Groups of events pushed")
        self.refused_groups = make.counter(
            "headrace_futoin_refused_groups_total", "Pushed groups that a consumer refused or did not answer"
        )
        self.dropped_groups = make.counter(
            "headrace_futoin_dropped_groups_total", "Groups that LIVE consumers were too slow for"
        )
        self.damaged = make.counter(
            "headrace_futoin_damaged_events_total", "Events left out because they are damaged on disk"
        )
