"""`headrace up` with only the Wallaroo listener, as a process that can be killed."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

from headrace.serving.runtime import LISTENERS

START_S_MAX = 60.0


def free_port() -> int:
    """A port that was free a moment ago: a hub that is killed has to come back at the same address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class WallarooHub:
    """One life of a hub after another, over the same data."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.data = directory / "data"
        self._directory = directory
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ready = self._directory / "ready.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "headrace", "up", "--data", str(self.data), "--ready-file", str(ready)]
        settings = [*(f"listen.{name}=off" for name in LISTENERS), f"listen.wallaroo={self.address}"]
        for setting in [*settings, *self._settings]:
            command += ["--set", setting]
        with (self._directory / "hub.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S_MAX
        while not ready.exists() or not ready.read_text():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the hub did not start: {(self._directory / 'hub.log').read_text()}")
            time.sleep(0.01)
        self.addresses: dict[str, str] = json.loads(ready.read_text())
        assert self.addresses["wallaroo"] == self.address

    def kill(self) -> None:
        """kill -9; the process is gone when this returns."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(START_S_MAX)
        self._process = None

    def stop(self) -> None:
        """A clean stop."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait(START_S_MAX) == 0
        self._process = None

    def __enter__(self) -> WallarooHub:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_S_MAX)
