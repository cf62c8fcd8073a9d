"""Several hubs in front of real brokers: takeovers, zombies, hand-overs, claims at the same time."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults import takeovers
from kafka_brokers import Brokers
from support.cluster import SESSION_TIMEOUT_S, HubCluster, get
from support.hub_process import HubProcess
from support.kafka import new_cell
from support.until import wait_until

import headrace
from headrace.config.sections import Log as LogSettings
from headrace.errors import HeadraceError
from headrace.log import ops
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka import journal
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import connect
from headrace.log.struct_types import learn_struct_types

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.kafka]

MakeCluster = Callable[..., HubCluster]


@pytest.fixture
def new_cluster(brokers: Brokers, tmp_path: Path) -> Iterator[MakeCluster]:
    made: list[HubCluster] = []

    def make(*settings: str, count: int = 2, only: tuple[str, ...] = ("http", "flight")) -> HubCluster:
        chosen, kafka = new_cell(brokers.servers)
        kafka.close()
        made.append(HubCluster(tmp_path, brokers.servers, chosen.prefix, *settings, count=count, only=only))
        return made[-1]

    yield make
    for cluster in made:
        cluster.kill_all()


def append(address: str, sequence: int, deadline_s: float = 120.0) -> float:
    """Append until it is acknowledged; how long that took."""
    began = time.monotonic()
    while True:
        try:
            with headrace.connect(address, timeout_s=20) as client:
                client.append("s", [b"%d" % sequence], producer="p", sequence=sequence)
            return time.monotonic() - began
        except HeadraceError:
            if time.monotonic() > began + deadline_s:
                raise
            time.sleep(0.05)


def stored(address: str) -> list[bytes]:
    with headrace.connect(address, timeout_s=60) as client:
        return client.read("s").to_arrow().column("payload").to_pylist()


def roles(asked: HubProcess) -> dict[str, str]:
    """By the names of the hubs; none while the one that is asked opens its own listeners in place of a follower's."""
    code, text = get(asked, "/api/v1/cluster.status", b"{}")
    assert code in (0, 200), text
    return {hub["hub"]: hub["role"] for hub in json.loads(text)["hubs"]} if code else {}


def test_a_follower_says_so_leads_to_the_owner_and_takes_its_place(new_cluster: MakeCluster) -> None:
    """Beside it is a hub that stays cold, until it is needed."""
    with new_cluster(count=3) as cluster:
        owner, (follower, cold) = cluster.wait_for_owner(), cluster.followers
        expected = {"hub-1": "owner", "hub-2": "follower", "hub-3": "cold"}
        wait_until(lambda: roles(follower) == expected, "one follows, one stays cold")
        assert "cold beside cell 0, which hub-1 owns" in get(cold, "/health")[1]
        assert "headrace_cluster_follows 0.0" in get(cold, "/metrics")[1]
        assert get(follower, "/health")[0] == 200
        assert "follower of cell 0, which hub-1 owns" in get(follower, "/health")[1]
        assert get(follower, "/health?cell=0")[0] == 503
        assert get(owner, "/health?cell=0")[0] == 200
        assert get(owner, "/health?cell=1")[0] == 503
        assert 'headrace_cluster_owner{cell="0"} 0.0' in get(follower, "/metrics")[1]
        assert 'headrace_cluster_owner{cell="0"} 1.0' in get(owner, "/metrics")[1]
        assert 'headrace_cluster_epoch{cell="0"} 1.0' in get(follower, "/metrics")[1]
        with headrace.connect(follower.addresses["flight"]) as client:
            client.create("s")
            client.append("s", [b"1"])
            found = client.call("cluster.status", {})
        assert found["asked"] == "hub-1", "the owner has answered"
        assert cluster.status(follower)["asked"] == "hub-2", "it answers for itself over HTTP"
        assert get(follower, "/api/v1/stream.list", b"{}")[0] == 200
        assert "<title>" in get(follower, "/")[1], "the console is the owner's"
        forwarded = 'headrace_cluster_forwarded_total{listener="flight"}'
        assert forwarded in get(follower, "/metrics")[1]
        cluster.kill_owner()
        assert cluster.find_owner() is follower, "the group chooses the one that follows"
        wait_until(lambda: roles(follower).get("hub-3") == "follower", "the cold one follows")
        assert stored(cold.addresses["flight"]) == [b"1"]


def test_a_hub_that_slept_is_fenced_and_ends_with_code_4(new_cluster: MakeCluster) -> None:
    with new_cluster() as cluster:
        owner, (follower,) = cluster.wait_for_owner(), cluster.followers
        with headrace.connect(owner.addresses["flight"]) as client:
            client.create("s")
            client.append("s", [b"1"], producer="p", sequence=1)
        process = owner.process
        assert process is not None
        process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        wait_until(lambda: get(follower, "/health?cell=0")[0] == 200, "the follower takes over", 90)
        append(follower.addresses["flight"], 2)
        time.sleep(max(0.0, began + 2 * SESSION_TIMEOUT_S - time.monotonic()))
        process.send_signal(signal.SIGCONT)
        assert process.wait(60) == 4, owner.log.read_text()[-2000:]
        owner.process = None
        assert stored(follower.addresses["flight"]) == [b"1", b"2"]
        owner.start()
        assert stored(owner.addresses["flight"]) == [b"1", b"2"]
        assert cluster.find_owner() is follower


def test_a_planned_stop_hands_over_in_less_than_a_session(new_cluster: MakeCluster) -> None:
    with new_cluster() as cluster:
        owner, (follower,) = cluster.wait_for_owner(), cluster.followers
        address = follower.addresses["flight"]
        with headrace.connect(address) as client:
            client.create("s")
            futures = []
            stopping = threading.Thread(target=owner.stop)
            with client.writer("s", producer="p", sequence=0, retry_s=60) as writer:
                for number in range(1_000):
                    futures.append(writer.append([b"%d" % number]))
                    if number == 200:
                        futures[0].result(60)
                        began = time.monotonic()
                        stopping.start()
                    time.sleep(0.002)
            for future in futures:
                future.result(60)  # none has failed
            stopping.join()
            wait_until(lambda: get(follower, "/health?cell=0")[0] == 200)
            assert time.monotonic() - began < 60
            assert client.read("s").to_arrow().column("payload").to_pylist() == [b"%d" % n for n in range(1_000)]
        assert "handing over" in owner.log.read_text()
        assert "fenced" not in owner.log.read_text()


def test_three_hubs_that_claim_at_once(brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in turn owns the cell for a while: none that lost it has written anything that counts."""
    monkeypatch.setattr(journal, "CLAIM_WAIT_S", (0.1, 0.5))
    learn_struct_types()
    chosen, kafka = new_cell(brokers.servers)
    kafka.close()
    settings = LogSettings(backend="kafka", kafka=chosen, disk_reserve_bytes=0)
    acknowledged: list[tuple[int, bytes]] = []
    lock = threading.Lock()
    start = threading.Barrier(3)

    def claim_and_write(number: int) -> None:
        start.wait()
        for life in range(4):
            folder = tmp_path / f"{number}-{life}"
            folder.mkdir()
            log = open_cell(OsDisk(folder), SystemClock(), settings, connect(chosen))
            for attempt in range(20):
                payload = b"%d %d %d" % (number, life, attempt)
                append_one = ops.Append("s", Batch.of([payload]))
                pending = log.submit([append_one if log.has_stream("s") else ops.CreateStream("s")])
                log.commit_once()
                if pending.error is not None:
                    break
                if isinstance(pending.operations[0], ops.Append):
                    with lock:
                        acknowledged.append((pending.result[0].first, payload))
            log.close()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(claim_and_write, range(3)))
    (tmp_path / "judge").mkdir()
    judge = open_cell(OsDisk(tmp_path / "judge"), SystemClock(), settings, connect(chosen))
    batch = judge.read("s", 0, 0, 10_000, 1 << 24)
    found = dict(zip(batch["index"].to_pylist(), batch["payload"].to_pylist(), strict=True))
    judge.close()
    assert sorted(found) == list(range(len(found)))
    assert len(acknowledged) >= 20
    assert {index: found.get(index) for index, _ in acknowledged} == dict(acknowledged)
    assert len(set(found.values())) == len(found)


def test_hubs_and_brokers_die_under_load(brokers: Brokers, tmp_path: Path) -> None:
    """The short form of `takeovers.py`."""
    said = takeovers.run(tmp_path, brokers, seed=5)
    assert "none lost, none twice" in said


async def test_strict_reads_are_refused_by_a_hub_that_slept(new_cluster: MakeCluster) -> None:
    """No two hubs ever answer: the one that woke up refuses, before it knows that it was replaced."""
    settings = ("log.kafka.strict_reads=true", "log.kafka.lease_s=3s")
    with new_cluster(*settings) as cluster:
        owner, (follower,) = cluster.wait_for_owner(), cluster.followers
        loop = asyncio.get_running_loop()
        with headrace.connect(owner.addresses["flight"]) as client:
            client.create("s")
            client.append("s", [b"1"], producer="p", sequence=1)
            assert client.bounds("s").next == 1
            process = owner.process
            assert process is not None
            process.send_signal(signal.SIGSTOP)
            await loop.run_in_executor(None, append, follower.addresses["flight"], 2)
            asked = loop.run_in_executor(None, client.bounds, "s")
            await asyncio.sleep(0.5)  # the question is in the buffers of the one that sleeps
            process.send_signal(signal.SIGCONT)
            with pytest.raises(HeadraceError):
                assert (await asked).next == 2
            assert await loop.run_in_executor(None, process.wait, 60) == 4
            owner.process = None
        assert stored(follower.addresses["flight"]) == [b"1", b"2"]
