"""How the console shows Perper."""

from __future__ import annotations

from typing import Any

from headrace.protocols.descriptor import Console, Field, Place, SeenRecord, WireForm, state_place
from headrace.protocols.perper.fabric import session as fabric
from headrace.protocols.perper.ignite import session as ignite
from headrace.protocols.perper.ignite.binary import encode_byte_array
from headrace.protocols.perper.words import words


def wire_form(record: SeenRecord) -> WireForm:
    """A value of the cache that the stream is."""
    fields = [
        Field("type", 1, "byte array"),
        Field("length", 4, str(len(record.payload))),
        Field("payload", len(record.payload), ""),
    ]
    return WireForm(f"cache value under key {record.index}", encode_byte_array(record.payload), fields)


def places(label: str, details: dict[str, Any]) -> list[Place]:
    """An Ignite connection, or each call of a fabric connection."""
    if label == "ignite":
        return state_place(label, details)
    return [Place("fabric/call", method, state) for method, state in details.get("call_states", ())]


CONSOLE = Console(machines=(*ignite.MACHINES, *fabric.MACHINES), wire_form=wire_form, places=places, words=words)
