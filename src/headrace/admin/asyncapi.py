"""The AsyncAPI 3.0 document of a hub: its listeners as servers, its streams as channels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from headrace import __version__
from headrace.log.columns import COLUMNS
from headrace.protocols.descriptor import protocols

RECORD_HEADERS = {
    "type": "object",
    "properties": {column.name: column.json_schema for column in COLUMNS if column.name != "payload"},
}


def document(listeners: Mapping[str, str], streams: Iterable[tuple[str, int]]) -> dict[str, Any]:
    """`listeners` is name → address; `streams` are names with their partitions."""
    kinds = {kind.name: kind for protocol in protocols() for kind in protocol.listeners}
    servers = {
        name: {"host": address, "protocol": kinds[name].protocol, "title": kinds[name].title}
        for name, address in listeners.items()
        if name in kinds
    }
    channels: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for stream, partitions in streams:
        key = _key(stream, channels)
        messages = {"record": {"$ref": "#/components/messages/record"}}
        channels[key] = {"address": stream, "messages": messages, "x-partitions": partitions}
        for action, verb in (("receive", "append"), ("send", "read")):
            operations[f"{verb}-{key}"] = {"action": action, "channel": {"$ref": f"#/channels/{key}"}}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Headrace",
            "version": __version__,
            "description": "The streams of one hub. Every listener reaches every stream; indexes are the same in all.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/octet-stream",
        "servers": servers,
        "channels": channels,
        "operations": operations,
        "components": {"messages": {"record": {"title": "Record", "headers": RECORD_HEADERS, "payload": True}}},
    }


def _key(stream: str, taken: Mapping[str, Any]) -> str:
    """Keys of channels may hold only some characters; names of streams may hold more."""
    key = base = re.sub(r"[^A-Za-z0-9_.-]", "-", stream)
    number = 2
    while key in taken:
        key, number = f"{base}-{number}", number + 1
    return key
