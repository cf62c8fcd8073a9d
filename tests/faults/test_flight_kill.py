"""kill -9 of the hub under a pipelined writer and a follower: nothing is missing, nothing is there twice."""

import os
import threading
import time

import pytest
from support.forked_hub import ForkedHub
from support.until import wait_until

import headrace
from headrace.errors import Busy, Closed, Unreachable

KILLS = int(os.environ.get("HEADRACE_KILLS", "4"))
RECORDS_PER_BATCH = 20


def follow(address: str, seen: list[int], until: threading.Event, total: list[int]) -> None:
    """Read every index once and in order, over all restarts."""
    with headrace.connect(address) as client:
        while not (until.is_set() and len(seen) >= total[0]):
            try:
                with client.follow("orders", len(seen), columns=["index"]) as reader:
                    while not (until.is_set() and len(seen) >= total[0]):
                        batch = reader.next_batch(1)
                        if batch is None:
                            break
                        seen.extend(batch.column("index").to_pylist())
            except (Unreachable, Closed, Busy):
                time.sleep(0.05)


@pytest.mark.slow
def test_kill_under_a_writer_and_a_follower(tmp_path):
    hub = ForkedHub(tmp_path, only=("flight",))
    hub.start()
    futures = []
    stop, finished = threading.Event(), threading.Event()
    seen: list[int] = []
    total = [0]
    address = hub.addresses["flight"]
    client = headrace.connect(address)
    client.create("orders")

    def produce() -> None:
        with client.writer("orders", producer="p", sequence=0, retry_s=60) as writer:
            number = 0
            while not stop.is_set():
                futures.append(writer.append([b"%d" % number] * RECORDS_PER_BATCH))
                number += 1
        total[0] = number * RECORDS_PER_BATCH
        finished.set()

    producing = threading.Thread(target=produce, daemon=True)
    following = threading.Thread(target=follow, args=(address, seen, finished, total), daemon=True)
    producing.start()
    following.start()
    try:
        for _ in range(KILLS):
            durable = sum(future.done() for future in list(futures))
            wait_until(
                lambda durable=durable: sum(future.done() for future in list(futures)) >= durable + 50,
                "appends go on after a restart",
            )
            hub.kill()
            hub.start()
        stop.set()
        producing.join(60)
        following.join(60)
        assert [future.result(0).count for future in futures] == [RECORDS_PER_BATCH] * len(futures)
        stored = client.read("orders").to_arrow().column("payload").to_pylist()
        assert stored == [b"%d" % number for number in range(len(futures)) for _ in range(RECORDS_PER_BATCH)]
        assert seen == list(range(len(stored)))
    finally:
        stop.set()
        client.close()
        hub.kill()
