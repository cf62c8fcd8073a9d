"""The two threads of an open log: the writer, and maintenance."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from headrace.log.bell import Bell
from headrace.log.clock import has_passed

if TYPE_CHECKING:
    from headrace.log.log import Log

IDLE_MARK_S = 1.0
"""After so long without work the writer notes in the journal that all before is durable."""
PROOF_US = 1_000_000
"""So often it notes the same beside the journal while there is work."""
COMPACTION_WAIT_S = 0.02
ROOM_CHECK_S = 0.1


class LogThreads:
    """Run a log until they are told to stop, or the log fails."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._work = Bell()
        self._maintain = threading.Event()
        self._room = threading.Event()
        self._stopping = False
        log.on_submit = self._submitted
        log.on_work = self._maintain.set
        self._writer = threading.Thread(target=self._write, name="headrace-writer", daemon=True)
        self._keeper = threading.Thread(target=self._keep, name="headrace-maintenance", daemon=True)
        self._writer.start()
        self._keeper.start()

    def stop(self) -> None:
        """Returns when both have ended."""
        self._stopping = True
        self._work.ring()
        self._maintain.set()
        self._writer.join()
        self._keeper.join()

    def _write(self) -> None:
        log = self._log
        marked = True
        proved_us = log.clock.now_us()
        while not self._stopping:
            if not self._work.wait(log.journal.idle_mark_s if marked else IDLE_MARK_S):
                log.mark()
                marked = True
                continue
            waited_s = 0.0
            while (log.has_work or log.pipeline.flights) and not self._stopping:
                self._room.clear()
                log.queue.is_held_back = log.lacks_room
                if not self._step():
                    waited_s = self._wait_for_room(waited_s)
                    continue
                marked = False
                waited_s = 0.0
                if has_passed(PROOF_US, proved_us, log.clock.now_us()):
                    log.prove()
                    proved_us = log.clock.now_us()

    def _step(self) -> bool:
        log = self._log
        return log.commit_once() if log.journal.commits_max == 1 else log.pipeline.step()

    def _submitted(self) -> None:
        self._work.ring()
        if self._log.queue.is_held_back:
            self._room.set()  # it may be small enough to go

    def _wait_for_room(self, waited_s: float) -> float:
        """For a moment, or until something small comes. Returns how long it has been in all."""
        log = self._log
        self._maintain.set()
        self._room.wait(ROOM_CHECK_S)
        waited_s += ROOM_CHECK_S
        if waited_s >= IDLE_MARK_S and log.store.is_shared:
            log.mark()  # another hub may own the cell by now, and only a write tells
            waited_s = 0.0
        return waited_s

    def _keep(self) -> None:
        log = self._log
        while not self._stopping:
            wait_s = COMPACTION_WAIT_S if log.maintenance.is_compacting else log.settings.maintenance_interval_s
            self._maintain.wait(wait_s)
            self._maintain.clear()
            while not self._stopping and log.failed is None and log.maintain_once():
                self._room.set()
