"""The topics and the store of a log: that they are the ones it was begun in, and set so that nothing is lost.

The first owner notes which topics it found, by their ids, and which store. A hub that finds others does not start; one
that runs looks every `LOOK_S`, says what is wrong, and stops when what the log was in does not exist any more. Brokers
delete what their settings let them every five minutes by default (`log.retention.check.interval.ms`), later than that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.cluster.notes import LogNote
from headrace.config.sections import Kafka as KafkaSettings
from headrace.errors import BadConfig, HeadraceError
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.cell import IN_KAFKA, LOCAL
from headrace.log.kafka.client import KafkaError, KafkaPort
from headrace.log.kafka.topics import Plan, Problem, blobs_topic, journal_topic, plans, problems_of

logger = logging.getLogger("headrace.cluster")

LOOK_S = 10.0
"""So long after somebody changed a topic it is known, and about two seconds for the answers."""

RESCUE = "headrace backup, while the hub that owns the log still runs"


class Identity:
    """Of one cell. One thread looks; others read what it found."""

    def __init__(self, kafka: KafkaPort, settings: KafkaSettings, cell: int) -> None:
        self.problems: list[Problem] = []
        """With topics as they are set now; the last look that was answered."""
        self.lost: HeadraceError | None = None
        """Why this hub must not go on."""
        self.on_lost: Callable[[str], object] = lambda why: None
        self.needed_from: Callable[[], int] = lambda: 0
        """The offset that the journal is needed from, as the owner knows; 0 at another hub."""
        self._kafka = kafka
        self._settings = settings
        self._cell = cell
        self._ids: dict[str, str] = {}
        """Of topics, when this hub started."""
        self._looked_at = 0.0

    def begin(self, note: LogNote | None) -> None:
        """Refuse topics and stores that are not those of the note: blocks. None when the log was never owned."""
        for plan in plans(self._settings):
            topic = self._kafka.topic(plan.name)
            if topic is not None:
                self._ids[plan.name] = topic.id
        if note is not None:
            self._compare(note)

    def knows_store(self, note: LogNote | None) -> bool:
        """Whether hubs have kept blobs in another store than this hub's, as far as settings say."""
        return note is not None and note.store != self._settings.store

    def note(self) -> LogNote:
        """For the first owner to leave."""
        journal, blobs = journal_topic(self._settings), blobs_topic(self._settings)
        return LogNote(self._cell, self._ids.get(journal, ""), self._ids.get(blobs, ""), self._settings.store)

    def _compare(self, note: LogNote) -> None:
        own = self.note()
        for name, before, now in (
            (journal_topic(self._settings), note.journal, own.journal),
            (blobs_topic(self._settings), note.blobs, own.blobs if note.store == IN_KAFKA else note.blobs),
        ):
            if now and before and now != before:
                raise Unrecoverable(_recreated(name))
        if own.store != note.store and {own.store, note.store} & {IN_KAFKA, LOCAL}:
            raise BadConfig(
                f"log.kafka.store is {own.store}, and the hubs of this log use {note.store}: give all the same"
            )

    def look(self, note: LogNote | None) -> None:
        """When it is time again: blocks. What brokers do not answer is asked the next time."""
        if time.monotonic() < self._looked_at + LOOK_S:
            return
        try:
            found = [problem for plan in plans(self._settings) for problem in self._problems(plan)]
            found += self._deleted()
        except KafkaError as error:
            logger.debug("the settings of the topics are not known", extra={"error": str(error)})
            return
        self._looked_at = time.monotonic()
        for problem in found:
            if problem not in self.problems:
                logger.error("%s: %s", problem.text, problem.command)
        if self.problems and not found:
            logger.info("the topics are set as they should be again")
        self.problems = found
        if note is not None and self.lost is None:
            try:
                self._compare(note)
            except (BadConfig, Unrecoverable) as error:
                self._lose(error)

    def _problems(self, plan: Plan) -> list[Problem]:
        topic = self._kafka.topic(plan.name)
        before = self._ids.get(plan.name)
        if before is None or (topic is not None and topic.id == before):
            return problems_of(topic, self._settings, plan)
        if topic is None:  # perhaps the broker that was asked has just come, and does not know of it yet
            return [Problem(f"there is no topic {plan.name} any more", RESCUE)]
        if plan.name == journal_topic(self._settings):
            self._lose(Unrecoverable(_recreated(plan.name)))
        return [Problem(_recreated(plan.name), RESCUE)]

    def _deleted(self) -> list[Problem]:
        """What brokers have deleted of the journal, that the log was to be recovered from."""
        topic, needed = journal_topic(self._settings), self.needed_from()
        first = self._kafka.bounds(topic, self._cell)[0] if needed else 0
        if first <= needed:
            return []
        text = f"brokers have deleted offsets {needed} to {first - 1} of {topic}, which no snapshot replaces yet"
        return [Problem(f"{text}: a hub that does not follow now could not open the log", RESCUE)]

    def _lose(self, why: HeadraceError) -> None:
        if self.lost is None:
            self.lost = why
            self.on_lost(str(why))

    def trouble(self) -> str | None:
        """For people, in a sentence."""
        if self.lost is not None:
            return str(self.lost)
        return "; ".join(f"{problem.text}: {problem.command}" for problem in self.problems) or None


def _recreated(topic: str) -> str:
    return (
        f"the topic {topic} was deleted and created again: what it held is lost, and hubs do not start over by "
        "themselves; restore a backup under another log.kafka.prefix, or delete all topics of this one"
    )
