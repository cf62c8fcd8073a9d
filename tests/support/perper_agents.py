"""A hub with both Perper listeners on a thread of its own, as published clients block the loop they run in."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.background import Background
from support.until import DEADLINE_S

import headrace
from headrace.config import Config
from headrace.hub import Hub
from headrace.protocols.perper.fabric.server import serve as serve_fabric
from headrace.protocols.perper.ignite.server import serve as serve_ignite
from headrace.sql.verbs import start as start_sql
from headrace.testing import memory_hub

# For child processes: the package under test, wherever it lies.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(headrace.__file__).parents[1])}


class HubThread(Background):
    """The hub, its addresses, and a way to run a coroutine beside it."""

    hub: Hub
    ignite: str
    fabric: str

    def __init__(self, config: Config | None = None, disk: Any = None) -> None:
        super().__init__()
        self._config = config
        self._disk = disk
        self._open = contextlib.AsyncExitStack()

    async def _serve(self) -> None:
        self.hub = await self._open.enter_async_context(memory_hub(self._config, disk=self._disk))
        queries = await start_sql(self.hub)
        self._open.push_async_callback(queries.close)
        ignite = await serve_ignite(self.hub, "127.0.0.1:0")
        self._open.push_async_callback(ignite.close)
        fabric = await serve_fabric(self.hub, "127.0.0.1:0")
        self._open.push_async_callback(fabric.close)
        self.ignite, self.fabric = ignite.address, fabric.address

    @property
    def ignite_port(self) -> int:
        return int(self.ignite.rpartition(":")[2])

    def __enter__(self) -> HubThread:
        self.run(self._serve())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._open.aclose())
        self.close()


class Agent:
    """A real agent process. Its output is read line by line."""

    def __init__(self, folder: Path, source: str, ignite: str, fabric: str, **environment: str) -> None:
        script = folder / f"agent_{time.monotonic_ns()}.py"
        script.write_text(PREAMBLE + textwrap.dedent(source))
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                **os.environ,
                "APACHE_IGNITE_ENDPOINT": ignite,
                "PERPER_FABRIC_ENDPOINT": f"http://{fabric}",
                **environment,
            },
        )
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def wait_for(self, text: str, deadline_s: float = DEADLINE_S) -> str:
        """The first line that begins with `text`."""

        def found() -> str | None:
            return next((line for line in self.lines if line.startswith(text)), None)

        with self._changed:
            ended = self._changed.wait_for(lambda: found() or self.process.poll() is not None, deadline_s)
        line = found()
        assert line is not None, f"no line {text!r} ({ended=}) in:\n" + "\n".join(self.lines)
        return line

    def values(self, text: str) -> list[str]:
        """What follows `text` on all lines that begin with it."""
        return [line[len(text) :].strip() for line in self.lines if line.startswith(text)]

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextlib.contextmanager
def agent(folder: Path, source: str, ignite: str, fabric: str, **environment: str) -> Iterator[Agent]:
    started = Agent(folder, source, ignite, fabric, **environment)
    try:
        yield started
    finally:
        started.kill()


PREAMBLE = """\
import asyncio, os, sys, time
import perper
from perper import *
from perper.extensions import *
from perper.extensions.context_vars import fabric_service, fabric_execution

def say(*what):
    print(*what, flush=True)

"""
