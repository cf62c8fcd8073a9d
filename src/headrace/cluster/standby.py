"""A hub process on Kafka before it owns the cell: its listeners pass clients on, and it follows the journal, if it is
one of those that do (`ranks.py`).

`start` opens it. `owned` returns the log when the cell is this hub's. Then the runtime opens the hub's own listeners on
the same ports, and `serves` tells the other hubs. There is no way back: an owner that loses the cell ends its process,
and comes back as a follower when it is started again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any, cast

import msgspec

from headrace.cluster.front import Front
from headrace.cluster.http_front import HttpFront, tls_to_owner
from headrace.cluster.introductions import LISTENER, Door, Introducer
from headrace.cluster.lease import Leased
from headrace.cluster.node import CELL, Node
from headrace.cluster.route import Owner
from headrace.cluster.status import ClusterVerbs
from headrace.config.address import join_address, split_address
from headrace.config.load import Loaded
from headrace.errors import Closed
from headrace.hub import Hub
from headrace.hub.base import HubBase
from headrace.log.clock import SystemClock
from headrace.log.disk import OsDisk
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import KafkaPort, connect
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.turn import Turn
from headrace.log.log import Log
from headrace.log.port import LogPort
from headrace.log.struct_types import learn_struct_types
from headrace.serving import http
from headrace.serving.listener import Listener
from headrace.serving.runtime import StartFailed
from headrace.telemetry.log_lines import fields
from headrace.telemetry.metrics import ClusterMetrics

logger = logging.getLogger("headrace.cluster")

LOOK_S = 0.2
"""How often a hub looks whether it is to follow."""


class Standby:
    """Make it with `start`."""

    def __init__(self, loaded: Loaded, node: Node, kafka: KafkaPort | None = None) -> None:
        """`kafka` is the log's, which otherwise makes a connection of its own."""
        self.config = loaded.config
        self.base = HubBase(self.config, self.config.log.data)
        """What this hub shows of itself while it follows."""
        self.node = node
        self.fronts: dict[str, Front] = {}
        self.door = Door(self.base.peers, self.base.intake, node.find)
        self._introducer = Introducer(node.life, node.key, self.base.peers)
        self.fenced: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when another hub has taken the cell that this one owned."""
        self._loaded = loaded
        self._kafka = kafka
        self._own: Listener | None = None
        self._opening: asyncio.Task[Log] | None = None
        self.log: LogPort | None = None
        """When the cell is this hub's."""
        self._is_serving = False

    @property
    def addresses(self) -> dict[str, str]:
        return {name: front.address for name, front in self.fronts.items()}

    @property
    def loaded(self) -> Loaded:
        """The settings with the addresses that are listened on: a port that the system chose stays the same."""
        listen = msgspec.structs.replace(self.config.listen, **self.addresses)
        return msgspec.structs.replace(self._loaded, config=msgspec.structs.replace(self.config, listen=listen))

    async def open(self, names: list[str]) -> None:
        """Listen, join the group, and follow. `names` are of the listeners that are wanted and can be had."""
        base, node = self.base, self.node
        base.health.owns = lambda cell: False
        base.health.note("cluster", self._role)
        base.health.note("kafka", node.identity.trouble)
        base.health.check("cluster", self._trouble, lambda principal: self._trouble())
        base.metrics.before_scrape(self._measure)
        ClusterVerbs(node).register(base.verbs)
        node.on_owner = self._other_owns
        loop = asyncio.get_running_loop()
        node.identity.on_lost = lambda why: loop.call_soon_threadsafe(self._lost, why)
        await self._listen(names)
        await self._open_door()
        await node.start(self.addresses | ({LISTENER: self.door.address} if self.door.address else {}))
        if node.should_follow:
            self._begin_to_follow()

    async def _listen(self, names: list[str]) -> None:
        addresses = self.config.listen.addresses()
        for name in names:
            front, tls = self._front(name), None
            if name == "http":
                front, tls = await self._http_front(addresses[name])
            front.connections_max = self.config.limits.sessions_max
            try:
                await front.open(addresses[name], tls)
            except OSError as error:
                raise StartFailed(
                    f"{name} cannot listen on {addresses[name]}: {error.strerror or error}; `headrace doctor` says who "
                    f"does, and --set listen.{name}=HOST:PORT chooses another"
                ) from error
            self.fronts[name] = front
            self.base.addresses[name] = front.address
            logger.info("listening for the owner", extra=fields(listener=name, address=front.address))

    def _front(self, name: str) -> Front:
        route, metrics = self.node.route, self.base.metrics.cluster
        return Front(name, route, self.config.cluster.wait_s, metrics, introducer=self._introducer)

    async def _open_door(self) -> None:
        """For other hubs: on the host of the listeners, unless the settings say where."""
        first = next(iter(self.addresses.values()), "127.0.0.1:0")
        address = self.config.cluster.listen or join_address(split_address(first)[0], 0)
        if address == "off":
            return
        try:
            await self.door.open(address)
        except OSError as error:
            raise StartFailed(
                f"the cluster's own port cannot be opened on {address}: {error.strerror or error}; "
                "--set cluster.listen=HOST:PORT chooses another"
            ) from error

    async def _http_front(self, address: str) -> tuple[Front, Any]:
        """With client certificates the bytes are passed on as they are: only the client has its certificate."""
        security, settings, route = self.base.security, self.config.cluster, self.node.route
        files = security.tls_files("http")
        metrics = self.base.metrics.cluster
        if files is not None and files.client_ca:
            return self._front("http"), None
        self._own = await http.serve(self.base, "127.0.0.1:0", behind=address)
        authority = self.config.spark.ca or os.environ.get("HEADRACE_CA", "")
        front = HttpFront(
            route,
            settings.wait_s,
            metrics,
            self._own.address,
            redirects=settings.forward == "redirect",
            tls_on=tls_to_owner(files, authority),
            introducer=self._introducer,
            peers=self.base.peers,
        )
        return front, security.tls("http")

    # -- following -------------------------------------------------------------------------------------------------

    def _begin_to_follow(self) -> None:
        self.node.follows = True
        self._opening = asyncio.create_task(asyncio.to_thread(self._open_log, self.node.turn), name="following")

    def _open_log(self, turn: Turn) -> Log:
        """Blocks until the cell is this hub's."""
        settings = self.config.log
        disk = OsDisk(settings.data)
        kafka = self._kafka or connect(settings.kafka)
        node = self.node
        knows_store = node.identity.knows_store(node.log_note)
        try:
            return open_cell(disk, SystemClock(), settings, kafka, claim=node.claim, turn=turn, knows_store=knows_store)
        except BaseException:
            disk.close()
            kafka.close()
            raise

    async def _followed(self) -> Log:
        """Follow the cell whenever that is this hub's task, until it has claimed it."""
        node = self.node
        while True:
            if node.identity.lost is not None:
                raise node.identity.lost
            is_wanted = node.should_follow or node.chosen_at is not None
            if self._opening is None and is_wanted:
                self._begin_to_follow()
            if self._opening is None:
                await asyncio.sleep(LOOK_S)
                continue
            if not is_wanted:
                node.turn.stop()
            if (await asyncio.wait((self._opening,), timeout=LOOK_S))[0]:
                try:
                    return self._opening.result()
                except Closed:
                    self._step_back()

    def _step_back(self) -> None:
        """Enough others follow."""
        logger.info("others keep up: this hub stays cold", extra=fields(cell=CELL, hub=self.node.name))
        self._opening = None
        self.node.follows = False
        self.node.turn = Turn()

    async def owned(self) -> None:
        """Returns when this hub has claimed the cell, and may answer for it. Raises when it cannot be followed."""
        log = await self._followed()
        self.node.turn.reached("recovered")
        settings = self.config.log.kafka
        journal = log.journal
        assert isinstance(journal, KafkaJournal)
        self.node.identity.needed_from = lambda: journal.offset_of(log.maintenance.needed_sequence)
        if settings.strict_reads:
            self.log = cast(LogPort, Leased(log, journal, settings.lease_s))
        else:
            self.log = log
        await self._wait_for_lease(log)

    async def _wait_for_lease(self, log: Log) -> None:
        """With strict reads: until an owner that has not said goodbye answers nobody any more. The own lease begins
        then."""
        settings = self.config.log.kafka
        if settings.strict_reads and not self.node.turn.has_left:
            logger.info("waiting for the previous owner's lease to end", extra=fields(lease_s=settings.lease_s))
            await asyncio.sleep(settings.lease_s)
            await asyncio.to_thread(log.mark)

    # -- owning ----------------------------------------------------------------------------------------------------

    def prepare(self, hub: Hub) -> None:
        """A hub that has this log, before it listens."""
        hub.peers = self.base.peers
        if self.config.cluster.forward == "redirect":
            hub.peers.own = self.node.addresses
        ClusterVerbs(self.node, self.log).register(hub.verbs)
        hub.health.note("cluster", self._role)
        hub.health.note("kafka", self.node.identity.trouble)
        hub.metrics.before_scrape(lambda: self._measure_topics(hub.metrics.cluster))

    async def give_up(self, name: str) -> None:
        """The hub's own listener takes the port. Connections that wait here go there."""
        await self.fronts[name].stop_accepting()

    async def serves(self, hub: Hub) -> None:
        """The hub's own listeners are open: tell everybody."""
        assert self.log is not None
        epoch = int(self.log.gauges()["epoch"])
        self._is_serving = True
        self.node.turn.reached("listening")
        took_s = await self.node.serves(epoch)
        metrics = hub.metrics.cluster
        metrics.owner.labels(cell=CELL).set(1)
        metrics.epoch.labels(cell=CELL).set(epoch)
        metrics.takeover_seconds.set(took_s)
        metrics.follows.set(1)
        steps = self.node.turn.step_seconds()
        told = fields(cell=CELL, epoch=epoch, hub=self.node.name, seconds=round(took_s, 3), steps=steps)
        logger.warning("owns the cell", extra=told)

    def _other_owns(self, owner: Owner) -> None:
        for front in self.fronts.values():
            front.drop_all_but(owner)
        if self._is_serving:
            self._lost(f"hub {owner.hub} has taken cell {CELL} with epoch {owner.epoch}")

    def _lost(self, why: str) -> None:
        if not self.fenced.done():
            self.fenced.set_result(why)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _role(self) -> str | None:
        owner = self.node.route.owner
        if owner is not None and owner.life == self.node.life:
            return f"owner of cell {CELL}, epoch {owner.epoch}"
        role = f"follower of cell {CELL}" if self.node.follows else f"cold beside cell {CELL}"
        return f"{role}, which {'nobody' if owner is None else owner.hub} owns"

    def _trouble(self) -> str | None:
        return None if self.node.route.owner is not None else f"nobody owns cell {CELL} at this moment"

    def _measure(self) -> None:
        metrics = self.base.metrics.cluster
        metrics.owner.labels(cell=CELL).set(0)
        metrics.epoch.labels(cell=CELL).set(max(self.node.route.epoch, self.node.turn.epoch))
        metrics.lag_bytes.set(self.node.lag_bytes)
        metrics.follows.set(self.node.follows)
        self._measure_topics(metrics)

    def _measure_topics(self, metrics: ClusterMetrics) -> None:
        metrics.topic_problems.set(len(self.node.identity.problems))

    async def leaves(self) -> None:
        """The process is about to stop."""
        await self.node.leaves()

    async def close(self) -> None:
        """Stop listening and following; a log that nobody took over is closed, which leaves the cell."""
        self.node.turn.stop()
        for front in self.fronts.values():
            await front.close()
        self._introducer.close()
        await self.door.close()
        if self._own is not None:
            await self._own.close()
        if self._opening is not None:
            try:
                log = await self._opening
                if not self._is_serving:
                    await asyncio.to_thread(log.close)
            except Exception as error:  # it was told to end, or has said what is wrong
                logger.debug("following has ended", extra=fields(error=repr(error)))
        await self.node.close()


async def start(loaded: Loaded, names: list[str], kafka: KafkaPort | None = None) -> Standby:
    """A hub that follows. `kafka` is for tests."""
    learn_struct_types()
    began = time.monotonic()
    port = kafka or connect(loaded.config.log.kafka)
    standby = Standby(loaded, Node(loaded.config, port), kafka)
    try:
        await standby.open(names)
    except BaseException:
        await standby.close()
        raise
    logger.info("standing by", extra=fields(hub=standby.node.name, seconds=time.monotonic() - began))
    return standby
