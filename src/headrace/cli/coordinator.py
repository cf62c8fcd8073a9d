"""`ImmortalCoordinator`: for bindings that start their coordinator themselves, such as Node's in its integrated mode.

It has the name and the flags that they use, registers the instance with the hub, says on standard output what they wait
for, and stays until it is stopped or whoever started it is gone. The hub does the work; `HEADRACE_HUB` says where.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

from headrace.client import Client
from headrace.errors import HeadraceError, Unreachable
from headrace.protocols.ambrosia.verbs import ImmortalInfo
from headrace.units import MIB

SELF_CONNECTED: Final = ("Adding input:", "Adding output:", "restoring input:", "restoring output:")
"""A binding waits for four such lines: then calls to itself arrive."""
LOOK_S: Final = 1.0
UNREACHABLE_CODE: Final = 5


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "ImmortalCoordinator",
        description="Be the coordinator of one AMBROSIA instance; a Headrace hub (HEADRACE_HUB) does the work.",
        allow_abbrev=False,
    )
    parser.add_argument("-i", "--instanceName", required=True, help="the instance")
    parser.add_argument("-rp", "--rp", "--receivePort", type=int, default=0, help="port on which the hub receives")
    parser.add_argument("-sp", "--sp", "--sendPort", type=int, default=0, help="port on which the hub sends")
    parser.add_argument("-lts", "--lts", "--logTriggerSize", type=int, help="MB of log between two checkpoints")
    parser.add_argument("-aa", "--aa", "--activeActive", action="store_true", help="let a second binding stand by")
    parser.add_argument("-r", "--replicaNum", type=int, help="as --activeActive")
    for flags in (("-p", "--port"), ("-l", "--log"), ("-lst", "--lst", "--logStorageType"), ("-ip", "--ip", "--IPAddr"),
                  ("-an", "--an", "--assemblyName"), ("-ac", "--ac", "--assemblyClass")):  # fmt: skip
        parser.add_argument(*flags, help="accepted, and not needed here")
    return parser


def options_of(arguments: argparse.Namespace, known: ImmortalInfo | None) -> dict[str, Any]:
    """How the instance is to be registered. A port that is not given stays what it was."""
    receive = f"127.0.0.1:{arguments.rp}" if arguments.rp or known is None else known.receive
    send = f"127.0.0.1:{arguments.sp}" if arguments.sp or known is None else known.send
    options: dict[str, Any] = {"receive": receive, "send": send, "delivery": "counted"}
    if arguments.lts is not None:
        options["checkpoint_log_bytes"] = arguments.lts * MIB
    return options | {"standby": arguments.aa or arguments.replicaNum is not None}


def coordinate(argv: Sequence[str] | None = None) -> None:
    """Register, say so, and wait."""
    arguments = _parser().parse_args(argv)
    try:
        with Client() as client:
            known = {info.name: info for info in client.entries("immortal.list", {}, ImmortalInfo) if info.registered}
            options = options_of(arguments, known.get(arguments.instanceName))
            request = {"name": arguments.instanceName, "options": options}
            info = client.request("immortal.register", request, ImmortalInfo)
            where = client.address
    except HeadraceError as error:
        remedy = "; start a hub (`headrace up`), or say where it is in HEADRACE_HUB" if _is_away(error) else ""
        print(f"FATAL ERROR: {error}{remedy}", flush=True)
        raise SystemExit(UNREACHABLE_CODE if _is_away(error) else 1) from None
    stopped = _stopped()  # before it says that it is ready: whoever reads that may stop it
    print(*SELF_CONNECTED, sep="\n")
    print(
        f"Ready: the hub at {where} coordinates {info.name}: receives on {info.receive}, sends on {info.send}",
        flush=True,
    )
    parent = os.getppid()
    while not stopped.wait(LOOK_S) and os.getppid() == parent:
        pass


def _is_away(error: HeadraceError) -> bool:
    return isinstance(error, Unreachable)


def _stopped() -> threading.Event:
    """Set when a signal says so."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return stopped


def run() -> None:
    """The command. Nothing is left to do at the end, and a binding waits half a second for it, so it ends at once."""
    coordinate(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)
