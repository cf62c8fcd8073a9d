"""A hook of mkdocs: Mermaid's state diagrams become SVG while the documentation is built, by nothing but Python.

Each state is a column and each transition a row with an arrow from one to the other, so no layout has to be found and
no label hides another. What the hub draws of its state machines (`StateMachine.mermaid`) is all that is understood
here; GitHub draws the same blocks in its own way.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

COLUMN, ROW, TOP, MARGIN = 132, 34, 46, 16
LETTER = 6.7
"""About the width of a letter, in a sans serif of 12 pixels."""
ARROW = re.compile(r"^(\[\*\]|\w+) --> (\w+)(?:: (.*))?$")
ALIAS = re.compile(r'^state "(.*)" as (\w+)$')
NOTE = re.compile(r"^note right of (\w+): (.*)$")


@dataclass
class Diagram:
    """States by id with the name that is shown, arrows, and what may happen anywhere."""

    states: dict[str, str] = field(default_factory=dict)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    first: str = ""


def parse(source: str) -> Diagram:
    """Read the lines of a state diagram; anything else is an error, which fails the build."""
    first, *lines = [line.strip() for line in source.strip().splitlines()]
    if first != "stateDiagram-v2":
        raise ValueError(f"only state diagrams are drawn, not {first!r}: add an SVG to docs/images instead")
    diagram, names = Diagram(), {}
    for line in filter(None, lines):
        if found := ALIAS.match(line):
            names[found[2]] = found[1]
        elif found := NOTE.match(line):
            diagram.notes.append((found[1], found[2]))
        elif found := ARROW.match(line):
            before, after, label = found.groups()
            if before == "[*]":
                diagram.first = after
            else:
                diagram.arrows.append((before, after, label or ""))
        else:
            raise ValueError(f"a line of a state diagram that cannot be drawn: {line!r}")
    reached = [diagram.first, *(state for arrow in diagram.arrows for state in arrow[:2])]
    reached += [state for state, _ in diagram.notes]
    diagram.states = {state: names.get(state, state) for state in dict.fromkeys(filter(None, reached))}
    return diagram


def draw(diagram: Diagram) -> str:
    """The diagram as SVG, in the colours of the text around it."""
    columns = {state: MARGIN + COLUMN * number + COLUMN // 2 for number, state in enumerate(diagram.states)}
    rows = [*diagram.arrows, *(("", state, f"{text} (in any state)") for state, text in diagram.notes)]
    height = TOP + ROW * len(rows) + MARGIN
    parts = [_state(name, columns[state], height, state == diagram.first) for state, name in diagram.states.items()]
    right = MARGIN * 2 + COLUMN * len(columns)
    for number, (before, after, label) in enumerate(rows):
        row = TOP + ROW * (number + 1) - 6
        parts.append(_arrow(columns.get(before), columns[after], row, label))
        begins = min(columns.get(before, columns[after]), columns[after])
        right = max(right, int(begins + 12 + len(label) * LETTER) + MARGIN)
    described = html.escape(f"States: {', '.join(diagram.states.values())}")
    style = 'font-size="12" font-family="sans-serif" fill="none" stroke="currentColor" stroke-width="1"'
    return (
        f'<div class="diagram" style="overflow-x:auto"><svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{described}" width="{right}" height="{height}" viewBox="0 0 {right} {height}" {style}>'
        f"{''.join(parts)}</svg></div>"
    )


def _state(name: str, middle: int, height: int, is_first: bool) -> str:
    width = COLUMN - 14
    box = f'<rect x="{middle - width // 2}" y="8" width="{width}" height="26" rx="6"'
    line = f'<line x1="{middle}" y1="34" x2="{middle}" y2="{height - 8}" stroke-dasharray="2 4" opacity="0.5"/>'
    return f'{box} stroke-width="{2.5 if is_first else 1}"/>{line}{_text(middle, 25, name, "middle")}'


def _arrow(before: int | None, after: int, row: int, label: str) -> str:
    """From one column to another; a loop at one column; or, from anywhere, a short arrow into it."""
    if before == after:
        path = f"M{after} {row - 6} h14 v6 h-12"
        return f'<path d="{path}"/>{_head(after, row, -1)}{_text(after + 20, row - 1, label, "start")}'
    start = after - 30 if before is None else before
    way = 1 if after > start else -1
    line = f'<line x1="{start}" y1="{row}" x2="{after - 2 * way}" y2="{row}"/>'
    return f"{line}{_head(after, row, way)}{_text(min(start, after) + 8, row - 5, label, 'start')}"


def _head(x: int, y: int, way: int) -> str:
    return f'<path d="M{x - 7 * way} {y - 4} L{x} {y} L{x - 7 * way} {y + 4} z" fill="currentColor"/>'


def _text(x: int, y: int, words: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="currentColor" stroke="none">{html.escape(words)}</text>'


def fence(source: str, *_: Any, **__: Any) -> str:
    """What superfences puts in the place of a block."""
    return draw(parse(source))


def on_config(config: Any) -> Any:
    """Have superfences call us. (By name in mkdocs.yml it would have to find this module on the path.)"""
    fences = config["mdx_configs"].setdefault("pymdownx.superfences", {})
    fences["custom_fences"] = [{"name": "mermaid", "class": "diagram", "format": fence}]
    return config
