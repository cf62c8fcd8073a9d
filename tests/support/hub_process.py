"""`headrace up` as a process of its own, for tests that look at a hub from outside, kill it and start it again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from support.until import wait_until

from headrace.serving.runtime import LISTENERS

START_S = 120.0
STOP_S = 60.0
FREE = "127.0.0.1:0"


class HubProcess:
    """One life of a hub after another, over the same data and, once they are known, on the same ports.

    `only` names the listeners that are wanted, on free ports; all of them without it. `settings` are as behind `--set`
    and win over that; `program` is the module to run instead of `headrace`, with its arguments. As a context manager
    the hub is up inside, and must stop cleanly behind it if it still runs.
    """

    def __init__(
        self,
        folder: Path,
        *settings: str,
        only: tuple[str, ...] = LISTENERS,
        config: Path | None = None,
        environment: Mapping[str, str] | None = None,
        program: tuple[str, ...] = ("headrace",),
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.ready = folder / "ready.json"
        self.log = folder / "hub.log"
        self.addresses: dict[str, str] = {}
        self.process: subprocess.Popen[bytes] | None = None
        self._settings = settings
        self._only = only
        self._config = config
        self._environment = environment or {}
        self._program = program

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def page(self) -> str:
        """The address of its web page and its admin API."""
        return f"http://{self.addresses['http']}"

    def command(self) -> list[str]:
        """What a shell would be told; a listener that had a port before keeps it."""
        listeners = {name: self.addresses.get(name, FREE) if name in self._only else "off" for name in LISTENERS}
        given = {setting.partition("=")[0] for setting in self._settings}
        settings = [f"listen.{name}={at}" for name, at in listeners.items() if f"listen.{name}" not in given]
        places = ["--data", str(self.data), "--ready-file", str(self.ready)]
        if self._config is not None:
            places += ["--config", str(self._config)]
        flags = [part for setting in [*settings, *self._settings] for part in ("--set", setting)]
        return [sys.executable, "-m", *self._program, "up", *places, *flags]

    def launch(self) -> None:
        """Start it, and do not wait."""
        self.ready.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self._environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self.launch()
        process = self.process
        assert process is not None
        wait_until(lambda: self.ready.exists() or process.poll() is not None, "the hub is ready", START_S)
        assert self.ready.exists(), self.log.read_text()
        self.addresses = json.loads(self.ready.read_text())

    def kill(self) -> None:
        """kill -9; the process is gone when this returns."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(STOP_S)
            self.process = None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(STOP_S)
        self.process = None
        return code

    def __enter__(self) -> HubProcess:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and error is None:
            assert self.stop() == 0, self.log.read_text()
        self.kill()
