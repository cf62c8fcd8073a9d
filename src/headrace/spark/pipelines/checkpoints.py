"""Where the checkpoints of pipelines live, at the hub and elsewhere."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from headrace.spark.errors import PipelineError


def default_home() -> Path:
    """Where checkpoints live unless told otherwise."""
    base = os.environ.get("HEADRACE_HOME") or os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace" / "pipelines"


def directory_name(name: str) -> str:
    """A pipeline's name as that of a directory. Names with other characters get a digest, so that no two meet."""
    if not name:
        raise PipelineError("a pipeline needs a name")
    plain = re.sub(r"[^\w-]", "_", name)
    return plain if plain == name else f"{plain[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def checkpoint_of(home: Path, name: str) -> Path:
    """The checkpoint directory of a pipeline."""
    return home / directory_name(name) / "checkpoint"
