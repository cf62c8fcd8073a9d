"""Replay: the frames of a journal in order, made into a State, when a shared store has the snapshots.

No list of the store is needed, and no pointer: the journal is cut behind the older of two snapshots, and the events
that name them stand behind that cut. So the first event that names a snapshot which is still there and intact says
where to begin; frames that were read before it wait until then. A journal that begins with its very first frame needs
none, unless that frame itself names one: that is how a log that was moved here begins.

Recovery feeds one from beginning to end. Whoever follows a journal feeds it on and on.
"""

from __future__ import annotations

import logging

from headrace.log import snapshot
from headrace.log.fold import Fold
from headrace.log.frame import SnapshotStored, decode_directory
from headrace.log.journal_port import Good, GoodFrame, LostFrames, Stored, TornTail, Unrecoverable
from headrace.log.report import Report
from headrace.log.runs import FrameRun
from headrace.log.state import State
from headrace.log.store import BlobDamaged, Store

logger = logging.getLogger(__name__)


class Replay:
    """Frames in, a state out."""

    def __init__(self, store: Store) -> None:
        self.report = Report()
        self.state = State()
        self._store = store
        self._fold: Fold | None = None
        self._waiting: list[Good] = []

    def add(self, stored: Stored) -> None:
        """The next that the journal holds."""
        match stored:
            case GoodFrame() | FrameRun():
                if self._fold is not None:
                    self._fold.add(stored)
                else:
                    self._waiting.append(stored)
                    self._look_for_snapshot(stored)
            case LostFrames():
                if self._fold is None:
                    raise Unrecoverable(f"frames {stored.first_sequence} to {stored.next_sequence - 1} are lost")
                self._fold.lose(stored)
            case TornTail():
                raise Unrecoverable(f"{stored.path} ends in the middle of a frame")

    def _look_for_snapshot(self, frame: Good) -> None:
        entries = decode_directory(frame.directory) if isinstance(frame, GoodFrame) else ()
        named = [event for event in entries if isinstance(event, SnapshotStored)]
        if frame.sequence == 0 and not named:
            self._begin(State())
        for event in named:
            state = self._load(event)
            if state is not None and state.sequence >= self._waiting[0].sequence:
                self._begin(state)
                return

    def _load(self, event: SnapshotStored) -> State | None:
        try:
            state = snapshot.read_shared(self._store, event.name)
        except FileNotFoundError:
            return None  # dropped since: a later event says so
        except BlobDamaged:
            state = None
        if state is None:
            text = f"{event.name} fails its checksum; another one and the journal serve instead"
            self.report.note("damaged-snapshot", text, event.name)
        return state

    def _begin(self, state: State) -> None:
        state.is_shared = True
        self.state = state
        self._fold = Fold(state, self.report, lambda partition: None)
        for frame in self._waiting:
            self._fold.add(frame)
        self._waiting.clear()

    def _begin_anew(self) -> None:
        """The journal is empty. So must the store be, or something has become of the journal."""
        if self._store.list(snapshot.DIRECTORY):
            raise Unrecoverable(
                "the journal is empty, and the store has snapshots of one: the topic was deleted and created again, or "
                "a migration was cut off; a store that is in use is not started over"
            )
        self._begin(State())

    def finish(self, next_sequence: int) -> State:
        """There are no more frames."""
        if self._fold is None and not self._waiting:
            self._begin_anew()
        if self._fold is None:
            raise Unrecoverable(
                f"the journal begins at frame {self._waiting[0].sequence}, and no snapshot that it names can be read: "
                "restore the log from a backup"
            )
        self._fold.finish(next_sequence)
        return self.state
