"""`headrace agents run` with real agents: instances become processes, and vanish with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.perper_agents import ENVIRONMENT, PREAMBLE, HubThread, agent
from support.until import DEADLINE_S, wait_until

pytestmark = pytest.mark.slow

WORKER = """
from pathlib import Path
Path(os.environ["MARKS"], f"{os.getpid()}").write_text(os.environ["X_PERPER_INSTANCE"])
asyncio.run(perper.run("worker", {"WhoAmI": lambda: (get_agent().instance, os.getpid())}, use_instances=True))
"""
CALLER = """
async def main():
    perper.run_notebook(agent="caller", instance="caller-1")
    worker, _ = await start_agent("worker")
    instance, process = await call_agent(worker, "WhoAmI")
    say("served", instance == worker.instance, process)
    await asyncio.to_thread(sys.stdin.readline)
    instance, process = await call_agent(worker, "WhoAmI")
    say("again", instance == worker.instance, process)
    await destroy_agent(worker)
    say("destroyed")

asyncio.run(main())
"""


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[tuple[HubThread, subprocess.Popen[str], Path]]:
    marks = tmp_path / "marks"
    marks.mkdir()
    (tmp_path / "worker.py").write_text(PREAMBLE + textwrap.dedent(WORKER))
    with HubThread() as hub:
        (tmp_path / "agents.toml").write_text(
            f"""
            ignite = "{hub.ignite}"
            fabric = "{hub.fabric}"
            restart_s_min = 0.05

            [agents.worker]
            command = ["{sys.executable}", "worker.py"]
            environment = {{ MARKS = "{marks}" }}
            """
        )
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "agents", "run", str(tmp_path / "agents.toml")],
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
        )
        try:
            yield hub, process, marks
        finally:
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
            wait_until(lambda: not any(alive(int(mark.name)) for mark in marks.iterdir()))


def alive(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_instance_is_a_process(runner: tuple[HubThread, subprocess.Popen[str], Path], tmp_path: Path) -> None:
    hub, _, marks = runner
    source = CALLER.replace("await asyncio.to_thread(sys.stdin.readline)", "await wait_for_file()")
    waiting = """
    async def wait_for_file():
        while not os.path.exists(os.environ["GO"]):
            await asyncio.sleep(0.02)
    """
    go = tmp_path / "go"
    with agent(tmp_path, textwrap.dedent(waiting) + source, hub.ignite, hub.fabric, GO=str(go)) as caller:
        _, same, process = caller.wait_for("served").split()
        assert same == "True"
        os.kill(int(process), signal.SIGKILL)  # the runner starts it again
        wait_until(lambda: len(list(marks.iterdir())) == 2)
        go.touch()
        _, same, other = caller.wait_for("again").split()
        assert same == "True"
        assert other != process
        caller.wait_for("destroyed")
        wait_until(lambda: not alive(int(other)))
