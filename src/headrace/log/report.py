"""What recovery and the doctor say of a log: findings, and the report that holds them."""

from __future__ import annotations

import msgspec

from headrace.errors import Damaged


class Finding(msgspec.Struct, frozen=True):
    """Something that is not as it was written."""

    kind: str
    """`torn-tail` (never acknowledged), `damaged-records`, `lost-frames`, `damaged-snapshot`, `possible-loss`,
    `unreadable-row`, `accepted-damage` (of a table, and served as it is left)."""
    text: str
    path: str = ""
    stream: str = ""
    partition: int = 0
    first: int = 0
    last: int = 0

    @property
    def is_damage(self) -> bool:
        return self.kind not in ("torn-tail", "accepted-damage")


class Report(msgspec.Struct):
    """What recovery found and did."""

    findings: list[Finding] = []
    unproven: str = ""
    """Why there may have been more than was found, which is so after every stop that was not clean; empty otherwise."""
    frames: int = 0
    journal_records: int = 0
    segments: int = 0
    streams: int = 0

    @property
    def damage(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_damage]

    def note(self, kind: str, text: str, path: str = "") -> None:
        self.findings.append(Finding(kind, text, path))

    def note_damage(self, damage: Damaged) -> None:
        """Records that cannot be read, unless that has been noted."""
        place = (damage.stream, damage.partition, damage.first, damage.last)
        if not any((one.stream, one.partition, one.first, one.last) == place for one in self.findings):
            self.findings.append(Finding("damaged-records", str(damage), damage.where, *place))

    def accept(self, stream: str, below: int) -> None:
        """What is damaged in a table below an index has been accepted."""
        self.findings = [
            msgspec.structs.replace(finding, kind="accepted-damage")
            if finding.kind == "damaged-records" and finding.stream == stream and finding.last < below
            else finding
            for finding in self.findings
        ]
