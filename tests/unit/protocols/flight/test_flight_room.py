"""Batches of puts that wait for room: they are bounded, and the largest pays."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pyarrow.flight as flight
import pytest
from support.flight_peer import payloads, put
from support.until import wait_until

from headrace.config import Config, Flight
from headrace.errors import Busy
from headrace.log.ops import Appended
from headrace.protocols.flight.codec import decode_error
from headrace.protocols.flight.room import WaitingRoom, Window
from headrace.testing import served_hub
from headrace.units import MIB


def test_one_always_fits_however_large() -> None:
    room = WaitingRoom(100)
    with room.place(500) as check:
        check()
    with room.place(500) as check:
        check()


def test_the_largest_is_refused_and_smaller_ones_stay() -> None:
    refused: list[int] = []
    room = WaitingRoom(100, lambda: refused.append(1))
    with contextlib.ExitStack() as stack:
        small = [stack.enter_context(room.place(size)) for size in (11, 11, 11, 11, 11, 11, 11, 11)]
        large = stack.enter_context(room.place(12))
        newcomer = stack.enter_context(room.place(10))
        for check in (*small, newcomer):
            check()
        with pytest.raises(Busy, match=r"of 12 bytes, is the largest \(flight.puts_waiting_bytes_max is 100"):
            large()
        assert len(refused) == 1
    with room.place(12) as again:  # each has left what it took, once
        again()
    assert len(refused) == 1


def test_a_newcomer_may_be_the_largest() -> None:
    room = WaitingRoom(100)
    with contextlib.ExitStack() as stack:
        earlier = [stack.enter_context(room.place(11)) for _ in range(9)]
        newcomer = stack.enter_context(room.place(12))
        for check in earlier:
            check()
        with pytest.raises(Busy):
            newcomer()


def test_large_ones_have_a_quarter_of_the_room() -> None:
    room = WaitingRoom(100)
    with contextlib.ExitStack() as stack:
        small = [stack.enter_context(room.place(10)) for _ in range(5)]
        first = stack.enter_context(room.place(13))  # more than an eighth
        second = stack.enter_context(room.place(12))
        third = stack.enter_context(room.place(14))
        for check in (*small, first, second):
            check()
        with pytest.raises(Busy):
            third()


@pytest.mark.parametrize(("producers", "size"), [(32, 8 * MIB), (16, 16 * MIB)])
def test_dozens_of_producers_find_room_for_the_batches_that_producers_send(producers: int, size: int) -> None:
    room = WaitingRoom(Flight().puts_waiting_bytes_max)
    with contextlib.ExitStack() as stack:
        for check in [stack.enter_context(room.place(size)) for _ in range(producers)]:
            check()


def test_who_is_refused_is_told_at_once() -> None:
    """It would look by itself only after an hour."""
    window, room, told = Window(100), WaitingRoom(100), threading.Event()
    window.enter(100, lambda: None)

    def wait() -> None:
        with pytest.raises(Busy), room.place(90, window) as check:
            window.enter(90, check, 3600.0)
        told.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    wait_until(lambda: len(room._waiting) == 1)
    with room.place(20, window) as check:
        assert told.wait(60)
        check()


def test_a_put_whose_batch_finds_no_room_to_wait_is_refused_and_the_others_are_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[Exception] = []
    stored: list[asyncio.Future[Appended]] = []
    with served_hub(Config(flight=Flight(puts_bytes_max=1, puts_waiting_bytes_max=1))) as served:
        served.run(served.hub.create_stream("orders"))

        def append(*_: object, **__: object) -> asyncio.Future[Appended]:
            stored.append(asyncio.get_running_loop().create_future())
            return stored[-1]

        async def settle(index: int) -> None:
            stored[index].set_result(Appended(index, 1, False))

        def produce(size: int) -> None:
            with flight.connect(f"grpc://{served.address}") as client:
                try:
                    put(client, [payloads(b"x" * size)])
                except flight.FlightError as error:
                    errors.append(error)

        def received() -> int:
            return sum(each.details["batches_received"] for each in served.hub.sessions.list("flight"))

        monkeypatch.setattr(served.hub, "append", append)
        producers = [threading.Thread(target=produce, args=(size,)) for size in (100, 5000, 200)]
        producers[0].start()
        wait_until(lambda: len(stored) == 1, "the first is under way")
        producers[1].start()
        wait_until(lambda: received() == 2, "the second waits")
        producers[2].start()
        producers[1].join(60)
        error = decode_error(errors[0].extra_info)
        assert isinstance(error, Busy)
        assert "flight.puts_waiting_bytes_max" in str(error)
        assert "headrace_flight_puts_refused_total 1.0" in served.hub.metrics.text().decode()
        served.run(settle(0))
        wait_until(lambda: len(stored) == 2, "the third found room")
        served.run(settle(1))
        for producer in producers:
            producer.join(60)
        assert len(errors) == 1
