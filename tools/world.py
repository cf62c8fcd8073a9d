"""`python tools/world.py`: seeds, one after the other, on all cores, until one fails or it is stopped.

--seed N            this one only, with its story; the last line is its trace
--first N --count M so many, from this one on
--without PART …    leave out actors or kinds of fault, as the shortened form of a failure says
--debug             stop in the debugger where a seed is judged wrong
"""

from __future__ import annotations

import argparse
import itertools
import os
import pdb
import sys
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from headrace.testing.world.run import Outcome, run, shrink

clock_s = time.perf_counter
"""The real one: a world replaces it while it is open."""


def main() -> int:
    parser = argparse.ArgumentParser("world", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--without", action="append", default=[], metavar="PART")
    parser.add_argument("--debug", action="store_true")
    options = parser.parse_args()
    if options.seed is not None:
        return _replay(options.seed, frozenset(options.without), options.debug)
    return _search(options.first, options.count, options.jobs)


def _replay(seed: int, without: frozenset[str], debug: bool) -> int:
    outcome = run(seed, without=without, told=lambda line: print(line, flush=True))
    for found in outcome.wrong:
        print(f"WRONG: {found}")
    if outcome.wrong and debug:
        pdb.set_trace()
    print(f"trace {outcome.trace}")
    return 1 if outcome.wrong else 0


def _search(first: int, count: int | None, jobs: int) -> int:
    began_s, virtual_s, acked = clock_s(), 0.0, 0
    for done, outcome in enumerate(_outcomes(first, count, jobs), 1):
        virtual_s += outcome.virtual_s
        acked += outcome.acked
        if outcome.wrong:
            _tell_failure(outcome)
            return 1
        minutes = max(clock_s() - began_s, 1e-9) / 60
        line = (
            f"{done} seeds without a failure, {done / minutes:.0f} a minute, {virtual_s / 3600 / minutes:.1f} virtual "
            f"hours a minute, {acked} records acknowledged"
        )
        end = "\r" if sys.stdout.isatty() else "\n"
        if sys.stdout.isatty() or done % 50 == 0 or done == count:
            print(line, end=end, flush=True)
    print()
    return 0


def _outcomes(first: int, count: int | None, jobs: int) -> Iterator[Outcome]:
    seeds = iter(itertools.count(first) if count is None else range(first, first + count))
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        running: set[Future[Outcome]] = {pool.submit(run, seed) for seed in itertools.islice(seeds, 2 * jobs)}
        try:
            while running:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                for future in ended:
                    running.update(pool.submit(run, seed) for seed in itertools.islice(seeds, 1))
                    yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _tell_failure(outcome: Outcome) -> None:
    print(f"\nseed {outcome.seed} FAILED:")
    for found in outcome.wrong:
        print(f"  {found}")
    print("shortening…")
    shorter, without = shrink(outcome, lambda told: print(f"  {told}", flush=True))
    print(f"\nThe end of the story of the shortest form found:\n\n{shorter.story}\n")
    leave_out = " ".join(f"--without '{part}'" for part in sorted(without))
    print(f"replay: make world SEED={outcome.seed}" + (f' ARGS="{leave_out}"' if without else ""))
    print(f"trace {outcome.trace}")


if __name__ == "__main__":
    sys.exit(main())
