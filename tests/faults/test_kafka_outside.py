"""What lies between a hub and its brokers, and under them: lost answers, passwords, access lists, a full disk."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from confluent_kafka import KafkaError as Code
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from faults.kafka_cell import LOAD, Cell, acks, is_still, leader, wait_acks, wait_end
from kafka_brokers import Broker
from support.kafka import USER, SharedBrokers, new_cell
from support.until import wait_until
from test_programs import find
from unit.log.helpers import do, payloads
from unit.log.test_shared import expected, fill, numbers, work

from headrace.config import Kafka
from headrace.config import Log as LogSettings
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import Consumer, KafkaError, KafkaPort, Producer, connect
from headrace.log.kafka.confluent import ConfluentKafka
from headrace.log.kafka.topics import create_missing, hubs_group, journal_topic

pytestmark = [pytest.mark.long, pytest.mark.kafka, pytest.mark.slow]

TIMEOUT_S = 15
"""More than a request may take (5 s): what has no answer is sent again."""


@pytest.fixture
def cell(brokers: SharedBrokers, tmp_path: Path) -> Iterator[Cell]:
    made = Cell(brokers, tmp_path)
    yield made
    made.end()
    for proxy in brokers.proxies:
        proxy.swallows = False
        proxy.cut()


def test_answers_that_are_lost(cell: Cell) -> None:
    """Requests arrive, answers do not. What was stored is sent again, and stored once; when no answer comes at all the
    hub ends, and has acknowledged nothing that is not there."""
    hub = cell.hub(TIMEOUT_S, cell.brokers.servers_of("FAR"))
    wait_acks(hub, LOAD)
    swallow(cell, True)
    wait_until(lambda: is_still(hub), "nothing is acknowledged any more")
    wait_for_repetitions(cell)
    swallow(cell, False)
    wait_acks(hub, LOAD)
    swallow(cell, True)
    assert f"no answer in {TIMEOUT_S} s" in wait_end(hub)
    swallow(cell, False)
    assert cell.judge() >= 2 * LOAD


def swallow(cell: Cell, whether: bool) -> None:
    for proxy in cell.brokers.proxies:
        proxy.swallows = whether
        if not whether:
            proxy.cut()  # or the rest of an answer would be taken for one


def wait_for_repetitions(cell: Cell) -> None:
    """Until the client has given up its connections once, and sent again what it had no answer to."""
    before = sum(proxy.accepted for proxy in cell.brokers.proxies)
    wait_until(lambda: sum(proxy.accepted for proxy in cell.brokers.proxies) > before + 1, "the client sends again")


ASK_FOR_MEMBERS = """
import sys
from headrace.config import Kafka
from headrace.log.kafka import confluent
from headrace.log.kafka.client import KafkaError
kafka = confluent.ConfluentKafka(Kafka(servers=sys.argv[1], timeout_s=1))
for patience_s in sys.stdin:
    confluent.REQUEST_S = float(patience_s)
    try:
        print(len(kafka.members("nobody")), flush=True)
    except KafkaError as error:
        print(error, flush=True)
"""


def test_a_group_is_asked_for_while_its_coordinator_is_away(cell: Cell) -> None:
    """The answer to a question that nobody waits for any more must not end the hub."""
    # What is freed is filled with a pattern, so that whoever uses it fails for certain.
    command = ["env", "MALLOC_PERTURB_=165", sys.executable, "-c", ASK_FOR_MEMBERS, cell.brokers.servers_of("FAR")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as asking:
        assert asking.stdin is not None
        assert asking.stdout is not None

        def answer(patience_s: float = 30) -> str:
            asking.stdin.write(f"{patience_s}\n")
            return asking.stdout.readline()

        wait_until(lambda: answer() == "0\n", "the coordinator answers")
        swallow(cell, True)
        for proxy in cell.brokers.proxies:
            proxy.cut()
        assert "could not be determined in 1 s" in answer(0.2)
        swallow(cell, False)
        wait_until(lambda: answer() == "0\n", "the coordinator answers again")
        for _ in range(3):
            assert answer() == "0\n"
        asking.stdin.close()
        assert asking.wait(60) == 0


# -- passwords and TLS -------------------------------------------------------------------------------------------------


def secure_settings(brokers: SharedBrokers, **more: object) -> Kafka:
    chosen, kafka = new_cell(brokers.servers, **more)
    kafka.close()
    return msgspec.structs.replace(chosen, servers=brokers.servers_of("SECURE"), client=brokers.secure())


def test_a_log_with_a_password_over_tls(brokers: SharedBrokers, tmp_path: Path) -> None:
    settings = LogSettings(backend="kafka", kafka=secure_settings(brokers), disk_reserve_bytes=0)
    for name, wanted in (("first", [b"1"]), ("second", [b"1", b"2"])):
        log = open_cell(OsDisk(tmp_path / name), SystemClock(), settings)
        if name == "first":
            do(log, ops.CreateStream("s"))
        do(log, ops.Append("s", Batch.one(wanted[-1])))
        assert payloads(log, "s") == wanted
        log.close()


WRONG = {
    "password": ({"sasl.password": "not it"}, "SASL authentication error"),
    "authority": ({"ssl.ca.location": "probe"}, "certificate verify failed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_who_is_not_let_in_is_told_why(brokers: SharedBrokers, what: str) -> None:
    wrong, why = WRONG[what]
    settings = secure_settings(brokers)
    kafka = connect(msgspec.structs.replace(settings, client={**settings.client, **wrong}))
    with pytest.raises(KafkaError, match=rf"refuse this hub \(.*{why}.*\): check user, password") as caught:
        create_missing(kafka, settings)
    assert "not it" not in str(caught.value)
    kafka.close()


# -- access lists ------------------------------------------------------------------------------------------------------


def rule(
    kind: ResourceType,
    name: str,
    operation: AclOperation,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
    user: str = USER,
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, permission)


def add(brokers: SharedBrokers, rules: list[AclBinding]) -> None:
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    for future in admin.create_acls(rules).values():
        future.result(60)


@contextlib.contextmanager
def nothing_else_is_allowed(brokers: SharedBrokers) -> Iterator[None]:
    """To anybody: there is a rule for everything, which lets in nobody who is here."""
    rules = [rule(kind, "*", AclOperation.ALL, user="nobody") for kind in (ResourceType.TOPIC, ResourceType.GROUP)]
    add(brokers, rules)
    try:
        yield
    finally:
        admin = AdminClient({"bootstrap.servers": brokers.servers})
        mine = AclBindingFilter(
            *(ResourceType.ANY, "*", ResourcePatternType.LITERAL, "User:nobody", "*"),
            *(AclOperation.ANY, AclPermissionType.ANY),
        )
        for future in admin.delete_acls([mine]).values():
            future.result(60)


def be_told(kafka: KafkaPort, settings: Kafka, operation: str) -> None:
    """Do what needs the right that is missing, until brokers have heard that it is: raises what they say."""
    journal, group = journal_topic(settings), hubs_group(settings)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        match operation:
            case "Describe":
                kafka.bounds(journal, 0)
            case "DescribeConfigs":
                kafka.topic(journal)
            case "Delete":
                kafka.delete_records(journal, 0, 0)
            case "Read":
                consumer = kafka.consumer(journal, 0, 0)
                try:
                    consumer.receive(0.5)
                finally:
                    consumer.close()
            case "Write":
                send_one(kafka.producer(journal))
            case "Read group":
                member = kafka.join(group, journal, "hub", 6)
                try:
                    member.poll(0.5)
                finally:
                    member.close()
            case "Describe group":
                kafka.members(group)


def send_one(producer: Producer) -> None:
    told: list[KafkaError | None] = []
    producer.send(0, b"x", lambda _, error: told.append(error))
    while not told:
        producer.poll(0.5)
    producer.close()
    if told[0] is not None:
        raise told[0]


RIGHTS = ("Describe", "DescribeConfigs", "Read", "Write", "Delete", "Read group", "Describe group")


@pytest.mark.parametrize("right", RIGHTS)
def test_a_right_that_is_missing_is_named_with_the_command_that_gives_it(brokers: SharedBrokers, right: str) -> None:
    settings = secure_settings(brokers)
    operation, _, group = right.partition(" ")
    name = hubs_group(settings) if group else journal_topic(settings)
    kind = ResourceType.GROUP if group else ResourceType.TOPIC
    code = {"DescribeConfigs": AclOperation.DESCRIBE_CONFIGS}.get(operation) or AclOperation[operation.upper()]
    add(brokers, [rule(kind, name, AclOperation.ALL), rule(kind, name, code, AclPermissionType.DENY)])
    kafka = connect(settings)
    wanted = f"--operation {operation} --{kind.name.lower()} {name}"
    with pytest.raises(KafkaError, match=f"do not allow this hub {operation} on .* {re.escape(wanted)}$"):
        be_told(kafka, settings, right)
    kafka.close()


def test_a_hub_needs_no_more_rights_than_the_guide_says(brokers: SharedBrokers, tmp_path: Path) -> None:
    settings = secure_settings(brokers)
    on_topics = ("DESCRIBE", "DESCRIBE_CONFIGS", "READ", "WRITE", "DELETE")
    prefixed = ResourcePatternType.PREFIXED
    rules = [
        rule(ResourceType.TOPIC, f"{settings.prefix}.", AclOperation[each], pattern=prefixed) for each in on_topics
    ]
    rules += [rule(ResourceType.GROUP, hubs_group(settings), AclOperation[each]) for each in ("READ", "DESCRIBE")]
    add(brokers, rules)
    log_settings = LogSettings(backend="kafka", kafka=settings, disk_reserve_bytes=0)
    with nothing_else_is_allowed(brokers):
        for name, wanted in (("first", [b"1"]), ("second", [b"1", b"2"])):
            log = open_cell(OsDisk(tmp_path / name), SystemClock(), log_settings)
            if name == "first":
                do(log, ops.CreateStream("s"))
            do(log, ops.Append("s", Batch.one(wanted[-1])))
            assert payloads(log, "s") == wanted
            log.close()
        kafka = connect(settings)
        kafka.delete_records(journal_topic(settings), 0, 0)
        member = kafka.join(hubs_group(settings), journal_topic(settings), "hub", 6)
        wait_until(lambda: bool(member.poll(0.2)), "the hub is chosen")
        assert [each.client for each in kafka.members(hubs_group(settings))] == ["hub"]
        member.close()
        kafka.close()


def test_a_question_is_asked_again_while_the_client_changes_its_brokers() -> None:
    """A broker's handle that goes while somebody asks, as one does that has come back, is nothing to give up for."""
    kafka = connect(Kafka(servers="127.0.0.1:1", timeout_s=60))
    assert isinstance(kafka, ConfluentKafka)
    asked = iter([Code._DESTROY_BROKER, Code.NOT_COORDINATOR, Code._TIMED_OUT])

    def ask() -> str:
        if (code := next(asked, None)) is not None:
            raise KafkaException(Code(code))
        return "answer"

    assert kafka._asked("something", ask) == "answer"
    kafka.close()


# -- a full disk -------------------------------------------------------------------------------------------------------


BALLAST = "ballast"


class SmallDisk:
    """The data of a broker, which is down meanwhile, on a file system that is nearly full."""

    def __init__(self, broker: Broker, free_bytes: int) -> None:
        self._data = broker.directory / "data"
        self._away = broker.directory / "away"
        used = sum(path.stat().st_blocks * 512 for path in self._data.rglob("*"))
        self._data.rename(self._away)
        self._data.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={used + free_bytes}", "tmpfs", str(self._data))
        subprocess.run(["cp", "-a", "--sparse=always", f"{self._away}/.", str(self._data)], check=True)

    @staticmethod
    def _mount(*arguments: str) -> None:
        subprocess.run([find("mount") or "mount", *arguments], check=True)

    def fill(self, free_bytes: int) -> None:
        """Leave so much."""
        with contextlib.suppress(OSError), (self._data / BALLAST).open("wb") as file:  # the broker may be quicker
            file.write(bytes(shutil.disk_usage(self._data).free - free_bytes))

    def end(self) -> None:
        """As it is now, on the disk again. The broker is down."""
        (self._data / BALLAST).unlink(missing_ok=True)
        shutil.rmtree(self._away)
        subprocess.run(["cp", "-a", "--sparse=always", f"{self._data}/.", str(self._away)], check=True)
        subprocess.run([find("umount") or "umount", str(self._data)], check=True)
        self._data.rmdir()
        self._away.rename(self._data)


@pytest.mark.needs("mounts")
def test_a_broker_whose_disk_is_full(cell: Cell) -> None:
    """Whether the others go on without it is up to Kafka: one that is the controller, too, may hold them up. The hub
    waits, loses nothing, and goes on by itself when the broker is back with room on its disk."""
    hub = cell.hub(timeout_s=300)
    wait_acks(hub, LOAD)
    broker = cell.brokers.brokers[leader(cell) - 1]
    broker.kill()
    disk = SmallDisk(broker, 64_000_000)
    try:
        broker.start()
        cell.brokers.wait_ready()
        wait_acks(hub, LOAD)
        disk.fill(50_000)
        wait_until(lambda: hub.read() and "No space left on device" in broker.output(), "the disk is full")
        before = acks(hub)
    finally:
        broker.kill()
        disk.end()
    broker.start()
    cell.brokers.wait_ready()
    wait_acks(hub, 2 * LOAD)
    assert cell.judge() >= before + 2 * LOAD


# -- a journal that is cut while it is taken ---------------------------------------------------------------------------


class SlowReader(ConfluentKafka):
    """Something happens each time before the journal is read."""

    def __init__(self, settings: Kafka) -> None:
        super().__init__(settings)
        self.topic_name = journal_topic(settings)
        self.meanwhile = lambda: None
        self.readers = 0

    def consumer(self, topic: str, partition: int, offset: int, *, waits: bool = True) -> Consumer:
        if topic == self.topic_name:
            self.readers += 1
            self.meanwhile()
        return super().consumer(topic, partition, offset, waits=waits)


def test_records_are_deleted_during_a_takeover(brokers: SharedBrokers, tmp_path: Path) -> None:
    """The owner seals, takes snapshots and cuts what a hub that takes over was about to read: that one begins anew with
    the newer snapshot."""
    settings, kafka = new_cell(brokers.servers)
    small = LogSettings(
        kafka=settings, segment_bytes=20_000, journal_file_bytes=50_000, journal_bytes_max=100_000, disk_reserve_bytes=0
    )
    owner = open_cell(OsDisk(tmp_path / "owner"), SystemClock(), small, kafka)
    do(owner, ops.CreateStream("s"))
    count = 0

    def cut() -> None:
        nonlocal count
        before = kafka.bounds(journal_topic(settings), 0)[0]
        deadline = time.monotonic() + 120
        while kafka.bounds(journal_topic(settings), 0)[0] == before:
            fill(owner, "s", 100, count)
            count += 100
            work(owner)
            assert time.monotonic() < deadline, "the journal is not cut"

    cut()
    slow = SlowReader(settings)

    def cut_twice() -> None:
        if slow.readers <= 2:
            cut()

    slow.meanwhile = cut_twice
    taken = open_cell(OsDisk(tmp_path / "next"), SystemClock(), small, slow)
    assert slow.readers >= 3, "it had to begin anew"
    assert numbers(taken, "s") == expected(0, count)
    fill(taken, "s", 10, count)
    taken.close()
