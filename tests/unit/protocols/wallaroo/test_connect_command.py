"""`headrace connect` and `headrace stream rewind`, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import IO

import pytest
from click.testing import Result
from support.wallaroo_peer import hub_and_address, records
from typer.testing import CliRunner

from headrace.cli.options import Answer
from headrace.cli.stream import app

pytestmark = pytest.mark.slow


async def headrace(*arguments: str, stdin: bytes | IO[bytes] = b"") -> tuple[int, bytes, bytes]:
    """Run the command; standard input is a pipe with these bytes, or a file."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace",
        *arguments,
        stdin=asyncio.subprocess.PIPE if isinstance(stdin, bytes) else stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate(stdin if isinstance(stdin, bytes) else None)
    assert process.returncode is not None
    return process.returncode, output, errors


async def test_a_file_lines_and_a_generator(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("id,what\n1,tea\n2,milk\n")
    async with hub_and_address(cookie="c") as (hub, address):
        common = ("--to", address, "--cookie", "c", "--json")
        code, output, _ = await headrace("connect", "file", str(path), "--stream", "orders", "--skip", "1", *common)
        assert (code, json.loads(output)) == (0, {"stream": "orders", "point": 21, "connections": 1})
        for _ in range(2):
            code, output, _ = await headrace("connect", "lines", "--stream", "app", *common, stdin=b"one\ntwo\r\nrest")
            assert code == 0
        assert json.loads(output)["point"] == 6
        code, _, _ = await headrace(
            "connect", "generate", "--stream", "g", "--count", "10", "--size", "4", "--instance", "i", *common
        )
        assert code == 0
        assert [row["payload"] for row in await records(hub, "orders")] == [b"1,tea", b"2,milk"]
        assert [row["payload"] for row in await records(hub, "app")] == [b"one", b"two", b"rest"] * 2
        assert [len(row["payload"]) for row in await records(hub, "i.g")] == [4] * 10  # type: ignore[arg-type]


@pytest.mark.parametrize(("lines", "point"), [(b"one\ntwo\n", 2), (None, None)], ids=["a file", "/dev/null"])
async def test_lines_from_what_no_loop_can_wait_for(lines: bytes | None, point: int | None, tmp_path: Path) -> None:
    """A regular file and `/dev/null` are always ready, and epoll refuses them."""
    path = Path("/dev/null")
    if lines is not None:
        path = tmp_path / "lines"
        path.write_bytes(lines)
    async with hub_and_address() as (hub, address):
        with path.open("rb") as file:
            code, output, errors = await headrace(
                "connect", "lines", "--stream", "s", "--to", address, "--json", stdin=file
            )
        assert (code, errors) == (0, b"")
        assert json.loads(output)["point"] == point
        assert [row["payload"] for row in await records(hub, "s")] == (lines or b"").splitlines()


async def test_a_line_without_an_end_is_refused() -> None:
    """Before it fills the memory."""
    async with hub_and_address() as (_, address):
        endless = b"one\n" + bytes(9_000_000)
        code, _, errors = await headrace("connect", "lines", "--stream", "s", "--to", address, stdin=endless)
        assert code == 2
        assert b"line 2 is longer than 4194304 bytes: is this text?" in b" ".join(errors.split())
        assert b"Traceback" not in errors


async def test_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    async with hub_and_address(cookie="c") as (_, address):
        code, _, errors = await headrace("connect", "generate", "--stream", "s", "--to", address)
        assert code == 1
        assert b"Bad cookie" in errors
        assert b"Traceback" not in errors
    code, _, errors = await headrace("connect", "generate", "--stream", "s", "--dialect", "v9")
    assert code == 2
    assert b"neither v3 nor draft" in errors


def test_rewind_asks_for_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []

    def call(answer: Answer, verb: str, request: dict[str, object]) -> dict[str, object]:
        calls.append(request)
        return {"stream": "s", "before": 9, "point": request["point"], "connections": 1}

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["rewind", "s", *arguments])

    monkeypatch.setattr(Answer, "call", call)
    assert "from 9 back to message id 5; 1 connections told" in run("--to", "5").output
    assert json.loads(run("--to-start", "--close", "--json").output)["point"] is None
    assert calls == [{"stream": "s", "point": 5, "how": "restart"}, {"stream": "s", "point": None, "how": "close"}]
    for wrong in ([], ["--to", "1", "--to-start"]):
        assert run(*wrong).exit_code == 2
