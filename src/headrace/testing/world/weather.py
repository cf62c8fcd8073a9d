"""What befalls a world: processes die, power goes, connections break, disks fail. The seed says what, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from headrace.log.directory import FOLDERS
from headrace.log.proof import PROOF
from headrace.testing.kafka import Fault
from headrace.testing.world.actors.actor import Actor
from headrace.testing.world.disk import Failing
from headrace.testing.world.hub import HubProcess

RESTART_S = 1.0
LOOK_S = 0.2
"""So often the supervisor looks whether the hub runs."""


class Weather:
    """Faults until `calm`."""

    def __init__(self, hub: HubProcess, actors: Sequence[Actor]) -> None:
        self.hub = hub
        self.world = hub.world
        self.random = self.world.random
        self.actors = [actor for actor in actors if actor.can_die]
        self.is_calm = False
        self.is_over = False
        """Nobody starts the hub again."""
        self.counts: dict[str, int] = {}
        faults: list[tuple[str, Callable[[], str | None]]] = [
            ("kill", self._kill),
            ("power cut", self._cut_power),
            ("clean stop", self._stop),
            ("failing sync", self._fail_sync),
            ("full disk", self._fill_disk),
            ("reset", self._reset),
            ("dead line", self._dead_line),
            ("client killed", self._kill_actor),
            ("clock jump", self._jump),
        ]
        if hub.kafka is not None:
            faults += [
                ("takeover", self._take_over),
                ("broker fault", self._trouble_broker),
                ("brokers down", self._down),
            ]
        self.faults = [fault for fault in faults if self.random.random() < 0.6]
        """Swarm testing: each seed has some of them, and so some for long."""
        names = [name for name, _ in self.faults]
        hub.strikes += [name == "power cut" for name in names if name in ("power cut", "kill")]
        self.every_s = self.random.choice([0.3, 2.0, 8.0, 20.0])
        network = self.world.network.weather
        network.delay_s_max = self.random.choice([0.0006, 0.003, 0.2])
        network.split = self.random.choice([0.0, 0.1, 0.7])

    async def blow(self) -> None:
        """The process that looks after the world."""
        while not self.is_calm:
            await asyncio.sleep(self.random.expovariate(1 / self.every_s))
            if self.faults and not self.is_calm and self.hub.is_up:
                name, fault = self.random.choice(self.faults)
                said = fault()
                if said is not None:
                    self.counts[name] = self.counts.get(name, 0) + 1
                    self.world.tell("weather", f"{name} {said}".strip())

    async def look_after(self) -> None:
        """Start the hub again whenever it has ended: its supervisor."""
        hub = self.hub
        while not self.is_over:
            hub.check_end()
            machine = hub.machine
            if machine is None or machine.is_dead or hub.exit:
                await asyncio.sleep(RESTART_S * self.random.uniform(0.1, 2))
                if hub.exit == "failed":  # the kernel may have dropped what it could not write
                    hub.cut_power()
                elif hub.exit:
                    self.random.choice([hub.kill, hub.cut_power])()
                hub.start()
            await asyncio.sleep(LOOK_S)

    def calm(self) -> None:
        """No more faults."""
        self.is_calm = True
        self.world.network.heal()
        self.hub.spare()
        if self.hub.kafka is not None:
            self.hub.kafka.is_down = False
            self.hub.kafka.faults.clear()
        self.world.tell("weather", "calm")

    # -- faults ----------------------------------------------------------------------------------------------------

    def _kill(self) -> str:
        return self._end(power=False)

    def _cut_power(self) -> str:
        return self._end(power=True)

    def _end(self, *, power: bool) -> str:
        """Now, or in the middle of a call of the disk: what is to be torn has to be on its way."""
        if self.random.random() < 0.3:
            (self.hub.cut_power if power else self.hub.kill)()
            return ""
        calls = self.random.randint(0, 30)
        self.hub.strike(calls, power=power)
        return f"{calls} calls of the disk from now"

    def _stop(self) -> str:
        self.hub.stop()
        return ""

    def _fail_sync(self) -> str:
        folder = self.random.choice(["", "", *FOLDERS, PROOF])
        kinds = self.random.choice([("sync",), ("sync",), ("sync", "sync_dir"), ("sync", "write", "create", "rename")])
        share = self.random.choice([0.05, 1.0])
        self.hub.fail_disk(Failing(share, kinds, folder))
        return f"{'/'.join(kinds)} in {folder or 'any folder'}, {share:.0%}"

    def _fill_disk(self) -> str:
        room, seconds = self.random.choice([0, 500, 5000]), self.random.uniform(0.5, 5)
        self.hub.limit_room(room)
        self.world.scheduler.call_later(seconds, lambda: self.hub.limit_room(None))
        return f"but for {room} bytes, for {seconds:.1f} s"

    def _take_over(self) -> str:
        seconds, frozen = self.random.uniform(0.5, 20), self.random.random() < 0.5
        self.hub.take_over(seconds, frozen=frozen)
        return f"from one that lives for {seconds:.1f} s{', frozen' if frozen else ''}"

    def _trouble_broker(self) -> str:
        kafka = self.hub.kafka
        assert kafka is not None
        fault = self.random.choice(list(Fault))
        kafka.faults.append(fault)
        return fault.name.lower()

    def _down(self) -> str:
        kafka, seconds = self.hub.kafka, self.random.choice([0.5, 3.0, 30.0])
        assert kafka is not None
        kafka.is_down = True
        self.world.scheduler.call_later(seconds, lambda: setattr(kafka, "is_down", False))
        return f"for {seconds} s"

    def _reset(self) -> str:
        return self.world.network.reset_one()

    def _dead_line(self) -> str:
        names = sorted(end.loop.machine.name for end in self.world.network.ends)
        if not names:
            return "to nobody"
        name, seconds = self.random.choice(names), self.random.choice([0.5, 5.0, 90.0])
        self.world.network.go_dead(frozenset({name}), seconds)
        return f"to {name} for {seconds} s"

    def _kill_actor(self) -> str | None:
        alive = [actor for actor in self.actors if actor.machine is not None and not actor.machine.is_dead]
        if not alive:
            return None
        actor = self.random.choice(alive)
        assert actor.machine is not None
        self.world.kill(actor.machine)
        actor.start()
        return actor.name

    def _jump(self) -> str:
        assert self.hub.machine is not None
        self.hub.machine.clock_ahead_s += self.random.choice([-3600.0, -1.0, 0.5, 86_400.0])
        return f"to {self.hub.machine.clock_ahead_s:+.1f} s"
