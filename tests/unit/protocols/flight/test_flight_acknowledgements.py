import concurrent.futures
import threading

from headrace.log.ops import Appended
from headrace.protocols.flight.acknowledgements import Settling


def durable(first: int, count: int = 1, duplicate: bool = False) -> concurrent.futures.Future:
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_result(Appended(first, count, duplicate))
    return future


def refused() -> concurrent.futures.Future:
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_exception(ValueError())
    return future


def test_in_order_one_by_one():
    settling = Settling(10)
    for number in range(3):
        settling.put(number, durable(number))
    settling.close()
    assert [settling.get().number for _ in range(3)] == [0, 1, 2]
    assert settling.get() is None


def test_what_is_durable_is_folded_and_the_rest_stays():
    settling = Settling(3)
    waiting: concurrent.futures.Future = concurrent.futures.Future()
    for number, future in enumerate([durable(10, 2), durable(20, 3, True), waiting, durable(40), refused()]):
        settling.put(number, future)
    assert len(settling) == 4
    folded = settling.get()
    assert (folded.number, folded.batches, folded.index_next) == (1, 2, 23)
    assert folded.settled.result() == Appended(10, 5, False)
    waiting.set_result(Appended(30, 1, False))
    assert settling.get().settled is waiting


def test_folds_are_folded_again():
    settling = Settling(1)
    for number in range(100):
        settling.put(number, durable(number, 1, True))
    assert len(settling) == 1
    folded = settling.get()
    assert (folded.number, folded.batches, folded.index_next) == (99, 100, 100)
    assert folded.settled.result() == Appended(0, 100, True)


def test_an_empty_batch_does_not_say_where_the_others_stand():
    settling = Settling(1)
    settling.put(0, durable(-1, 0))
    settling.put(1, durable(7, 2))
    assert settling.get().settled.result() == Appended(7, 2, False)


def test_get_waits():
    settling = Settling(1)
    found = []
    waiting = threading.Thread(target=lambda: found.append(settling.get()))
    waiting.start()
    settling.put(5, durable(1))
    waiting.join(60)
    assert found[0].number == 5
    later: concurrent.futures.Future = concurrent.futures.Future()
    waiting = threading.Thread(target=lambda: found.append(settling.get()))
    settling.put(6, later)
    settling.put(7, durable(3))
    settling.close()
    waiting.start()
    later.set_result(Appended(2, 1, False))
    waiting.join(60)
    assert (found[1].number, settling.get().number) == (6, 7)
    ended = Settling(1)
    ending = threading.Thread(target=lambda: found.append(ended.get()))
    ending.start()
    ended.close()
    ending.join(60)
    assert found[2] is None
