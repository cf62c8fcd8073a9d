"""SQL over JSON: how long `headrace sql` takes, and how long the engine behind it, on a stream of a million records.

    python benchmarks/bench_sql.py [--records 1000000] [--rounds 9] [--directory DIR]

A hub in a process of its own. The rows of the table are medians of single queries, one after the other, in
milliseconds: as a user sees them, from the start of `headrace sql` to its end, and as the SDK does, from `hub.sql` to
the last row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
from bench_sdk import hub_at, median_ms

import headrace

FRUITS = ("apple", "cherry", "fig", "pear", "plum", "quince", "lemon")
BATCH = 50_000
QUERIES = {
    "count": "SELECT count(*) FROM orders",
    "last ten": "SELECT index, payload FROM orders ORDER BY index DESC LIMIT 10",
    "sum by group": "SELECT value.fruit, count(*), sum(value.count) FROM orders GROUP BY 1 ORDER BY 1",
    "filter": "SELECT count(*) FROM orders WHERE value.fruit = 'pear' AND value.count > 900",
}


def fill(hub: headrace.Client, records: int) -> None:
    hub.create("orders")
    for first in range(0, records, BATCH):
        numbers = range(first, min(first + BATCH, records))
        payloads = [b'{"fruit": "%s", "count": %d}' % (FRUITS[n % 7].encode(), n % 1000) for n in numbers]
        hub.append("orders", pa.table({"payload": pa.array(payloads, pa.binary())}))


def command_ms(address: str, text: str, rounds: int) -> float:
    command = [sys.executable, "-m", "headrace", "sql", "--hub", address, text]

    def run() -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"NO_COLOR": "1"})

    return median_ms(run, rounds, warm=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--directory", type=Path, default=None)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=asked.directory) as name,
        hub_at(Path(name)) as address,
        headrace.connect(address) as hub,
    ):
        fill(hub, asked.records)
        print(f"{asked.records:,} records of JSON; medians of {asked.rounds}, ms")
        print(f"{'':14} {'headrace sql':>14} {'hub.sql':>10}")
        for title, text in QUERIES.items():
            engine = median_ms(lambda text=text: hub.sql(text).to_list(), asked.rounds, warm=1)  # type: ignore[misc]
            print(f"{title:14} {command_ms(address, text, asked.rounds):14.0f} {engine:10.0f}")


if __name__ == "__main__":
    main()
