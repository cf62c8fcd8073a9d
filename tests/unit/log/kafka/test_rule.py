"""The rule: directed cases, and random histories of hubs that claim, write, crash and come back."""

from __future__ import annotations

import random
from collections import deque

import pytest

from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.messages import Claim, Kind, Message, claim_message, commit_messages, decode
from headrace.log.kafka.rule import Counted, Rule


def claim(epoch: int, hub: str = "a") -> Message:
    message = decode(claim_message(epoch, 0, Claim(hub)), 0)
    assert message is not None
    return message


def commit(epoch: int, sequence: int, body: bytes, part: int = 0, parts: int = 1, frames: int = 1) -> Message:
    return Message(Kind.COMMIT, part, parts, epoch, sequence, frames, body)


def run(*messages: Message) -> tuple[Rule, list[bytes]]:
    rule = Rule()
    counted = [rule.feed(offset, message) for offset, message in enumerate(messages)]
    return rule, [each.body for each in counted if each is not None]


def test_a_takeover_inside_a_commit_drops_its_parts() -> None:
    rule, bodies = run(
        claim(1, "a"),
        commit(1, 0, b"whole", frames=2),
        commit(1, 2, b"p0", 0, 3),
        commit(1, 2, b"p1", 1, 3),
        claim(2, "b"),
        commit(1, 2, b"p2", 2, 3),
        commit(2, 2, b"other"),
        commit(2, 3, b"more"),
    )
    assert bodies == [b"whole", b"other", b"more"]
    assert rule.owner == Claim("b")
    assert (rule.strangers, rule.dropped, rule.claims, rule.sequence) == (1, 1, 2, 4)


def test_of_two_claims_with_one_epoch_the_first_counts() -> None:
    rule, bodies = run(claim(1, "a"), claim(2, "b"), claim(2, "c"), commit(2, 0, b"b"))
    assert rule.owner == Claim("b")
    assert bodies == [b"b"]


def test_a_lower_claim_is_nothing() -> None:
    rule, _ = run(claim(5, "a"), claim(4, "b"))
    assert (rule.owner, rule.epoch, rule.strangers) == (Claim("a"), 5, 1)


def test_what_the_client_sent_twice_counts_once() -> None:
    parts = commit(1, 0, b"p", 0, 2), commit(1, 0, b"q", 1, 2)
    rule, bodies = run(claim(1), parts[0], parts[0], parts[1], parts[1], parts[0], commit(1, 1, b"r"))
    assert bodies == [b"pq", b"r"]
    assert rule.duplicates == 3


@pytest.mark.parametrize("message", [commit(1, 1, b"x"), commit(1, 0, b"x", 1, 2)], ids=["frames", "a part"])
def test_lost_frames_stop_the_reader(message: Message) -> None:
    with pytest.raises(Unrecoverable, match="lost frames: at offset 1"):
        run(claim(1), message)


def test_a_commit_before_any_claim_is_nothing() -> None:
    rule, bodies = run(commit(1, 0, b"x"))
    assert (bodies, rule.strangers) == ([], 1)


def test_who_leaves_owns_nothing() -> None:
    leave = Message(Kind.LEAVE, 0, 1, 1, 0, 0, b"")
    assert run(claim(1), leave)[0].owner is None
    rule, _ = run(claim(1, "a"), claim(2, "b"), leave)
    assert (rule.owner, rule.strangers) == (Claim("b"), 1)


def test_a_commit_says_where_it_began() -> None:
    rule = Rule()
    for offset, message in enumerate([claim(1), commit(1, 0, b"p", 0, 2)], 10):
        assert rule.feed(offset, message) is None
    assert rule.feed(15, commit(1, 0, b"q", 1, 2)) == Counted(1, 0, 1, b"pq", 11, 16)


# -- random histories --------------------------------------------------------------------------------------------------


class Writer:
    """A hub that believes to own the cell. Several commits may be on their way at once, as they are in a pipeline."""

    def __init__(self, name: str, epoch: int, sequence: int, next_offset: int) -> None:
        self.name = name
        self.epoch = epoch
        self.sequence = sequence
        """Of the next commit to be sent."""
        self.acknowledged = sequence
        """Of the next commit to be acknowledged."""
        self.next_offset = next_offset
        self.flying: deque[tuple[int, list[bytes], bytes]] = deque()
        """Sequence, messages not stored yet, content."""
        self.landed: list[int] = []
        self.is_dead = False


class History:
    """A partition and those who write to it. What a writer acknowledges must count for every reader."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log: list[bytes] = []
        self.acknowledged: list[bytes] = []
        self.writers: list[Writer] = []

    def read(self, rule: Rule, start: int = 0, end: int | None = None) -> list[Counted]:
        found = []
        for offset, value in enumerate(self.log[start:end], start):
            message = decode(value, offset)
            if message is not None and (counted := rule.feed(offset, message)):
                found.append(counted)
        return found

    def claim(self, number: int) -> None:
        rule = Rule()
        self.read(rule)
        name, epoch = f"hub-{number}", rule.epoch + 1
        for _ in range(self.random.choice([0, 0, 1, 3])):
            self.store_one()  # between the look and the claim
        if self.random.random() < 0.2:
            self.log.append(claim_message(epoch, 0, Claim("somebody quicker")))
        self.log.append(claim_message(epoch, rule.sequence, Claim(name)))
        rule = Rule()
        self.read(rule)
        if rule.owner == Claim(name):
            self.writers.append(Writer(name, epoch, rule.sequence, len(self.log)))

    def send(self, number: int) -> None:
        writer = self.random.choice(self.writers)
        if writer.is_dead or len(writer.flying) >= 3:
            return
        content = f"{writer.name}/{writer.sequence}/{number}".encode()
        parts = commit_messages(writer.epoch, writer.sequence, [(content,)], self.random.choice([4, 100]))
        writer.flying.append((writer.sequence, parts, content))
        writer.sequence += 1

    def store_one(self) -> None:
        """A broker stores the next message of some writer, dead or alive, and perhaps once more."""
        sending = [writer for writer in self.writers if writer.flying]
        if self.random.random() < 0.1:
            self.log.append(b"foreign")
        if not sending:
            return
        writer = self.random.choice(sending)
        sequence, parts, content = writer.flying[0]
        value = parts.pop(0)
        writer.landed.append(len(self.log))
        self.log.append(value)
        if self.random.random() < 0.05:
            self.log.append(value)
        if not parts:
            writer.flying.popleft()
            self._acknowledge(writer, sequence, content)

    def _acknowledge(self, writer: Writer, sequence: int, content: bytes) -> None:
        landed, writer.landed = writer.landed, []
        if writer.is_dead:
            return
        counts = landed == list(range(writer.next_offset, writer.next_offset + len(landed)))
        if not counts:  # look
            rule = Rule(writer.epoch, sequence)
            found = self.read(rule, writer.next_offset, landed[-1] + 1)
            counts = [each.sequence for each in found] == [sequence] and rule.epoch == writer.epoch
        if counts:
            self.acknowledged.append(content)
            writer.next_offset = landed[-1] + 1
        else:
            writer.is_dead = True  # fenced

    def step(self, number: int) -> None:
        chance = self.random.random()
        if not self.writers or chance < 0.08:
            self.claim(number)
        elif chance < 0.5:
            self.send(number)
        elif chance < 0.53:
            self.random.choice(self.writers).is_dead = True  # what it has on its way may still be stored
        else:
            self.store_one()


@pytest.mark.parametrize("block", range(10))
def test_acknowledged_is_counted_in_order_and_once(block: int) -> None:
    acknowledged = strangers = dropped = 0
    for seed in range(block * 30, block * 30 + 30):
        history = History(seed)
        for number in range(150):
            history.step(number)
        rule = Rule()
        counted = history.read(rule)
        bodies = [each.body for each in counted]
        assert len(set(bodies)) == len(bodies), f"seed {seed}: counted twice"
        assert [each.sequence for each in counted] == list(range(len(counted)))
        rest = iter(bodies)
        assert all(content in rest for content in history.acknowledged), f"seed {seed}: acknowledged and not counted"
        for start in history.random.sample(range(len(counted)), min(5, len(counted))):  # at a snapshot
            again = Rule(counted[start].epoch, counted[start].sequence)
            assert history.read(again, counted[start].offset) == counted[start:]
            assert (again.epoch, again.sequence) == (rule.epoch, rule.sequence)
        acknowledged += len(history.acknowledged)
        strangers += rule.strangers
        dropped += rule.dropped
    assert min(acknowledged, strangers, dropped) > 10, "the histories are too tame to show anything"
