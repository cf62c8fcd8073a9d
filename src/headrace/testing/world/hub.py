"""The real hub, as a process of a world: started, stopped, killed, deprived of power, and started again."""

from __future__ import annotations

import asyncio
import base64
import functools
import gc
import hashlib
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import headrace.hub.hub as hub_module
import headrace.hub.verbs as verbs_module
import headrace.log.sealer as sealer_module
import headrace.protocols.perper.ignite.server as ignite_server
from headrace.config.load import load
from headrace.errors import HeadraceError
from headrace.hub import Hub
from headrace.log import runs
from headrace.log.clock import SystemClock
from headrace.log.kafka.cell import open_cell
from headrace.log.kafka.client import KafkaError
from headrace.log.kafka.topics import create_missing
from headrace.log.port import LogPort
from headrace.log.struct_types import learn_struct_types
from headrace.protocols.ambrosia import call_reader
from headrace.protocols.futoin import dispatch
from headrace.security import passwords
from headrace.serving import runtime as runtime_module
from headrace.serving.runtime import EXIT_LOG_FAILED, EXIT_OK, Life, Runtime
from headrace.testing.disk import MemoryDisk
from headrace.testing.kafka import FakeKafka
from headrace.testing.world.disk import Failing, WorldDisk
from headrace.testing.world.loop import WorldLoop
from headrace.testing.world.scheduler import Machine
from headrace.testing.world.sealer import WorldSealer
from headrace.testing.world.world import World

TINY = ("log.disk_reserve_bytes=0", "log.maintenance_interval_s=1")
SIZES: dict[str, Sequence[object]] = {
    "log.commit_bytes_max": (2000, 20000),
    "log.journal_file_bytes": (5000, 30000),
    "log.journal_bytes_max": (40000, 90000),
    "log.segment_bytes": (2000, 20000),
    "log.tail_bytes_max": (40000, 120000),
    "log.seal_age_s": (1, 5, 50),
    "log.seal_apart_bytes": (0, 500, 3000),
    "log.merge_segments_min": (2, 3, 8),
    "log.open_segments_max": (1, 4),
    "log.compact_bytes_min": (0, 3000, 4_000_000),
    "log.journal_spares_max": (1, 3),
    "log.queue_bytes_max": (30_000, 64_000_000),
}
"""A log that seals, rolls, merges, compacts and takes snapshots all the time: each seed has one of these."""
BOUNDS: dict[str, Sequence[object]] = {
    "futoin.group_events_max": (1, 5, 1000),
    "futoin.push_window": (1, 2, 5),
    "http.keep_alive_s": (1, 30),
    "limits.message_s": (2, 30),
    "ockam.pull_records_max": (3, 10_000),
    "ockam.unconfirmed_pushes_max": (8, 100_000),
    "ockam.unknown_index": ("zero", "none"),
    "ockam.waiting_requests_max": (1, 1024),
    "perper.missing_stream": ("fail", "wait"),
    "perper.recent_bytes_max": (0, 2000, 32_000_000),
    "perper.requests_max": (2, 10_000),
    "wallaroo.in_flight_bytes_max": (500, 8_000_000),
    "wallaroo.open_wait_s": (0, 1),
    "wallaroo.window_credits": (3, 500),
}
"""Of the protocols: where much is under way, what is not taken waits at the peer."""
LARGE_BYTES = (150, 32_768)
"""From here on a message is read beside the event loop."""
RUN_MIN = (3, 128)
"""So many frames in a row are read as one."""
DELIVERIES = ("bare", "batch", "counted")
KAFKA_S = 5
"""So long a broker may say nothing before the log takes it for a failure."""
KAFKA = ("log.backend=kafka", "log.kafka.servers=fake:9092", f"log.kafka.timeout_s={KAFKA_S}")
IMMORTALS = ("ping", "pong")
"""Those that the settings name."""
REGISTERED = ("clerk", "tills")
"""Those that somebody registers."""
GUEST_KEY = b"a key of the world"
"""With which a guest may sign its messages."""
ANSWERS_KEPT_S = 10_000_000
"""Answers to calls with a key outlast every jump of a clock."""
FAREWELL_S = 2
"""So long after that somebody who was removed and says nothing is cut off."""
TOLD_S = 1.0
"""So long after its log a hub may fail."""
TEMPTED = 0.08
"""How often a hub is struck when it is tempted."""
END_S = 15.0
"""So long a process may take to end when its log has failed."""
LISTENERS = ("wallaroo", "ockam", "ignite", "fabric", "http")
CBOR = "ockam in CBOR"
"""The listener of Ockam's newer framing."""


@functools.cache
def _learn_once() -> None:
    """All lives of all hubs are one process in truth."""
    learn_struct_types()


_return_types: dict[Any, Any] = {}
_find_return_type = verbs_module._return_type


def _return_type_of(handler: Callable[..., Any]) -> Any:
    """What a handler returns, found once: each life of each hub asks."""
    function = getattr(handler, "__func__", handler)
    if function not in _return_types:
        _return_types[function] = _find_return_type(handler)
    return _return_types[function]


def _quick_hash(secret: str, salt: bytes, *cost: int) -> bytes:
    """Instead of scrypt, which is slow by intention."""
    return hashlib.sha256(salt + secret.encode()).digest()


class _NoGarbage:
    """The collector of a world is off: what it finds, and when, depends on more than the seed."""

    def begin(self) -> None:
        """Nothing is looked at."""

    def end(self) -> None:
        """As before."""

    def look(self, *, is_idle: bool) -> None:
        """Nothing is looked at."""

    def tell(self, metrics: object) -> None:
        """There is nothing to tell."""


class _OpenLog:
    """Stands where a hub on Kafka has its standby: it brings a log that is open already."""

    def __init__(self, log: LogPort) -> None:
        self.log: LogPort | None = log

    def prepare(self, hub: Hub) -> None:
        """There is nothing to add."""

    async def give_up(self, name: str) -> None:
        """Nobody else listens."""


class _WatchedRuntime(Runtime):
    """Tells the world when a hub serves."""

    on_start: Callable[[Runtime], None]

    @classmethod
    async def start(cls, loaded: Any, standby: Any = None) -> Runtime:
        runtime = await super().start(loaded, standby)
        cls.on_start(runtime)
        return runtime


class HubProcess:
    """One data directory and the processes that served it, one after the other."""

    def __init__(self, world: World, *settings: str, on_kafka: bool = False) -> None:
        self.world = world
        self._large_bytes, self._run_min = world.random.choice(LARGE_BYTES), world.random.choice(RUN_MIN)
        self.kafka = FakeKafka() if on_kafka else None
        """Where the log is, instead of on the disk."""
        self.disk = MemoryDisk()
        self.machine: Machine | None = None
        self.hub: Hub | None = None
        self.lives = 0
        self.exit: str = ""
        """How the last life ended by itself; empty while it lasts."""
        self.ports = {name: world.network.free_port() for name in LISTENERS}
        self.ports[CBOR] = world.network.free_port()
        names = (*IMMORTALS, *REGISTERED)
        self.immortal_ports = {name: (world.network.free_port(), world.network.free_port()) for name in names}
        immortals = [
            f"ambrosia.immortals.{name}.{way}=127.0.0.1:{port}"
            for name in IMMORTALS
            for way, port in zip(("receive", "send"), self.immortal_ports[name], strict=True)
        ]
        chance = world.random
        for name in IMMORTALS:
            options = {
                "checkpoint_log_bytes": 4000,
                "checkpoints_kept": chance.randint(0, 2),
                "delivery": chance.choice(DELIVERIES),
                "standby": chance.choice(["true", "false"]),
            }
            immortals += [f"ambrosia.immortals.{name}.{option}={value}" for option, value in options.items()]
        listen = [f"listen.{name}={self.address(name)}" for name in LISTENERS]
        data = f"log.data={world.folder / 'data'}"
        flags = (
            "listen.flight=off",
            f"ockam.cbor_listen={self.address(CBOR)}",
            "futoin.insecure=true",
            f"futoin.mac_keys.guest={base64.b64encode(GUEST_KEY).decode()}",
            "security.anonymous=admin",
            f"security.farewell_s={FAREWELL_S}",
            f"ambrosia.answers_kept_s={ANSWERS_KEPT_S}",
            data,
            *listen,
            *immortals,
            *TINY,
            *(f"{key}={world.random.choice(values)}" for key, values in (SIZES | BOUNDS).items()),
            *settings,
        )
        self.loaded = load(environment={}, flags=(*flags, *(KAFKA if on_kafka else ())))
        if self.kafka is not None:
            create_missing(self.kafka, self.loaded.config.log.kafka)
        self.strikes: list[bool] = []
        """How it may be struck where it would hurt most: with a power cut, and without."""
        self._loop: WorldLoop | None = None
        self._open_disk: WorldDisk | None = None
        self._disks: dict[int, WorldDisk] = {}
        self._failed_s: float | None = None
        self.wrong: list[str] = []
        """What it did that no hub may."""
        self._replace_parts()

    def _replace_parts(self) -> None:
        """The disk of a process is the world's, and the world knows when it serves."""
        watched = type("WatchedRuntime", (_WatchedRuntime,), {"on_start": staticmethod(self._serves)})

        def learned() -> None:
            self._of_strand().has_learned = True
            _learn_once()

        self.world.replace(hub_module, "OsDisk", lambda data: self._open_disk)
        self.world.replace(hub_module, "learn_struct_types", learned)
        self.world.replace(runtime_module, "Runtime", watched)
        self.world.replace(verbs_module, "_return_type", _return_type_of)
        self.world.replace(passwords, "_scrypt", _quick_hash)
        self.world.replace(sealer_module, "Sealer", lambda _, life: WorldSealer(self.world, self._disks[life]))
        for module in (ignite_server, dispatch, verbs_module, call_reader):
            self.world.replace(module, "LARGE_BYTES", self._large_bytes)
        self.world.replace(runs, "RUN_MIN", self._run_min)
        self.world.replace(runtime_module, "Garbage", _NoGarbage)
        self.world.replace(gc, "freeze", lambda: None)  # no process here stays for long

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    @property
    def is_up(self) -> bool:
        return self.hub is not None

    @property
    def is_well(self) -> bool:
        """It serves, and will not end because of what befell it before."""
        return self.hub is not None and self.hub._log.failed is None

    # -- what the world does to it -----------------------------------------------------------------------------------

    def start(self) -> None:
        """A new process; it serves when `is_up`."""
        assert self.machine is None or self.machine.is_dead or self.exit
        self.lives += 1
        self.exit, self.hub = "", None
        life = self.lives
        self.machine, self._loop = self.world.machine(f"hub-{life}")
        self.machine.has_learned = False
        self._loop.start(lambda: self._live(life))

    def kill(self) -> None:
        """`kill -9`."""
        self._end(silently=False)
        self.disk = self.disk.after_kill()

    def cut_power(self) -> None:
        """What was not synced may be gone, in part."""
        self._end(silently=True)
        self.disk = self.disk.after_power_cut(self.world.random)
        for staged in sorted((self.world.folder / "data" / "spark-staging").rglob("*.arrows")):
            if self.world.random.random() < 0.5:  # these are not synced
                os.truncate(staged, self.world.random.randint(0, staged.stat().st_size))

    def strike(self, calls: int, *, power: bool) -> None:
        """The same in the middle of a call of the disk, so many from now."""
        if self._open_disk is not None:
            self._open_disk.strike(calls, self.cut_power if power else self.kill)

    def tempt(self, share: float = TEMPTED) -> None:
        """Somebody is about to ask for what must happen whole, or not at all."""
        chance = self.world.random
        if self.strikes and self.is_up and chance.random() < share:
            power, calls = chance.choice(self.strikes), chance.randint(0, 8)
            self.world.tell("fate", f"{'power cut' if power else 'kill'} {calls} calls of the disk from now")
            self.strike(calls, power=power)

    def spare(self) -> None:
        """Nothing is wrong with its disk any more, and nothing strikes."""
        self.strikes.clear()
        if self._open_disk is not None:
            self._open_disk.spare()

    def stop(self) -> None:
        """SIGTERM; from now on nobody may count on it."""
        self.hub = None
        if self._loop is not None:
            self._loop.send_signal(signal.SIGTERM)

    def take_over(self, zombie_s: float, *, frozen: bool) -> None:
        """On Kafka: another hub with an empty disk, while this one lives on for a while, awake or not."""
        zombie = self.machine
        assert self.kafka is not None
        assert zombie is not None
        if frozen and self.is_well:  # one that is about to stop is not told that its parts took so long
            zombie.frozen_until_s = self.world.now_s + zombie_s / 2
        self.world.scheduler.call_later(zombie_s, lambda: None if zombie.is_dead else self.world.kill(zombie))
        self.world.network.stop_listening(zombie)
        self.disk = MemoryDisk()
        self.exit = "taken over"
        self.start()

    def ask(self, question: Callable[[Hub], Coroutine[Any, Any, None]]) -> None:
        """Run something in its process, beside all else."""
        hub, loop = self.hub, self._loop
        assert hub is not None
        assert loop is not None
        loop.call_soon_threadsafe(lambda: loop.create_task(question(hub)))

    def fail_disk(self, failing: Failing | None) -> None:
        if self._open_disk is not None:
            self._open_disk.failing = failing

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
            code = await self._run()
        except (HeadraceError, KafkaError) as error:
            self.world.tell("hub", f"life {life} could not start: {error}")
            how = "failed"
        else:
            await self._check_tasks(life, code)
            how = {EXIT_OK: "stopped", EXIT_LOG_FAILED: "failed"}.get(code, f"ended with code {code}")
            self.world.tell("hub", f"life {life} {how}")
        if life == self.lives:
            self.hub, self.exit = None, how

    async def _run(self) -> int:
        """As `headrace up` does it; the exit code."""
        short = self.world.random.choice([None, None, 700, 4000])
        self._open_disk = disk = WorldDisk(self.disk, self.world.scheduler, short, 0 if self.kafka else self.lives)
        self._disks[self.lives] = disk
        (self.world.folder / "data").mkdir(exist_ok=True)
        life = Life(self.loaded, None, lambda announced: None)
        if self.kafka is None:
            return await life.run()
        self._of_strand().has_learned = True
        return await self._run_on_kafka(disk)

    async def _run_on_kafka(self, disk: WorldDisk) -> int:
        """Without the hubs that stand by: the log is open already."""
        life, stop = self.lives, asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, stop.set)
        assert self.kafka is not None
        log = await asyncio.to_thread(open_cell, disk, SystemClock(), self.loaded.config.log, self.kafka)
        if life != self.lives:
            return EXIT_OK  # another has been started meanwhile
        runtime = await runtime_module.Runtime.start(self.loaded, _OpenLog(log))
        waits: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(stop.wait()),
            asyncio.ensure_future(runtime.hub.failed()),
        ]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await runtime.stop()
        return EXIT_LOG_FAILED if runtime.hub.has_failed else EXIT_OK

    async def _check_tasks(self, life: int, code: int) -> None:
        await asyncio.sleep(0.1)  # for those that have been told to end
        others = asyncio.all_tasks() - {asyncio.current_task()}
        left = sorted(f"{task.get_name()}: {task.get_coro().__qualname__}" for task in others)  # type: ignore[union-attr]
        if left and code == EXIT_OK:
            self.wrong.append(f"life {life} left tasks: {left[:3]}")

    def check_end(self) -> None:
        """A log that has failed tells its hub at once, and that ends its process soon."""
        now_s, hub, machine = self.world.now_s, self.hub, self.machine
        if hub is None or machine is None or hub._log.failed is None or machine.frozen_until_s > now_s - TOLD_S:
            self._failed_s = None
        elif self._failed_s is None:
            self._failed_s = now_s
        elif not self.wrong:
            error, since_s = hub._log.failed, now_s - self._failed_s
            if since_s > TOLD_S and not hub.has_failed:
                self.wrong.append(f"the log failed, and {since_s:.1f} s later the hub did not know: {error}")
            elif since_s > END_S:
                self.wrong.append(f"the log failed, and {since_s:.1f} s later the process lives: {error}")

    def _serves(self, runtime: Runtime) -> None:
        machine = self._of_strand()
        if machine is self.machine:
            self.hub = runtime.hub
        damaged = len(runtime.hub._log.recovered.damage)
        self.world.tell("hub", f"{machine.name} serves; {damaged} damaged")

    def _of_strand(self) -> Machine:
        strand = self.world.scheduler.current
        assert strand is not None
        return strand.machine
