"""The cluster as one hub sees it: who lives, who owns the cell, how far the followers are."""

from __future__ import annotations

import asyncio

import msgspec

from headrace.cluster.introductions import LISTENER
from headrace.cluster.node import CELL, Node, now_us
from headrace.cluster.notes import HubNote, Notes
from headrace.config.sections import Kafka as KafkaSettings
from headrace.hub.verbs import Nothing, Verbs
from headrace.log.kafka.client import KafkaPort
from headrace.log.kafka.topics import hubs_group, journal_topic
from headrace.log.port import LogPort

ROLES = ("owner", "follower", "cold", "gone")


class HubStatus(msgspec.Struct, frozen=True):
    """A hub. `role` is `owner`, `follower`, `cold` for one that runs and does not read the journal, or `gone` for one
    that left a note and says nothing any more."""

    hub: str
    life: str
    role: str
    lag_bytes: int
    """About how much of the journal it has yet to read."""
    version: str
    addresses: dict[str, str]
    updated_us: int


class CellStatus(msgspec.Struct, frozen=True):
    """A part of the log. `owner` is empty while nobody owns it."""

    cell: int
    epoch: int
    owner: str
    owned_since_us: int
    takeover_s: float
    """How long the last takeover took, from being chosen to serving."""
    first_offset: int
    next_offset: int
    """Of the journal's partition."""
    gauges: dict[str, float]
    """Of the log, at the owner: bytes in the store, bytes of journal behind the snapshot, and so on."""


class TopicProblem(msgspec.Struct, frozen=True):
    """What is wrong with a topic on Kafka, and the command that mends it."""

    text: str
    command: str


class ClusterStatus(msgspec.Struct, frozen=True):
    """All of it. `asked` is the hub that answered."""

    asked: str
    time_us: int
    brokers: list[str]
    hubs: list[HubStatus]
    cells: list[CellStatus]
    problems: list[TopicProblem] = []


def look(
    kafka: KafkaPort, settings: KafkaSettings, notes: Notes, asked: str = "", gauges: dict[str, float] | None = None
) -> ClusterStatus:
    """Ask the brokers, and put it beside the notes: blocks."""
    living = {member.client for member in kafka.members(hubs_group(settings))}
    first, end = kafka.bounds(journal_topic(settings), CELL)
    note = notes.cells.get(CELL)
    owner = note if note is not None and not note.is_leaving and note.life in living else None
    known = list(notes.hubs.values())
    back = {each.hub for each in known if each.life in living}
    hubs = [
        _hub(each, living, "" if owner is None else owner.life)
        for each in known
        if each.life in living or each.hub not in back  # an earlier life of a hub that runs is nobody's business
    ]
    cell = CellStatus(
        CELL,
        0 if note is None else note.epoch,
        "" if owner is None else owner.hub,
        0 if owner is None else owner.updated_us,
        0.0 if note is None else note.takeover_s,
        first,
        end,
        gauges or {},
    )
    hubs.sort(key=lambda each: (ROLES.index(each.role), each.hub, each.life))
    return ClusterStatus(asked, now_us(), kafka.brokers(), hubs, [cell])


def _hub(note: HubNote, living: set[str], owner: str) -> HubStatus:
    if note.life not in living:
        role = "gone"
    elif note.life == owner:
        role = "owner"
    else:
        role = "follower" if note.follows else "cold"
    listeners = {name: address for name, address in note.addresses.items() if name != LISTENER}
    return HubStatus(note.hub, note.life, role, note.lag_bytes, note.version, listeners, note.updated_us)


class ClusterVerbs:
    """The verb `cluster.status`."""

    def __init__(self, node: Node, log: LogPort | None = None) -> None:
        self._node = node
        self._log = log

    def register(self, verbs: Verbs) -> None:
        verbs.register(
            "cluster.status",
            Nothing,
            self.status,
            right="read",
            summary="Hubs in front of the log on Kafka: who owns it, who follows, and how far they are.",
        )

    async def status(self, request: Nothing) -> ClusterStatus:
        """As this hub sees it."""
        node = self._node
        gauges = {} if self._log is None else self._log.gauges()
        found = await asyncio.to_thread(look, node.kafka, node.config.log.kafka, node.notes, node.name, gauges)
        problems = [TopicProblem(problem.text, problem.command) for problem in node.identity.problems]
        return msgspec.structs.replace(found, problems=problems)
