"""The Wallaroo connector protocol: TCP sources with credits, in both of its dialects."""

from __future__ import annotations

from headrace.protocols.descriptor import ListenerKind, Protocol
from headrace.protocols.wallaroo.metrics import WallarooMetrics
from headrace.protocols.wallaroo.settings import Wallaroo

SERVER = "headrace.protocols.wallaroo.server:serve"

PROTOCOL = Protocol(
    name="wallaroo",
    title="Wallaroo source connector protocol",
    authentication="the cookie of HELLO: a user's token, or `wallaroo.cookie`, which everyone shares",
    settings=Wallaroo,
    metrics=WallarooMetrics,
    listeners=(ListenerKind("wallaroo", "wallaroo", "Wallaroo source connectors", SERVER, "127.0.0.1:7100"),),
    console="headrace.protocols.wallaroo.console:CONSOLE",
    own_tables={
        "wallaroo.streams": "headrace.protocols.wallaroo.worker:read_introduced",
        "wallaroo.names": "headrace.protocols.wallaroo.claims:read_claim",
    },
    own_producers=("wallaroo", "wallaroo:*"),
)
