"""How the console shows Arrow Flight."""

from __future__ import annotations

from typing import Any

from headrace.protocols.descriptor import Console, Place
from headrace.protocols.flight.session import MACHINES


def places(label: str, details: dict[str, Any]) -> list[Place]:
    """Uploads run by a machine; reads do not."""
    return [Place("flight/put", "upload", str(details["state"]))] if "batches_received" in details else []


CONSOLE = Console(machines=MACHINES, places=places)
