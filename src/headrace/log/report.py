"""What recovery and the doctor say of a log: findings, and the report that holds them."""

from __future__ import annotations

import msgspec


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    kind: str
    """`torn-tail` (never acknowledged), `damaged-records`, `lost-frames`, `damaged-snapshot`, `possible-loss`,
    `unreadable-row`."""
    text: str
    path: str = ""
    stream: str = ""
    partition: int = 0
    first: int = 0
    last: int = 0

    @property
    def is_damage(self) -> bool:
        return self.kind != "torn-tail"


class Report(msgspec.Struct):
    """What recovery found and did."""

    findings: list[Finding] = []
    frames: int = 0
    journal_records: int = 0
    segments: int = 0
    streams: int = 0

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    def note(self, kind: str, text: str, path: str = "") -> None:
        self.findings.append(Finding(kind, text, path))
