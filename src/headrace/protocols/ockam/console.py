"""How the console shows Ockam."""

from __future__ import annotations

from headrace.protocols.descriptor import Console, Field, SeenRecord, WireForm, state_place
from headrace.protocols.ockam.bare import encode_uint
from headrace.protocols.ockam.codec import PULL, encode_pull
from headrace.protocols.ockam.session import MACHINES


def wire_form(record: SeenRecord) -> WireForm:
    """The answer to a pull."""
    data, _ = encode_pull(1, [record.index], [record.payload], 2**62)
    name = PULL.encode()
    fields = [
        Field("protocol length", 1, str(len(name))),
        Field("protocol", len(name), PULL),
        Field("body length", 0, ""),
        Field("request id", 1, "1, given by the client"),
        Field("records", 1, "1"),
        Field("index", len(encode_uint(record.index)), str(record.index)),
        Field("length", len(encode_uint(len(record.payload))), str(len(record.payload))),
        Field("payload", len(record.payload), ""),
    ]
    rest = len(data) - sum(field.size for field in fields)
    fields[2] = Field("body length", rest, str(len(data) - len(name) - 1 - rest))
    return WireForm("pull response", data, [field for field in fields if field.size])


CONSOLE = Console(machines=MACHINES, wire_form=wire_form, places=state_place)
