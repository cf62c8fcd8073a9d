"""The journal in a partition of Kafka: `JournalPort` by claiming, sending and looking.

A hub becomes the owner of its cell by a claim with a higher epoch. From then on it knows at which offset its next
message must land. If one lands elsewhere, somebody else has written: the owner reads what stands there, and the rule
says whether its commit counts. Nothing is acknowledged before that. Several commits may be on their way at once; they
become durable in their order.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from headrace.collection import with_collection
from headrace.errors import Closed
from headrace.log.frame import EncodedFrame, encode_frame, frames_bytes
from headrace.log.journal_port import CutMeanwhile, JournalPort, Position, Stored, TornTail, Unrecoverable
from headrace.log.kafka.client import (
    UNKNOWN_OFFSET,
    KafkaError,
    KafkaPort,
    OffsetOutOfRange,
    Producer,
    UnknownTopic,
)
from headrace.log.kafka.messages import Claim, Kind, Message, claim_message, commit_messages, decode, leave_message
from headrace.log.kafka.reader import BEGINNING, Bookmark, CellReader, Piece, Pieces
from headrace.log.kafka.turn import Turn, steady_s

logger = logging.getLogger(__name__)

CLAIM_WAIT_S = (1.0, 5.0)
"""After a claim that another hub's came before; a random time, so that two do not meet again."""
LEAVE_S = 5.0
"""So long a hub that stops waits until its leave is stored."""
FOLLOW_S = 0.1
"""How long a follower waits for messages before it looks whether its turn has come."""


class Fenced(OSError):
    """Another hub has taken the cell. Nothing that this one writes counts any more."""


class Lost(KafkaError):
    """What was in the journal is not there any more."""


def _wait_at_random() -> None:
    time.sleep(random.uniform(*CLAIM_WAIT_S))


class _Flight:
    """A commit on its way."""

    def __init__(self, sequence: int, frames: int, size: int, parts: int, deadline: float) -> None:
        self.sequence = sequence
        self.frames = frames
        self.size = size
        self.landed = [UNKNOWN_OFFSET] * parts
        self.left = parts
        self.sent_at = steady_s()
        self.deadline = deadline
        self.error: KafkaError | None = None

    def delivery_of(self, part: int) -> Callable[[int, KafkaError | None], None]:
        def delivered(offset: int, error: KafkaError | None) -> None:
            self.left -= 1
            self.landed[part] = offset
            self.error = self.error or error

        return delivered


class KafkaJournal(JournalPort):
    """The journal of one cell. One thread reads, claims and writes; another may cut."""

    def __init__(
        self,
        kafka: KafkaPort,
        topic: str,
        cell: int,
        claim: Claim,
        *,
        timeout_s: float = 120,
        piece_bytes_max: int = 64 * 1024 * 1024,
        commits_max: int = 5,
        compression: str = "none",
        claims: bool = True,
        cuts: bool = True,
        free_bytes: Callable[[], int] = lambda: 2**62,
        wait: Callable[[], None] = _wait_at_random,
        turn: Turn | None = None,
        lease_s: float | None = None,
    ) -> None:
        """Without `claims` it is only read. With a `turn` it is followed until that comes. Without `cuts` the
        partition stays whole, and this hub forgets what it does not need. `free_bytes` is the room for what is made of
        the journal here. With `lease_s` an idle owner writes often enough to renew its lease."""
        self._kafka = kafka
        self._topic = topic
        self._cell = cell
        self._claim = claim
        self._timeout_s = timeout_s
        self._piece_bytes_max = piece_bytes_max
        self._compression = compression
        self._claims = claims
        self._cuts = cuts
        self._free_bytes = free_bytes
        self._wait = wait
        self._turn = turn
        self.idle_mark_s = None if lease_s is None else lease_s / 3
        self.renewed_at = 0.0
        """When the last commit that counts was sent, by `steady_s`: a higher claim stands behind it, if anywhere."""
        self._producer: Producer | None = None
        self._topic_id = ""
        self._flying: deque[_Flight] = deque()
        self._failure: OSError | None = None
        self._pieces = Pieces(piece_bytes_max)
        self.commits_max = commits_max
        self.next_sequence = 0
        self.durable_sequence = 0
        self.position = Position(0, 0)
        self.epoch = 0
        self.next_offset = 0
        """Where the next message lands if nobody else writes."""
        self.foreign = 0
        self.looks = 0

    @property
    def first(self) -> int:
        return self._pieces[0].sequence if len(self._pieces) else self.durable_sequence

    def offset_of(self, sequence: int) -> int:
        """Where the piece begins that holds a frame, or the oldest that is known. The one who owned the cell before
        may have cut others that are known here."""
        pieces = self._pieces.since(sequence)
        return pieces[0].offset if pieces else self.next_offset

    # -- reading and claiming --------------------------------------------------------------------------------------

    def read(self, sequence: int | None, is_final: bool = False, bookmark: bytes = b"") -> Iterator[Stored]:
        """Ends as the owner, unless it only reads."""
        reader = self._reader(self._oldest() if sequence is None else self._start(sequence, bookmark))
        try:
            while True:
                yield from reader.read_to(self._bounds()[1])
                if sequence is not None and reader.rule.sequence < sequence:
                    raise Unrecoverable(
                        f"{self._topic}/{self._cell} ends before frame {reader.rule.sequence}, and a snapshot has seen "
                        f"all before {sequence}: Kafka has lost messages, or the topic was deleted and created again"
                    )
                if not self._claims:
                    break
                if self._turn is not None:
                    self._be_ready()
                    with with_collection():
                        yield from self._follow(reader, self._turn)
                epoch = reader.rule.epoch + 1
                sent_at = steady_s()
                offset = self._send_claim(epoch, reader.rule.sequence)
                yield from reader.read_to(offset + 1)
                if (reader.rule.epoch, reader.rule.owner) == (epoch, self._claim):
                    self.renewed_at = sent_at
                    self.epoch, self.next_offset = epoch, offset + 1
                    if self._turn is not None:
                        self._turn.reached("claimed")
                    break
                self._wait()
        finally:
            reader.close()
        self.foreign += reader.foreign
        self._pieces = reader.pieces
        self.next_sequence = self.durable_sequence = reader.rule.sequence

    def _be_ready(self) -> None:
        """To claim: nobody should have to wait for connections then."""
        if self._producer is None:
            self._producer = self._kafka.producer(self._topic)
            self._producer.get_ready()

    def _follow(self, reader: CellReader, turn: Turn) -> Iterator[Stored]:
        """Read on while another hub writes. Raises `Closed` when this one is not to claim the cell any more."""
        assert self._producer is not None
        while True:
            rule = reader.rule
            turn.offset, turn.epoch, turn.owner, turn.has_left = reader.offset, rule.epoch, rule.owner, rule.has_left
            if turn.is_stopped:
                raise Closed("the hub stops following the cell")
            if turn.is_mine:
                turn.reached("followed")
                return
            self._producer.poll(0)
            for commit in reader.receive(FOLLOW_S) or ():
                turn.messages += commit.next_offset - commit.offset
                turn.bytes += len(commit.body)
                yield from reader.frames(commit)

    def _reader(self, start: Piece) -> CellReader:
        return CellReader(
            self._kafka,
            self._topic,
            self._cell,
            start,
            timeout_s=self._timeout_s,
            piece_bytes_max=self._piece_bytes_max,
        )

    def _bounds(self) -> tuple[int, int]:
        try:
            return self._kafka.bounds(self._topic, self._cell)
        except UnknownTopic as error:
            raise Unrecoverable(f"there is no {self._topic}/{self._cell} ({error}): headrace cluster init") from error

    def _oldest(self) -> Piece:
        """Where all that is kept begins. The partition is cut only where a piece begins, with a commit that counts."""
        low, high = self._bounds()
        topic = self._kafka.topic(self._topic)
        self._topic_id = topic.id if topic is not None else ""
        if low == 0:
            return BEGINNING
        message = self._message_at(low) if low < high else None
        if message is None or message.kind is not Kind.COMMIT or message.part:
            raise Unrecoverable(
                f"{self._topic}/{self._cell} begins at offset {low}, which is not where a hub cut it: restore a backup"
            )
        return Piece(message.sequence, low, message.epoch)

    def _message_at(self, offset: int) -> Message | None:
        consumer = self._kafka.consumer(self._topic, self._cell, offset)
        deadline = time.monotonic() + self._timeout_s
        try:
            while time.monotonic() < deadline:
                for received in consumer.receive(1.0):
                    return decode(received.value, offset) if received.offset == offset else None
        except OffsetOutOfRange as error:
            raise CutMeanwhile(f"{self._topic}/{self._cell} has no offset {offset} any more") from error
        finally:
            consumer.close()
        raise KafkaError(f"{self._topic}/{self._cell} could not be read from offset {offset} (log.kafka.timeout_s)")

    def _start(self, sequence: int, bookmark: bytes) -> Piece:
        """Where reading begins: the oldest place that is known and still there."""
        low, _ = self._bounds()
        topic = self._kafka.topic(self._topic)
        self._topic_id = topic.id if topic is not None else ""
        known = msgspec.msgpack.decode(bookmark, type=Bookmark) if bookmark else Bookmark("", [BEGINNING])
        if known.topic_id and self._topic_id and known.topic_id != self._topic_id:
            raise Unrecoverable(
                f"the topic {self._topic} was deleted and created again since the last snapshot: what it held is lost; "
                "restore a backup, or start over with an empty store"
            )
        usable = [piece for piece in known.pieces if piece.offset >= low and piece.sequence <= sequence]
        if not usable:
            raise Unrecoverable(
                f"{self._topic}/{self._cell} begins at offset {low}, and no intact snapshot reaches that far: restore "
                "a backup"
            )
        return usable[0]

    def _send_claim(self, epoch: int, sequence: int) -> int:
        """Where the claim stands, or behind it."""
        if self._producer is None:
            self._producer = self._kafka.producer(self._topic)
        flight = _Flight(sequence, 0, 0, 1, time.monotonic() + self._timeout_s)
        self._producer.send(self._cell, claim_message(epoch, sequence, self._claim), flight.delivery_of(0))
        while flight.left:
            self._producer.poll(1.0)
            if time.monotonic() > flight.deadline:
                raise KafkaError(f"no answer to a claim in {self._timeout_s:g} s (log.kafka.timeout_s)")
        if flight.error is not None:
            raise flight.error
        return flight.landed[0] if flight.landed[0] != UNKNOWN_OFFSET else self._bounds()[1] - 1

    def bookmark(self, sequence: int) -> bytes:
        pieces = self._pieces.since(sequence) or [Piece(self.durable_sequence, self.next_offset, self.epoch)]
        return msgspec.msgpack.encode(Bookmark(self._topic_id, pieces))

    def set_aside(self, torn: TornTail) -> None:
        """There is none: what is not whole when the cell is claimed never counts."""

    def open(self) -> None:
        self.position = Position(self.next_sequence, 0)

    # -- writing ---------------------------------------------------------------------------------------------------

    def frame(self, offset: int, directory: bytes, *bodies: bytes) -> EncodedFrame:
        return encode_frame(self.next_sequence + offset, self.durable_sequence, directory, *bodies)

    def write(self, frames: list[EncodedFrame]) -> None:
        self.begin(frames)
        while self._flying:
            self.land(1.0)

    def begin(self, frames: list[EncodedFrame]) -> None:
        if self._failure is not None:
            raise self._failure
        assert self._producer is not None
        values = commit_messages(self.epoch, self.next_sequence, frames, compression=self._compression)
        deadline = time.monotonic() + self._timeout_s
        flight = _Flight(self.next_sequence, len(frames), frames_bytes(frames), len(values), deadline)
        self._flying.append(flight)
        self.next_sequence += len(frames)
        try:
            for part, value in enumerate(values):
                self._producer.send(self._cell, value, flight.delivery_of(part))
        except OSError as error:  # a part of the commit may be on its way
            raise self._fail(error) from error

    def land(self, timeout_s: float) -> bool:
        flight = self._flying[0]
        assert self._producer is not None
        if flight.left:
            self._producer.poll(timeout_s)
        if flight.error is not None:
            raise self._fail(flight.error)
        if flight.left:
            if time.monotonic() > flight.deadline:
                raise self._fail(KafkaError(f"no answer in {self._timeout_s:g} s (log.kafka.timeout_s)"))
            return False
        first, following = self.next_offset, self.next_offset + len(flight.landed)
        if flight.landed != list(range(first, following)):
            try:
                first, following = self._look(flight)
            except (OSError, Unrecoverable) as error:
                raise self._fail(error) from error
        self.next_offset = following
        self._flying.popleft()
        self.durable_sequence = flight.sequence + flight.frames
        self.renewed_at = flight.sent_at
        self._pieces.add(self.epoch, flight.sequence, first, flight.size)
        self.position = Position(self._pieces[-1].sequence, self._pieces.size)
        return True

    def _look(self, flight: _Flight) -> tuple[int, int]:
        """Somebody else has written, or an offset is not known: read what stands there. What another had on its way
        when this hub claimed the cell does no harm; a higher claim before the commit does. Where the commit begins, and
        what comes behind it."""
        self.looks += 1
        reader = self._reader(Piece(flight.sequence, self.next_offset, self.epoch))
        end = self._bounds()[1] if UNKNOWN_OFFSET in flight.landed else max(flight.landed) + 1
        try:
            while reader.offset < end:
                for commit in reader.receive(1.0) or ():
                    if (commit.epoch, commit.sequence) == (self.epoch, flight.sequence):
                        return commit.offset, commit.next_offset
                if time.monotonic() > flight.deadline:
                    raise KafkaError(f"what follows offset {self.next_offset} on could not be read")
        except CutMeanwhile as error:  # by an owner behind this one: nobody else cuts what this one has not read
            raise Fenced(f"another hub has taken cell {self._cell} and cut the journal since") from error
        finally:
            self.foreign += reader.foreign
            reader.close()
        owner = reader.rule.owner
        if reader.rule.epoch == self.epoch:
            raise Lost(
                f"a message landed at offset {max(flight.landed)} where {self.next_offset} came next: Kafka has lost "
                "messages, or the topic was deleted and created again"
            )
        raise Fenced(
            f"hub {owner.hub if owner else 'unknown'} has taken cell {self._cell} with epoch {reader.rule.epoch}; the "
            f"epoch of this hub was {self.epoch}"
        )

    def _fail(self, error: Exception) -> OSError:
        """It is not known what of the commits on their way counts: nothing may follow them."""
        self._failure = error if isinstance(error, OSError) else KafkaError(str(error))
        self._flying.clear()
        return self._failure

    def explain(self, error: Exception) -> str:
        if isinstance(error, Fenced):
            return (
                f"fenced: {error}: this hub accepts nothing more, and what it had not acknowledged does not count; "
                "clients find it at the other hub"
            )
        if isinstance(error, Lost):
            return (
                f"writing to {self._topic}/{self._cell} failed: {error}: the log accepts nothing more, and what was "
                "acknowledged before may be gone; look at the topics before you start again"
            )
        return (
            f"writing to {self._topic}/{self._cell} failed ({error}): the log accepts nothing more; check the brokers "
            "and start again, what was acknowledged is in Kafka"
        )

    # -- the rest --------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """With a lease also when nothing was written before: the mark itself is what counts."""
        if self.idle_mark_s is not None or self.position.size:
            self.write([self.frame(0, b"", b"")])

    def sealed_to(self, bytes_max: int) -> int:
        return self._pieces[1].sequence if len(self._pieces) > 1 and self._pieces.bytes > bytes_max else 0

    def cut_behind(self, sequence: int, *, reuse: bool = True) -> bool:
        oldest = self._pieces.cut(sequence)
        if oldest is not None and self._cuts:
            self._kafka.delete_records(self._topic, self._cell, oldest.offset)
        return oldest is not None

    def free_bytes(self) -> int:
        return self._free_bytes()

    def gauges(self) -> dict[str, float]:
        return {
            "epoch": self.epoch,
            "foreign_messages": self.foreign,
            "looks": self.looks,
            "journal_bytes": self._pieces.bytes,
        }

    def close(self) -> None:
        """Leave the cell, so that the next owner need not wait."""
        if self._producer is None:
            return
        if self._failure is None and self.epoch:
            flight = _Flight(self.next_sequence, 0, 0, 1, time.monotonic() + LEAVE_S)
            try:
                self._producer.send(self._cell, leave_message(self.epoch, self.next_sequence), flight.delivery_of(0))
                while flight.left and time.monotonic() < flight.deadline:
                    self._producer.poll(0.1)
            except OSError as error:
                flight.error = KafkaError(str(error))
            if flight.left or flight.error is not None:
                logger.warning("the cell could not be left (%s); the next owner may wait", flight.error or "no answer")
        self._producer.close()
        self._producer = None
