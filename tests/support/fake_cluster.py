"""Two hubs in front of a log on Kafka, all in one process: the brokers are in memory, everything else is as it is.

Clients are given the follower's addresses. The hubs run in a thread of their own, so that clients may block.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.background import Background
from support.until import DEADLINE_S, until

from headrace.cluster import introductions
from headrace.cluster.standby import Standby, start
from headrace.config.address import split_address
from headrace.config.load import load
from headrace.config.sections import Kafka as KafkaSettings
from headrace.hub import Hub
from headrace.log.kafka.topics import create_missing
from headrace.serving.runtime import LISTENERS, Runtime
from headrace.testing.kafka import FakeKafka


class Member:
    """One hub: it follows, owns when its turn has come, and leaves when it is told to."""

    def __init__(
        self,
        folder: Path,
        kafka: FakeKafka,
        name: str,
        settings: tuple[str, ...],
        only: tuple[str, ...],
        config: Path | None,
    ) -> None:
        listeners = [f"listen.{each}={'127.0.0.1:0' if each in only else 'off'}" for each in LISTENERS]
        given = {setting.partition("=")[0] for setting in settings}
        self._only = only
        self._kafka = kafka
        self._loaded = load(
            config,
            environment={},
            flags=[
                "log.backend=kafka",
                "log.kafka.store=kafka",
                f"log.data={folder / name}",
                f"cluster.hub={name}",
                "log.disk_reserve_bytes=1MiB",
                *(setting for setting in listeners if setting.partition("=")[0] not in given),
                *settings,
            ],
        )
        self.standby: Standby
        self.runtime: Runtime | None = None
        self._owning: asyncio.Task[None] | None = None

    @property
    def addresses(self) -> dict[str, str]:
        return self.standby.addresses

    @property
    def hub(self) -> Hub:
        assert self.runtime is not None
        return self.runtime.hub

    async def start(self) -> None:
        self.standby = await start(self._loaded, list(self._only), self._kafka)
        self._owning = asyncio.create_task(self._own(), name="owning")

    async def _own(self) -> None:
        await self.standby.owned()
        runtime = await Runtime.start(self.standby.loaded, self.standby)
        await self.standby.serves(runtime.hub)
        self.runtime = runtime

    async def leave(self) -> None:
        """As at SIGTERM."""
        if self.runtime is not None:
            await self.standby.leaves()
            await self.runtime.stop()
        elif self._owning is not None:
            self._owning.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._owning
        await self.standby.close()


class FakeCluster(Background):
    """`owner` and `follower`, once it is entered."""

    def __init__(
        self, folder: Path, *settings: str, only: tuple[str, ...] = tuple(LISTENERS), config: Path | None = None
    ) -> None:
        """`settings` are as behind `--set`, `config` is a file of more."""
        super().__init__()
        self.kafka = FakeKafka()
        create_missing(self.kafka, KafkaSettings())
        self._new: Callable[[str], Member] = lambda name: Member(folder, self.kafka, name, settings, only, config)
        self._count = 0
        self.owner: Member
        self.follower: Member
        self._members: list[Member] = []

    @property
    def addresses(self) -> dict[str, str]:
        """Of the hub that does not own the log."""
        return self.follower.addresses

    @property
    def hub(self) -> Hub:
        """The owner's."""
        return self.owner.hub

    # As of `HubThread`, so that tests of published clients can be given a follower in its place.

    @property
    def ignite(self) -> str:
        return self.addresses["ignite"]

    @property
    def ignite_port(self) -> int:
        return split_address(self.ignite)[1]

    @property
    def fabric(self) -> str:
        return self.addresses["fabric"]

    async def _add(self) -> Member:
        self._count += 1
        member = self._new(f"hub-{self._count}")
        await member.start()
        self._members.append(member)
        return member

    async def _open(self) -> None:
        self.owner = await self._add()
        await until(lambda: self.owner.runtime is not None)
        self.follower = await self._add()
        route = self.follower.standby.node.route
        await until(lambda: route.owner is not None)

    async def hand_over(self) -> float:
        """The owner stops as at SIGTERM, the follower takes over: how long nobody owned the log, about."""
        leaving, self.owner = self.owner, self.follower
        began = time.monotonic()
        self._members.remove(leaving)
        await asyncio.gather(leaving.leave(), until(lambda: self.owner.runtime is not None))
        return time.monotonic() - began

    async def _close(self) -> None:
        for member in reversed(self._members):
            await member.leave()

    def __enter__(self) -> FakeCluster:
        self._answer_s, introductions.ANSWER_S = introductions.ANSWER_S, DEADLINE_S  # no test is about a busy machine
        try:
            self.run(self._open())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(2 * DEADLINE_S)
        self.close()
        introductions.ANSWER_S = self._answer_s
