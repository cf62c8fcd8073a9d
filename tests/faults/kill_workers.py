"""Clients of all six protocols that work through any number of a hub's deaths, and know what was acknowledged to them.

Each one works until it is told to stop, then settles what is under way, and judges what the hub holds.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from support.hub_process import HubProcess
from support.perper_peer import key, new_stream
from support.until import until
from websockets.exceptions import WebSocketException

import headrace
from headrace.config.address import split_address
from headrace.errors import HeadraceError
from headrace.protocols.ambrosia.client import Host
from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.futoin import client as futoin
from headrace.protocols.ockam import client as ockam
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric.client import FabricClient, RpcError
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.wallaroo.client import Connector
from headrace.protocols.wallaroo.sources import GenerateSource
from headrace.testing.ping_pong import Counting, players

LOST = (
    HeadraceError,
    OSError,
    EOFError,
    TimeoutError,
    RemoteProtocolError,
    futoin.RemoteError,
    PeerError,
    RpcError,
    ockam.ConnectionLost,
    WebSocketException,
)
"""What a client hears when the hub dies under it, or is not there."""
PAUSE_S = 0.02
"""Between two steps of a worker, so that six of them leave the hub a processor."""
RETRY_S = 0.02
WINDOW = 4


class Verdict(NamedTuple):
    """What a worker found in the end."""

    acknowledged: int
    lost: int
    doubled: int
    reordered: int


class Worker:
    """The life of a client."""

    name = ""

    def __init__(self, hub: HubProcess) -> None:
        self.hub = hub
        self.acknowledged = 0
        self.wrong: Counter[str] = Counter()
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        """Work, and settle when it stops."""
        while not self.stopping.is_set():
            with contextlib.suppress(*LOST):
                await self.connected()
            await asyncio.sleep(RETRY_S)

    async def connected(self) -> None:
        """One connection, until it is lost or the work stops."""

    async def judge(self) -> Verdict:
        """Compare with what the hub holds."""
        await self.look()
        return Verdict(self.acknowledged, self.wrong["lost"], self.wrong["doubled"], self.wrong["reordered"])

    async def look(self) -> None: ...

    def compare(self, stored: Sequence[Any], acknowledged: set[Any]) -> None:
        """Numbers that rise by the order in which they were sent, each sent once."""
        self.wrong["lost"] += len(acknowledged - set(stored))
        self.wrong["doubled"] += len(stored) - len(set(stored))
        self.wrong["reordered"] += sum(one > other for one, other in itertools.pairwise(stored))

    async def records(self, stream: str) -> pa.Table:
        async with headrace.connect_async(self.hub.addresses["flight"]) as client:
            reader = await client.read(stream)
            table: pa.Table = await reader.to_arrow()
            return table


class FlightWorker(Worker):
    """A writer with a producer and many batches under way, and a follower. Both are threads of the SDK's."""

    name = "flight"

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self._stop = threading.Event()
        self.seen: list[int] = []

    async def run(self) -> None:
        working = asyncio.gather(asyncio.to_thread(self._write), asyncio.to_thread(self._follow))
        stopping = asyncio.ensure_future(self.stopping.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stop.set()
            stopping.cancel()
        await working

    def _write(self) -> None:
        with headrace.connect(self.hub.addresses["flight"]) as client:
            while not self._is_created(client):
                self._stop.wait(RETRY_S)
            with client.writer("kills/flight", producer="p", sequence=0, retry_s=600) as writer:
                futures = []
                for number in itertools.count():
                    futures.append(writer.append([b"%d" % number] * 5))
                    if self._stop.wait(PAUSE_S):
                        break
                    self.acknowledged += sum(future.done() for future in futures)
                    futures = [future for future in futures if not future.done()]
                writer.flush()
            self.acknowledged = number + 1

    @staticmethod
    def _is_created(client: headrace.Client) -> bool:
        with contextlib.suppress(HeadraceError):
            client.create("kills/flight")
            return True
        return False

    def _follow(self) -> None:
        with headrace.connect(self.hub.addresses["flight"]) as client:
            while not self._stop.is_set():
                with contextlib.suppress(HeadraceError), client.follow("kills/flight", len(self.seen)) as reader:
                    while not self._stop.is_set() and (batch := reader.next_batch(1)) is not None:
                        self.seen += batch.column("index").to_pylist()
                self._stop.wait(RETRY_S)

    async def look(self) -> None:
        stored = (await self.records("kills/flight")).column("payload").to_pylist()
        expected = [b"%d" % number for number in range(self.acknowledged) for _ in range(5)]
        found = Counter(stored)
        self.wrong["lost"] += sum(found[b"%d" % number] < 5 for number in range(self.acknowledged))
        self.wrong["doubled"] += sum(count > 5 for count in found.values())
        self.wrong["reordered"] += (stored != expected) and not (self.wrong["lost"] or self.wrong["doubled"])
        self.wrong["reordered"] += self.seen != list(range(len(self.seen)))


class _Paced(GenerateSource):
    """A few records at a time, until the work stops."""

    def __init__(self, stopping: asyncio.Event) -> None:
        super().__init__(stream="kills/wallaroo", count=10**9, size=60, seed=3)
        self._stopping = stopping

    async def read(self, limit: int) -> Any:
        await asyncio.sleep(PAUSE_S)
        return None if self._stopping.is_set() else await super().read(10)


class WallarooWorker(Worker):
    name = "wallaroo"

    async def run(self) -> None:
        address = self.hub.addresses["wallaroo"]
        async with Connector(address, attempts_max=None, pause_s=lambda attempt: RETRY_S) as connector:
            await connector.run(_Paced(self.stopping), self._progress)

    def _progress(self, point: int) -> None:
        self.wrong["lost"] += point < self.acknowledged
        self.acknowledged = max(point, self.acknowledged)

    async def look(self) -> None:
        table = await self.records("kills/wallaroo")
        source = GenerateSource(stream="", count=0, size=60, seed=3)
        ids = table.column("id").to_pylist()
        self.compare(ids, set(range(1, self.acknowledged + 1)))
        payloads = zip(ids, table.column("payload").to_pylist(), strict=True)
        self.wrong["lost"] += sum(payload != source.payload(number) for number, payload in payloads)


class OckamWorker(Worker):
    """Pushes groups, none twice: what was not confirmed may be there or not."""

    name = "ockam"

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self._numbers = itertools.count()
        self._confirmed: dict[int, int] = {}
        self._saved = 0

    async def connected(self) -> None:
        async with await ockam.connect(self.hub.addresses["ockam"]) as connection:
            stream = await connection.create("kills/ockam")
            self.wrong["lost"] += (await connection.get_index("billing", stream) or 0) < self._saved
            while not self.stopping.is_set():
                numbers = [next(self._numbers) for _ in range(5)]
                indexes = await connection.push_all(stream, [b"%d" % number for number in numbers])
                self._confirmed |= dict(zip(indexes, numbers, strict=True))
                self.acknowledged += len(numbers)
                connection.save_index("billing", stream, indexes[-1])
                self._saved = await connection.get_index("billing", stream) or 0
                await asyncio.sleep(PAUSE_S)

    async def look(self) -> None:
        table = await self.records("kills/ockam")
        held = dict(zip(table.column("index").to_pylist(), map(int, table.column("payload").to_pylist()), strict=True))
        self.compare(list(held.values()), set(self._confirmed.values()))
        self.wrong["reordered"] += sum(held.get(index) != number for index, number in self._confirmed.items())


class FutoinWorker(Worker):
    """Adds events, none twice; one consumer polls and one is pushed to."""

    name = "futoin"

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self._numbers = itertools.count()
        self._added: dict[int, int] = {}
        self._confirmed = 0
        self._pushed = 0

    @property
    def _url(self) -> str:
        return f"ws://{self.hub.addresses['http']}/futoin/kills"

    async def run(self) -> None:
        await asyncio.gather(super().run(), self._again(self._poll), self._again(self._receive))

    async def _again(self, consume: Callable[[], Awaitable[None]]) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(*LOST):
                await consume()
            await asyncio.sleep(RETRY_S)

    async def connected(self) -> None:
        async with await futoin.Client.connect(self._url) as client:
            while not self.stopping.is_set():
                number = next(self._numbers)
                self._added[await client.add("A", number)] = number
                self.acknowledged += 1
                await asyncio.sleep(PAUSE_S)

    async def _poll(self) -> None:
        async with await futoin.Client.connect(self._url) as client:
            await client.register("POLL")
            last: int | None = None
            while not self.stopping.is_set():
                events = await client.poll("POLL", last)
                self._confirmed = max(self._confirmed, last or 0)
                self.wrong["doubled"] += sum(event.id <= self._confirmed for event in events)
                last = events[-1].id if events else last
                await asyncio.sleep(PAUSE_S)

    async def _receive(self) -> None:
        async def take(seq: int, events: list[futoin.Event]) -> None:
            self.wrong["lost"] += events[0].id > self._pushed + 1
            self._pushed = max(self._pushed, events[-1].id)

        async with await futoin.Client.connect(self._url) as client:
            await client.register("PUSH")
            await client.ready_to_receive("PUSH", take)
            stopping = asyncio.ensure_future(self.stopping.wait())
            closed = asyncio.ensure_future(client.closed.wait())
            await asyncio.wait((stopping, closed), return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            closed.cancel()

    async def look(self) -> None:
        held: dict[int, int] = {}
        async with await futoin.Client.connect(self._url) as client:
            while events := await client.poll("LIVE", max(held, default=None)):
                held |= {event.id: event.data for event in events}
        self.compare(list(held.values()), set(self._added.values()))
        self.wrong["lost"] += sum(held.get(index) != number for index, number in self._added.items())
        self.wrong["reordered"] += list(held) != list(range(1, len(held) + 1))


class PerperWorker(Worker):
    """Items of a stream, which are put again when nobody knows; a counter by compare and set; the fabric follows."""

    name = "perper"

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self._counter = 0
        self._seen = 0

    async def run(self) -> None:
        await asyncio.gather(super().run(), self._follow())

    @contextlib.asynccontextmanager
    async def _client(self) -> AsyncIterator[IgniteClient]:
        client = await IgniteClient.connect(*split_address(self.hub.addresses["ignite"]))
        try:
            yield client
        finally:
            await client.close()

    async def connected(self) -> None:
        async with self._client() as client:
            names = await client.request(1050)
            if "kills-stream" not in names:
                await new_stream(client, "kills-stream")
            await client.request(1052, "kills-table")
            value = await client.request(1000, key("counter"), cache="kills-table")
            is_first = await client.request(1002, key("counter"), key(0), cache="kills-table")
            self._check_counter(0 if is_first else _long(value))
            while not self.stopping.is_set():
                await client.request(
                    1002, key(self.acknowledged), key(f"item {self.acknowledged}"), cache="kills-stream"
                )
                self.acknowledged += 1
                changed = await client.request(
                    1010, key("counter"), key(self._counter), key(self._counter + 1), cache="kills-table"
                )
                self.wrong["lost"] += not changed
                self._counter += 1
                await asyncio.sleep(PAUSE_S)

    def _check_counter(self, value: int) -> None:
        """The last increment may have been done, and not acknowledged."""
        self.wrong["lost"] += value < self._counter
        self.wrong["doubled"] += value > self._counter + 1
        self._counter = value

    async def _follow(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(*LOST):
                fabric = await FabricClient.connect(*split_address(self.hub.addresses["fabric"]))
                items = fabric.start(
                    "/perper.Fabric/StreamItems", {"stream": "kills-stream", "startKey": self._seen, "stride": 1}
                )
                try:
                    while not self.stopping.is_set():
                        async with asyncio.timeout(1):
                            item = await items.next()
                        if item is None:
                            break
                        self.wrong["lost"] += item.key > self._seen
                        self.wrong["doubled"] += item.key < self._seen
                        self._seen = item.key + 1
                finally:
                    await fabric.close()
            await asyncio.sleep(RETRY_S)

    async def look(self) -> None:
        async with self._client() as client:
            for number in range(self.acknowledged):
                value = await client.request(1000, key(number), cache="kills-stream")
                self.wrong["lost"] += value != key(f"item {number}")
            self._check_counter(_long(await client.request(1000, key("counter"), cache="kills-table")))
            size = await client.request(1020, b"", cache="kills-stream")
            self.wrong["doubled"] += size > self.acknowledged + 1


def _long(value: bytes) -> int:
    return int.from_bytes(value[1:9], "little", signed=True)


class AmbrosiaWorker(Worker):
    """Two immortals that call each other without end: a call that is lost, repeated or out of order is a wrong one."""

    name = "ambrosia"

    def __init__(self, hub: HubProcess) -> None:
        super().__init__(hub)
        self.hosts = {
            name: Host(kind, name=name, receive="", send="", addresses=lambda name=name: self._addresses(name))  # type: ignore[misc]
            for name, kind in zip(("ping", "pong"), players(None, WINDOW), strict=True)
        }
        self._high = dict.fromkeys(self.hosts, 0)

    def _addresses(self, name: str) -> tuple[str, str]:
        ready = json.loads(self.hub.ready.read_text())
        return ready[f"ambrosia.{name}.receive"], ready[f"ambrosia.{name}.send"]

    async def run(self) -> None:
        serving = [asyncio.create_task(host.run()) for host in self.hosts.values()]
        try:
            while not self.stopping.is_set():
                await asyncio.sleep(PAUSE_S)
                self._look_at_them()
                for task in serving:
                    if task.done():
                        task.result()
            high = min(self._high.values())
            await until(lambda: self._look_at_them() or min(self._high.values()) > high + 10 * WINDOW)
        finally:
            for task in serving:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)

    def _look_at_them(self) -> None:
        for name, host in self.hosts.items():
            if not host._became_primary.is_set():
                continue
            counting = host.immortal
            assert isinstance(counting, Counting)
            self.wrong["lost"] += counting.last < self._high[name]
            self._high[name] = max(counting.last, self._high[name])
            if counting.wrong:
                self.wrong["doubled"] = len(counting.wrong)
        self.acknowledged = sum(self._high.values())


WORKERS: tuple[type[Worker], ...] = (
    WallarooWorker,
    OckamWorker,
    FutoinWorker,
    PerperWorker,
    AmbrosiaWorker,
    FlightWorker,
)
