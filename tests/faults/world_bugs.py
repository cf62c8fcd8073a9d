"""Bugs on purpose: does the world find them, and how many seeds does it need?

    python tests/faults/world_bugs.py [--seeds 40] [--write] [NAME …]

Each is a change of one place, made while the source is imported. The world then runs seed after seed until it says that
something is wrong. A bug that it does not find within so many seeds is a hole in the world. `--write` puts what
was needed into the table in docs/how-to/world.md.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "headrace"
PAGE = ROOT / "docs" / "how-to" / "world.md"
BEGIN, END = "<!-- bugs: python tests/faults/world_bugs.py --write -->", "<!-- end of bugs -->"


class Bug(NamedTuple):
    """One place, as it is and as it would be wrong."""

    path: str
    right: str
    wrong: str
    also: tuple[str, str, str] | None = None
    """A second one, where two parts keep the same promise."""

    @property
    def places(self) -> list[tuple[str, str, str]]:
        return [(self.path, self.right, self.wrong), *([] if self.also is None else [self.also])]


BUGS = {
    # The log
    "a commit is acknowledged and never written": Bug(
        "log/log.py", "            self.journal.write(commit.frames)\n", "            pass\n"
    ),
    "a failed mark ends nothing": Bug("log/log.py", "self.report([], set(), self.end(error))", "self.end(error)"),
    "after a failed write the log goes on": Bug(
        "log/log.py",
        "            return self.end(error)\n        self.full",
        "            return None\n        self.full",
    ),
    "two appends of one commit get the same indexes": Bug(
        "log/commit.py", "base = partition.pending_next\n        time_us", "base = partition.next\n        time_us"
    ),
    "a repeated sequence is stored again": Bug(
        "log/commit.py", "if last is not None and sequence <= last.sequence:", "if last is not None and sequence < 0:"
    ),
    "compare and set does not compare": Bug("log/commit.py", "if not ops.holds(op.expect, previous):", "if False:"),
    "a cursor goes back": Bug(
        "log/commit.py", "elif op.index <= stored.index and not op.rewind:", "elif op.index == stored.index:"
    ),
    "a record's time goes back with the clock": Bug(
        "log/commit.py", "time_us = max(self._now_us, partition.pending_time_us)", "time_us = self._now_us"
    ),
    "the body of a frame is not checked": Bug(
        "log/journal.py",
        "if crc32c(directory) != directory_crc or crc32c(body) != data_crc:",
        "if crc32c(directory) != directory_crc:",
    ),
    "journal files go without a sync between them": Bug(
        "log/journal.py",
        "            self._disk.sync_dir(DIRECTORY)\n        self.spares += kept\n",
        "        self._disk.sync_dir(DIRECTORY)\n        self.spares += kept\n",
    ),
    "the name of a new journal file is not synced": Bug(
        "log/journal.py",
        "            self._disk.sync_dir(DIRECTORY)\n        except OSError:",
        "        except OSError:",
    ),
    "the journal is cut behind records that are not sealed": Bug(
        "log/maintenance.py", "return min(sequences[0], self._log.state.needed_sequence) if", "return sequences[-1] if"
    ),
    "the journal is cut a file too early": Bug(
        "log/journal.py", "if first_sequence_of(path) < begin]", "if first_sequence_of(path) < sequence]"
    ),
    "a snapshot claims a frame that it does not have": Bug(
        "log/maintenance.py",
        "sequence, data = log.state.sequence, snapshot.encode",
        "log.state.sequence += 1\n            sequence, data = log.state.sequence, snapshot.encode",
    ),
    "sealing drops a record more than it sealed": Bug(
        "log/maintenance.py", "partition.tail.without(len(entries))", "partition.tail.without(len(entries) + 1)"
    ),
    "what comes in while a commit is on its way is forgotten": Bug(
        "log/queue.py", "            pending = self._waiting.popleft()\n", "            pending = self._waiting.pop()\n"
    ),
    "the end of a journal may be lost without a word": Bug(
        "log/journal.py",
        "        self.next_sequence = yield from scan(self._disk, proven.next_sequence)\n",
        "        self.next_sequence = yield from scan(self._disk, 0)\n        return\n",
        ("log/log.py", "        self._leave_proof()\n", ""),
    ),
    "what is damaged in a table is passed over": Bug(
        "log/recovery.py", "            table.lose(damage)\n", "            pass\n"
    ),
    "threads read types before they are learned": Bug("hub/hub.py", "        learn_struct_types()\n", ""),
    "retention does not ask cursors": Bug(
        "log/retention.py",
        "        lowest = min(min(cursors.values()), partition.next)\n",
        "        lowest = partition.next\n",
        (
            "log/commit.py",
            "min(before, self._state.peek_lowest_cursor(partition.stream_id, op.partition, before))",
            "before",
        ),
    ),
    "a stream that is made again begins at 0": Bug(
        "log/commit.py",
        "        firsts = self._state.firsts_for(op.name, 0, op.partitions)\n        id",
        "        firsts = [0] * op.partitions\n        id",
    ),
    # The hub
    "a refused transaction is reported as done": Bug(
        "hub/hub.py",
        "                    future.set_exception(pending.error)\n",
        "                    future.set_result([None] * 9)\n",
    ),
    "nobody is told when the log has failed": Bug("hub/hub.py", "self._failed.set_result(error)", "pass"),
    "who is signed in keeps the rights of that moment": Bug(
        "security/rights.py", "        for principal in held:\n            self._renew(principal)\n", ""
    ),
    "the sessions of a removed user are not ended": Bug(
        "serving/tcp.py",
        "principal.watch(lambda: None if self.is_lost else self.rights_changed(principal))",
        "_watches_nothing",
    ),
    "anybody who writes may write the hub's own tables": Bug(
        "security/reserved.py", "    return _pattern().fullmatch(name) is not None\n", "    return False\n"
    ),
    "Spark's sink forgets which batch was the last": Bug(
        "spark/hub/sink_state.py", "    if commit.batch > state.batch:\n", "    if commit.batch >= state.batch:\n"
    ),
    "a replaced Spark driver may go on": Bug(
        "spark/hub/sink_state.py", "    if run in state.replaced_runs:\n", "    if False:\n"
    ),
    "what Spark stages and what it remembers are two steps": Bug(
        "spark/hub/staging_area.py",
        "            results = await self._hub.transact(ops)\n",
        "            results = await self._hub.transact(ops[:-1])\n            await self._hub.transact(ops[-1:])\n",
    ),
    "acknowledgements do not wait for the pipeline": Bug(
        "hub/hub.py", "            if stored is not None and stored >= next_index:\n", "            if True:\n"
    ),
    "a signature is not checked": Bug(
        "protocols/futoin/credentials.py",
        "            return mac.verify(tried, claim.algorithm, message, claim.signature) and key is not None\n",
        "            return True\n",
    ),
    # Protocols
    "a binding may link before its streams are there": Bug(
        "protocols/ambrosia/coordinator/coordinator.py",
        "            instance = await self._open_instance(name, None)\n",
        "            instance = Instance(self.hub, self.store, name, registration, self.log_refused)\n"
        "            self.instances[name] = instance\n"
        "            await self._open_ports(instance, registration)\n"
        "            self.ports[name].serve()\n"
        "            await asyncio.sleep(0.5)\n"
        "            await self.ports.pop(name).close()\n"
        "            instance = await self._open_instance(name, None)\n",
    ),
    "a program of an old version loads a newer state": Bug(
        "protocols/ambrosia/binding/engine.py", "        if known[-1] != kind:\n", "        if False:\n"
    ),
    "of the calls of a key that came meanwhile only the first begins": Bug(
        "protocols/ambrosia/binding/cell.py",
        "            while not begins and self.waiting_calls and not self.busy:\n",
        "            if not begins and self.waiting_calls and not self.busy:\n",
    ),
    "Wallaroo streams whose names meet are one": Bug(
        "protocols/wallaroo/claims.py",
        "        return name if is_free else naming.name_apart(self._rule, *parts)\n",
        "        return name\n",
        (
            "protocols/wallaroo/claims.py",
            "            if claim is not None and claim.owner != owner:\n",
            "            if False:\n",
        ),
    ),
    "what a transaction of Ignite has looked at may change": Bug(
        "protocols/perper/transactions.py",
        "            if place in self._seen:\n                self._must_hold[place] = None\n            self._writes",
        "            self._writes",
    ),
    "a damaged item of a stream looks absent": Bug(
        "protocols/perper/streams.py", "            raise damage\n", "            pass\n"
    ),
    "an execution that is changed is announced once more": Bug(
        "protocols/perper/fabric/executions.py",
        "        if wanted and execution not in self._announced:\n",
        "        if wanted:\n",
    ),
    "items go that a listener still needs": Bug(
        "protocols/perper/state.py",
        "            removed = await cache.trim_below(min(positions))\n",
        "            removed = await cache.trim_below(max(positions) + 3)\n",
    ),
    "an execution is given to two workers": Bug(
        "protocols/perper/fabric/executions.py",
        "        if self._holders.setdefault(key, who) is who:\n",
        "        if self._holders.setdefault(key, who):\n",
    ),
    "what a lost worker had reserved stays reserved": Bug(
        "protocols/perper/fabric/executions.py",
        "        for execution in delivered:\n            self._locks.release((self._group, execution), self)\n",
        "",
    ),
    "Wallaroo acknowledges before the disk": Bug(
        "protocols/wallaroo/server.py",
        "        future = self.hub.transact(operations)\n",
        "        self._acknowledge(taken)\n        future = self.hub.transact(operations)\n",
    ),
    "Wallaroo forgets how far a connector came": Bug(
        "protocols/wallaroo/lane.py",
        "operations.append(SetProducer(self.name, self.producer, store.position))",
        "pass",
    ),
    "Wallaroo stores each record for itself": Bug(
        "protocols/wallaroo/lane.py",
        "Append(self.name, batch, 0, self.producer, store.position)",
        "Append(self.name, batch)",
    ),
    "Ockam confirms what was not stored": Bug(
        "protocols/ockam/server.py", "        pending.first = None\n", "        pending.first = 0\n"
    ),
    "Ockam confirms with the index of its neighbour": Bug(
        "protocols/ockam/server.py", "pending.first = appended.first\n", "pending.first = appended.first + 1\n"
    ),
    "FutoIn answers before the disk": Bug(
        "protocols/futoin/service.py",
        "        future.add_done_callback(functools.partial(self._appended, waiting))\n",
        "        _tell(waiting, self._hub.bounds(*self._endpoint).next, None)\n",
    ),
    "FutoIn answers with the wrong event": Bug(
        "protocols/futoin/service.py",
        "        appended = future.result()\n",
        "        appended = future.result()\n        appended = Appended(appended.first + 1, appended.count, False)\n",
    ),
    "FutoIn takes a push that was refused for taken": Bug(
        "protocols/futoin/push.py",
        "if answer is not None and answer.error is None and answer.value is True:",
        "if answer is not None:",
    ),
    "Ignite answers before the disk": Bug(
        "protocols/perper/tables.py",
        "            future = self._hub.put(self.name, key, value, expect=expect)\n",
        "            future = self._hub.put(self.name, key, value, expect=expect)\n"
        "            done: Future[Any] = asyncio.get_running_loop().create_future()\n"
        "            done.set_result(Outcome(True, None))\n            return done\n",
    ),
    "AMBROSIA takes a call twice": Bug(
        "protocols/ambrosia/coordinator/call_queue.py",
        "            self.counts[producer_of(sender, calls.replayable)] = number\n        arrival",
        "            pass\n        arrival",
    ),
    "AMBROSIA forgets its callers' numbers": Bug(
        "protocols/ambrosia/coordinator/call_queue.py",
        "counters += [SetProducer(stream, producer, number) for producer, number in _counters(arrivals).items()]",
        "counters += []",
    ),
    "AMBROSIA shows a record before it is durable": Bug(
        "protocols/ambrosia/coordinator/call_queue.py",
        "        future = self._hub.transact([*ops, *counters])",
        "        self._on_logged(logged)\n        logged = []\n        future = self._hub.transact([*ops, *counters])",
    ),
}


PROGRAM = """
import ast, sys
from importlib.machinery import SourceFileLoader
changes, load = ast.literal_eval(sys.argv[1]), SourceFileLoader.get_code
def get_code(self, name):
    if self.path not in changes:
        return load(self, name)
    right, wrong = changes.pop(self.path)
    text = self.get_data(self.path).decode()
    assert text.count(right) == 1, f"{self.path} has {text.count(right)} times {right!r}"
    return compile(text.replace(right, wrong), self.path, "exec")
SourceFileLoader.get_code = get_code
from world import outcomes
for outcome in outcomes(range(int(sys.argv[2])), 1):
    if outcome.wrong:
        print(outcome.seed + 1, outcome.wrong[0].splitlines()[0][:150])
        break
assert not changes, f"never imported: {sorted(changes)}"
"""
"""Puts wrong source in the place of the right one while it is imported."""


def seeds_needed(bug: Bug, seeds: int) -> tuple[int | None, str]:
    """How many seeds the world needs to find it, and its first words; None when it does not."""
    for _, right, wrong in bug.places:
        assert right != wrong
    changes = {str(SOURCES / path): (right, wrong) for path, right, wrong in bug.places}
    environment = {**os.environ, "PYTHONPATH": f"{SOURCES.parent}:{ROOT / 'tools'}", "PYTHONHASHSEED": "0"}
    command = [sys.executable, "-c", PROGRAM, repr(changes), str(seeds)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:  # the hub does not even start: found at once
        return 1, (done.stderr.strip().splitlines() or ["died"])[-1]
    number, _, words = done.stdout.strip().partition(" ")
    return (int(number), words) if number else (None, "")


def table(found: dict[str, int | None], seeds: int) -> list[str]:
    """Rows for people, in the order of the list."""
    rows = [f"| {name} | {f'more than {seeds}' if needed is None else needed} |" for name, needed in found.items()]
    return ["| bug | seeds |", "|---|---|", *rows]


def known() -> dict[str, int | None]:
    """What the page says now."""
    rows = (line.strip("| \n").split(" | ") for line in PAGE.read_text(encoding="utf-8").splitlines())
    told = {row[0]: row[1] for row in rows if len(row) == 2 and row[0] in BUGS}
    return {name: int(needed) if needed.isdigit() else None for name, needed in told.items()}


def write(found: dict[str, int | None], seeds: int) -> None:
    """Into the page; bugs that were not tried keep what it says of them."""
    merged = known() | found
    before, rest = PAGE.read_text(encoding="utf-8").split(BEGIN)
    after = rest.split(END)[1]
    rows = table({name: merged[name] for name in BUGS if name in merged}, seeds)
    PAGE.write_text("\n".join([before + BEGIN, "", *rows, "", END + after]), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=40, help="how many to try for each")
    parser.add_argument("--write", action="store_true", help="put the result into the page")
    parser.add_argument("names", nargs="*", help="which; all without any")
    options = parser.parse_args()
    found: dict[str, int | None] = {}
    for name in options.names or BUGS:
        found[name], words = seeds_needed(BUGS[name], options.seeds)
        needed = found[name]
        print(f"{name}: {'NOT FOUND' if needed is None else f'{needed} seeds: {words}'}", flush=True)
        if options.write:
            write(found, options.seeds)
    missed = sum(needed is None for needed in found.values())
    print(f"{len(found) - missed} found, {missed} not")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
