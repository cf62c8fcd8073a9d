"""How long a hub with very many streams takes to start, and how much memory it needs when it is ready.

    python benchmarks/bench_start.py [--streams 100000] [--records 10] [--previous REVISION] [--directory DIR]
                                     [--forms together singly] [--states stopped killed sealed]

Three directories: stopped as it should be, killed, and with every stream in a segment of its own; each with the records
of a stream appended together, and one by one, which makes as many frames in the journal. Each build starts its own,
`headrace up` with all listeners. Seconds are from the start of the process to the ready
file; memory is what the process has resident then.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import previous

AT_ONCE = 5_000
STATES = ("stopped", "killed", "sealed")
FORMS = ("together", "singly")
LISTENERS = ("http", "flight", "wallaroo", "ockam", "ignite", "fabric")


async def make(folder: str, streams: int, records: int, singly: bool, state: str) -> None:
    """The process that fills a directory."""
    from headrace.config import Config, Log
    from headrace.hub import Hub
    from headrace.log.batch import Batch
    from headrace.log.ops import CreateStream

    names = [f"devices/{number:06d}/readings" for number in range(streams)]
    groups = [names[start : start + AT_ONCE] for start in range(0, streams, AT_ONCE)]
    values = [b'{"reading": %06d}' % number for number in range(records)]
    batches = [Batch.of([value]) for value in values] if singly else [Batch.of(values)]
    settings = Log(seal_age_s=0.5, maintenance_interval_s=0.1) if state == "sealed" else Log()
    hub = await Hub.open(folder, Config(log=settings))
    for group in groups:
        await asyncio.gather(*[hub.transact([CreateStream(name)]) for name in group])
    for batch in batches:
        for group in groups:
            await asyncio.gather(*[hub.append(name, batch) for name in group])
    while state == "sealed" and hub.gauges()["tail_bytes"]:  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    if state == "killed":
        os._exit(0)
    await hub.close()


def start(source: Path, folder: Path, environment: dict[str, str]) -> tuple[float, float, float]:
    """Seconds until ready, seconds of CPU, and MB."""
    ready = folder.parent / "ready"
    ready.unlink(missing_ok=True)
    command = [sys.executable, "-m", "headrace", "up", "--data", str(folder), "--ready-file", str(ready)]
    command += ["--set", "log.streams_max=1000000"]  # an earlier build would not make its own tables
    command += [part for name in LISTENERS for part in ("--set", f"listen.{name}=127.0.0.1:0")]
    began = time.monotonic()
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
            time.sleep(0.005)
        seconds = time.monotonic() - began
        resident = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return seconds, ticks / os.sysconf("SC_CLK_TCK"), resident / 1e6
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def measure(name: str, source: Path, asked: argparse.Namespace, folder: Path) -> None:
    environment = os.environ | {"PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent}"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    start(source, folder / "new", environment)  # its modules are compiled then, as those of an installation are
    for form, state in itertools.product(asked.forms, asked.states):
        data = folder / "data"
        shutil.rmtree(data, ignore_errors=True)
        arguments = ["make", str(data), "--streams", str(asked.streams), "--records", str(asked.records)]
        arguments += ["--states", state, "--forms", form]
        subprocess.run([sys.executable, __file__, *arguments], env=environment, check=True)
        kept = folder / "kept"
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(data, kept)
        for _ in range(asked.turns):
            shutil.rmtree(data)
            shutil.copytree(kept, data)
            os.sync()  # the start must not wait for what the copy left to write
            seconds, cpu, megabytes = start(source, data, environment)
            load = os.getloadavg()[0]
            print(
                f"{name:12} {form:9} {state:8} {seconds:8.2f} s {cpu:8.2f} s CPU {megabytes:8.0f} MB   load {load:.1f}",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", nargs="?", choices=["make"])
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--streams", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=10)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="how the records were appended")
    parser.add_argument("--states", nargs="+", choices=STATES, default=STATES)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--directory", default=os.environ.get("BENCH_DIR", "."))
    previous.add_option(parser)
    asked = parser.parse_args()
    if asked.mode == "make":
        asyncio.run(make(asked.folder, asked.streams, asked.records, asked.forms[0] == "singly", asked.states[0]))
        return
    with tempfile.TemporaryDirectory(prefix="bench-start-", dir=asked.directory) as folder:
        for name, source in previous.builds(asked.previous, Path(folder)).items():
            measure(name, source, asked, Path(folder))


if __name__ == "__main__":
    main()
