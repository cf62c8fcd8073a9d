"""A shop that is killed: `python immortal_shop.py HUB NAME [VERSION]`. What it does outside, it writes into the file
EFFECTS. Its two versions name their state differently: a program that comes after the other one changes the schema. Its
till has two classes, each the next version of the other: the hub upgrades it again and again."""

from __future__ import annotations

import os
import sys
import uuid

from headrace.immortals import EffectError, Immortal, Retry, immortal, method, query, run

SLEEP_S = 0.02
REMIND_S = 0.05
CARTS = 7
RETRY = Retry(attempts=40, first_s=0.01, longest_s=0.5)


def is_refused(number: int) -> bool:
    """Such an order fails after it was paid for, and the money has to go back."""
    return number % 5 == 4


def asks(number: int) -> bool:
    """Such an order waits for a word from outside."""
    return number % 7 == 3


def _note(what: str, number: int, said: str) -> None:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{what} {number} {said}\n")


def charge(number: int) -> str:
    """Says something else each time: what counts is what was logged."""
    if number % 3 == 0 and uuid.uuid4().int % 2:
        raise OSError("no connection")
    receipt = f"paid-{number}-{uuid.uuid4().hex[:8]}"
    _note("charge", number, receipt)
    return receipt


def refund(number: int, receipt: str) -> None:
    _note("refund", number, receipt)


def ship(number: int) -> str:
    if is_refused(number):
        raise ValueError("no such address")
    return "shipped"


class _Orders(Immortal):
    """What both versions do alike; `_reminders` is the attribute that has another name in each."""

    orders: list[int] = []
    receipts: dict[int, str] = {}
    refunded: list[int] = []
    early: list[str] = []
    open_tokens: dict[str, int] = {}

    def _reminders(self) -> list[int]:
        raise NotImplementedError

    @method
    async def order(self, number: int) -> str:
        self.orders.append(number)
        async with self.saga() as saga:
            receipt = await self.effect(charge, number, retry=RETRY)
            saga.undo(self.give_back, number, receipt)
            self.receipts[number] = receipt
            if asks(number):
                token = self.token(str)
                self.open_tokens[token.id] = number
                said = await token
                del self.open_tokens[token.id]
                receipt = f"{receipt} {said}"
            try:
                await self.effect(ship, number, retry=Retry(attempts=1))
            except EffectError as error:
                raise ValueError(f"refused after {receipt}: {error}") from None
        due = self.now().timestamp() + REMIND_S
        self.later(REMIND_S, self.remind, number, due)
        began = self.now().timestamp()
        await self.sleep(SLEEP_S)
        if self.now().timestamp() < began + SLEEP_S - 1e-3:
            self.early.append(f"sleep of {number}")
        await self.proxy(FirstTill, "till").enter(number)
        cart = self.proxy(Cart, "carts", key=f"customer-{number % CARTS}")
        return f"{receipt} {await cart.add(number)}"

    async def give_back(self, number: int, receipt: str) -> None:
        await self.effect(refund, number, receipt, retry=RETRY)
        self.refunded.append(number)

    @method
    def remind(self, number: int, due: float) -> None:
        if self.now().timestamp() < due - 1e-3:
            self.early.append(f"reminder of {number}")
        self._reminders().append(number)

    @query
    def counts(self) -> dict[str, int]:
        return {"orders": len(self.orders), "reminded": len(self._reminders())}

    @query
    def tokens(self) -> dict[str, int]:
        return self.open_tokens

    @query
    def books(self) -> dict[str, list[int]]:
        return {"orders": self.orders, "reminded": self._reminders(), "refunded": self.refunded}

    @query
    def paid(self) -> dict[int, str]:
        return self.receipts

    @query
    def too_early(self) -> list[str]:
        return self.early


@immortal(saved_as="Shop", renamed={"reminders": "reminded"})
class FirstShop(_Orders):
    reminded: list[int] = []

    def _reminders(self) -> list[int]:
        return self.reminded


@immortal(saved_as="Shop", renamed={"reminded": "reminders"})
class SecondShop(_Orders):
    reminders: list[int] = []

    def _reminders(self) -> list[int]:
        return self.reminders


@immortal(keyed=True)
class Cart(Immortal):
    numbers: list[int] = []

    @method
    async def add(self, number: int) -> int:
        await self.sleep(0.001)
        self.numbers.append(number)
        return len(self.numbers)

    @query
    def content(self) -> list[int]:
        return self.numbers


class _Till(Immortal):
    """Each upgrade has to find all that was there before, calls that wait and timers too."""

    entered: list[int] = []
    ticked: list[int] = []
    upgraded: int = 0

    def _next(self, new: _Till) -> Immortal:
        new.entered, new.ticked, new.upgraded = self.entered, self.ticked, self.upgraded + 1
        return new

    @method
    async def enter(self, number: int) -> int:
        self.later(REMIND_S, self.tick, number)
        await self.sleep(0.001)
        self.entered.append(number)
        return len(self.entered)

    @method
    def tick(self, number: int) -> None:
        self.ticked.append(number)

    @query
    def upgrades(self) -> int:
        return self.upgraded

    @query
    def entries(self) -> dict[str, list[int]]:
        return {"entered": self.entered, "ticked": self.ticked}


@immortal(saved_as="FirstTill")
class FirstTill(_Till):
    def upgrade(self) -> Immortal:
        return self._next(SecondTill())


@immortal(saved_as="SecondTill")
class SecondTill(_Till):
    def upgrade(self) -> Immortal:
        return self._next(FirstTill())


def main(hub: str, name: str, version: int = 1, checkpointer: bool = False) -> None:
    run(
        {"shop": (FirstShop, SecondShop)[version - 1], "carts": Cart, "till": FirstTill}[name],
        name,
        hub,
        quiet=True,
        checkpointer=checkpointer,
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
