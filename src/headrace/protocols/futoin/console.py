"""How the console shows FutoIn."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.protocols.descriptor import Console, Field, Place, SeenRecord, WireForm
from headrace.protocols.futoin.codec import Coding, Event
from headrace.protocols.futoin.events import event_data, shown_type, timestamp
from headrace.protocols.futoin.session import MACHINES


def wire_form(record: SeenRecord) -> WireForm:
    """One event, in JSON."""
    kind = shown_type(record.type)
    [value], _ = event_data([record.payload], Coding.JSON)
    event = Event(str(record.index + 1), kind, value, timestamp(record.time_us // 1_000_000))
    fields = []
    for position, name in enumerate(Event.__struct_fields__):
        inside = getattr(event, name)
        before = f'{"," if position else "{"}"{name}":'
        size = len(msgspec.json.encode(inside))
        shown = inside if isinstance(inside, str) else "the payload, if it is JSON; else as base64"
        fields += [Field("name", len(before), name), Field(name, size, shown)]
    fields.append(Field("end", 1, "}"))
    return WireForm("event in pollEvents or onEvents (JSON)", msgspec.json.encode(event), fields)


def places(label: str, details: dict[str, Any]) -> list[Place]:
    """The reliable receivers: they have a position."""
    reliable = [each for each in details.get("receivers", ()) if "position" in each]
    return [Place("futoin/delivery", f"receiver {each['component']}", each["state"]) for each in reliable]


CONSOLE = Console(machines=MACHINES, wire_form=wire_form, places=places)
