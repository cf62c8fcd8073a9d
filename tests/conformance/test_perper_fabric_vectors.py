"""Every gRPC vector, byte for byte, through our codec in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.protocols.perper.fabric import codec
from headrace.protocols.perper.fabric.descriptors import MESSAGES as MESSAGE_CLASSES
from headrace.protocols.perper.fabric.descriptors import METHODS

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vectors" / "perper.json").read_text())
MESSAGES = [pytest.param(v, id=v["name"]) for v in VECTORS if v["kind"] == "grpc-message"]


def as_vector(value: Any) -> Any:
    """A decoded message as the vectors write it: only what is set, maps as dicts."""
    if hasattr(value, "ListFields"):
        return {field.name: as_vector(part) for field, part in value.ListFields()}
    if hasattr(value, "items"):
        return dict(value)
    return [as_vector(one) for one in value] if hasattr(value, "append") else value


@pytest.mark.parametrize("vector", MESSAGES)
def test_message(vector: dict[str, Any]) -> None:
    fields = vector["fields"]
    name = fields["message"]
    data = bytes.fromhex(vector["hex"])
    method = METHODS[fields["rpc"]]
    kind = method.request if vector["direction"] == "client->server" else method.response
    assert kind is MESSAGE_CLASSES[name]
    assert as_vector(codec.decode(kind, data)) == fields["values"]
    assert codec.encode(kind, fields["values"]) == data


@pytest.mark.parametrize(
    "vector", [p for p in MESSAGES if p.values[0]["fields"]["message"].endswith("StreamItemsResponse")]
)
def test_keys_in_bulk_are_the_same_bytes(vector: dict[str, Any]) -> None:
    key = vector["fields"]["values"].get("key", 0)
    data = bytes.fromhex(vector["hex"])
    assert codec.encode_keys([key, key]) == codec.prefixed(data) * 2
