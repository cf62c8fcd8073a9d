"""Consumer groups: who reads what, and what happens when a member goes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.until import wait_until

import headrace

QUICK = {"beat_s": 0.05, "expire_s": 1.0}
MEMBER = """
import sys, headrace
with headrace.connect(sys.argv[1]) as hub, hub.group("wide", "g", member="victim", beat_s=0.05, expire_s=1.0) as group:
    for record in group:
        group.save()
        print(record.payload.decode(), flush=True)
"""


@pytest.fixture
def hub(served):
    with headrace.connect(served.address) as client:
        client.create("wide", partitions=4)
        yield client


def fill(hub, numbers):
    for number in numbers:
        hub.append("wide", str(number), partition=number % 4)


def take(group, count):
    """So many records, each saved."""
    taken = []
    for record in group:
        taken.append(int(record.payload))
        group.save()
        if len(taken) == count:
            return taken
    return taken


def test_a_member_alone_reads_everything_and_goes_on_where_it_was(hub):
    fill(hub, range(8))
    with hub.group("wide", "g", **QUICK) as group:
        assert group.partitions == [0, 1, 2, 3]
        assert "partitions [0, 1, 2, 3]" in repr(group)
        assert sorted(take(group, 8)) == list(range(8))
    fill(hub, range(8, 12))
    with hub.group("wide", "g", **QUICK) as group:
        assert sorted(take(group, 4)) == [8, 9, 10, 11]
    assert not [key for key, _ in hub.table("wide.groups").items() if b"/member/" in key]


def test_two_members_share_and_one_that_leaves_is_replaced(hub, served):
    with headrace.connect(served.address) as other, hub.group("wide", "g", **QUICK) as first:
        with other.group("wide", "g", **QUICK) as second:
            wait_until(lambda: len(first.partitions) == len(second.partitions) == 2)
            assert sorted(first.partitions + second.partitions) == [0, 1, 2, 3]
            fill(hub, range(8))
            assert {number % 4 for number in take(second, 4)} == set(second.partitions)
        wait_until(lambda: first.partitions == [0, 1, 2, 3])
        assert len(take(first, 4)) == 4
    assert [each.index for each in hub.cursors("g", stream="wide")] == [2, 2, 2, 2]


def test_two_groups_do_not_know_each_other(hub):
    fill(hub, range(4))
    with hub.group("wide", "a", **QUICK) as one, hub.group("wide", "b", **QUICK) as two:
        assert sorted(take(one, 4)) == sorted(take(two, 4)) == [0, 1, 2, 3]


def wait_for_beats(hub, *groups):
    """Each has looked around several times."""

    def beats(group):
        rows = dict(hub.table("wide.groups").items())
        return max(int(value) for key, value in rows.items() if key.endswith(b"/member/" + group.member.encode()))

    begun = [beats(group) for group in groups]
    wait_until(lambda: all(beats(group) > before + 2 for group, before in zip(groups, begun, strict=True)))


@pytest.mark.parametrize("name", ["g/member", "g/partition", "g%2Fmember"])
def test_groups_whose_names_begin_alike_do_not_know_each_other(hub, name):
    with hub.group("wide", name, **QUICK) as other, hub.group("wide", "g", **QUICK) as group:
        wait_for_beats(hub, group, other)
        assert group.partitions == other.partitions == [0, 1, 2, 3]


def test_rows_that_mean_nothing_are_left_alone(hub):
    rows = {b"g/partition/x": b"1", b"g/partition/\xff": b"1", b"g/partition/0": b"\xff", b"g/member/\xff": b"1"}
    hub.create_table("wide.groups").put_many(rows.items())
    with hub.group("wide", "g", **QUICK) as group:
        wait_for_beats(hub, group)
        assert group.partitions == [0, 1, 2, 3]


def test_a_member_that_is_killed_is_replaced_and_nothing_is_left_out(hub, served):
    environment = os.environ | {"PYTHONPATH": str(Path(headrace.__file__).parent.parent)}
    victim = subprocess.Popen(
        [sys.executable, "-c", MEMBER, served.address], stdout=subprocess.PIPE, env=environment, text=True
    )
    try:
        fill(hub, range(4))
        seen = {int(victim.stdout.readline()) for _ in range(4)}
        assert seen == {0, 1, 2, 3}
        with hub.group("wide", "g", **QUICK) as survivor:
            wait_until(lambda: len(survivor.partitions) == 2)
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            fill(hub, range(4, 12))
            wait_until(lambda: survivor.partitions == [0, 1, 2, 3])
            late = {int(line) for line in victim.stdout}
            missing = set(range(4, 12)) - late
            found = set()
            for record in survivor:
                found.add(int(record.payload))
                survivor.save()
                if missing <= found:
                    break
    finally:
        victim.kill()
        victim.wait()
        victim.stdout.close()


async def test_the_async_twin(served, hub):
    fill(hub, range(2))
    async with headrace.connect_async(served.address) as client, await client.group("wide", "g", **QUICK) as group:
        assert group.partitions == [0, 1, 2, 3]
        seen = []
        async for record in group:
            seen.append((record.payload, record.partition))
            await group.save()
            if len(seen) == 2:
                break
    assert sorted(seen) == [(b"0", 0), (b"1", 1)]


def test_a_loop_that_breaks_off_leaves_the_rest_to_the_next(hub):
    hub.append("wide", [str(number) for number in range(10)], partition=0)
    with hub.group("wide", "g", **QUICK) as group:
        assert take(group, 3) == [0, 1, 2]
        assert take(group, 7) == [3, 4, 5, 6, 7, 8, 9]
