"""What hubs load of the protocol in `ledger.py` at once. It is installed beside them as any package's would be."""

from __future__ import annotations

import os
from pathlib import Path

from headrace.config.sections import Section
from headrace.protocols.descriptor import ENTRY_POINTS, ListenerKind, Protocol


class Ledger(Section, frozen=True):
    """Transactions over every noun."""


PROTOCOL = Protocol(
    name="ledger",
    title="Transactions over every noun",
    authentication="none",
    settings=Ledger,
    listeners=(ListenerKind("ledger", "ledger", "Lines of text", "faults.ledger:serve", "127.0.0.1:0"),),
)


def install(site: Path) -> str:
    """What pip would leave of it in `site`; the path to run hubs with."""
    about = site / "headrace_ledger-1.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: headrace-ledger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\nledger = faults.ledger_protocol:PROTOCOL\n")
    tests = Path(__file__).parents[1]
    return os.pathsep.join([str(site), str(tests), str(tests.parent / "src")])
