"""Ockam streams: store now, pull later, for clients that are often offline.

`bare` and `cbor` are the two encodings, `routing` the routed messages and their two framings, `codec` the stream
requests and replies inside them. `session` decides, `server` does, `client` is the other side.
"""

from __future__ import annotations

from headrace.protocols.descriptor import ListenerKind, Protocol
from headrace.protocols.ockam.metrics import OckamMetrics
from headrace.protocols.ockam.settings import Ockam

SERVER = "headrace.protocols.ockam.server:serve"

PROTOCOL = Protocol(
    name="ockam",
    title="Ockam stream protocol",
    authentication="client certificate",
    settings=Ockam,
    metrics=OckamMetrics,
    listeners=(ListenerKind("ockam", "ockam", "Ockam streams", SERVER, "127.0.0.1:4000"),),
    console="headrace.protocols.ockam.console:CONSOLE",
    addresses=lambda settings: [settings.cbor_listen],
    own_tables={
        "ockam.addresses": "headrace.protocols.ockam.addresses:read_address",
        "ockam.indexes": "headrace.protocols.ockam.streams:read_index",
    },
)
