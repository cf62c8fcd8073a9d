"""How many drivers, hubs and executors may be killed under a query, and what is lost, doubled or out of order then.

    make spark-kills [ARGS="--trigger 'real time' --engine java --drivers 10 --hubs 10 --executors 5"]

Each driver and each hub is killed at a trap, when something that a driver asked for is durable and not answered yet, or
anywhere; executors are those of a standalone cluster, on the same checkpoint. Prints one line for each mode and engine,
and ends with 1 unless all of its last three numbers are 0. What one run has no time for is for another one: give each
fewer kills, and another `--seed`.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
import time
from pathlib import Path

from kill_stage import REAL_TIME, Round, Stage
from spark_cluster import Cluster, Driven
from support.early import make_class_archive

MICRO, LIVE = "micro-batches", "real time"
MODES = ((MICRO, "java"), (MICRO, "python"), (LIVE, "java"))
TRAPS = {MICRO: ("commit", "stage", ""), LIVE: ("append", "spread", "")}


def run(place: Path, trigger: str, engine: str, arguments: argparse.Namespace) -> bool:
    """One mode with one engine; whether nothing went wrong."""
    chance = random.Random(arguments.seed)
    real_time = REAL_TIME if trigger == LIVE else ""
    began = time.monotonic()
    stage = Stage(place)
    try:
        stage.start_hub()
        stage.port.call("stream.create", {"stream": "in"})
        traps = itertools.islice(itertools.cycle(TRAPS[trigger]), arguments.seed, None)
        hubs_left = arguments.hubs
        for number in range(arguments.drivers):
            hub_kills = -(-hubs_left // (arguments.drivers - number))
            stage.survive(Round(next(traps), engine, real_time, hub_kills), chance)
            hubs_left -= hub_kills
        if arguments.executors:
            kill_executors(stage, real_time, engine, arguments.executors)
        else:
            stage.start_driver(real_time, engine)
            stage.produce()
            stage.wait_all()
        tally = stage.tally()
        total = stage.total
    finally:
        stage.end()
    killed = f"{arguments.drivers} drivers, {arguments.hubs} hubs, {arguments.executors} executors"
    print(f"{trigger}, {engine}: {killed} killed in {time.monotonic() - began:.0f} s; {total:,} records in,", end=" ")
    print(f"{tally.lost} lost, {tally.doubled} doubled, {tally.out_of_order} out of order", flush=True)
    return tally == (0, 0, 0)


def kill_executors(stage: Stage, real_time: str, engine: str, count: int) -> None:
    cluster = Cluster(stage.place)
    try:
        cluster.add_worker()
        cluster.wait_ready()
        query = Driven(stage, cluster, real_time, engine)
        query.go_on("the start")
        query.kill_executors(count)
    finally:
        cluster.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trigger", choices=(MICRO, LIVE), help="both unless given")
    parser.add_argument("--engine", choices=("java", "python"), help="both unless given; real time needs java")
    parser.add_argument("--drivers", type=int, default=10)
    parser.add_argument("--hubs", type=int, default=10, help="killed under those drivers; none without a driver")
    parser.add_argument("--executors", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    make_class_archive()
    modes = [mode for mode in MODES if arguments.trigger in (None, mode[0]) and arguments.engine in (None, mode[1])]
    are_well = []
    for trigger, engine in modes:
        with tempfile.TemporaryDirectory(prefix="headrace-kills-", ignore_cleanup_errors=True) as place:
            are_well.append(run(Path(place), trigger, engine, arguments))
    sys.exit(0 if modes and all(are_well) else 1)


if __name__ == "__main__":
    main()
