"""How the console shows Wallaroo."""

from __future__ import annotations

from typing import Any

from headrace.protocols.descriptor import Console, Field, Place, SeenRecord, WireForm, state_place
from headrace.protocols.wallaroo.codec import V3
from headrace.protocols.wallaroo.states import MACHINES

U16 = 2**16 - 1
U64 = 2**64 - 1


def wire_form(record: SeenRecord) -> WireForm | None:
    """There are two bytes for the length of a key."""
    id = (record.index if record.id is None else record.id) & U64
    event_time = record.event_time_us or 0
    key = record.key or b""
    if len(key) > U16:
        return None
    data = V3.encode_message(1, id, record.payload, event_time, key, 0)
    fields = [
        Field("length", 4, str(len(data) - 4)),
        Field("tag", 1, "MESSAGE"),
        Field("stream id", 8, "1, given by the connector"),
        Field("message id", 8, str(id)),
        Field("event time", 8, str(event_time)),
        Field("key length", 2, str(len(key))),
        Field("key", len(key), ""),
        Field("payload", len(record.payload), ""),
    ]
    return WireForm("MESSAGE (v3)", data, fields)


def places(label: str, details: dict[str, Any]) -> list[Place]:
    """The connection, and each of its streams once the dialect is known."""
    machine = f"wallaroo/stream {details.get('dialect')}"
    streams = details["streams"].items() if details.get("dialect") else ()
    return state_place(label, details) + [Place(machine, f"stream {name}", state) for name, state in streams]


CONSOLE = Console(machines=MACHINES, wire_form=wire_form, places=places)
