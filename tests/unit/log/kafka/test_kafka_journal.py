"""The journal in a partition: claims, commits on their way, looks, and everything that brokers do to it."""

from __future__ import annotations

from itertools import count

import pytest

from headrace.log.journal_port import GoodFrame, Position, Unrecoverable
from headrace.log.kafka.client import KafkaError
from headrace.log.kafka.journal import Fenced, KafkaJournal
from headrace.log.kafka.messages import Claim, claim_message, commit_messages, leave_message
from headrace.testing import FakeKafka, Fault

TOPIC = "t.journal"
NAMES = map(str, count())


@pytest.fixture
def kafka() -> FakeKafka:
    made = FakeKafka()
    made.create_topic(TOPIC, 2, 3, {})
    return made


def journal(kafka: FakeKafka, **options: object) -> KafkaJournal:
    given = {"timeout_s": 0.2, "wait": lambda: None, **options}
    return KafkaJournal(kafka, TOPIC, 0, Claim(f"hub-{next(NAMES)}"), **given)  # type: ignore[arg-type]


def opened(kafka: FakeKafka, **options: object) -> KafkaJournal:
    made = journal(kafka, **options)
    list(made.read(0))
    made.open()
    return made


def frames(made: KafkaJournal, *bodies: bytes) -> list[tuple[bytes, ...]]:
    return [made.frame(number, b"", body.ljust(8)) for number, body in enumerate(bodies)]


def commit(made: KafkaJournal, *bodies: bytes) -> None:
    made.write(frames(made, *bodies))


def contents(kafka: FakeKafka) -> list[bytes]:
    found = list(journal(kafka, claims=False).read(0))
    assert all(isinstance(frame, GoodFrame) for frame in found)
    return [frame.data.rstrip() for frame in found if isinstance(frame, GoodFrame) and frame.data is not None]


def values(kafka: FakeKafka) -> list[bytes]:
    return [message.value or b"" for message in kafka.partition(TOPIC, 0).messages]


# -- claims ------------------------------------------------------------------------------------------------------------


def test_each_owner_has_a_higher_epoch(kafka: FakeKafka) -> None:
    assert [opened(kafka).epoch for _ in range(3)] == [1, 2, 3]


def test_who_only_reads_claims_nothing(kafka: FakeKafka) -> None:
    commit(opened(kafka), b"a")
    before = values(kafka)
    assert contents(kafka) == [b"a"]
    assert values(kafka) == before


def test_a_claim_that_another_came_before_is_made_again(kafka: FakeKafka) -> None:
    class Racing(FakeKafka):
        """Somebody claims between the look and the claim, twice."""

        left = 2

        def producer(self, topic: str):  # type: ignore[no-untyped-def]
            made = super().producer(topic)
            send = made.send

            def racing(partition: int, value: bytes | None, *rest: object) -> None:
                if self.left and value and value[4] == 1:
                    self.left -= 1
                    epoch = int.from_bytes(value[12:20], "little")
                    self.partition(TOPIC, 0).add(None, claim_message(epoch, 0, Claim("quicker")))
                send(partition, value, *rest)  # type: ignore[arg-type]

            made.send = racing  # type: ignore[assignment,method-assign]
            return made

    racing = Racing()
    racing.create_topic(TOPIC, 1, 3, {})
    waits: list[None] = []
    made = journal(racing, wait=lambda: waits.append(None))
    list(made.read(0))
    assert (made.epoch, len(waits)) == (3, 2)


def test_what_was_on_its_way_when_the_cell_was_claimed_does_no_harm(kafka: FakeKafka) -> None:
    """The new owner looks once, and goes on."""
    old = opened(kafka)
    commit(old, b"a")
    kafka.hold()
    old.begin(frames(old, b"late"))
    taking = journal(kafka)
    kafka.is_held = False
    list(taking.read(0))
    taking.open()
    kafka.release()
    commit(taking, b"b")
    assert taking.looks == 1
    commit(taking, b"c")
    assert taking.looks == 1
    with pytest.raises(Fenced, match="with epoch 2; the epoch of this hub was 1"):
        old.land(1.0)
    assert contents(kafka) == [b"a", b"b", b"c"]


def test_who_was_fenced_writes_nothing_more(kafka: FakeKafka) -> None:
    old, new = opened(kafka), opened(kafka)
    commit(new, b"new")
    with pytest.raises(Fenced) as fenced:
        commit(old, b"old")
    assert old.explain(fenced.value).startswith("fenced: hub hub-")
    size = len(values(kafka))
    for _ in range(2):
        with pytest.raises(Fenced):
            old.begin(frames(old, b"again"))
    old.close()
    assert len(values(kafka)) == size, "not even a leave"
    assert contents(kafka) == [b"new"]


def test_a_takeover_inside_a_commit(kafka: FakeKafka) -> None:
    old = opened(kafka)
    commit(old, b"a")
    kafka.hold()
    old.begin([(b"x" * 2_000_000,)])
    kafka.release(count=2)
    kafka.is_held = False
    new = opened(kafka)
    kafka.release()
    commit(new, b"b")
    with pytest.raises(Fenced):
        old.land(1.0)
    assert contents(kafka) == [b"a", b"b"]


def test_a_leave_says_that_nobody_owns_the_cell(kafka: FakeKafka) -> None:
    made = opened(kafka)
    commit(made, b"a")
    made.close()
    made.close()
    assert values(kafka)[-1] == leave_message(1, 1)
    commit(opened(kafka), b"b")
    assert contents(kafka) == [b"a", b"b"]


def test_a_leave_that_cannot_be_sent_keeps_nobody(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    made = opened(kafka)
    kafka.faults.append(Fault.REFUSED)
    made.close()
    assert "could not be left (injected: refused)" in caplog.text


def test_a_claim_without_an_answer(kafka: FakeKafka) -> None:
    kafka.faults.append(Fault.SILENCE)
    with pytest.raises(KafkaError, match="no answer to a claim"):
        opened(kafka)
    kafka.faults.append(Fault.REFUSED)
    with pytest.raises(KafkaError, match="injected: refused"):
        opened(kafka)


def test_a_claim_that_landed_nobody_knows_where(kafka: FakeKafka) -> None:
    kafka.faults.append(Fault.UNKNOWN)
    made = opened(kafka)
    commit(made, b"a")
    assert (made.epoch, contents(kafka)) == (1, [b"a"])


# -- commits -----------------------------------------------------------------------------------------------------------


def test_several_commits_are_on_their_way_and_land_in_order(kafka: FakeKafka) -> None:
    made = opened(kafka)
    kafka.hold()
    for body in (b"a", b"b", b"c"):
        made.begin(frames(made, body))
    assert (made.next_sequence, made.durable_sequence) == (3, 0)
    assert not made.land(0)
    kafka.release(count=1)
    assert made.land(1.0)
    assert (made.durable_sequence, made.position) == (1, Position(0, 48))
    kafka.release()
    assert made.land(1.0)
    assert made.land(1.0)
    assert made.durable_sequence == 3
    assert made.looks == 0
    assert contents(kafka) == [b"a", b"b", b"c"]


@pytest.mark.parametrize("fault", [Fault.TWICE, Fault.UNKNOWN])
def test_a_message_that_was_sent_twice_counts_once(kafka: FakeKafka, fault: Fault) -> None:
    made = opened(kafka)
    for number in range(6):
        kafka.faults += [fault, Fault.NONE][: 1 + number % 2]
        commit(made, b"%d" % number)
    assert contents(kafka) == [b"%d" % number for number in range(6)]
    assert made.looks >= 3


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("fault", [Fault.TWICE, Fault.UNKNOWN])
def test_a_part_that_was_sent_twice_counts_once(kafka: FakeKafka, fault: Fault, at: int) -> None:
    made = opened(kafka)
    kafka.faults += [Fault.NONE] * at + [fault]
    made.begin(frames(made, b"x" * 2_000_000))
    made.begin(frames(made, b"y"))
    while made.durable_sequence < 2:
        made.land(1.0)
    assert [len(body) for body in contents(kafka)] == [2_000_000, 1]


@pytest.mark.parametrize(
    ("fault", "text", "stored"),
    [
        (Fault.SILENCE, r"no answer in 0.2 s \(log.kafka.timeout_s\)", True),
        (Fault.ERROR, "injected: error", True),
        (Fault.REFUSED, "injected: refused", False),
    ],
)
def test_a_commit_whose_outcome_is_not_known_is_the_last(
    kafka: FakeKafka, fault: Fault, text: str, stored: bool
) -> None:
    made = opened(kafka)
    commit(made, b"a")
    kafka.faults.append(fault)
    with pytest.raises(KafkaError, match=text) as failed:
        commit(made, b"b")
    assert "check the brokers and start again" in made.explain(failed.value)
    with pytest.raises(KafkaError, match=text):
        commit(made, b"c")
    after = opened(kafka)  # the next owner learns from the log what counted
    commit(after, b"d")
    assert contents(kafka) == ([b"a", b"b", b"d"] if stored else [b"a", b"d"])


def test_an_error_while_sending_is_final(kafka: FakeKafka) -> None:
    made = opened(kafka)
    assert made._producer is not None

    def broken(*_: object) -> None:
        raise KafkaError("the client is broken")

    made._producer.send = broken  # type: ignore[method-assign]
    with pytest.raises(KafkaError, match="the client is broken"):
        commit(made, b"a")
    made.close()


def test_a_leave_that_cannot_even_be_handed_over(kafka: FakeKafka, caplog: pytest.LogCaptureFixture) -> None:
    made = opened(kafka)
    assert made._producer is not None

    def broken(*_: object) -> None:
        raise KafkaError("the client is broken")

    made._producer.send = broken  # type: ignore[method-assign]
    made.close()
    assert "the client is broken" in caplog.text


def test_a_look_at_a_broker_that_does_not_answer(kafka: FakeKafka) -> None:
    made = opened(kafka)
    kafka.faults.append(Fault.TWICE)
    commit(made, b"a")

    class Deaf:
        def receive(self, timeout_s: float) -> list[object]:
            return []

        def close(self) -> None:
            pass

    kafka.consumer = lambda *_: Deaf()  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(KafkaError, match="could not be read"):
        commit(made, b"b")
    with pytest.raises(KafkaError, match="could not be read from offset 0"):
        list(journal(kafka).read(0))


def test_lost_frames_stop_a_look(kafka: FakeKafka) -> None:
    made = opened(kafka)
    for value in commit_messages(1, 7, [(b"never sent",)]):
        kafka.partition(TOPIC, 0).add(None, value)
    with pytest.raises(KafkaError, match="lost frames"):
        commit(made, b"a")


# -- what stands in the partition --------------------------------------------------------------------------------------


def test_foreign_messages_are_counted_and_passed_over(kafka: FakeKafka) -> None:
    made = opened(kafka)
    commit(made, b"a")
    for value in (b"hello", None, b"HRK1"):
        kafka.partition(TOPIC, 0).add(b"key", value)
    commit(made, b"b")
    assert made.gauges()["foreign_messages"] == 3
    after = opened(kafka)
    gauges = after.gauges()
    assert gauges.pop("journal_bytes") > 0
    assert gauges == {"epoch": 2, "foreign_messages": 3, "looks": 0}
    assert contents(kafka) == [b"a", b"b"]


def test_frames_that_are_none_stop_the_reader(kafka: FakeKafka) -> None:
    partition = kafka.partition(TOPIC, 0)
    partition.add(None, claim_message(1, 0, Claim("a")))
    for value in commit_messages(1, 0, [(b"no frame at all, and long enough for one of them",)]):
        partition.add(None, value)
    with pytest.raises(Unrecoverable, match="frame 0 in the commit at offset 1 of t.journal/0 is damaged"):
        contents(kafka)


def test_there_is_no_topic() -> None:
    with pytest.raises(Unrecoverable, match="headrace cluster init"):
        opened(FakeKafka())


def small(kafka: FakeKafka, **options: object) -> KafkaJournal:
    return opened(kafka, piece_bytes_max=100, **options)


def test_reading_begins_at_a_bookmark(kafka: FakeKafka) -> None:
    made = small(kafka)
    for number in range(20):
        commit(made, b"%d" % number)
    bookmark = made.bookmark(12)
    made.cut_behind(12)
    first = made.first
    assert 9 <= first <= 12
    assert kafka.bounds(TOPIC, 0)[0] > 9
    again = journal(kafka, piece_bytes_max=100)
    found = [frame.sequence for frame in again.read(14, bookmark=bookmark) if isinstance(frame, GoodFrame)]
    assert found == list(range(first, 20))
    again.open()
    commit(again, b"20")
    made = journal(kafka)
    with pytest.raises(Unrecoverable, match="no intact snapshot reaches that far"):
        list(made.read(0))
    assert kafka.partition(TOPIC, 0).messages[-1].value == values(kafka)[-1], "nothing was claimed"


def test_a_bookmark_that_was_cut_behind_is_still_good(kafka: FakeKafka) -> None:
    """What was not sealed when the snapshot was made is sealed since, and the journal begins later than it says."""
    made = small(kafka)
    for number in range(30):
        commit(made, b"%d" % number)
    bookmark = made.bookmark(2)
    made.cut_behind(15)
    [first, *_] = [frame.sequence for frame in journal(kafka).read(20, bookmark=bookmark)]  # type: ignore[union-attr]
    assert first == made.first > 2


def test_all_have_the_same_pieces_whoever_wrote_them(kafka: FakeKafka) -> None:
    writers = []
    for turn in range(3):
        made = small(kafka)
        for number in range(10):
            commit(made, b"%d-%d" % (turn, number))
        writers.append(made)
    reader = journal(kafka, claims=False, piece_bytes_max=100)
    list(reader.read(0))
    assert reader.bookmark(0) == writers[-1].bookmark(0)


def test_a_short_piece_counts_as_short(kafka: FakeKafka) -> None:
    """Each takeover begins a piece, however little the owner before has written."""
    for _ in range(5):
        made = opened(kafka)
        commit(made, b"little")
    reader = journal(kafka, claims=False)
    list(reader.read(0))
    for each in (made, reader):
        assert len(each._pieces) == 5
        assert each.gauges()["journal_bytes"] < 1_000
    made.cut_behind(3)
    assert len(made._pieces) < 5
    assert made.gauges()["journal_bytes"] < reader.gauges()["journal_bytes"]


def test_without_cuts_the_partition_stays_whole(kafka: FakeKafka) -> None:
    made = small(kafka, cuts=False)
    for number in range(20):
        commit(made, b"%d" % number)
    assert made.cut_behind(12)
    assert made.first > 8
    assert kafka.bounds(TOPIC, 0)[0] == 0
    assert len(contents(kafka)) == 20


def test_a_journal_without_commits_has_a_bookmark(kafka: FakeKafka) -> None:
    made = opened(kafka)
    bookmark = made.bookmark(0)
    commit(made, b"a")
    again = journal(kafka)
    assert len(list(again.read(0, bookmark=bookmark))) == 1


@pytest.mark.parametrize("refill", [0, 40])
def test_a_topic_deleted_and_made_again_is_not_begun_anew(kafka: FakeKafka, refill: int) -> None:
    made = opened(kafka)
    for number in range(10):
        commit(made, b"%d" % number)
    bookmark = made.bookmark(10)
    kafka.delete_topic(TOPIC)
    with pytest.raises(KafkaError, match="there is no"):
        commit(made, b"deleted")
    kafka.create_topic(TOPIC, 1, 3, {})
    stranger = opened(kafka)
    for number in range(refill):
        commit(stranger, b"%d" % number)
    with pytest.raises(Unrecoverable, match="deleted and created again since the last snapshot"):
        list(journal(kafka).read(10, bookmark=bookmark))


def test_a_topic_made_again_under_a_hub_that_writes(kafka: FakeKafka) -> None:
    made = opened(kafka)
    for number in range(10):
        commit(made, b"%d" % number)
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 1, 3, {})
    with pytest.raises(KafkaError, match="landed at offset 0 where 11 came next: Kafka has lost messages"):
        commit(made, b"x")


def test_a_topic_of_a_cluster_that_tells_no_ids(kafka: FakeKafka) -> None:
    """What a snapshot has seen and is not there stops the hub all the same."""
    kafka.topics[TOPIC].id = ""
    made = opened(kafka)
    for number in range(10):
        commit(made, b"%d" % number)
    bookmark = made.bookmark(10)
    kafka.delete_topic(TOPIC)
    kafka.create_topic(TOPIC, 1, 3, {})
    with pytest.raises(Unrecoverable, match="a snapshot has seen all before 10"):
        list(journal(kafka).read(10, bookmark=bookmark))
    assert values(kafka) == [], "nothing was claimed"


def test_room_is_what_the_caller_says(kafka: FakeKafka) -> None:
    assert journal(kafka, free_bytes=lambda: 7).free_bytes() == 7
    assert journal(kafka).free_bytes() > 2**60
