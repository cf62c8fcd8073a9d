"""Two immortals that call each other, by numbers: a call that is lost, repeated or out of order shows at once.

ping, pong = players(calls=1000, window=4)
run(ping, name="ping", …)
run(pong, name="pong", …)
"""

from __future__ import annotations

from headrace.protocols.ambrosia.client import Immortal, fork, proxy_of


class Counting(Immortal):
    """Every number comes once, in order."""

    last: int = 0
    wrong: list[str]

    def __init__(self) -> None:
        self.wrong = []

    def count(self, number: int) -> None:
        if number != self.last + 1:
            self.wrong.append(f"{number} after {self.last}")
        self.last = number


def players(
    calls: int | None, window: int = 1, base: type[Counting] = Counting
) -> tuple[type[Counting], type[Counting]]:
    """The classes of `ping` and `pong`. They play so often, or without end, with so many calls on their way."""

    class Pong(base):  # type: ignore[misc, valid-type]
        @fork
        def ping(self, number: int) -> None:
            self.count(number)
            self.peer(proxy_of(Ping), "ping").pong(number)

    class Ping(base):  # type: ignore[misc, valid-type]
        def first_start(self) -> None:
            for number in range(1, window + 1):
                self.peer(proxy_of(Pong), "pong").ping(number)

        @fork
        def pong(self, number: int) -> None:
            self.count(number)
            if calls is None or number + window <= calls:
                self.peer(proxy_of(Pong), "pong").ping(number + window)

    return Ping, Pong
