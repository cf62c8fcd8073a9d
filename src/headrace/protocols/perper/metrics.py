"""What this protocol counts besides what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace.telemetry.metrics import Maker


class PerperMetrics:
    """Perper fabric."""

    def __init__(self, make: Maker) -> None:
        self.operations = make.counter("headrace_perper_operations_total", "Cache operations", ["operation"])
        self.calls = make.gauge("headrace_perper_calls", "Open gRPC calls", ["method"])
        self.caches = make.gauge("headrace_perper_caches", "Caches")
        self.executions = make.gauge("headrace_perper_executions", "Executions, finished ones too")
        self.listeners = make.gauge("headrace_perper_listeners", "Stream listeners")
        self.reservations = make.gauge("headrace_perper_reservations", "Executions reserved by a worker")
        self.cleaned = make.counter("headrace_perper_cleaned_total", "Items removed because no listener needs them")
