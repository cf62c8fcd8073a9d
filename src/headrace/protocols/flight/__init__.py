"""Arrow Flight: bulk read and write of record batches, and every verb of the hub."""

from __future__ import annotations

from headrace.protocols.descriptor import ListenerKind, Protocol
from headrace.protocols.flight.metrics import FlightMetrics
from headrace.protocols.flight.settings import Flight

SERVER = "headrace.protocols.flight.server:serve"

PROTOCOL = Protocol(
    name="flight",
    title="Arrow Flight",
    authentication="`Authorization`: a token, or user and password; Flight's handshake",
    settings=Flight,
    metrics=FlightMetrics,
    listeners=(
        ListenerKind(
            "flight", "arrow-flight", "Arrow Flight: SDK, CLI, Spark, pandas, DuckDB", SERVER, "127.0.0.1:7070"
        ),
    ),
    console="headrace.protocols.flight.console:CONSOLE",
)
