"""A hub that is killed while it changes many keys at once: after the start each change is there as a whole, or not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from faults.table_worker import KEYS
from faults.victim import Victim

from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk

pytestmark = pytest.mark.slow

KILLS = 20
WORKER = Path(__file__).with_name("table_worker.py")


def test_kill_nine_between_bulk_changes_again_and_again(tmp_path: Path) -> None:
    generator = random.Random(4)
    for _ in range(KILLS):
        with Victim(tmp_path, worker=WORKER) as victim:
            victim.wait_for("ready")
            victim.wait_for_lines(2 + generator.randrange(0, 60))
        check(tmp_path, victim.lines[1:])


def check(directory: Path, said: list[str]) -> None:
    log = open_directory(OsDisk(directory), SystemClock())
    try:
        assert not log.recovered.damage
        table = dict(log.table_items("state"))
        bounds = log.bounds("state")
        replayed: dict[bytes, bytes] = {}
        for batch in log.scan("state", bounds.first, bounds.next):
            for row in batch.select(["type", "key", "payload"]).to_pylist():
                if row["type"] == "clear":
                    replayed.clear()
                elif row["type"] == "delete":
                    replayed.pop(row["key"], None)
                else:
                    replayed[row["key"]] = row["payload"]
        assert replayed == table
        assert table.keys() in (set(KEYS), set()), "a part of a change is there"
        assert len(set(table.values())) <= 1, "parts of two changes are there"
        what, _, number = said[-1].partition(" ")
        if table:  # what was acknowledged, or the one change behind it, which was not
            is_last = what == "filled"
            assert int(table[KEYS[0]]) in ((int(number), int(number) + 1) if is_last else (int(number) + 1,))
        elif what == "filled":
            assert int(number) % 3 != 2, "nobody has emptied it"
    finally:
        log.close()
