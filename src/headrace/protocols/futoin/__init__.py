"""FutoIn event streams (FTN18): JSON and MessagePack events over HTTP and WebSocket, polled or pushed."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.protocols.descriptor import ListenerKind, Protocol
from headrace.protocols.futoin.metrics import FutoinMetrics
from headrace.protocols.futoin.settings import Futoin


def warnings(settings: Futoin) -> Iterator[str]:
    """What to know about these settings where there are users."""
    if settings.insecure:
        yield (
            "futoin.insecure lets every program on this machine write without a name although there are users, and "
            "behind a reverse proxy on this machine everyone; set it to false"
        )


PROTOCOL = Protocol(
    name="futoin",
    title="FutoIn FTN18 event streams",
    authentication="`sec`: user and secret, or a signature with a key of `futoin.mac_keys` or `futoin.master_keys`; "
    "only over TLS",
    settings=Futoin,
    metrics=FutoinMetrics,
    listeners=(ListenerKind("http", "ws", "FutoIn FTN18 event streams over HTTP and WebSocket"),),
    service="headrace.protocols.futoin.server:start",
    console="headrace.protocols.futoin.console:CONSOLE",
    warnings=warnings,
)
