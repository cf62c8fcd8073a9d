"""`python tools/world.py`: seeds, one after the other, on all cores, until one fails or it is stopped.

--seed N            this one only, with its story; the last line is its trace
--first N --count M so many, from this one on
--without PART …    leave out actors or kinds of fault, as the shortened form of a failure says
--debug             stop in the debugger where a seed is judged wrong
--coverage [N]      which share of the hub's lines N seeds reach, by room, with and without what no world can run
--missing PATH      with it: the lines below `src/headrace/PATH` that they never reach
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import itertools
import multiprocessing
import os
import pdb
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import headrace
from headrace.testing.world.run import Outcome, run, shrink

clock_s = time.perf_counter
"""The real one: a world replaces it while it is open."""
COVERAGE_SEEDS = 60
WARM_UP = 18
"""A seed with much in it: what it imports, the others need not."""
ROOMS = ("log", "hub", "serving", "security", "admin", "spark/hub", "protocols")
BEYOND = (
    *("protocols/flight", "log/kafka/confluent", "log/kafka/codes", "log/kafka/turn"),
    *("log/direct", "log/disk", "serving/sockets", "serving/memory", "serving/files", "log/uri_store"),
    *("log/transfer", "log/moving", "log/doctor", "log/shared_doctor", "log/kafka/whole_cell"),
)
"""What no world has: the compiled server of Flight; the client of real brokers, and hubs that stand by on them; real
disks, sockets and memory; and programs that run beside a hub. There are two shares of each room: with it
and without."""
LOWEST = 15
KINDS = {
    "(sessions)": ("session.py", "client_session.py", "connection.py", "lane.py", "link.py"),
    "(servers)": ("server.py", "service.py", "services.py", "tcp.py", "http.py", "http_connection.py", "listener.py"),
}
"""Of all protocols together."""


def main() -> int:
    parser = argparse.ArgumentParser("world", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--without", action="append", default=[], metavar="PART")
    parser.add_argument("--debug", action="store_true")
    parser.add_argument("--coverage", type=int, nargs="?", const=COVERAGE_SEEDS, metavar="N")
    parser.add_argument("--missing", metavar="PATH")
    options = parser.parse_args()
    if options.coverage:
        return _measure_coverage(options.first, options.coverage, options.missing)
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
    seeds = itertools.count(first) if count is None else range(first, first + count)
    for done, outcome in enumerate(outcomes(seeds, jobs), 1):
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


def _measure_coverage(first: int, count: int, missed: str | None) -> int:
    """Lines that are run in worlds, of all that there are; whatever is imported before does not count as run."""
    coverage = importlib.import_module("coverage")  # only here: nobody else needs it
    root = Path(headrace.__file__).parent
    measured = coverage.Coverage(data_file=None, source=[str(root)], concurrency=["greenlet"], config_file=False)
    measured.start()
    failed = [outcome.seed for outcome in map(run, range(first, first + count)) if outcome.wrong]
    measured.stop()
    files: dict[str, tuple[int, int]] = {}
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name.startswith(ROOMS):
            _, statements, _, missing, _ = measured.analysis2(str(path))
            inside = _inside_functions(path)
            lines = inside & set(statements)
            files[name] = len(lines - set(missing)), len(lines)
            if missed is not None and name.startswith(missed):
                print(f"{name}: {', '.join(_ranges(sorted(lines & set(missing))))}")
    _tell_coverage(files)
    print(f"{count} seeds, {failed or 'none'} failed")
    return 1 if failed else 0


def _inside_functions(path: Path) -> set[int]:
    """Lines of bodies: what an import runs says nothing."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    found: set[int] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, functions):
            body = node.body if isinstance(node.body, list) else [node.body]
            found.update(range(body[0].lineno, (node.end_lineno or body[0].lineno) + 1))
    return found


def _ranges(lines: list[int]) -> Iterator[str]:
    """Lines that follow each other as one."""
    for _, group in itertools.groupby(enumerate(lines), lambda pair: pair[1] - pair[0]):
        numbers = [line for _, line in group]
        yield str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"


def _tell_coverage(files: dict[str, tuple[int, int]]) -> None:
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for name, found in files.items():
        counts = (*found, *((0, 0) if name.startswith(BEYOND) else found))
        parts = name.split("/")
        room = "/".join(parts[:2]) if parts[0] in ("protocols", "spark") and len(parts) > 2 else parts[0]
        kinds = [kind for kind, names in KINDS.items() if parts[0] in ("protocols", "serving") and parts[-1] in names]
        for group in (room, *kinds):
            rooms[group] = [one + other for one, other in zip(rooms[group], counts, strict=True)]
    print("lines that were run, of all that there are, and without those that no world can run:")
    for room, (reached, lines, *rest) in sorted(rooms.items()):
        parts = f"{rest[0]:6} of {rest[1]:6}  {rest[0] / max(rest[1], 1):4.0%}"
        print(f"{room:<24} {reached:6} of {lines:6}  {reached / max(lines, 1):4.0%}    {parts}")
    print("\nleast:")
    within = {name: counts for name, counts in files.items() if not name.startswith(BEYOND)}
    for name, (reached, lines) in sorted(within.items(), key=lambda item: item[1][0] - item[1][1])[:LOWEST]:
        print(f"  {name:<48} {lines - reached:4} lines of {lines} never run")


def outcomes(seeds: Iterable[int], jobs: int) -> Iterator[Outcome]:
    """Each seed in a fork of this process, which has everything imported: a world is cleared away with its process."""
    run(WARM_UP)
    forks, waiting = multiprocessing.get_context("fork"), iter(seeds)
    running: dict[Connection, tuple[int, BaseProcess]] = {}
    gc.freeze()
    try:
        while True:
            for seed in itertools.islice(waiting, jobs - len(running)):
                here, there = forks.Pipe(duplex=False)
                process = forks.Process(target=_send_outcome, args=(seed, there))
                process.start()
                there.close()
                running[here] = seed, process
            if not running:
                return
            for done in wait(list(running)):
                assert isinstance(done, Connection)
                seed, ended = running.pop(done)
                yield _received(seed, done)
                ended.join()
    finally:
        for _, left in running.values():
            left.kill()


def _send_outcome(seed: int, there: Connection) -> None:
    there.send(run(seed, clears_away=False))
    there.close()
    sys.stdout.flush()
    os._exit(0)  # nobody needs what is left


def _received(seed: int, connection: Connection) -> Outcome:
    try:
        outcome: Outcome = connection.recv()
    except EOFError:
        outcome = Outcome(seed, "", ["its process ended in the middle"], 0.0, 0, {}, 0, (), "")
    connection.close()
    return outcome


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
