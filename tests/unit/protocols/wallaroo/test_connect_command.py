"""`headrace connect` and `headrace stream rewind`, as a user runs them."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest
import typer
from unit.protocols.wallaroo.wallaroo_peer import hub_and_address, records

from headrace.cli import rewind as rewind_command

pytestmark = pytest.mark.slow


async def headrace(*arguments: str, stdin: bytes = b"") -> tuple[int, bytes, bytes]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "headrace",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        output, errors = await process.communicate(stdin)
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


async def test_what_goes_wrong_is_one_line(tmp_path: Path) -> None:
    async with hub_and_address(cookie="c") as (_, address):
        code, _, errors = await headrace("connect", "generate", "--stream", "s", "--to", address)
        assert code == 1
        assert b"Bad cookie" in errors
        assert b"Traceback" not in errors
    code, _, errors = await headrace("connect", "generate", "--stream", "s", "--dialect", "v9")
    assert code == 2
    assert b"neither v3 nor draft" in errors


def test_rewind_asks_for_one_place(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    calls: list[dict[str, object]] = []

    def call(hub: str, token: str | None, verb: str, request: dict[str, object]) -> dict[str, object]:
        calls.append(request)
        return {"stream": "s", "before": 9, "point": request["point"], "connections": 1}

    monkeypatch.setattr(rewind_command, "call", call)
    rewind_command.rewind("s", to=5)
    rewind_command.rewind("s", to_start=True, close=True, as_json=True)
    assert calls == [{"stream": "s", "point": 5, "how": "restart"}, {"stream": "s", "point": None, "how": "close"}]
    assert "from 9 back to message id 5; 1 connections told" in capsys.readouterr().out
    for wrong in ({}, {"to": 1, "to_start": True}):
        with pytest.raises(typer.Exit):
            rewind_command.rewind("s", **wrong)  # type: ignore[arg-type]
