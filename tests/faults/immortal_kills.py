"""kill -9, again and again, of a hub, the programs of three immortals, their standbys and their checkpointers, while
calls, timers, effects with retries, sagas, tokens, keyed instances, upgrades by the hub and programs with another
schema are under way; then a judge looks at it from outside.

    PYTHONPATH=src:tests python tests/faults/immortal_kills.py [--kills 2000] [--minutes 600] [--seed 1]

Prints a line after every fifty kills, and in the end GOOD or what is wrong. `test_immortals_under_fire.py` is the short
form.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from faults import immortal_shop
from faults.immortal_shop import CARTS, asks, is_refused
from support.forked_hub import PRELOADED, ForkedHub
from support.until import wait_until

import headrace
from headrace.errors import HeadraceError, MethodRaised

CALLERS = 8
VICTIMS = {"hub": 20, "shop": 30, "carts": 20, "till": 20, "all programs": 5, "everything": 5}
"""Who is killed, and how often of a hundred times. One of an immortal's three programs, whichever."""
PROGRAMS, CHECKPOINTER = 3, 2
"""Two that serve or stand by, and one that takes the checkpoints."""
SETTINGS = (
    "log.journal_file_bytes=262144",
    "log.journal_bytes_max=1048576",
    "log.segment_bytes=131072",
    "log.maintenance_interval_s=0.5",
)
OPTIONS = {"clock": True, "standby": True, "delivery": "counted", "checkpoint_log_bytes": 4 << 10}
DEADLINE_S = 300.0
Program = Any


def _be(hub: str, name: str, version: int, folder: str, checkpointer: bool) -> None:
    """In the forked process."""
    os.environ["EFFECTS"] = f"{folder}/effects"
    descriptor = os.open(f"{folder}/{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    immortal_shop.main(hub, name, version, checkpointer)


class Fire:
    """The shop, its callers, and whoever kills."""

    def __init__(self, folder: Path, seed: int, say: Callable[[str], None] = print) -> None:
        self.folder = folder
        self.say = say
        self.random = random.Random(seed)
        self.random_pause = random.Random(seed)
        self.hub = ForkedHub(folder, *SETTINGS, only=("flight",))
        self.programs: dict[str, list[Program]] = {"shop": [], "carts": [], "till": []}
        self.upgrades = 0
        self.checkpoints: dict[tuple[int, int], int] = {}
        """Seen of each checkpointer, by its session's number and time."""
        self.answers: dict[int, str] = {}
        self.wrong: list[str] = []
        self.kills: Counter[str] = Counter()
        self.versions: Counter[int] = Counter()
        self._numbers = itertools.count()
        self._called: set[int] = set()
        self._over = threading.Event()

    # --- programs -----------------------------------------------------------------------------------------------

    def _start(self, name: str, place: int) -> Program:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, "faults.immortal_shop"])
        version = self.random.choice((1, 2)) if name == "shop" else 1
        self.versions[version] += name == "shop"
        process = context.Process(
            target=_be, args=(self.address, name, version, str(self.folder), place == CHECKPOINTER)
        )
        process.start()
        return process

    @property
    def address(self) -> str:
        return self.hub.addresses["flight"]

    def _kill(self, name: str, *, both: bool = False) -> None:
        programs = self.programs[name]
        for place in range(len(programs)) if both else (self.random.randrange(len(programs)),):
            if (code := programs[place].exitcode) is not None:
                self.wrong.append(f"a program of {name} ended by itself with {code}: see {name}.log")
            programs[place].kill()
            programs[place].join()
            programs[place] = self._start(name, place)

    def kill_one(self) -> None:
        """One kill, and a start behind it."""
        self.kill(self.random.choices(list(VICTIMS), list(VICTIMS.values()))[0])

    def kill(self, victim: str) -> None:
        if victim in ("hub", "everything"):
            self.hub.kill()
        if victim in ("all programs", "everything"):
            for name in self.programs:
                self._kill(name, both=True)
        elif victim in self.programs:
            self._kill(victim)
        if self.hub.process is None:
            self.hub.start()
        self.kills[victim] += 1

    # --- callers ------------------------------------------------------------------------------------------------

    def _order(self) -> None:
        with headrace.connect(self.address) as client:
            shop = client.immortal("shop")
            while not self._over.is_set():
                number = next(self._numbers)
                self._called.add(number)
                self.answers[number] = self._answer(shop, number)

    def _answer(self, shop: Any, number: int) -> str:
        """What is answered to an order. A hub that is away for long is asked again, with the same key."""
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                return str(shop.order(number=number, idempotency_key=f"k{number}"))
            except MethodRaised as error:
                return f"raised {error}"
            except HeadraceError as error:
                if time.monotonic() > end:
                    return f"no answer: {error!r}"
                time.sleep(0.1)

    def _fulfil(self) -> None:
        with headrace.connect(self.address) as client:
            shop = client.immortal("shop")
            while not self._over.is_set() or len(self.answers) < len(self._called):
                with contextlib.suppress(HeadraceError):
                    for token in shop.tokens():
                        with contextlib.suppress(MethodRaised):  # it was fulfilled by the call before, which was lost
                            shop.fulfil(token, "told")
                time.sleep(0.05)

    def _upgrade(self) -> None:
        """Have the till upgraded as soon as the upgrade before is done."""
        with headrace.connect(self.address) as client:
            till = client.immortal("till")
            while not self._over.is_set():
                time.sleep(self.random_pause.uniform(0, 1))
                with contextlib.suppress(HeadraceError):
                    self._look_at_checkpointers(client)
                    if till.upgrades() == self.upgrades:
                        self._ask_for_upgrade(client)

    def _ask_for_upgrade(self, client: headrace.Client) -> None:
        """A hub that dies meanwhile may have begun it or not: it is asked again for the same one."""
        self.upgrades += 1
        while True:
            with contextlib.suppress(HeadraceError):
                client.call(
                    "immortal.register", {"name": "till", "options": OPTIONS | {"upgrade_version": self.upgrades}}
                )
                return
            time.sleep(0.05)

    # --- the whole ----------------------------------------------------------------------------------------------

    def run(self, kills: int, minutes: float) -> list[str]:
        """What is wrong."""
        end = time.monotonic() + 60 * minutes
        self.hub.start()
        try:
            with headrace.connect(self.address) as client:
                for name in self.programs:
                    client.call("immortal.register", {"name": name, "options": OPTIONS})
            self.programs = {name: [self._start(name, place) for place in range(PROGRAMS)] for name in self.programs}
            threads = [threading.Thread(target=self._order, daemon=True) for _ in range(CALLERS)]
            threads += [threading.Thread(target=each, daemon=True) for each in (self._fulfil, self._upgrade)]
            for thread in threads:
                thread.start()
            for count in range(1, kills + 1):
                self._let_work()
                self.kill_one()
                if count % 50 == 0 or count == kills:
                    self.say(f"{count} kills, {len(self.answers)} orders answered, {len(self.wrong)} wrong")
                if time.monotonic() > end or self.wrong:
                    break
            self._over.set()
            for thread in threads:
                thread.join(DEADLINE_S)
                if thread.is_alive():
                    self.wrong.append("a caller still waits")
            return self.wrong + self._judge()
        finally:
            self.hub.kill()
            for program in itertools.chain(*self.programs.values()):
                program.kill()
                program.join()

    def _let_work(self) -> None:
        """Some orders are answered between most kills; now and then none is."""
        if self.random.random() < 0.3:
            time.sleep(self.random.uniform(0, 0.2))
            return
        wanted = len(self.answers) + self.random.randint(1, 6)
        wait_until(lambda: len(self.answers) >= wanted, f"{wanted} orders are answered", DEADLINE_S)

    def _judge(self) -> list[str]:
        """Everything exactly once, as those say who asked."""
        wrong: list[str] = []

        def expect(what: str, found: Any, expected: Any) -> None:
            if found != expected:
                extra = [each for each, count in (Counter(found) - Counter(expected)).items() for _ in range(count)]
                missing = list((Counter(expected) - Counter(found)).elements())
                wrong.append(f"{what}: too much {extra[:10]}, missing {missing[:10]}")

        every = sorted(self._called)
        good = [number for number in every if not is_refused(number)]
        expect("answers", sorted(self.answers), every)
        with headrace.connect(self.address) as client:
            shop = client.immortal("shop")
            wait_until(lambda: shop.counts()["reminded"] >= len(good), "all reminders came", DEADLINE_S)
            for name in self.programs:
                self._checkpoint(client, name)
            books, paid = shop.books(), {int(number): receipt for number, receipt in shop.paid().items()}
            expect("orders", sorted(books["orders"]), every)
            expect("reminders", sorted(books["reminded"]), good)
            expect("refunds", sorted(books["refunded"]), sorted(set(every) - set(good)))
            expect("too early", shop.too_early(), [])
            till = client.immortal("till")
            wait_until(lambda: till.upgrades() >= self.upgrades, "the last upgrade is done", DEADLINE_S)
            wait_until(lambda: len(till.entries()["ticked"]) >= len(good), "all timers of the till fired", DEADLINE_S)
            entries = till.entries()
            expect("upgrades", [till.upgrades()], [self.upgrades])
            expect("in the till", sorted(entries["entered"]), good)
            expect("timers of the till", sorted(entries["ticked"]), good)
            carts = [client.immortal("carts", key=f"customer-{each}").content() for each in range(CARTS)]
            for number in every[:: max(1, len(every) // 50)]:
                expect(f"order {number} asked again", [self._answer(shop, number)], [self.answers[number]])
        expect("in carts", sorted(itertools.chain(*carts)), good)
        for number in every:
            told = " told" if asks(number) else ""
            receipt = f"{paid.get(number)}{told}"
            if is_refused(number):
                expected = f"refused after {receipt}: "
                right = self.answers[number].startswith("raised") and expected in self.answers[number]
            else:
                place = carts[number % CARTS].index(number) + 1
                right = self.answers[number] == f"{receipt} {place}"
            if not right:
                wrong.append(f"order {number} was answered {self.answers[number]!r}, and {receipt!r} was paid")
        return wrong + self._judge_effects(every, paid)

    def _checkpoint(self, client: headrace.Client, name: str) -> None:
        """After all that, its checkpointer takes one."""

        def is_taken() -> bool:
            before = sum(self.checkpoints.values())
            with contextlib.suppress(HeadraceError):
                client.call("immortal.checkpoint", {"name": name})
            self._look_at_checkpointers(client)
            return sum(self.checkpoints.values()) > before

        wait_until(is_taken, f"the checkpointer of {name} takes a checkpoint", DEADLINE_S)

    def _look_at_checkpointers(self, client: headrace.Client) -> None:
        for session in client.call("session.list", {}):
            if str(session["details"].get("state")).startswith("following"):
                self.checkpoints[session["id"], session["opened_us"]] = session["details"]["checkpoints"]

    def _judge_effects(self, every: list[int], paid: dict[int, str]) -> list[str]:
        """What was done outside: at least once, and what was logged is one of it."""
        done: dict[tuple[str, int], set[str]] = {}
        for line in (self.folder / "effects").read_text().splitlines():
            what, number, said = line.split()
            done.setdefault((what, int(number)), set()).add(said)
        wrong = [f"{number} was never charged as logged" for number in every
                 if paid.get(number) not in done.get(("charge", number), ())]  # fmt: skip
        for number in every:
            refunds = done.get(("refund", number), set())
            if refunds != ({paid.get(number)} if is_refused(number) else set()):
                wrong.append(f"order {number} has the refunds {refunds}")
        return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=2_000)
    parser.add_argument("--minutes", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="Where everything is kept; a temporary one without it.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        fire = Fire(folder, arguments.seed, lambda text: print(text, flush=True))
        began = time.monotonic()
        wrong = fire.run(arguments.kills, arguments.minutes)
        tracebacks = sum(path.read_text(errors="replace").count("Traceback") for path in folder.glob("*.log"))
    kinds = ", ".join(f"{count} of {victim}" for victim, count in fire.kills.items())
    print(f"{fire.kills.total()} kills ({kinds}) in {time.monotonic() - began:.0f} s; {len(fire.answers)} orders")
    print(f"{sum(fire.checkpoints.values())} checkpoints were seen of {len(fire.checkpoints)} checkpointers")
    print(f"{fire.upgrades} upgrades; programs started per version {dict(fire.versions)}; tracebacks {tracebacks}")
    for each in wrong[:50]:
        print("WRONG", each)
    print("BAD" if wrong else "GOOD")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
