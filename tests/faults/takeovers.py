"""Hubs and brokers killed again and again under load; then everything is read from an empty disk, and judged.

    PYTHONPATH=tests:tools python tests/faults/takeovers.py --takeovers 100 --broker-kills 50 [--folder DIR]

Some writers append batches over Flight, with a name and a sequence; others ask for transactions over every noun
(`ledger.py`). Each goes to a hub chosen at random, and tries again until it is acknowledged. The owner is killed,
stopped for twice its session and woken, or told to hand over; brokers are killed and started again. Every
`--judge-every` takeovers, and in the end, all hubs are killed and the log is opened with an empty disk: it must hold
every acknowledged batch and transaction once, whole, in order, at indexes without a gap.

What has been acknowledged and done is in the folder: run again over the same one, it continues, with the same brokers
and all that they hold. `--minutes` ends one run sooner, with a judgement; the numbers are those of all runs together.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from faults import ledger, ledger_protocol
from kafka_brokers import START_QUICKLY, Brokers, fetch, share_classes, sharing
from support.cluster import HubCluster, get
from support.hub_process import HubProcess
from support.kafka import new_cell
from support.until import wait_until

import headrace
from headrace.config import Kafka
from headrace.config import Log as LogSettings
from headrace.config.address import split_address
from headrace.errors import HeadraceError
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.log import Log
from headrace.log.struct_types import learn_struct_types

BATCH_RECORDS = 20
RETRY_S = 300.0
ANSWER_S = 30.0
SESSION_S = 2
"""Of the group that chooses owners: so that most of the time is not spent waiting for it."""
OUTAGE_S_MAX = 8.0
"""Of a broker: so that some are back before others have noticed, and some long after."""
STREAM = "load/%d"
WAYS = ("kill", "kill", "hand over", "hand over", "pause")
SMALL = ("log.segment_bytes=256KiB", "log.journal_file_bytes=1MiB", "log.journal_bytes_max=4MiB")
"""Much is sealed, and the journal is cut behind it all the time, takeovers or not."""


class Writer(threading.Thread):
    """Has one thing after another acknowledged; a file says how many were. It rests while `pause` is set."""

    def __init__(self, number: int, cluster: HubCluster, folder: Path, pause: threading.Event) -> None:
        super().__init__(name=f"writer {number}", daemon=True)
        self.number = number
        self.longest_pause_s = 0.0
        self.error: Exception | None = None
        self.is_resting = False
        self.stopping = False
        self._acknowledged = folder / f"acknowledged-{number}"
        self._acknowledged.touch()
        self.acknowledged = self._acknowledged.stat().st_size
        self._cluster = cluster
        self._pause = pause
        self._random = random.Random(number)

    def run(self) -> None:
        try:
            with self._acknowledged.open("ab", buffering=0) as file:
                while not self.stopping:
                    while self._pause.is_set() and not self.stopping:
                        self.is_resting = True
                        time.sleep(0.01)
                    self.is_resting = False
                    self._have_one_acknowledged()
                    file.write(b".")
                    self.acknowledged += 1
        except Exception as error:
            self.error = error
        finally:
            self._hang_up()

    def _have_one_acknowledged(self) -> None:
        began = time.monotonic()
        while True:
            try:
                self._ask(self._random.choice(self._cluster.hubs))
                break
            except (HeadraceError, OSError):
                self._hang_up()
                if time.monotonic() > began + RETRY_S:
                    raise
                time.sleep(0.05)
        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - began)
        if self.acknowledged % 50 == 49:  # the next at another hub
            self._hang_up()

    def _ask(self, hub: HubProcess) -> None:
        """Once; over the connection that is there, or a new one to that hub."""
        raise NotImplementedError

    def _hang_up(self) -> None:
        raise NotImplementedError

    def judge(self, log: Log) -> int:
        """Whether a log holds all that was acknowledged; how many records."""
        raise NotImplementedError


class FlightWriter(Writer):
    """Appends batches to a stream of its own."""

    _client: headrace.Client | None = None

    def _ask(self, hub: HubProcess) -> None:
        if self._client is None:
            self._client = headrace.connect(hub.addresses["flight"], timeout_s=ANSWER_S)
        payloads = [b"%d %d %d" % (self.number, self.acknowledged, record) for record in range(BATCH_RECORDS)]
        self._client.append(STREAM % self.number, payloads, producer="load", sequence=self.acknowledged)

    def _hang_up(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def judge(self, log: Log) -> int:
        stream = STREAM % self.number
        expected = [
            b"%d %d %d" % (self.number, batch, record)
            for batch in range(self.acknowledged)
            for record in range(BATCH_RECORDS)
        ]
        assert ledger.texts(log, stream) == expected, f"{stream} differs"
        assert log.producer(stream, "load") == self.acknowledged - 1
        return len(expected)


class LedgerWriter(Writer):
    """Asks for the rounds of a writer of the ledger."""

    _socket: socket.socket | None = None

    @property
    def writer(self) -> str:
        return f"writer-{self.number}"

    def _ask(self, hub: HubProcess) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(split_address(hub.addresses["ledger"]), ANSWER_S)
        self._socket.sendall(b"do %s %d\n" % (self.writer.encode(), self.acknowledged))
        if (answer := self._socket.recv(1000)) != b"ok\n":
            raise OSError(answer.decode() or "the connection has ended")

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


class Progress:
    """What has been done, in a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "done.json"
        read: dict[str, Any] = json.loads(self._path.read_text()) if self._path.exists() else {}
        self.prefix: str = read.get("prefix", "")
        self.done: Counter[str] = Counter(read.get("done", {}))
        self.takeover_s: list[float] = read.get("takeover_s", [])
        self._lock = threading.Lock()

    @property
    def takeovers(self) -> int:
        return sum(self.done[way] for way in set(WAYS))

    def add(self, what: str, takeover_s: float | None = None) -> None:
        with self._lock:
            self.done[what] += 1
            if takeover_s is not None:
                self.takeover_s.append(round(takeover_s, 2))
            self.save()

    def save(self) -> None:
        said = {"prefix": self.prefix, "done": self.done, "takeover_s": self.takeover_s}
        made = self._path.with_suffix(".new")
        made.write_text(json.dumps(said))
        made.replace(self._path)


class Havoc:
    """What is done to hubs and brokers."""

    def __init__(self, brokers: Brokers, cluster: HubCluster, progress: Progress, seed: int) -> None:
        self.brokers = brokers
        self.cluster = cluster
        self.progress = progress
        self._random = random.Random(seed)

    def wait(self, condition: Callable[[], Any], what: str, deadline_s: float = RETRY_S) -> Any:
        """As `wait_until`; hubs that end by themselves meanwhile are started again, as a supervisor would."""

        def looked() -> Any:
            for hub in self.cluster.hubs:
                if hub.process is not None and (code := hub.process.poll()) is not None:
                    assert code == 4, f"{hub.folder} ended with {code}: {hub.log.read_text()[-3000:]}"
                    self.progress.add("ended by itself")
                    hub.process = None
                    hub.start()
            return condition()

        return wait_until(looked, what, deadline_s)

    def owner(self) -> HubProcess:
        found: HubProcess = self.wait(self.cluster.find_owner, "a hub owns the cell")
        return found

    def take_over(self, how: str) -> None:
        """One takeover; the hub that lost the cell is back as a follower afterwards."""
        owner = self.owner()
        process = owner.process
        assert process is not None
        began = time.monotonic()
        owner.process = None  # nobody is to start it again meanwhile
        if how == "pause":
            process.send_signal(signal.SIGSTOP)
        else:
            process.send_signal(signal.SIGKILL if how == "kill" else signal.SIGTERM)
        others = [hub for hub in self.cluster.hubs if hub is not owner]
        self.wait(lambda: any(get(hub, "/health?cell=0")[0] == 200 for hub in others), "a hub takes over")
        took_s = time.monotonic() - began
        if how == "pause":
            time.sleep(max(0.0, began + 2 * SESSION_S - time.monotonic()))
            process.send_signal(signal.SIGCONT)
        code = process.wait(120)
        # One that was told to stop may find that it has just been replaced.
        allowed = {"kill": (-signal.SIGKILL,), "hand over": (0, 4), "pause": (4,)}[how]
        assert code in allowed, f"{how}: {owner.folder} ended with {code}: {owner.log.read_text()[-3000:]}"
        owner.start()
        self.progress.add(how, took_s)

    def kill_broker(self) -> None:
        broker = self._random.choice(self.brokers.brokers)
        broker.kill()
        time.sleep(self._random.uniform(0, OUTAGE_S_MAX))
        for attempts_left in reversed(range(10)):
            broker.start()
            try:
                self.brokers.wait_ready()
                break
            except RuntimeError:  # its port is taken for a moment: by the far end of somebody's connection
                broker.kill()
                if not attempts_left:
                    raise
                time.sleep(1)
        self.progress.add("broker")


class Trial:
    """Hubs, writers and what is done to them."""

    def __init__(self, folder: Path, brokers: Brokers, seed: int = 1) -> None:
        self._folder = folder
        self.progress = Progress(folder)
        if not self.progress.prefix:
            chosen, kafka = new_cell(brokers.servers)
            kafka.close()
            self.progress.prefix = chosen.prefix
            self.progress.save()
        self._servers = brokers.servers
        self._seed = seed
        self.cluster = HubCluster(
            folder / f"hubs-{time.time_ns()}",
            brokers.servers,
            self.progress.prefix,
            *SMALL,
            f"cluster.session_timeout_s={SESSION_S}",
            "listen.ledger=127.0.0.1:0",
            count=3,
            only=("http", "flight"),
            environment={"PYTHONPATH": ledger_protocol.install(folder / "site")},
        )
        self.havoc = Havoc(brokers, self.cluster, self.progress, seed)
        self._pause = threading.Event()
        kinds = (FlightWriter, FlightWriter, LedgerWriter, LedgerWriter)
        self.writers = [kind(number, self.cluster, folder, self._pause) for number, kind in enumerate(kinds)]

    def run(
        self,
        takeovers: int,
        broker_kills: int,
        judge_every: int,
        ways: Iterable[str] = (),
        limit_s: float = math.inf,
    ) -> str:
        """All of it, or what there is time for; a line for people. Raises an `AssertionError` when something was lost,
        doubled or torn. `ways` are those of the takeovers, by chance when there are no more."""
        until_s = time.monotonic() + limit_s
        learn_struct_types()
        chance = random.Random(self._seed + self.progress.takeovers)
        given = iter(ways)
        records = 0
        with self.cluster:
            self._begin()
            breaking = BrokerBreaker(self.havoc, broker_kills, until_s)
            breaking.start()
            while (done := self.progress.takeovers) < takeovers and time.monotonic() < until_s:
                self._writers_get_on()
                self.havoc.take_over(next(given, None) or chance.choice(WAYS))
                breaking.check()
                self._say(f"{done + 1} of {takeovers} takeovers")
                if (done + 1) % judge_every == 0 and done + 1 < takeovers:
                    records = self._judge()
                    self._start_hubs()
            self.havoc.wait(lambda: breaking.check() or not breaking.is_alive(), "brokers killed", 3600)
            self._writers_get_on()
            records = self._judge()
            for writer in self.writers:
                writer.stopping = True
        took = sorted(self.progress.takeover_s) or [math.nan]
        pauses = [round(writer.longest_pause_s, 1) for writer in self.writers]
        acknowledged = sum(writer.acknowledged for writer in self.writers)
        return (
            f"{dict(self.progress.done)}: {acknowledged} acknowledgements, {records} records, none lost, "
            f"none twice, transactions whole; takeovers {took[0]:.1f} to {took[-1]:.1f} s, median "
            f"{took[len(took) // 2]:.1f} s; longest pauses of writers {pauses} s"
        )

    def _begin(self) -> None:
        with headrace.connect(self.havoc.owner().addresses["flight"], timeout_s=ANSWER_S) as client:
            for writer in self.writers:
                if isinstance(writer, FlightWriter) and not client.streams(STREAM % writer.number):
                    client.create(STREAM % writer.number)
        for writer in self.writers:
            writer.start()

    def _start_hubs(self) -> None:
        for hub in self.cluster.hubs:
            hub.start()
        self._pause.clear()

    def _writers_get_on(self) -> None:
        before = [writer.acknowledged for writer in self.writers]

        def all_got_on() -> bool:
            assert not [writer.error for writer in self.writers if writer.error], [w.error for w in self.writers]
            return all(writer.acknowledged > count + 2 for writer, count in zip(self.writers, before, strict=True))

        self.havoc.wait(all_got_on, "writers get on", 2 * RETRY_S)

    def _judge(self) -> int:
        """Kill all hubs and read everything from an empty disk. The writers rest: nothing is on its way."""
        self._pause.set()
        self.havoc.wait(lambda: all(writer.is_resting or writer.error for writer in self.writers), "writers rest")
        assert not [writer.error for writer in self.writers if writer.error]
        self.cluster.kill_all()
        place = Path(tempfile.mkdtemp(dir=self._folder, prefix="judge-"))
        kafka = Kafka(servers=self._servers, prefix=self.progress.prefix, timeout_s=RETRY_S)
        settings = LogSettings(backend="kafka", kafka=kafka, disk_reserve_bytes=0)
        began = time.monotonic()
        log = open_cell(OsDisk(place), SystemClock(), settings)
        try:
            assert not log.recovered.findings, log.recovered.findings
            records = sum(writer.judge(log) for writer in self.writers if isinstance(writer, FlightWriter))
            rounds = {each.writer: each.acknowledged for each in self.writers if isinstance(each, LedgerWriter)}
            records += ledger.judge(log, rounds)
            epoch = int(log.gauges()["epoch"])
        finally:
            log.close()
            shutil.rmtree(place)
        self.progress.add("judged")
        self._say(f"judged in {time.monotonic() - began:.1f} s at epoch {epoch}: {records} records, all well")
        return records

    def _say(self, what: str) -> None:
        counts = [writer.acknowledged for writer in self.writers]
        print(f"{time.strftime('%H:%M:%S')} {what}; {dict(self.progress.done)}; acknowledged {counts}", flush=True)


class BrokerBreaker(threading.Thread):
    """Kills brokers, one after the other, until enough were killed, or it is time to end."""

    def __init__(self, havoc: Havoc, kills: int, until_s: float) -> None:
        super().__init__(name="broker breaker", daemon=True)
        self._havoc = havoc
        self._kills = kills
        self._until_s = until_s
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            while self._havoc.progress.done["broker"] < self._kills and time.monotonic() < self._until_s:
                self._havoc.kill_broker()
                time.sleep(2)
        except Exception as error:
            self._error = error

    def check(self) -> bool:
        """Raises what went wrong with it."""
        if self._error is not None:
            raise self._error
        return False


def run(folder: Path, brokers: Brokers, seed: int = 1) -> str:
    """The short form, for a test: each way once, while a broker is killed."""
    ways = ("pause", "kill", "hand over")
    return Trial(folder, brokers, seed).run(len(ways), 1, len(ways), ways)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--takeovers", type=int, default=100)
    options.add_argument("--broker-kills", type=int, default=50)
    options.add_argument("--judge-every", type=int, default=20)
    options.add_argument("--minutes", type=float, default=math.inf, help="then judge and end: the next run continues")
    options.add_argument("--folder", type=Path, help="kept, and continued the next time; a temporary one otherwise")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    fetch()
    share_classes()
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="headrace-takeovers-"))
    folder.mkdir(parents=True, exist_ok=True)
    brokers = Brokers(folder / "brokers", options=(*START_QUICKLY, *sharing()))
    try:
        brokers.start()
        trial = Trial(folder, brokers, chosen.seed)
        numbers = (chosen.takeovers, chosen.broker_kills, chosen.judge_every)
        print(trial.run(*numbers, limit_s=chosen.minutes * 60))
    finally:
        brokers.stop()
        if chosen.folder is None:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
