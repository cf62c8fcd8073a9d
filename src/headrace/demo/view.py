"""What the demo shows: a table that moves on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from headrace.demo.flows import Flow
from headrace.log.ops import Bounds

LINES_EVERY_S = 2.0
LAST_WIDTH = 36
BEFORE = "before"
WORDS = ("stream", "in by", "read by")
NUMBERS = ("records", BEFORE, "records/s", "ack ms", "read", "lag")


class FlowRow(msgspec.Struct, frozen=True):
    """One stream at one moment. `stored` counts since the first start, `sent` and `read` since this one."""

    name: str
    stream: str
    writer: str
    reader: str
    first: int
    next: int
    stored_before: int
    sent: int
    read: int
    first_read: int | None
    rate: float
    ack_ms: float | None
    lag: int
    last: str
    error: str


class PipelineRow(msgspec.Struct, frozen=True):
    """The pipeline at one moment."""

    state: str
    batch: int = -1
    rows_per_s: float = 0.0
    batch_ms: float = 0.0
    lag: int = 0


class Frame(msgspec.Struct, frozen=True):
    """Everything that is shown at once."""

    console: str
    resumed: bool
    uptime_s: float
    flows: list[FlowRow]
    pipeline: PipelineRow


def flow_row(flow: Flow, bounds: Bounds, stored_before: int, rate: float, stored_lag: int) -> FlowRow:
    """A flow and where its stream stands; `stored_lag` counts until the reader has read something itself."""
    first, following = bounds
    lag = max(0, following - max(flow.position, first)) if flow.read else stored_lag
    own = {name: getattr(flow, name) for name in FlowRow.__struct_fields__ if hasattr(flow, name)}
    return FlowRow(**own, first=first, next=following, stored_before=stored_before, rate=rate, lag=lag)


def pipeline_row(state: str, known: Sequence[Mapping[str, Any]]) -> PipelineRow:
    """What the hub knows of the pipeline, or what its process says when the hub knows nothing yet."""
    for status in known:
        report = status["report"]
        if report is not None:
            return PipelineRow(
                status["state"], report["batch"], report["rows_per_s"], report["batch_ms"], report["lag"]
            )
    return PipelineRow(state)


def draw(frame: Frame) -> Group:
    """A frame as a table."""
    title = Text.assemble(("Headrace demo", "bold"), "   console: ", (frame.console, "cyan underline"))
    table = Table(expand=False, header_style="bold", pad_edge=False, box=box.SIMPLE_HEAD)
    rows = [_cells(row, frame.resumed) for row in frame.flows]
    headings = [*WORDS, *(heading for heading in NUMBERS if frame.resumed or heading != BEFORE)]
    for number, heading in enumerate(headings):
        # A number that is cut is a wrong number: what has to give way on a narrow terminal is what was read last.
        width = max(len(heading), *(len(cells[number]) for cells in rows))
        table.add_column(heading, justify="left" if heading in WORDS else "right", no_wrap=True, min_width=width)
    table.add_column("last read", no_wrap=True, max_width=LAST_WIDTH)
    for row, cells in zip(frame.flows, rows, strict=True):
        words = Text(row.error, style="red") if row.error and not row.read else Text(row.last)
        table.add_row(*cells, words)
    started = "continuing an earlier run" if frame.resumed else "first start"
    end = Text(f"up {frame.uptime_s:,.0f} s, {started}; Ctrl-C ends everything", style="dim")
    return Group(title, table, Text(pipeline_line(frame.pipeline)), end)


def _cells(row: FlowRow, resumed: bool) -> list[str]:
    """All columns but the last; how many there were before says something only to who comes back."""
    ack = "" if row.ack_ms is None else f"{row.ack_ms:,.1f}"
    before = [f"{row.stored_before:,}"] if resumed else []
    numbers = [f"{row.next:,}", *before, f"{row.rate:,.1f}", ack, f"{row.read:,}", f"{row.lag:,}"]
    return [row.stream, row.writer, row.reader, *numbers]


def pipeline_line(row: PipelineRow) -> str:
    """The pipeline in one line."""
    if row.batch < 0:
        under_way = ", its first batch is under way" if row.state == "running" else ""
        return f"pipeline window-counts: {row.state}{under_way}"
    speed = f"{row.rows_per_s:,.0f} records/s, {row.batch_ms:,.0f} ms per batch, lag {row.lag:,} records"
    return f"pipeline window-counts: {row.state}, batch {row.batch}, {speed}"


def flow_line(frame: Frame) -> str:
    """A frame in one line, for logs and pipes."""
    flows = "  ".join(f"{row.name} {row.next:,} ({row.rate:,.0f}/s, lag {row.lag:,})" for row in frame.flows)
    return f"{frame.uptime_s:5.0f} s  {flows}  {pipeline_line(frame.pipeline)}"


class View:
    """Where frames go. Use it with `with`."""

    def __init__(self, console: Console, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal and not quiet else None
        self._printed_s = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, text: str) -> None:
        """A line above the table."""
        if not self._quiet:
            self._console.print(Text(text), soft_wrap=True)

    def show(self, frame: Frame) -> None:
        """Draw anew, or print a line now and then."""
        if self._live is not None:
            self._live.update(draw(frame), refresh=True)
        elif time.monotonic() - self._printed_s >= LINES_EVERY_S:
            self._printed_s = time.monotonic()
            self.say(flow_line(frame))
