"""A shop that is killed: `python immortal_shop.py HUB`. What it does outside, it writes into the file EFFECTS."""

from __future__ import annotations

import os
import sys

from headrace.immortals import Immortal, Retry, immortal, method, query, run

HUB = sys.argv[1] if len(sys.argv) > 1 else ""


def charge(number: int) -> str:
    with open(os.environ["EFFECTS"], "a") as file:
        file.write(f"{number}\n")
    return f"paid-{number}"


class Shop(Immortal):
    orders: list[int] = []  # noqa: RUF012
    reminded: list[int] = []  # noqa: RUF012
    receipts: dict[int, str] = {}  # noqa: RUF012

    @method
    async def order(self, number: int) -> str:
        self.orders.append(number)
        receipt = await self.effect(charge, number, retry=Retry(attempts=3, first_s=0.01))
        self.receipts[number] = receipt
        self.later(0.05, self.remind, number)
        await self.sleep(0.02)
        cart = self.proxy(Cart, "carts", key=f"customer-{number % 7}")
        return f"{receipt} {await cart.add(number)}"

    @method
    def remind(self, number: int) -> None:
        self.reminded.append(number)

    @query
    def books(self) -> dict[str, list[int]]:
        return {"orders": self.orders, "reminded": self.reminded, "receipts": sorted(self.receipts)}


@immortal(keyed=True)
class Cart(Immortal):
    numbers: list[int] = []  # noqa: RUF012

    @method
    async def add(self, number: int) -> int:
        await self.sleep(0.001)
        self.numbers.append(number)
        return len(self.numbers)

    @query
    def content(self) -> list[int]:
        return self.numbers


if __name__ == "__main__":
    kind, name = {"shop": (Shop, "shop"), "carts": (Cart, "carts")}[sys.argv[2]]
    run(kind, name, HUB)
