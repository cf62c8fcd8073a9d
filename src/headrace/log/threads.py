"""The two threads of an open log: the writer, and maintenance."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

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
        self._work = threading.Event()
        self._maintain = threading.Event()
        self._room = threading.Event()
        self._stopping = False
        log.on_submit = self._work.set
        log.on_work = self._maintain.set
        self._writer = threading.Thread(target=self._write, name="headrace-writer", daemon=True)
        self._keeper = threading.Thread(target=self._keep, name="headrace-maintenance", daemon=True)
        self._writer.start()
        self._keeper.start()

    def stop(self) -> None:
        """Returns when both have ended."""
        self._stopping = True
        self._work.set()
        self._maintain.set()
        self._writer.join()
        self._keeper.join()

    def _write(self) -> None:
        log = self._log
        marked = True
        step = (lambda: log.commit_once()) if log.journal.commits_max == 1 else log.pipeline.step
        proved_us = log.clock.now_us()
        while not self._stopping:
            if not self._work.wait(log.journal.idle_mark_s if marked else IDLE_MARK_S):
                log.mark()
                marked = True
                continue
            self._work.clear()
            while (log.has_work or log.pipeline.flights) and not self._stopping:
                self._wait_for_room()
                step()
                marked = False
                if log.clock.now_us() - proved_us > PROOF_US:
                    log.prove()
                    proved_us = log.clock.now_us()

    def _wait_for_room(self) -> None:
        """Let sealing catch up when the tails have reached their limit: back-pressure instead of memory."""
        log = self._log
        waited_s = 0.0
        while log.state.tail_bytes > log.settings.tail_bytes_max and not (
            self._stopping or log.failed is not None or log.has_own_work or log.pipeline.flights
        ):
            self._maintain.set()
            if log.maintenance.error is not None and not log.store.is_shared:
                return  # sealing cannot get on: let the commit meet the disk itself
            self._room.clear()
            self._room.wait(ROOM_CHECK_S)
            waited_s += ROOM_CHECK_S
            if waited_s >= IDLE_MARK_S and log.store.is_shared:
                log.mark()  # another hub may own the cell by now, and only a write tells
                waited_s = 0.0

    def _keep(self) -> None:
        log = self._log
        while not self._stopping:
            wait_s = COMPACTION_WAIT_S if log.maintenance.is_compacting else log.settings.maintenance_interval_s
            self._maintain.wait(wait_s)
            self._maintain.clear()
            while not self._stopping and log.failed is None and log.maintain_once():
                self._room.set()
