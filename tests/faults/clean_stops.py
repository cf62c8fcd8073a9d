"""A hub that is told to stop, again and again, while Flight calls of every kind are under way.

    PYTHONPATH=src:tests python tests/faults/clean_stops.py [--stops 200]

gRPC frees what belongs to a call when the call ends, be it that its client has given up or that the server stops; a hub
that touches it later dies by a signal. Clients put, read, follow and ask without a pause, and some of their calls give
up after milliseconds. Each stop must end with code 0, and nothing that was acknowledged may be missing afterwards.
`test_clean_stops.py` is the short form.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess
from support.until import wait_until

STREAM = "stopped"
SHORT_S = 0.003
"""A call that gives up after this is often given up while the hub deals with it."""
BATCH = pa.record_batch({"payload": pa.array([b"x" * 100] * 20)})


def ask(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    list(client.do_action(flight.Action("stream.list", b"{}"), options))


def look(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    client.get_flight_info(flight.FlightDescriptor.for_path(STREAM), options)


def read(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    client.do_get(flight.Ticket(b'{"stream":"%b","limit":1000}' % STREAM.encode()), options).read_all()


def follow(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    reader = client.do_get(flight.Ticket(b'{"stream":"%b","follow":true}' % STREAM.encode()), options)
    for _ in range(50):
        reader.read_chunk()
    reader.cancel()


def put(client: flight.FlightClient, options: flight.FlightCallOptions) -> None:
    writer, answers = client.do_put(flight.FlightDescriptor.for_path(STREAM), BATCH.schema, options)
    with writer:
        for _ in range(10):
            writer.write_batch(BATCH)
            answers.read()


Call = Callable[[flight.FlightClient, flight.FlightCallOptions], None]
CALLS: dict[str, Call] = {call.__name__: call for call in (ask, look, read, follow, put)}
NO_HURRY, IN_A_HURRY = flight.FlightCallOptions(timeout=60), flight.FlightCallOptions(timeout=SHORT_S)


class Callers:
    """Threads that call the same hub, over all its lives."""

    def __init__(self, address: str) -> None:
        self._address = f"grpc://{address}"
        self._stopping, self._puts_stopping = threading.Event(), threading.Event()
        self.tried: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self._threads = {
            (name, hurry): threading.Thread(target=self._again, args=(name, hurry), daemon=True)
            for name in CALLS
            for hurry in (False, True)
        }

    def _again(self, name: str, hurry: bool) -> None:
        key = f"{name} in a hurry" if hurry else name
        stopping = self._puts_stopping if name == "put" else self._stopping
        while not stopping.is_set():
            with (
                contextlib.suppress(pa.ArrowException, flight.FlightError, OSError, StopIteration),
                flight.connect(self._address) as client,
            ):
                while not stopping.is_set():
                    self.tried[key] += 1
                    CALLS[name](client, IN_A_HURRY if hurry else NO_HURRY)
                    self.done[key] += 1
            stopping.wait(0.001)

    def __enter__(self) -> Callers:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Puts end last: those who follow wait for what is put."""
        for stopping, are_puts in ((self._stopping, False), (self._puts_stopping, True)):
            stopping.set()
            for (name, _), thread in self._threads.items():
                if (name == "put") is are_puts:
                    thread.join()

    def go_on(self) -> None:
        """Wait until each has tried, and each that is in no hurry has been answered."""
        tried, done = Counter(self.tried), Counter(self.done)
        wait_until(
            lambda: (
                all(self.tried[f"{name} in a hurry"] > tried[f"{name} in a hurry"] for name in CALLS)
                and all(self.done[name] > done[name] for name in CALLS)
            ),
            "all of them call",
        )


def run(folder: Path, stops: int, say: Callable[[str], None], *, forked: bool = True) -> Counter[int]:
    """How often the hub ended with which code."""
    hub = (ForkedHub if forked else HubProcess)(folder, only=("flight",))
    codes: Counter[int] = Counter()
    hub.start()
    try:
        with flight.connect(f"grpc://{hub.addresses['flight']}") as client:
            list(client.do_action(flight.Action("stream.create", b'{"stream":"%b"}' % STREAM.encode())))
        began = time.monotonic()
        with Callers(hub.addresses["flight"]) as callers:
            for number in range(1, stops + 1):
                callers.go_on()
                codes[hub.stop()] += 1
                if number % 10 == 0:
                    calls = callers.tried.total()
                    say(f"{number} stops in {time.monotonic() - began:.0f} s, {calls} calls, codes {dict(codes)}")
                hub.start()
        codes[hub.stop()] += 1
    finally:
        hub.kill()
    return codes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stops", type=int, default=200)
    parser.add_argument("--whole", action="store_true", help="processes of their own, not forked ones")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-stops-") as folder:
        codes = run(Path(folder), arguments.stops, lambda line: print(line, flush=True), forked=not arguments.whole)
        text = (Path(folder) / "hub.log").read_text(errors="replace")
        tracebacks = text.count("Traceback (most recent call last)")
    is_good = set(codes) == {0} and not tracebacks
    print(f"{'GOOD' if is_good else 'BAD'}: {codes.total()} stops, exit codes {dict(codes)}, {tracebacks} tracebacks")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
