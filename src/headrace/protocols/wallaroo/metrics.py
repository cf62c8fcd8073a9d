"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class WallarooMetrics:
    """Wallaroo source connector protocol."""

    def __init__(self, make: Maker) -> None:
        self.credits_out = make.gauge("headrace_wallaroo_credits", "Credits given and not used")
        self.duplicates = make.counter("headrace_wallaroo_duplicates_total", "Messages stored already and dropped")
        self.rewinds = make.counter("headrace_wallaroo_rewinds_total", "Streams sent back by an operator")
