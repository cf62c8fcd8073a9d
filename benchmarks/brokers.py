"""What benchmarks on Kafka share: a folder, brokers, and a word to whoever waits."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

if TYPE_CHECKING:
    from kafka_brokers import Brokers


def options(description: str | None, *, servers: bool = True) -> argparse.ArgumentParser:
    """What all of them ask for."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=None, help="where to write; needs some GB")
    if servers:
        parser.add_argument("--servers", default="", help="brokers that run already")
    else:
        parser.set_defaults(servers="")
    return parser


@contextmanager
def workplace(arguments: argparse.Namespace, extra: str = "") -> Iterator[tuple[Path, str, Brokers | None]]:
    """A folder, the address of brokers, and the brokers unless they run already: set as the guide says, with more lines
    of server.properties if need be. Without Kafka the program ends, and says why."""
    from test_programs import lacking

    if not arguments.servers and (line := lacking("kafka")):
        print(f"left out: {line}")
        sys.exit()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="headrace-bench-") as made:
        if arguments.servers:
            yield Path(made), arguments.servers, None
            return
        from kafka_brokers import ELECT_SOON, RUN_FAST, Brokers, fetch

        fetch()
        brokers = Brokers(Path(made) / "brokers", options=RUN_FAST, extra=ELECT_SOON + extra)
        try:
            brokers.start()
            yield Path(made), brokers.servers, brokers
        finally:
            brokers.stop()


def progress(what: str) -> None:
    """For whoever waits; what was measured comes in the end."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)
