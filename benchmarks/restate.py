"""Restate's server and a service of its Node SDK, for benchmarks that ask it the same as this hub.

`modules` is a directory in which `npm install @restatedev/restate-server @restatedev/restate-sdk` was run.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

START_S = 60


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def post(url: str, body: object) -> None:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    urllib.request.urlopen(request, timeout=120).read()


@contextlib.contextmanager
def restate(
    modules: Path, directory: Path, script: str, **environment: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The address of its ingress, and the service's process. The server has its default settings."""
    (binary,) = modules.glob("node_modules/@restatedev/restate-server-*/bin/restate-server")
    ports = {name: free_port() for name in ("service", "ingress", "admin", "node")}
    settings = {
        "RESTATE_LOG_FILTER": "error",
        "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ports['ingress']}",
        "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{ports['admin']}",
        "RESTATE_BIND_ADDRESS": f"127.0.0.1:{ports['node']}",
    }
    service = {"MODULES": str(modules.absolute()), "PORT": str(ports["service"]), "RESTATE_LOGGING": "ERROR"}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [binary.absolute(), "--base-dir", directory / "restate"]
    server = subprocess.Popen(command, env=os.environ | settings, cwd=directory, **quiet)
    node = subprocess.Popen(
        ["node", str(Path(__file__).with_name(script))],
        env=os.environ | service | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + START_S
        while True:
            try:
                post(f"http://127.0.0.1:{ports['admin']}/deployments", {"uri": f"http://127.0.0.1:{ports['service']}"})
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        yield f"127.0.0.1:{ports['ingress']}", node
    finally:
        for process in (node, server):
            process.kill()
            process.wait()
