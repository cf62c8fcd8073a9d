"""AMBROSIA: the hub as Immortal Coordinator, and a Python language binding for it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.protocols.ambrosia.metrics import AmbrosiaMetrics
from headrace.protocols.ambrosia.settings import Ambrosia
from headrace.protocols.descriptor import Protocol


def addresses(settings: Ambrosia) -> Iterator[str]:
    """The ports of the immortals in the settings."""
    for immortal in settings.immortals.values() if settings.enabled else ():
        yield immortal.receive
        if immortal.sockets == "listen":
            yield immortal.send


PROTOCOL = Protocol(
    name="ambrosia",
    title="AMBROSIA immortals",
    authentication="client certificate; a binding on the hub's own machine needs none unless `ambrosia.trust_local` "
    "is false",
    settings=Ambrosia,
    metrics=AmbrosiaMetrics,
    service="headrace.protocols.ambrosia.server:start",
    console="headrace.protocols.ambrosia.console:CONSOLE",
    own_tls_files=True,
    addresses=addresses,
    own_tables={
        "ambrosia/immortals": "headrace.protocols.ambrosia.coordinator.store:read_registration",
        "ambrosia/initial": "",
        "ambrosia/methods": "headrace.protocols.ambrosia.interface:read_interface",
        "ambrosia/answers": "headrace.protocols.ambrosia.coordinator.outside:read_kept",
        "ambrosia/forgotten": "headrace.protocols.ambrosia.coordinator.store:read_forgotten",
    },
    own_streams=("immortal/*/log", "immortal/*/pending"),
    own_cursors=(("ambrosia", "immortal/*"),),
)
