"""Strict reads: an owner answers only while it knows that no other hub can have begun to.

Each commit that counts renews the lease, from the moment when it was sent. The next owner waits for as long as a lease
lasts before it answers, so that no two hubs ever do, as long as their clocks run at nearly the same speed.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import NotHere
from headrace.log.kafka.journal import KafkaJournal
from headrace.log.kafka.turn import steady_s
from headrace.log.port import LogPort

READS = frozenset(
    name
    for name in vars(LogPort)
    if not name.startswith("_")
    and name not in ("start", "hasten", "close", "trouble", "gauges", "submit", "begin_checkpoint", "back_up", "report")
)
"""What of a log is an answer to somebody."""


class Leased:
    """A log that refuses to be read when its lease has run out. Writing needs none: the journal decides."""

    def __init__(self, log: LogPort, journal: KafkaJournal, lease_s: float) -> None:
        self._log = log
        self._journal = journal
        self._lease_s = lease_s

    def __getattr__(self, name: str) -> Any:
        if name in READS and steady_s() > self._journal.renewed_at + self._lease_s:
            raise NotHere(
                f"this hub cannot be sure that it still owns the log: no commit has counted for {self._lease_s:g} s "
                "(log.kafka.lease_s); try again, at any hub"
            )
        return getattr(self._log, name)
