"""Writers of the SDK and appends of many callers, against a real hub over a real socket."""

import contextlib
import socket
import threading
from types import SimpleNamespace

import pytest
from support.until import wait_until

import headrace
from headrace import errors
from headrace.client import client as client_module
from headrace.client import puts as puts_module
from headrace.client.writer import Writer
from headrace.config import Config, Log
from headrace.log.ops import Bounds
from headrace.testing import served_hub


def payloads(reader) -> list[bytes]:
    return [record.payload for record in reader]


def test_a_writer_has_many_batches_under_way(client):
    with client.writer("orders", producer="w", sequence=0) as writer:
        futures = [writer.append([b"x"] * 10) for _ in range(100)]
        writer.flush()
        assert all(future.done() for future in futures)
    assert [future.result().first for future in futures] == list(range(0, 1000, 10))
    assert client.producer_sequence("orders", "w") == 99
    with pytest.raises(errors.Closed):
        writer.append(b"x")


def test_what_was_sent_to_nobody_goes_to_the_next_address(client):
    """It carries no sequence, and cannot have been stored."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        with headrace.connect(f"127.0.0.1:{nobody.getsockname()[1]},{client.address}") as other:
            assert other.append("orders", [b"a", b"b"]).count == 2
            assert other.address == client.address
    assert payloads(client.read("orders")) == [b"a", b"b"]


def test_what_was_sent_cannot_be_called_back_and_the_writer_goes_on(client):
    with client.writer("orders") as writer:
        assert not any(writer.append(b"x").cancel() for _ in range(20))
        assert writer.append(b"last").result(60).first == 20


def test_a_writer_waits_when_too_much_is_under_way(client, monkeypatch):
    monkeypatch.setattr(puts_module, "UNDER_WAY_BATCHES_MAX", 2)
    monkeypatch.setattr(puts_module, "UNDER_WAY_BYTES_MAX", 150)
    with client.writer("orders") as writer:
        for _ in range(50):
            writer.append(b"x" * 100)
    assert client.bounds("orders").next == 50


def test_a_writer_takes_more_columns_as_they_come(client):
    with client.writer("orders") as writer:
        for columns in ({}, {"type": "t"}, {"key": "k"}, {}, {"id": 1, "type": "u"}):
            writer.append(b"x", **columns)
    records = client.read("orders").to_list()
    assert [(record.type, record.key, record.id) for record in records] == [
        (None, None, None),
        ("t", None, None),
        (None, b"k", None),
        (None, None, None),
        ("u", None, 1),
    ]


def test_a_refused_batch_ends_the_writer_and_nothing_after_it_is_stored(client):
    writer = client.writer("orders")
    good = writer.append(b"a")
    bad = writer.append(b"x" * ((16 << 20) + 1))
    later = writer.append(b"b")
    assert good.result(60).first == 0
    assert isinstance(bad.exception(60), errors.LimitExceeded)
    assert isinstance(later.exception(60), errors.Closed | errors.LimitExceeded)
    for attempt in (lambda: writer.append(b"c"), writer.flush, writer.close):
        with pytest.raises(errors.LimitExceeded):
            attempt()
    assert client.bounds("orders") == Bounds(0, 1)


def test_the_error_of_a_with_block_is_the_one_that_is_seen(client):
    def fail_inside():
        with client.writer("nowhere") as writer:
            with contextlib.suppress(errors.UnknownStream):  # a quick hub has refused it by now
                writer.append(b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()


def test_a_writer_whose_put_is_refused_before_it_begins_tells_so_again_when_it_is_closed(client, monkeypatch):
    writer = client.writer("orders")

    def refuse(*_: object) -> None:
        raise errors.Unauthenticated("user alice is gone")

    monkeypatch.setattr(writer, "_put_for", refuse)
    for call in (lambda: writer.append(b"1"), lambda: writer.append(b"2"), writer.close):
        with pytest.raises(errors.Unauthenticated, match="alice"):
            call()


def test_bad_data_does_not_end_a_writer(client):
    with client.writer("orders") as writer:
        with pytest.raises(errors.BadRequest):
            writer.append([5])
        writer.append(b"x")
    assert client.bounds("orders").next == 1


def test_append_keeps_few_puts_open(client, served, monkeypatch):
    monkeypatch.setattr(client_module, "WRITERS_KEPT", 2)
    for number in range(5):
        client.create(f"stream-{number}")
        client.append(f"stream-{number}", b"x")
    assert len(client._writers) == 2


def test_many_threads_may_use_one_client(client):
    def produce():
        for _ in range(50):
            client.append("orders", b"x")

    threads = [threading.Thread(target=produce) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.bounds("orders").next == 200


def in_threads(count, work):
    """What the threads raised."""
    raised = []

    def run(number):
        try:
            work(number)
        except Exception as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return raised


def test_a_caller_whose_put_is_given_up_for_others_does_not_notice(client, monkeypatch):
    monkeypatch.setattr(client_module, "WRITERS_KEPT", 2)
    for number in range(8):
        client.create(f"stream-{number}")

    def produce(number):
        for step in range(30):
            client.append(f"stream-{(number + step) % 8}", b"x")

    assert in_threads(8, produce) == []
    assert sum(client.bounds(f"stream-{number}").next for number in range(8)) == 240


def test_a_refused_append_does_not_fail_those_of_other_threads():
    with (
        served_hub(Config(log=Log(record_bytes_max=10_000))) as served,
        headrace.connect(served.address) as client,
    ):
        client.create("orders")

        def produce(number):
            for _ in range(100):
                if number:
                    with contextlib.suppress(errors.Unreachable):  # stored, and the word of it lost
                        client.append("orders", b"x")
                else:
                    with pytest.raises(errors.LimitExceeded):
                        client.append("orders", b"x" * 10_001)

        assert in_threads(5, produce) == []
        assert client.bounds("orders").next == 400


def test_a_status_that_overtakes_acknowledgements_fails_only_the_batch_it_names(client, monkeypatch):
    read_acks = puts_module.Put._read_acks
    may_read = threading.Event()

    def read_late(self):
        may_read.wait(60)
        self._acks = SimpleNamespace(read=lambda: None)  # as if gRPC had dropped them for the status
        return read_acks(self)

    monkeypatch.setattr(puts_module.Put, "_read_acks", read_late)
    writer = client.writer("orders")
    stored, refused, behind = (writer.append(data) for data in (b"a", b"x" * ((16 << 20) + 1), b"b"))
    wait_until(lambda: client.bounds("orders").next >= 1)
    may_read.set()
    assert "stored" in str(stored.exception(60))
    assert isinstance(refused.exception(60), errors.LimitExceeded)
    assert isinstance(behind.exception(60), errors.Closed)
    assert client.bounds("orders").next == 1


def test_another_stream_does_not_wait_for_one_that_nobody_processes(client, monkeypatch):
    monkeypatch.setattr(client_module, "WRITERS_KEPT", 1)
    client.create("slow", options={"ack": "processed:worker"})
    waiting = threading.Thread(target=client.append, args=("slow", b"x"))
    waiting.start()
    wait_until(lambda: client.bounds("slow").next >= 1)
    other = threading.Thread(target=client.append, args=("orders", b"x"))
    other.start()
    other.join(60)
    is_held_up = other.is_alive()
    client.cursor("worker", "slow").save(1)
    waiting.join(60)
    other.join(60)
    assert not is_held_up


def test_a_flush_that_is_quicker_than_the_note_of_a_failure_raises_it_all_the_same(client, monkeypatch):
    monkeypatch.setattr(Writer, "_note_failure", lambda self, future: None)
    writer = client.writer("orders")
    writer.append(b"x" * ((16 << 20) + 1))
    with pytest.raises(errors.LimitExceeded):
        writer.flush()
