"""Others who ask the fabric: one who watches executions and scales agents by them, workers that reserve an execution by
its name, and an agent that listens to its own stream."""

from __future__ import annotations

import asyncio
import contextlib

from headrace.protocols.perper.catalogue import LISTENERS
from headrace.protocols.perper.errors import PeerError
from headrace.protocols.perper.fabric import http2
from headrace.protocols.perper.fabric.client import ClientCall, FabricClient, RpcError
from headrace.protocols.perper.ignite.binary import encode_long
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.records import LISTENER_HOLDS_ALL, StreamListener, write_listener
from headrace.protocols.perper.settings import Perper
from headrace.testing.world.actors.actor import ANSWER_S, LOST, Actor, Watcher, soon
from headrace.testing.world.actors.agents import (
    AGENT,
    AgentWorker,
    Caller,
    ItemsAgent,
    agents,
    connected,
    is_connected,
)
from headrace.testing.world.actors.caches import GET, NULL, PUT, changing, encode_key
from headrace.testing.world.book import Book, Register
from headrace.testing.world.hub import HubProcess

FABRIC, SCALER = "/perper.Fabric", "/externalscaler.ExternalScaler"
HEALTH, REFLECTION = "/grpc.health.v1.Health", "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
SERVING, NOT_SERVING = 1, 2
DEADLINE_EXCEEDED, NOT_FOUND, INVALID = 4, 5, 3
ENDED = (PeerError, RpcError, *LOST)


class Overseer(Watcher):
    """Looks at executions as they come and go, and at their number, as KEDA does to scale an agent. Each is announced
    once until it is over; one that was finished is over for everybody; none that was stored is left out."""

    kind = "overseer"

    def __init__(self, number: int, hub: HubProcess, book: Book, caller: Caller) -> None:
        super().__init__(number, hub, book)
        self.caller = caller
        self.looks = [self._follow, self._snapshot, self._scale, self._is_active, self._health, self._ask_in_vain]

    async def work(self) -> None:
        with contextlib.suppress(*ENDED):
            async with connected(self) as (fabric, _):
                for _ in range(self.random.randint(1, 6)):
                    await self.random.choice(self.looks)(fabric)
                    await asyncio.sleep(self.random.uniform(0, 2))

    def _complain(self, fabric: FabricClient, what: str) -> None:
        """One that asks a hub which has been replaced may be told what was."""
        if is_connected(self.hub, fabric):
            self.book.wrong.append(f"{self.name} {what}")

    async def _follow(self, fabric: FabricClient) -> None:
        call = fabric.start(f"{FABRIC}/Executions", {"agent": AGENT, "delegate": self.random.choice(["", "delegate"])})
        announced: set[str] = set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.random.uniform(1, 15)):
                async for each in call:
                    if not each.startOfStream:
                        self._check_turn(each.execution, announced, is_over=each.cancelled)
        call.cancel()

    def _check_turn(self, name: str, announced: set[str], *, is_over: bool) -> None:
        if is_over != (name in announced):
            what = "over, and was never announced" if is_over else "announced twice"
            self.book.wrong.append(f"{self.name}: {name} is {what}")
        announced.symmetric_difference_update({name})

    async def _snapshot(self, fabric: FabricClient) -> None:
        over, stored = set(self.caller.over), self.caller.stored
        answer = await soon(fabric.call(f"{FABRIC}/AllExecutions", {"agent": AGENT}))
        shown = {each.execution for each in answer.executions}
        if shown & over:
            self._complain(fabric, f"is shown {shown & over}, which were finished before")
        if stored and stored not in shown and stored not in self.caller.finished:
            self._complain(fabric, f"is not shown {stored}, which waits for a worker")

    async def _scale(self, fabric: FabricClient) -> None:
        reference = {"name": AGENT, "scalerMetadata": {"agent": AGENT, "targetExecutions": "3", "targetInstances": "1"}}
        spec = await soon(fabric.call(f"{SCALER}/GetMetricSpec", reference))
        if [each.targetSize for each in spec.metricSpecs] != [3, 1]:
            self.book.wrong.append(f"{self.name} asked for 3 and 1: {spec}")
        least = self.caller.count_stored
        asked = {"scaledObjectRef": reference, "metricName": f"{AGENT}-executions"}
        answer = await soon(fabric.call(f"{SCALER}/GetMetrics", asked))
        found = {each.metricName: each.metricValue for each in answer.metricValues}[f"{AGENT}-executions"]
        if not least <= found <= self.caller.count_sent:
            self._complain(fabric, f"counts {found} executions: {least} to {self.caller.count_sent} exist")

    async def _is_active(self, fabric: FabricClient) -> None:
        """An agent that has executions is active, at once and to those who wait for it."""
        had = self.caller.count_stored
        active = (await soon(fabric.call(f"{SCALER}/IsActive", {"name": AGENT}))).result
        if had and not active:
            self._complain(fabric, f"is told that the agent has nothing to do: it has {had} executions")
        call = fabric.start(f"{SCALER}/StreamIsActive", {"name": AGENT})
        said = [(await soon(call.next())).result]  # type: ignore[union-attr]
        if had:
            said.append((await soon(call.next())).result)  # type: ignore[union-attr]
        if said != [False, True][: len(said)]:
            self._complain(fabric, f"is told of the agent's activity: {said}")
        call.cancel()

    async def _health(self, fabric: FabricClient) -> None:
        answer = await soon(fabric.call(f"{HEALTH}/Check", {"service": self.random.choice(["", "perper.Fabric"])}))
        watching = fabric.start(f"{HEALTH}/Watch", {"service": ""})
        watched = await soon(watching.next())
        watching.cancel()
        if watched is None or {answer.status, watched.status} - {SERVING, NOT_SERVING}:
            self.book.wrong.append(f"{self.name} asks for the health: {answer}, {watched}")
        questions = [{"list_services": "*"}, {"file_containing_symbol": "perper.Fabric"}, {"file_by_filename": "none"}]
        call = fabric.start(REFLECTION, *questions)
        async with asyncio.timeout(ANSWER_S):
            answers = [each async for each in call]
        named = {each.name for each in answers[0].list_services_response.service}
        if "perper.Fabric" not in named or not answers[1].file_descriptor_response.file_descriptor_proto:
            self.book.wrong.append(f"{self.name} asks what is served: {answers}")

    async def _ask_in_vain(self, fabric: FabricClient) -> None:
        """Each question that cannot be answered has its status, in time."""
        nobody = {"stream": f"{self.name}-nothing"}
        late = fabric.start(f"{FABRIC}/ListenerAttached", nobody, metadata=[("grpc-timeout", "300m")])
        await self._expect(late, DEADLINE_EXCEEDED)
        if self.hub.loaded.config.section(Perper).missing_stream == "fail":
            await self._expect(fabric.start(f"{FABRIC}/StreamItems", nobody), NOT_FOUND)
        await self._expect(fabric.start(f"{FABRIC}/ReservedExecutions", {"reserveNext": 1}), INVALID)
        await self._expect(fabric.start(f"{SCALER}/GetMetrics", {"metricName": "x"}), INVALID)
        await self._expect(fabric.start(f"{HEALTH}/Check", {"service": "nobody's"}), NOT_FOUND)

    async def _expect(self, call: ClientCall, status: int) -> None:
        try:
            await soon(call.next())
        except RpcError as error:
            if error.status not in (status, http2.UNAVAILABLE):
                self.book.wrong.append(f"{self.name} expected the status {status}: {error}")
        else:
            self.book.wrong.append(f"{self.name} was answered where the status {status} was expected")


class NamedWorker(AgentWorker):
    """Reserves one execution by its name, in a group of its own: whoever holds it holds it alone."""

    kind = "named-worker"
    GROUP = "named"

    async def work(self) -> None:
        with contextlib.suppress(*ENDED):
            async with connected(self) as (fabric, _):
                name = f"{self.caller.name}/{self.caller.next}"
                was_over = name in self.caller.over
                call = fabric.start(f"{FABRIC}/ReserveExecution", {"execution": name, "workGroup": self.GROUP})
                async with asyncio.timeout(self.random.uniform(1, 10)):
                    await call.next()
                if was_over and is_connected(self.hub, fabric):
                    self.book.wrong.append(f"{self.name} was given {name}, which was finished before")
                self._given(name, fabric)
                await asyncio.sleep(self.random.uniform(0, 2))
                if self.holders.get(name, (None,))[0] is self:
                    del self.holders[name]
                call.cancel()


class EphemeralAgent(ItemsAgent):
    """Puts items into a stream, and says as a listener of it which ones it still needs: those stay, the others may go.
    Whoever waits for a listener of the stream hears of it."""

    kind = "ephemeral"

    def __init__(self, number: int, hub: HubProcess, book: Book, count: int) -> None:
        super().__init__(number, hub, book, count)
        self.listener = Register(LISTENERS, f"{self.name}/listener", {NULL})
        book.registers.append(self.listener)
        self.position = LISTENER_HOLDS_ALL

    async def prepare(self, client: IgniteClient) -> None:
        await super().prepare(client)
        await self._listen(client)

    async def step(self, client: IgniteClient) -> None:
        await super().step(client)
        if self.random.random() < 0.2:
            key = self.random.randrange(self.next)
            found = await soon(client.request(GET, encode_long(key), cache=self.cache))
            if found not in ({self.value(key)} if key >= self.position else {self.value(key), NULL}):
                self.book.wrong.append(f"{self.name} needs items from {self.position} on, and {key} is {found!r}")
        if self.random.random() < 0.2:
            await self._move_on(client)

    async def _move_on(self, client: IgniteClient) -> None:
        with contextlib.suppress(RpcError):
            self.position = self.random.randint(max(0, self.position), self.next)
            for register in self.book.registers:
                if register.cache == self.cache and int(register.key) < self.position:
                    register.may_hold.add(NULL)
            await self._listen(client)
            async with connected(self) as (fabric, _):
                await soon(fabric.call(f"{FABRIC}/ListenerAttached", {"stream": self.cache}))

    async def _listen(self, client: IgniteClient) -> None:
        value = write_listener(StreamListener(self.cache, self.position))
        with changing([self.listener], value):
            await soon(client.request(PUT, encode_key(self.listener.key), value, cache=LISTENERS))


def company(hub: HubProcess, book: Book, count: int) -> list[Actor]:
    """Agents, and some of those who look at them or work beside them."""
    chance = hub.world.random
    found = agents(hub, book, count)
    caller = next(each for each in found if isinstance(each, Caller))
    if chance.random() < 0.5:
        found.append(Overseer(0, hub, book, caller))
    if chance.random() < 0.5:
        first = NamedWorker(0, hub, book, caller, None)
        found += [first, NamedWorker(1, hub, book, caller, first)]
    if chance.random() < 0.5:
        found.append(EphemeralAgent(0, hub, book, count))
    return found
