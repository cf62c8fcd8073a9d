"""The hub: the verbs that every protocol is translated into, and what every part finds beside them."""

from __future__ import annotations

from headrace.hub.hub import READ_BYTES, CheckpointWriter, Hub

__all__ = [
    "READ_BYTES",
    "CheckpointWriter",
    "Hub",
]
