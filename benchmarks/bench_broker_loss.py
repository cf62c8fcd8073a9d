"""How long nothing is acknowledged when a broker is killed: one that leads the journal, one that follows, a controller.

    python benchmarks/bench_broker_loss.py [--samples 5] [--losses leads,follows,…] [--set PROPERTY=VALUE …]

Three brokers are started on this machine; they are controllers, too, and share its cores with the hub. Each sample has
a journal of its own, led by the broker that the loss is about. One client appends one record after the other while
that broker is killed with SIGKILL; then it is started again, and the next sample waits until it keeps up. `--set` is
for more lines of server.properties: `--set controller.quorum.fetch.timeout.ms=500`.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka.admin
from brokers import options, progress, workplace

from headrace.config import Config, Kafka, Log
from headrace.hub import Hub
from headrace.log.batch import Batch
from headrace.log.kafka.client import connect
from headrace.log.kafka.topics import create_missing, plans

if TYPE_CHECKING:
    from kafka_brokers import Broker, Brokers

LOSSES = {
    "leads": "a broker that leads the journal",
    "follows": "a broker that follows",
    "controls": "the active controller, which follows",
    "both": "the active controller, which leads the journal",
}
PAUSE_S = 3.0
"""Nothing else makes an append wait so long: the loss has been seen."""
WAIT_S = 60.0
"""So long it is waited for a pause. Less than `log.kafka.timeout_s`, so that the hub does not give up before."""


def choose(brokers: Brokers, loss: str) -> tuple[Broker, Broker]:
    """Who is to lead the journal, and who is killed."""
    controller = brokers.controller
    first, second = (broker for broker in brokers.brokers if broker is not controller)
    chosen = {
        "leads": (first, first),
        "follows": (first, second),
        "controls": (first, controller),
        "both": (controller, controller),
    }
    return chosen[loss]


def create_journal(brokers: Brokers, leader: Broker) -> Kafka:
    """The topics of a log, the journal's leader first among its replicas: that one leads."""
    settings = Kafka(servers=brokers.servers, prefix=f"bench-{uuid.uuid4().hex[:8]}")
    journal = plans(settings)[0]
    others = [broker.number for broker in brokers.brokers if broker is not leader]
    topic = confluent_kafka.admin.NewTopic(
        journal.name, num_partitions=1, replica_assignment=[[leader.number, *others]], config=dict(journal.config)
    )
    admin = confluent_kafka.admin.AdminClient({"bootstrap.servers": brokers.servers})
    admin.create_topics([topic])[journal.name].result(30)
    while True:
        found = admin.list_topics(journal.name, timeout=30).topics[journal.name].partitions
        if found and found[0].leader == leader.number and len(found[0].isrs) == len(brokers.brokers):
            break
        time.sleep(0.2)
    create_missing(connect(settings), settings)
    return settings


async def pause_s(hub: Hub, broker: Broker) -> float:
    """The longest time between two acknowledgements when a broker is killed."""
    one = Batch.one(b"x" * 100)
    for _ in range(100):
        await hub.append("s", one)
    began = last = time.perf_counter()
    await asyncio.to_thread(broker.kill)
    longest = 0.0
    while last < began + WAIT_S and longest < PAUSE_S:
        await hub.append("s", one)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest


async def sample(directory: Path, brokers: Brokers, loss: str) -> float:
    leader, victim = choose(brokers, loss)
    settings = await asyncio.to_thread(create_journal, brokers, leader)
    hub = await Hub.open(directory / settings.prefix, Config(log=Log(backend="kafka", kafka=settings)))
    await hub.create_stream("s")
    seconds = await pause_s(hub, victim)
    await hub.close()
    victim.start()
    await asyncio.to_thread(brokers.wait_ready)
    return seconds


async def measure(directory: Path, brokers: Brokers, losses: list[str], samples: int) -> None:
    pauses: dict[str, list[float]] = {loss: [] for loss in losses}
    for number in range(samples):
        for loss, values in pauses.items():
            values.append(await sample(directory, brokers, loss))
            progress(f"sample {number + 1} of {samples}: {LOSSES[loss]}: {values[-1]:.2f} s")
    for loss, values in pauses.items():
        spread = f"median {statistics.median(values):.1f} s, {min(values):.1f} to {max(values):.1f} s"
        print(f"loss of {LOSSES[loss]}: {spread} without an acknowledgement, {samples} samples")


def main() -> None:
    parser = options(__doc__, servers=False)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--losses", default=",".join(LOSSES), help="names with commas between them")
    parser.add_argument("--set", action="append", default=[], dest="extra", metavar="PROPERTY=VALUE")
    arguments = parser.parse_args()
    losses = arguments.losses.split(",")
    if unknown := set(losses) - LOSSES.keys():
        parser.error(f"no such loss: {', '.join(sorted(unknown))}")
    with workplace(arguments, extra="\n".join(arguments.extra)) as (directory, _, brokers):
        assert brokers is not None
        asyncio.run(measure(directory, brokers, losses, arguments.samples))


if __name__ == "__main__":
    sys.exit(main())
