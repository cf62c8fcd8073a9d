"""The service `ambrosia` of a hub: it opens the ports of all immortals and registers the verbs about them."""

from __future__ import annotations

from headrace.hub import Hub
from headrace.protocols.ambrosia.call_verbs import CallVerbs
from headrace.protocols.ambrosia.coordinator.coordinator import Coordinator
from headrace.protocols.ambrosia.import_verbs import ImportVerbs
from headrace.protocols.ambrosia.settings import Ambrosia
from headrace.protocols.ambrosia.verbs import ImmortalVerbs
from headrace.serving.listener import Listener


class ImmortalPorts(Listener):
    """All port pairs. There is no single address; `addresses` names each socket."""

    def __init__(self, coordinator: Coordinator) -> None:
        super().__init__("", coordinator.close)
        self.coordinator = coordinator

    @property
    def addresses(self) -> dict[str, str]:
        """`ambrosia.NAME.receive` and `ambrosia.NAME.send` for each immortal, as they stand in the ready file."""
        addresses: dict[str, str] = {}
        for name, ports in self.coordinator.ports.items():
            addresses |= {f"ambrosia.{name}.receive": ports.receive, f"ambrosia.{name}.send": ports.send}
        return addresses


async def start(hub: Hub) -> ImmortalPorts | None:
    """Serve immortals, unless `ambrosia.enabled` is off."""
    if not hub.config.section(Ambrosia).enabled:
        return None
    coordinator = Coordinator(hub)
    try:
        await coordinator.open()
    except BaseException:
        await coordinator.close()
        raise
    ImmortalVerbs(coordinator).register(hub.verbs)
    CallVerbs(coordinator).register(hub.verbs)
    ImportVerbs(coordinator).register(hub.verbs)
    return ImmortalPorts(coordinator)
