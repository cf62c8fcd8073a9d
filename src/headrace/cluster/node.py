"""A hub's place in the cluster: is it chosen to own the cell, who owns it now, how far has it followed.

Three things run beside the event loop: the membership in the consumer group, which chooses one of the hubs that live;
the notes of the other hubs; and a look, now and then, at how far behind this hub is, and whether it is to follow.

Who is chosen claims the cell in the journal. Who is chosen while the owner is leaving waits until that has left: then
nothing that the old owner has under way is cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable

import msgspec

from headrace import __version__
from headrace.cluster.identity import Identity
from headrace.cluster.introductions import LISTENER, Known, new_key
from headrace.cluster.notes import CellNote, HubNote, LogNote, Notes
from headrace.cluster.ranks import should_follow
from headrace.cluster.route import Owner, Route
from headrace.config import Config
from headrace.log.kafka.client import KafkaError, KafkaPort
from headrace.log.kafka.messages import Claim
from headrace.log.kafka.topics import hubs_group, journal_topic
from headrace.log.kafka.turn import Turn
from headrace.telemetry.log_lines import fields

logger = logging.getLogger("headrace.cluster")

NOT_PLAIN = re.compile(r"[^A-Za-z0-9_]+")
CELL = 0
"""There is one so far."""
POLL_S = 0.1
END_S = 5.0
"""How long a part may take to end when the process does."""
AGAIN_S = 1.0
LOOK_S = 2.0
NOTES_S = 5.0
"""How long a hub that was chosen waits for notes that it has not read yet."""
LEAVE_S = 10.0
"""How much longer than `limits.stop_s` a leaving owner may take before the next one does not wait for it."""


def now_us() -> int:
    return time.time_ns() // 1000


class Node:
    """One process. `turn` is given when this hub should claim the cell."""

    def __init__(self, config: Config, kafka: KafkaPort) -> None:
        self.name = config.cluster.hub or socket.gethostname()
        self.life = f"{NOT_PLAIN.sub('-', self.name)}-{uuid.uuid4().hex}"
        self.config = config
        self.key = new_key()
        self.turn = Turn()
        self.route = Route(self.life)
        self.addresses: dict[str, str] = {}
        self.chosen_at: float | None = None
        """When this hub was chosen, by the monotonic clock."""
        self.lag_bytes = 0
        self.should_follow = False
        """Whether this hub is one of those that read the journal as it grows (`cluster.standbys`)."""
        self.follows = False
        """Whether it does."""
        self._notes_end = 0
        """How far the notes went when this hub was chosen."""
        self.on_owner: Callable[[Owner], None] = lambda owner: None
        """Told of each new owner but this hub itself."""
        self.kafka = kafka
        self.identity = Identity(kafka, config.log.kafka, CELL)
        self._epoch = 0
        """Of this hub's own claim, once it serves."""
        self._loop = asyncio.get_running_loop()
        self.notes = Notes(kafka, config.log.kafka, self._noted)
        self._stopping = threading.Event()
        self._leaving = threading.Event()
        self._member = threading.Thread(target=self._be_member, name="cluster member", daemon=True)
        self._looking = threading.Thread(target=self._look, name="cluster lag", daemon=True)

    @property
    def claim(self) -> Claim:
        """What this hub claims the cell with."""
        return Claim(self.life, now_us(), __version__, self.addresses)

    async def start(self, addresses: dict[str, str]) -> None:
        """Join, when it is known who owns the cell. `addresses` are those of the listeners, as they are bound."""
        self.addresses = advertised(addresses, self.config.cluster.advertise)
        await asyncio.to_thread(self.notes.read_all)
        await asyncio.to_thread(self.identity.begin, self.log_note)
        await asyncio.to_thread(self._find_rank)
        self.notes.start()
        self._member.start()
        self._looking.start()

    @property
    def log_note(self) -> LogNote | None:
        """What the log was begun in; None when it was never owned, as far as notes say."""
        return self.notes.logs.get(CELL)

    # -- chosen or not ---------------------------------------------------------------------------------------------

    def _be_member(self) -> None:
        settings = self.config
        group, topic = hubs_group(settings.log.kafka), journal_topic(settings.log.kafka)
        while not self._leaving.is_set():
            try:
                member = self.kafka.join(group, topic, self.life, settings.cluster.session_timeout_s)
                try:
                    while not self._leaving.is_set():
                        self._chosen(CELL in member.poll(POLL_S))
                finally:
                    member.close()
            except KafkaError as error:
                logger.warning("could not join the group of hubs; trying again", extra=fields(error=str(error)))
                self._leaving.wait(AGAIN_S)

    def _chosen(self, is_mine: bool) -> None:
        if not is_mine:
            if self.chosen_at is not None and not self._epoch:
                self.chosen_at = None
                self.turn.take_back()
            return
        if self.chosen_at is None:
            self.chosen_at = time.monotonic()
            self.turn.chosen()
            self._notes_end = self.notes.end()
            logger.info("chosen to own the cell", extra=fields(cell=CELL, hub=self.name))
        if not self.turn.is_mine and not self._must_wait(self.chosen_at):
            self.turn.reached("may claim")
            self.turn.give()

    def _must_wait(self, since: float) -> bool:
        """Whether the owner is leaving, and has not left yet. That it is may be in a note that is still to be read."""
        if self.notes.offset < self._notes_end and time.monotonic() < since + NOTES_S:
            return True
        note = self.notes.cells.get(CELL)
        if note is None or not note.is_leaving or note.life == self.life or self.turn.epoch > note.epoch:
            return False
        has_left = self.turn.has_left and self.turn.epoch == note.epoch
        return not has_left and time.monotonic() < since + self.config.limits.stop_s + LEAVE_S

    # -- the notes of others ---------------------------------------------------------------------------------------

    def _noted(self, note: CellNote | HubNote) -> None:
        if isinstance(note, CellNote) and note.cell == CELL and note.life != self.life:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._heard, note)

    def _heard(self, note: CellNote) -> None:
        is_earlier_life = not self._epoch and not set(self.addresses.values()).isdisjoint(note.addresses.values())
        if note.is_leaving or is_earlier_life:  # to pass a connection on to oneself would never end
            self.route.left(note.epoch)
        elif note.epoch > self.route.epoch:
            owner = Owner(note.hub, note.life, note.epoch, note.addresses)
            self.route.claimed(owner)
            self.on_owner(owner)

    # -- how far behind --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        topic = journal_topic(self.config.log.kafka)
        told: HubNote | None = None
        while not self._stopping.is_set():
            try:
                self.lag_bytes = self.turn.lag_bytes(self.kafka.bounds(topic, CELL)[1]) if self._is_behind else 0
            except KafkaError as error:
                logger.debug("the end of the cell is not known", extra=fields(error=str(error)))
            self._find_rank()
            self.identity.look(self.log_note)
            now = self._hub_note()
            if told is None or msgspec.structs.replace(now, updated_us=told.updated_us) != told:
                told = now
                self.notes.publish(told)
            self._stopping.wait(LOOK_S)

    def _find_rank(self) -> None:
        """Look whether this hub is one of those that follow. What cannot be learned stays as it is."""
        standbys = self.config.cluster.standbys
        if not standbys or self._epoch:
            return
        try:
            members = self.kafka.members(hubs_group(self.config.log.kafka))
        except KafkaError as error:
            logger.debug("the members of the group are not known", extra=fields(error=str(error)))
            return
        owner = next((member.client for member in members if CELL in member.partitions), "")
        lives = [member.client for member in members]
        self.should_follow = should_follow(self.life, lives, owner, standbys, self.notes.hubs, self.follows)

    @property
    def _is_behind(self) -> bool:
        """Only who follows can be."""
        return self.follows and not self._epoch

    @property
    def cells(self) -> list[int]:
        """That this hub owns."""
        return [CELL] if self._epoch else []

    def _hub_note(self) -> HubNote:
        follows = self.follows or bool(self._epoch)
        return HubNote(
            *(self.name, self.life, self.addresses, self.cells, now_us(), self.lag_bytes, __version__, self.key),
            follows=follows,
        )

    def find(self, life: str) -> Known | None:
        """The hub of that life, if it has left a note."""
        if life == self.life:
            return Known(self.name, self.key)
        note = self.notes.hubs.get(life)
        return None if note is None else Known(note.hub, note.key)

    # -- owning and leaving ----------------------------------------------------------------------------------------

    async def serves(self, epoch: int) -> float:
        """This hub owns the cell and answers; tell everybody. How long it took since it was chosen."""
        took_s = time.monotonic() - (self.chosen_at or time.monotonic())
        self._epoch = epoch
        self.route.claimed(Owner(self.name, self.life, epoch, self.addresses))
        await asyncio.to_thread(self.notes.publish, self._cell_note(took_s))
        if self.log_note is None:
            await asyncio.to_thread(self.notes.publish, self.identity.note())
        return took_s

    def _cell_note(self, took_s: float = 0.0, is_leaving: bool = False) -> CellNote:
        return CellNote(CELL, self._epoch, self.name, self.life, self.addresses, now_us(), took_s, is_leaving)

    async def leaves(self) -> None:
        """This hub is about to stop: others send nobody more here, and the next owner is chosen meanwhile."""
        if self._epoch:
            logger.warning("handing over the cell", extra=fields(cell=CELL, epoch=self._epoch, hub=self.name))
            await asyncio.to_thread(self.notes.publish, self._cell_note(is_leaving=True))
        self._leaving.set()

    async def close(self) -> None:
        """Leave the group and take this hub's note away."""
        self.turn.stop()
        self._leaving.set()
        self._stopping.set()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        for thread in (self._member, self._looking):
            if thread.ident is not None:
                thread.join(END_S)  # one that waits for brokers which do not answer ends with the process
        if self.addresses:
            self.notes.withdraw(self.life)
        self.notes.close()
        self.kafka.close()


def advertised(addresses: dict[str, str], given: dict[str, str]) -> dict[str, str]:
    """Where other hubs reach each listener. One that listens everywhere is reached by the machine's name; the door for
    introductions where the others are, since the machine's name may mean nothing elsewhere."""
    chosen = {listener: address for listener, address in given.items() if listener in addresses}
    beside = next((address.rpartition(":")[0] for address in chosen.values()), "")
    named = {}
    for listener, address in addresses.items():
        host, _, port = address.rpartition(":")
        if host in ("0.0.0.0", "[::]", ""):
            host = beside if beside and listener == LISTENER else socket.gethostname()
        named[listener] = f"{host}:{port}"
    return named | chosen
