"""Writes the Grafana dashboard from a list of panels.

python tools/dashboard.py examples/grafana-dashboard.json
"""

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple


class Panel(NamedTuple):
    """One graph. `queries` is legend → PromQL."""

    title: str
    unit: str
    queries: dict[str, str]
    about: str = ""


def quantile(share: float, histogram: str, by: str = "") -> str:
    """A quantile over five minutes."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({histogram}_bucket[5m])))"


ROWS: dict[str, list[Panel]] = {
    "Is it well?": [
        Panel("Log failed", "short", {"failed": "max(headrace_log_failed)"}, "1: nothing can be stored any more"),
        Panel("Room on the disk", "bytes", {"free": "min(headrace_log_free_bytes)"}),
        Panel("Furthest-behind cursor", "short", {"records": "max(headrace_cursor_lag_records_max)"}),
        Panel("Memory", "bytes", {"resident": "headrace_resident_memory_bytes", "tails": "headrace_log_tail_bytes"}),
    ],
    "The log": [
        Panel(
            "Records made durable",
            "cps",
            {
                "stored": "sum(rate(headrace_log_records_total[1m]))",
                "duplicates": "sum(rate(headrace_log_duplicates_total[1m]))",
            },
        ),
        Panel("Bytes made durable", "Bps", {"payload": "sum(rate(headrace_log_bytes_total[1m]))"}),
        Panel(
            "Append to durable",
            "s",
            {
                "p50": quantile(0.5, "headrace_log_commit_seconds"),
                "p99": quantile(0.99, "headrace_log_commit_seconds"),
            },
        ),
        Panel("Waiting for the disk", "bytes", {"backlog": "headrace_log_backlog_bytes"}),
        Panel("Refused", "cps", {"{{code}}": "sum by (code) (rate(headrace_log_refused_total[1m]))"}),
        Panel("Damaged records", "short", {"records": "headrace_log_damaged_records_total"}),
    ],
    "Protocols": [
        Panel("Sessions", "short", {"{{protocol}}": "sum by (protocol) (headrace_sessions)"}),
        Panel("Records in", "cps", {"{{protocol}}": "sum by (protocol) (rate(headrace_records_in_total[1m]))"}),
        Panel("Records out", "cps", {"{{protocol}}": "sum by (protocol) (rate(headrace_records_out_total[1m]))"}),
        Panel("Acknowledgement, p99", "s", {"{{protocol}}": quantile(0.99, "headrace_ack_seconds", "protocol")}),
        Panel(
            "Errors sent to peers",
            "cps",
            {"{{protocol}} {{code}}": "sum by (protocol, code) (rate(headrace_peer_errors_total[1m]))"},
        ),
        Panel(
            "Skipped: too big for the protocol",
            "cps",
            {"{{protocol}}": "sum by (protocol) (rate(headrace_records_skipped_total[1m]))"},
        ),
    ],
    "Administration": [
        Panel("Verbs, p99", "s", {"{{verb}}": quantile(0.99, "headrace_verb_seconds", "verb")}),
        Panel("Verbs refused", "cps", {"{{code}}": "sum by (code) (rate(headrace_verb_errors_total[1m]))"}),
        Panel(
            "Refused logins",
            "cps",
            {
                "{{protocol}}": "sum by (protocol) (rate(headrace_refused_logins_total[1m]))",
                "held back": "rate(headrace_logins_held_back_total[1m])",
            },
        ),
        Panel("Event loop lag", "s", {"lag": "headrace_loop_lag_seconds"}),
    ],
}
COLUMNS = 3
WIDTH = 24 // COLUMNS
HEIGHT = 7


def dashboard() -> dict[str, Any]:
    """The whole document."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in ROWS.items():
        position = {"x": 0, "y": top, "w": 24, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": row, "gridPos": position, "panels": []})
        top += 1
        for number, panel in enumerate(members):
            place = {"x": number % COLUMNS * WIDTH, "y": top + number // COLUMNS * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(graph(len(panels) + 1, panel, place))
        top += -(-len(members) // COLUMNS) * HEIGHT
    return {
        "title": "Headrace",
        "uid": "headrace",
        "tags": ["headrace"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [{"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}]
        },
        "panels": panels,
    }


def graph(id: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    """One time series panel."""
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "id": id,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "gridPos": place,
        "datasource": source,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": chr(ord("A") + number), "expr": query, "legendFormat": legend, "datasource": source}
            for number, (legend, query) in enumerate(panel.queries.items())
        ],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(dashboard(), indent=2) + "\n", encoding="utf-8")
