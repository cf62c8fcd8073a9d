"""The hub: the verbs that every protocol is translated into, and what every part finds beside them."""

from __future__ import annotations

from headrace.hub.checkpoints import CheckpointWriter
from headrace.hub.hub import READ_BYTES, Hub

__all__ = ["READ_BYTES", "CheckpointWriter", "Hub"]
