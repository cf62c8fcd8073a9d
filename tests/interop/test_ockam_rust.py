"""The published Rust client against the hub, unchanged: two of its nodes talk to each other through two streams.

Building that client takes minutes, so it is done in CI and on request: `HEADRACE_RUST=1 make test`. A build that is
there is used without asking.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from support.programs import leave_out, needs
from support.until import until
from test_programs import rust_asked

from headrace.protocols.ockam.bare import Reader
from headrace.protocols.ockam.routing import decode_wire, local
from headrace.protocols.ockam.server import serve
from headrace.testing import memory_hub

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

SOURCE = Path(__file__).parent / "ockam_rust"
CACHE = Path(os.environ.get("HEADRACE_TEST_CACHE", Path.home() / ".cache" / "headrace-tests"))
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "ockam-rust"))
PROGRAM = TARGET / "debug" / "ockam-stream-peer"
DEADLINE_S = 60


@pytest.fixture(scope="module")
def program() -> Path:
    if rust_asked():
        needs("cargo")
        built = build()
        if built.returncode != 0:
            leave_out(f"Ockam's published Rust client: cargo cannot build it: {built.stderr.strip()[-4_000:]}")
    if not PROGRAM.exists():
        leave_out("Ockam's published Rust client: not built; to include it: HEADRACE_RUST=1 make test (takes minutes)")
    return PROGRAM


def build() -> subprocess.CompletedProcess[str]:
    """Two at once build it once: cargo has a lock. A run of all tests begins early with it (`support/early.py`)."""
    return subprocess.run(["cargo", "build"], cwd=SOURCE, env=environment(), capture_output=True, text=True)


def environment() -> dict[str, str]:
    """rustup looks for its toolchains below $HOME, which need not be where they were installed."""
    toolchains = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".rustup"
    known = {"RUSTUP_HOME": str(toolchains)} if toolchains.exists() else {}
    return known | os.environ | {"CARGO_TARGET_DIR": str(TARGET)}


@asynccontextmanager
async def running(program: Path, *arguments: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=PIPE, stderr=DEVNULL)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_two_nodes_talk_through_the_hub_though_one_comes_later(program: Path) -> None:
    texts = ["Hello World!", "grüß dich 水", ""]
    async with memory_hub() as hub, asyncio.timeout(DEADLINE_S):
        listener = await serve(hub, "127.0.0.1:0")
        async with running(program, "initiator", listener.address, *texts) as initiator:
            await until(lambda: "to-responder" in {info.name for info in hub.streams()})
            await hub.wait("to-responder", 0)  # stored, and nobody there to pull it
            async with running(program, "responder", listener.address):
                assert initiator.stdout is not None
                output = (await initiator.stdout.read()).decode()
        assert [line.removeprefix("echo: ") for line in output.splitlines() if line.startswith("echo: ")] == texts
        assert hub.bounds("to-responder").next == hub.bounds("to-initiator").next == len(texts)
        assert hub.cursor("ockam:responder", "to-responder") == len(texts)
        records = (await hub.read("to-responder", 0)).column("payload").to_pylist()
        messages = [decode_wire(record) for record in records]
        assert [Reader(message.payload).string() for message in messages] == texts
        assert {message.onward for message in messages} == {(local("echo"),)}
        await listener.close()
