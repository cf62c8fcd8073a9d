"""How the console shows AMBROSIA."""

from __future__ import annotations

from headrace.protocols.ambrosia.codec import Call, RpcType, Type, encode, zigzag_int
from headrace.protocols.ambrosia.session import MACHINES
from headrace.protocols.descriptor import Console, Field, SeenRecord, WireForm, state_place


def wire_form(record: SeenRecord) -> WireForm:
    """An impulse from the inbox."""
    data = encode(Call(destination=None, method=0, rpc_type=RpcType.IMPULSE, arguments=record.payload))
    body = zigzag_int(0)
    fields = [
        Field("size", len(data) - 3 - len(body) - len(record.payload), ""),
        Field("type", 1, f"RPC ({int(Type.RPC)})"),
        Field("kind", 1, "call"),
        Field("method", len(body), "0"),
        Field("rpc type", 1, "impulse"),
        Field("arguments", len(record.payload), ""),
    ]
    return WireForm("RPC delivered from the inbox", data, fields)


CONSOLE = Console(
    machines=MACHINES, wire_form=wire_form, places=lambda label, details: state_place(label, details, "link")
)
