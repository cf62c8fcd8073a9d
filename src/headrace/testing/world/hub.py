"""The real hub, as a process of a world: started, stopped, killed, deprived of power, and started again."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.config.load import load
from headrace.errors import HeadraceError
from headrace.hub import Hub
from headrace.log.backend import open_log
from headrace.log.clock import SystemClock
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import KafkaError
from headrace.log.kafka.topics import create_missing
from headrace.log.log import Log
from headrace.log.port import LogPort
from headrace.serving.runtime import Runtime
from headrace.testing.disk import MemoryDisk
from headrace.testing.kafka import FakeKafka
from headrace.testing.world.disk import WorldDisk
from headrace.testing.world.scheduler import Machine
from headrace.testing.world.world import World

TINY = (
    "log.commit_bytes_max=20000",
    "log.journal_file_bytes=30000",
    "log.journal_bytes_max=90000",
    "log.segment_bytes=20000",
    "log.tail_bytes_max=120000",
    "log.seal_age_s=50",
    "log.merge_segments_min=3",
    "log.open_segments_max=4",
    "log.disk_reserve_bytes=0",
    "log.maintenance_interval_s=1",
)
"""A log that seals, rolls, merges and takes snapshots all the time."""
KAFKA = ("log.backend=kafka", "log.kafka.servers=fake:9092", "log.kafka.timeout_s=5")
IMMORTALS = ("ping", "pong")
LISTENERS = ("wallaroo", "ockam", "ignite", "fabric", "http")


class _OpenLog:
    """Stands where a hub on Kafka has its standby: it brings a log that is open already."""

    def __init__(self, log: LogPort) -> None:
        self.log: LogPort | None = log

    def prepare(self, hub: Hub) -> None:
        """There is nothing to add."""

    async def give_up(self, name: str) -> None:
        """Nobody else listens."""


class HubProcess:
    """One data directory and the processes that served it, one after the other."""

    def __init__(self, world: World, *settings: str, on_kafka: bool = False) -> None:
        self.world = world
        self.kafka = FakeKafka() if on_kafka else None
        """Where the log is, instead of on the disk."""
        self.disk = MemoryDisk()
        self.machine: Machine | None = None
        self.hub: Hub | None = None
        self.lives = 0
        self.exit: str = ""
        """How the last life ended by itself; empty while it lasts."""
        self.ports = {name: world.network.free_port() for name in LISTENERS}
        self.immortal_ports = {name: (world.network.free_port(), world.network.free_port()) for name in IMMORTALS}
        immortals = [
            f"ambrosia.immortals.{name}.{way}=127.0.0.1:{port}"
            for name, ports in self.immortal_ports.items()
            for way, port in zip(("receive", "send"), ports, strict=True)
        ]
        immortals += [f"ambrosia.immortals.{name}.checkpoint_log_bytes=4000" for name in IMMORTALS]
        listen = [f"listen.{name}=127.0.0.1:{port}" for name, port in self.ports.items()]
        data = f"log.data={world.folder / 'data'}"
        flags = (
            "listen.flight=off",
            "futoin.insecure=true",
            "security.anonymous=admin",
            data,
            *listen,
            *immortals,
            *TINY,
            *settings,
        )
        self.loaded = load(environment={}, flags=(*flags, *(KAFKA if on_kafka else ())))
        if self.kafka is not None:
            create_missing(self.kafka, self.loaded.config.log.kafka)
        self._stop: asyncio.Event | None = None
        self._open_disk: WorldDisk | None = None

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def is_up(self) -> bool:
        return self.hub is not None

    # -- what the world does to it -----------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process; it serves when `is_up`."""
        assert self.machine is None or self.machine.is_dead or self.exit
        self.lives += 1
        self.exit, self.hub = "", None
        life = self.lives
        self.machine = self.world.start(f"hub-{life}", lambda: self._live(life))

    def kill(self) -> None:
        """`kill -9`."""
        self._end(silently=False)
        self.disk = self.disk.after_kill()

    def cut_power(self) -> None:
        """What was not synced may be gone, in part."""
        self._end(silently=True)
        self.disk = self.disk.after_power_cut(self.world.random)

    def stop(self) -> None:
        """SIGTERM."""
        if self._stop is not None and self.hub is not None:
            self._stop.set()

    def take_over(self, zombie_s: float, *, frozen: bool) -> None:
        """On Kafka: another hub with an empty disk, while this one lives on for a while, awake or not."""
        zombie = self.machine
        assert self.kafka is not None
        assert zombie is not None
        if frozen:
            zombie.frozen_until_s = self.world.now_s + zombie_s / 2
        self.world.scheduler.call_later(zombie_s, lambda: None if zombie.is_dead else self.world.kill(zombie))
        self.world.network.stop_listening(zombie)
        self.disk = MemoryDisk()
        self.exit = "taken over"
        self.start()

    def fail_syncs(self, share: float) -> None:
        if self._open_disk is not None:
            self._open_disk.failing = share

    def limit_room(self, nbytes: int | None) -> None:
        """So much fits on the disk yet; None for as much as there is."""
        if self._open_disk is not None:
            self._open_disk.room_bytes = nbytes

    def _end(self, *, silently: bool) -> None:
        assert self.machine is not None
        self.world.kill(self.machine, silently=silently)
        self.hub = None

    # -- its life ----------------------------------------------------------------------------------------------------

    async def _live(self, life: int) -> None:
        try:
            await self._run(life)
        except (HeadraceError, KafkaError) as error:
            self.world.tell("hub", f"life {life} could not start: {error}")
            if life == self.lives:
                self.exit = "failed"

    async def _run(self, life: int) -> None:
        stop = self._stop = asyncio.Event()
        short = self.world.random.choice([None, None, 700, 4000])
        self._open_disk = disk = WorldDisk(self.disk, self.world.scheduler, short)
        (self.world.folder / "data").mkdir(exist_ok=True)
        log = await asyncio.to_thread(self._open_log, disk)
        if life != self.lives:
            return  # another has been started meanwhile
        runtime = await Runtime.start(self.loaded, _OpenLog(log))
        if life == self.lives:
            self.hub = runtime.hub
        self.world.tell("hub", f"life {life} serves; {len(log.recovered.damage)} damaged")
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(runtime.hub.failed()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if life == self.lives:
            self.hub = None
        await runtime.stop()
        how = "failed" if runtime.hub.has_failed else "stopped"
        if life == self.lives:
            self.exit = how
        self.world.tell("hub", f"life {life} {how}")

    def _open_log(self, disk: WorldDisk) -> Log:
        settings = self.loaded.config.log
        if self.kafka is None:
            return open_log(disk, SystemClock(), settings)
        return open_cell(disk, SystemClock(), settings, self.kafka)
