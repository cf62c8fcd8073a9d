"""The judge of `takeovers.py` sees what is missing, doubled or torn: otherwise its word would mean nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from faults import ledger

from headrace.config import Config
from headrace.hub import Hub
from headrace.log import ops
from headrace.log.batch import Batch

WRITERS = {"v": 20, "w": 7}


async def hub_with_rounds(folder: Path) -> Hub:
    hub = await Hub.open(folder, Config())
    listener = await ledger.serve(hub, "127.0.0.1:0")
    for writer, rounds in WRITERS.items():
        for round in [*range(rounds), rounds - 1]:  # the last one is asked for twice
            await ledger.do(hub, writer, round)
    await listener.close()
    return hub


async def test_all_is_well(tmp_path: Path) -> None:
    hub = await hub_with_rounds(tmp_path)
    records = sum(len(ledger.payloads(writer, round)) + 1 for writer in WRITERS for round in range(WRITERS[writer]))
    assert await asyncio.to_thread(ledger.judge, hub._log, WRITERS) == records
    await hub.close()


TAMPERED: dict[str, list[ops.Op]] = {
    "a record too many": [ops.Append(ledger.MANY, Batch.one(b"v 3 0"))],
    "a round twice": [ops.Append(ledger.ONE, Batch.one(b"v 19"))],
    "half a round": [ops.Append(ledger.ONE, Batch.one(b"v 20"))],
    "the row of a round before": [ops.Put(ledger.ROWS, b"v", b"18")],
    "the cursor of a round before": [ops.SaveCursor("v", ledger.ONE, 18, rewind=True)],
    "the producer of a round before": [ops.SetProducer(ledger.ONE, "v", 18)],
    "no checkpoint": [],
}


@pytest.mark.parametrize("what", TAMPERED)
async def test_what_is_wrong_is_seen(tmp_path: Path, what: str) -> None:
    hub = await hub_with_rounds(tmp_path)
    number = max(info.id for info in hub.checkpoints() if info.meta["writer"] == "v")
    await hub.transact(TAMPERED[what] or [ops.DropCheckpoint(number)])
    with pytest.raises(AssertionError):
        await asyncio.to_thread(ledger.judge, hub._log, WRITERS)
    await hub.close()


async def test_an_acknowledged_round_that_is_missing_is_seen(tmp_path: Path) -> None:
    hub = await hub_with_rounds(tmp_path)
    with pytest.raises(AssertionError, match="acknowledged"):
        await asyncio.to_thread(ledger.judge, hub._log, {**WRITERS, "v": 21})
    await hub.close()
