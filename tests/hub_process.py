"""A hub in a process of its own, for tests that look at it from outside."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from headrace.serving.runtime import LISTENERS

START_S = 120
STOP_S = 60


class HubProcess(NamedTuple):
    """A running hub: where it listens, and the file that it writes its log into."""

    addresses: dict[str, str]
    process: subprocess.Popen[bytes]
    log: Path


@contextmanager
def hub_process(folder: Path, *settings: str) -> Iterator[HubProcess]:
    """All listeners on free ports, data and log in `folder`; `settings` are as behind `--set`."""
    ready, log = folder / "ready.json", folder / "log"
    flags = [*(f"listen.{name}=127.0.0.1:0" for name in LISTENERS), *settings]
    command = [sys.executable, "-m", "headrace", "up", "--data", str(folder / "data"), "--ready-file", str(ready)]
    with log.open("wb") as output:
        options = [part for flag in flags for part in ("--set", flag)]
        process = subprocess.Popen([*command, *options], stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, "the hub was not ready in time"
            time.sleep(0.02)
        yield HubProcess(json.loads(ready.read_text()), process, log)
    finally:
        process.terminate()
        process.wait(STOP_S)
