"""Perper Fabric: Apache Ignite's thin client protocol for the data, a gRPC service for waiting and notification.

`ignite/` and `fabric/` are the two halves on the wire. What both share lies beside them: `records` (the two record
types the fabric reads), `registry` (binary types), `catalogue` (caches as tables and streams of the hub), `books`
(executions, listeners and the wake-ups that hang on them), `state` (all of it together).
"""

from __future__ import annotations

from headrace.protocols.descriptor import ListenerKind, Protocol
from headrace.protocols.perper.metrics import PerperMetrics
from headrace.protocols.perper.settings import Perper

IGNITE = "headrace.protocols.perper.ignite.server:serve"
FABRIC = "headrace.protocols.perper.fabric.server:serve"

PROTOCOL = Protocol(
    name="perper",
    title="Perper fabric",
    authentication="`ignite`: user and password in the handshake; `fabric`: metadata `authorization`",
    settings=Perper,
    metrics=PerperMetrics,
    listeners=(
        ListenerKind("ignite", "ignite", "Perper: Ignite thin clients", IGNITE, "127.0.0.1:10800"),
        ListenerKind("fabric", "grpc", "Perper: fabric service", FABRIC, "127.0.0.1:40400"),
    ),
    console="headrace.protocols.perper.console:CONSOLE",
    holds=lambda cursor, stream: cursor == f"{stream}-persist",
    own_tables={
        "perper.caches": "headrace.protocols.perper.catalogue:read_entry",
        "perper.expiry": "headrace.protocols.perper.tables:read_deadline",
        "perper.listened": "headrace.protocols.perper.state:read_listened",
        "perper.types": "headrace.protocols.perper.registry:read_stored_type",
        "perper.type-names": "headrace.protocols.perper.registry:read_stored_name",
    },
)
