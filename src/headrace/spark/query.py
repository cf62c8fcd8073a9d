"""SQL over streams: `SELECT type, count(*) FROM stream('orders') GROUP BY type`.

`stream('name', option => 'value', …)` stands for the DataFrame of that stream with those options of the source. Each
use is replaced by the name of a temporary view; everything else is Spark's own SQL.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace.spark.dataframes import option_texts, read
from headrace.spark.errors import PipelineError
from headrace.spark.spark_session import session

_SKIPPED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
_CALL = re.compile(r"\bstream\s*\(", re.IGNORECASE)
_ARGUMENT = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=>\s*)?(?:'(?P<text>(?:[^'\\]|\\.|'')*)'|(?P<word>[\w.]+))\s*(?P<end>[,)])"
)
_numbers = itertools.count(1)


@dataclass
class StreamCall:
    """One `stream(...)` of a text: where it stands and what it asks for."""

    start: int
    end: int
    names: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


def stream_calls(text: str) -> Iterator[StreamCall]:
    """Every `stream(...)` outside of strings, quoted names and comments, in order."""
    position = 0
    while position < len(text):
        skipped, call = _SKIPPED.search(text, position), _CALL.search(text, position)
        if call is None:
            return
        if skipped is not None and skipped.start() < call.start():
            position = skipped.end()
            continue
        yield (stream_call := _arguments(text, call))
        position = stream_call.end


def _arguments(text: str, call: re.Match[str]) -> StreamCall:
    stream_call = StreamCall(call.start(), call.end())
    while True:
        argument = _ARGUMENT.match(text, stream_call.end)
        if argument is None:
            near = text[call.start() : stream_call.end + 20]
            raise PipelineError(
                f"cannot read the arguments of stream(...) near {near!r}: give the name in quotes, then options as "
                "name => 'value'"
            )
        quoted = argument["text"]
        value = argument["word"] if quoted is None else quoted.replace("''", "'")
        if argument["name"] is None:
            stream_call.names.append(value)
        else:
            stream_call.options[argument["name"]] = value
        stream_call.end = argument.end()
        if argument["end"] == ")":
            break
    if not stream_call.names:
        raise PipelineError("stream() needs the name of a stream in quotes")
    return stream_call


Load = Callable[..., Any]
"""`load(*streams, **options)` is the DataFrame of streams with options of the source."""


def bind(spark: Any, text: str, load: Load | None = None, **options: Any) -> Any:
    """The DataFrame of a SQL text. Each `stream(...)` stands for what `load` makes of it, or else for a bounded read;
    `options` hold for all of them."""
    load = load or partial(read, spark)
    pieces = []
    position = 0
    for call in stream_calls(text):
        frame = load(*call.names, **option_texts(options) | option_texts(call.options))
        view = f"headrace_stream_{next(_numbers)}"
        frame.createOrReplaceTempView(view)
        pieces += [text[position : call.start], view]
        position = call.end
    return spark.sql("".join([*pieces, text[position:]]))


def sql(text: str, spark: Any = None, **options: Any) -> Any:
    """An answer now: the DataFrame of a SQL text over streams, bounded."""
    return bind(spark or session(), text, **options)
