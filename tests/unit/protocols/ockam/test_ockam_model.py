"""Any sequence of requests and restarts, on both framings, against a model of what the specification promises."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.ockam_peer import Peer, hub_and_listener, peer_of

from headrace.protocols.ockam import codec
from headrace.testing import MemoryDisk

STREAMS = st.sampled_from(["orders", "events"])
PARTITIONS = st.integers(0, 2)
CLIENTS = st.sampled_from(["billing", "audit"])
FRAMINGS = st.sampled_from(["legacy", "cbor"])
RECORDS = st.lists(st.binary(max_size=30), min_size=1, max_size=6)


class OckamMachine(RuleBasedStateMachine):
    """Streams are lists, saved indexes are maxima; both outlive every restart."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.disk = MemoryDisk()
        self.records: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self.addresses: dict[tuple[str, int], bytes] = {}
        self.saved: dict[tuple[str, str, int], int] = {}
        self.kept: dict[tuple[str, str, int], int] = {}

    @initialize()
    def start(self) -> None:
        async def enter() -> None:
            self.stack = AsyncExitStack()
            self.hub, listener = await self.stack.enter_async_context(hub_and_listener(disk=self.disk))
            self.peers = {
                framing: await self.stack.enter_async_context(peer_of(listener, framing))
                for framing in ("legacy", "cbor")
            }

        self.runner.run(enter())

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.runner.run(self.stack.aclose())
        self.runner.close()

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @rule()
    def restart(self) -> None:
        self.run(self.stack.aclose())
        self.disk = self.disk.after_kill()
        self.start()

    @rule(framing=FRAMINGS, stream=STREAMS, partitions=st.none() | st.integers(1, 3))
    def create(self, framing: str, stream: str, partitions: int | None) -> None:
        async def ask(peer: Peer) -> None:
            protocol = codec.CREATE if partitions is None else codec.CREATE_PARTITIONED
            peer.send("stream", codec.CreateRequest(protocol, stream, partitions))
            for number in range(partitions or 1):
                message = await peer.message()
                assert codec.decode_response(message.payload) == codec.Init(
                    protocol, stream, None if partitions is None else number
                )
                address = message.returning[0].value
                assert self.addresses.setdefault((stream, number), address) == address

        self.run(ask(self.peers[framing]))

    def known(self, stream: str, partition: int) -> bool:
        return (stream, partition) in self.addresses

    @precondition(lambda self: self.addresses)
    @rule(framing=FRAMINGS, data=st.data(), records=RECORDS)
    def push(self, framing: str, data: st.DataObject, records: list[bytes]) -> None:
        place = data.draw(st.sampled_from(sorted(self.addresses)))
        first = len(self.records[place])
        confirms = self.run(self.peers[framing].push(self.addresses[place], *records))
        assert confirms == [codec.PushConfirm(n, True, first + n) for n in range(len(records))]
        self.records[place] += records

    @precondition(lambda self: self.addresses)
    @rule(framing=FRAMINGS, data=st.data(), index=st.integers(0, 12) | st.just((1 << 64) - 1), limit=st.integers(0, 8))
    def pull(self, framing: str, data: st.DataObject, index: int, limit: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.addresses)))
        expected = list(enumerate(self.records[place]))[index : index + limit]
        assert self.run(self.peers[framing].pull(self.addresses[place], index, limit)) == expected

    @rule(framing=FRAMINGS, client=CLIENTS, stream=STREAMS, partition=PARTITIONS, index=st.integers(0, 20))
    def save(self, framing: str, client: str, stream: str, partition: int, index: int) -> None:
        async def save_and_see(peer: Peer) -> int | None:
            peer.save_index(client, stream, index, partition)
            return await peer.get_index(client, stream, partition)

        answer = self.run(save_and_see(self.peers[framing]))
        assert answer == self.index(client, stream, partition, index)

    @rule(framing=FRAMINGS, client=CLIENTS, stream=STREAMS)
    def get(self, framing: str, client: str, stream: str) -> None:
        answer = self.run(self.peers[framing].get_index(client, stream))
        assert answer == self.index(client, stream, 0, 0)

    def index(self, client: str, stream: str, partition: int, saved: int) -> int:
        """The index after one was saved: kept as it is until there is such a stream, and then within it."""
        key = (client, stream, partition)
        saved = max(saved, self.kept.pop(key, 0))
        if not self.known(stream, partition):
            self.kept[key] = saved
            return saved
        self.saved[key] = max(self.saved.get(key, 0), min(saved, len(self.records[stream, partition])))
        return self.saved[key]


OckamMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
class TestModel(OckamMachine.TestCase):
    pass
