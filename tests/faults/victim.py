"""Starting, killing and checking `log_worker.py`."""

from __future__ import annotations

import os
import runpy
import select
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO

from support.forked_hub import Forked, context

from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk

WORKER = Path(__file__).with_name("log_worker.py")
SOURCE = Path(__file__).parents[2] / "src"
DEADLINE_S = 60.0


def _run(worker: str, arguments: list[str], output: Connection, errors: Connection) -> None:
    """In the forked process."""
    os.dup2(output.fileno(), 1)
    os.dup2(errors.fileno(), 2)
    sys.argv = [worker, *arguments]
    runpy.run_path(worker, run_name="__main__")


class Victim:
    """A worker process and what it has acknowledged. It is forked from one that has imported everything, which saves
    half a second for each of very many, unless something goes before its command."""

    def __init__(
        self,
        directory: Path,
        prefix: list[str] | None = None,
        preexec: object = None,
        options: tuple[str, ...] = (),
        worker: Path = WORKER,
    ) -> None:
        self.process: subprocess.Popen[bytes] | Forked
        self._output: IO[bytes] | Connection
        self._errors: IO[bytes] | Connection
        arguments = [str(directory), *options]
        if prefix is None and preexec is None:
            self._fork(str(worker), arguments)
        else:
            self._start([*(prefix or []), sys.executable, str(worker), *arguments], preexec)
        self._fd = self._output.fileno()
        os.set_blocking(self._fd, False)
        self._rest = b""
        self.lines: list[str] = []

    def _fork(self, worker: str, arguments: list[str]) -> None:
        forking = context()
        self._output, output = forking.Pipe(duplex=False)
        self._errors, errors = forking.Pipe(duplex=False)
        self.process = Forked(forking.Process(target=_run, args=(worker, arguments, output, errors)))
        output.close()
        errors.close()

    def _start(self, command: list[str], preexec: object) -> None:
        environment = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONUNBUFFERED": "1"}
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            preexec_fn=preexec,  # type: ignore[arg-type]
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._output, self._errors = self.process.stdout, self.process.stderr

    def __enter__(self) -> Victim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def read(self, timeout_s: float = 0.0) -> bool:
        """Take what has been said; False at the end of the output."""
        ready, _, _ = select.select([self._fd], [], [], timeout_s)
        if not ready:
            return True
        while True:
            try:
                data = os.read(self._fd, 1 << 20)
            except BlockingIOError:
                return True
            if not data:
                return False
            *whole, self._rest = (self._rest + data).split(b"\n")
            self.lines += [line.decode() for line in whole]

    def wait_for_lines(self, count: int) -> None:
        """Until so many lines have come, or the process is gone."""
        deadline = time.monotonic() + DEADLINE_S
        while len(self.lines) < count and self.read(0.1):
            assert time.monotonic() < deadline, f"only {len(self.lines)} lines: {self.lines[-3:]}"

    def wait_for(self, word: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not any(line.startswith(word) for line in self.lines):
            assert self.read(0.1), f"ended without {word!r}: {self.lines[-3:]} {self.errors()}"
            assert time.monotonic() < deadline, f"no {word!r}: {self.lines[-3:]}"

    def children(self) -> list[int]:
        tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]

    def errors(self) -> str:
        with open(self._errors.fileno(), "rb", closefd=False) as errors:
            return errors.read().decode()[-2000:]

    def stop(self) -> None:
        """SIGSTOP, and wait until no thread is left inside a system call; then take what has been said."""
        self.process.send_signal(signal.SIGSTOP)
        deadline = time.monotonic() + DEADLINE_S
        while any(_state(task) != "T" for task in Path(f"/proc/{self.process.pid}/task").iterdir()):
            assert time.monotonic() < deadline, "the victim does not stop"
            time.sleep(0.001)
        self.read()

    def kill(self) -> None:
        """SIGKILL, and take what the pipe still holds: it was acknowledged before."""
        self.process.kill()
        self.process.wait()
        while self.read(0.1) and select.select([self._fd], [], [], 0)[0]:
            pass
        for pipe in (self._output, self._errors):
            pipe.close()

    def acknowledged(self) -> list[tuple[str, str, str]]:
        return [
            (kind, where, value)
            for kind, where, value in (line.split(" ", 2) for line in self.lines if line.startswith(("s", "table ")))
        ]


def _state(task: Path) -> str:
    """T for a thread that is stopped; D for one that waits for the disk."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def check(directory: Path, acknowledged: list[tuple[str, str, str]]) -> None:
    """Nothing acknowledged is missing or changed, no index is used twice, nothing wrong is served."""
    log = open_directory(OsDisk(directory), SystemClock())
    try:
        assert not log.recovered.damage
        records: dict[str, dict[int, str]] = {}
        for kind, where, value in acknowledged:
            if kind != "table":
                known = records.setdefault(kind, {})
                assert known.setdefault(int(where), value) == value, f"index {where} of {kind} was used twice"
        for stream, known in records.items():
            bounds = log.bounds(stream)
            at = bounds.first
            found: dict[int, str] = {}
            while at < bounds.next:
                batch = log.read(stream, at, limit=100_000, bytes_max=1 << 26)
                for index, payload in zip(
                    batch.column("index").to_pylist(), batch.column("payload").to_pylist(), strict=True
                ):
                    found[index] = payload.decode()
                at += batch.num_rows
            assert list(found) == list(range(bounds.first, bounds.next))
            missing = {index: value for index, value in known.items() if found.get(index) != value}
            assert not missing, (
                f"{stream}: {len(missing)} acknowledged records are missing or changed: {list(missing)[:3]}"
            )
            assert all(value.startswith(f"{stream}:") for value in found.values())
        table = log.state.stream("state").table if "state" in log.state.streams else None
        last = {where: value for kind, where, value in acknowledged if kind == "table"}
        for key, value in last.items():
            assert table is not None
            stored = (table.get(key.encode()) or b"").decode()
            # A later put may have become durable without being acknowledged.
            assert int(stored.split(":")[1]) >= int(value.split(":")[1]), key
    finally:
        log.close()
