"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class FlightMetrics:
    """Arrow Flight."""

    def __init__(self, make: Maker) -> None:
        self.puts_bytes = make.gauge("headrace_flight_puts_bytes", "Batches of all puts that wait for the disk")
        self.puts_refused = make.counter(
            "headrace_flight_puts_refused_total", "Batches of puts for which there was no room to wait"
        )
        self.lines = make.gauge("headrace_flight_lines", "Open lines of the SDK")
        self.lines_refused = make.counter(
            "headrace_flight_lines_refused_total", "Lines that met a limit, by its name", ["limit"]
        )
