import pyarrow as pa
import pytest

from headrace.errors import BadRequest, Busy, Trimmed
from headrace.log.columns import SCHEMA
from headrace.protocols.errors import LocalProtocolError
from headrace.protocols.flight.codec import SEQUENCE_MAX, PutCommand, PutMetadata, Range, ReadTicket
from headrace.protocols.flight.session import PutSession, PutState, Reading, ReadSession


def records(first: int, count: int, types=None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {"index": first + n, "time": 0, "payload": b"x" * 10, "type": types[n] if types else None}
            for n in range(count)
        ],
        schema=SCHEMA,
    )


def test_batches_are_numbered_and_acknowledged_one_by_one():
    put = PutSession(PutCommand("a"))
    assert [put.receive(PutMetadata()).number for _ in range(3)] == [0, 1, 2]
    ack = put.stored(0, 40, 2, False)
    assert (ack.batch, ack.first, ack.count, ack.duplicate, ack.error) == (0, 40, 2, False, None)
    put.end()
    assert put.state is PutState.ENDED
    assert put.stored(1, 42, 1, True).duplicate
    assert put.last_ack() is None


def test_a_sequence_of_the_descriptor_counts_up_and_one_of_a_batch_goes_before_it():
    put = PutSession(PutCommand("a", producer="p", sequence=5))
    given = [PutMetadata(), PutMetadata(), PutMetadata(sequence=9), PutMetadata(), PutMetadata("q", 1)]
    assert [put.receive(each)[1:3] for each in given] == [("p", 5), ("p", 6), ("p", 9), ("p", 10), ("q", 1)]


def test_a_sequence_of_a_batch_holds_for_that_batch_only():
    put = PutSession(PutCommand("a"))
    assert put.receive(PutMetadata("p", 3, 2))[1:] == ("p", 3, 2)
    assert put.receive(PutMetadata())[1:] == (None, None, None)


@pytest.mark.parametrize(
    ("command", "metadata", "names"),
    [
        (PutCommand("a"), PutMetadata(sequence=1), "'sequence' is given without 'producer'"),
        (PutCommand("a", producer="p"), PutMetadata(), "'producer' is given without 'sequence'"),
        (PutCommand("a"), PutMetadata(after=1), "'after' is given without 'producer'"),
        (PutCommand("a", producer="p", sequence=SEQUENCE_MAX + 1), PutMetadata(), "outside 0 to"),
    ],
)
def test_producer_and_sequence_belong_together(command, metadata, names):
    with pytest.raises(BadRequest, match=names):
        PutSession(command).receive(metadata)


def test_the_last_sequence_of_all_may_be_used_but_nothing_after_it():
    put = PutSession(PutCommand("a", producer="p", sequence=SEQUENCE_MAX))
    assert put.receive(PutMetadata()).sequence == SEQUENCE_MAX
    with pytest.raises(BadRequest, match="outside"):
        put.receive(PutMetadata())


def test_only_the_first_failure_is_told():
    put = PutSession(PutCommand("a"))
    put.receive(PutMetadata())
    error = Busy("wait")
    assert put.fail(0, error).error.code == "busy"
    assert put.fail(1, Busy("again")) is None
    assert put.error is error
    put.end()
    assert put.state is PutState.FAILED


def test_one_ack_for_all():
    put = PutSession(PutCommand("a", acks="last"))
    for number in range(3):
        put.receive(PutMetadata())
        assert put.stored(number, 10 + number, 1, number == 0) is None
    put.end()
    ack = put.last_ack()
    assert (ack.batch, ack.first, ack.count, ack.duplicate) == (2, 10, 3, False)
    assert PutSession(PutCommand("a", acks="last")).last_ack() is None


def test_no_last_ack_after_a_failure():
    put = PutSession(PutCommand("a", acks="last"))
    put.receive(PutMetadata())
    put.stored(0, 0, 1, False)
    put.end()
    put.fail(1, Busy("wait"))
    assert put.last_ack() is None


def test_a_batch_after_a_failure_is_a_mistake_of_the_server():
    put = PutSession(PutCommand("a"))
    put.fail(0, Busy("wait"))
    with pytest.raises(LocalProtocolError):
        put.receive(PutMetadata())


def session(ticket: ReadTicket, *readings: Reading) -> ReadSession:
    return ReadSession(ticket, list(readings))


def test_a_read_moves_on_and_ends():
    reading = Reading("a", 0, 5, 8, lenient=False)
    reading.available = 100
    assert (reading.upto, reading.finished) == (8, False)
    read = session(ReadTicket("a"), reading)
    (out,) = read.shape(reading, records(5, 3))
    assert out.schema == SCHEMA
    assert (reading.position, read.sent_count, read.finished) == (8, 3, True)
    assert list(read.shape(reading, records(8, 0))) == []


def test_without_an_end_it_reads_what_is_there():
    reading = Reading("a", 0, 5, None, lenient=False)
    reading.available = 7
    assert (reading.upto, reading.finished) == (7, False)


def test_limits_count_what_is_sent_after_the_types_were_chosen():
    reading = Reading("a", 0, 0, None, lenient=False)
    read = session(ReadTicket("a", limit=2, types=("x", None)), reading)
    assert list(read.shape(reading, records(0, 2, ["y", "y"]))) == []
    (out,) = read.shape(reading, records(2, 4, ["y", "x", None, "x"]))
    assert out.column("index").to_pylist() == [3, 4]
    assert read.finished


def test_a_limit_of_nothing_sends_nothing():
    reading = Reading("a", 0, 0, None, lenient=False)
    read = session(ReadTicket("a", limit=0), reading)
    assert read.finished
    assert list(read.shape(reading, records(0, 1))) == []


def test_columns_are_chosen_and_the_origin_is_added():
    reading = Reading("a", 3, 0, None, lenient=False)
    read = session(ReadTicket("a", columns=("partition", "payload", "stream")), reading)
    assert read.scan_columns == ["index", "payload"]
    (out,) = read.shape(reading, records(0, 2).select(read.scan_columns))
    assert out.to_pylist() == [{"partition": 3, "payload": b"x" * 10, "stream": "a"}] * 2
    assert session(ReadTicket("a", columns=("payload",), types=("x",)), reading).scan_columns == [
        "index",
        "payload",
        "type",
    ]


def test_large_batches_are_cut():
    reading = Reading("a", 0, 0, None, lenient=False)
    read = session(ReadTicket("a", batch_bytes=100), reading)
    parts = list(read.shape(reading, records(0, 64)))
    assert len(parts) > 1
    assert sum(part.num_rows for part in parts) == 64


def test_several_ranges_are_finished_when_all_are():
    ticket = ReadTicket(ranges=(Range("a"), Range("b")))
    one, two = Reading("a", 0, 0, 1, lenient=False), Reading("b", 0, 0, 1, lenient=False)
    read = session(ticket, one, two)
    list(read.shape(one, records(0, 1)))
    assert not read.finished
    list(read.shape(two, records(0, 1)))
    assert read.finished


def test_what_was_trimmed_is_an_error_unless_it_may_be_skipped():
    error = Trimmed("a", 0, 2, 9)
    with pytest.raises(Trimmed):
        Reading("a", 0, 2, None, lenient=False).trimmed(error, skip=False)
    for lenient, skip in ((True, False), (False, True)):
        reading = Reading("a", 0, 2, None, lenient=lenient)
        reading.trimmed(error, skip=skip)
        assert reading.position == 9


def test_a_reader_that_has_begun_is_not_lenient_any_more():
    reading = Reading("a", 0, 2, None, lenient=True)
    reading.advance(records(2, 1))
    with pytest.raises(Trimmed):
        reading.trimmed(Trimmed("a", 0, 3, 9), skip=False)
