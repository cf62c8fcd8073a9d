"""`stream('name', option => 'value', …)` in a SQL text, which stands for the records of a stream; for every engine."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from headrace.errors import BadSql

_SKIPPED = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|--[^\n]*|/\*.*?\*/", re.DOTALL)
"""What is no code to Spark, where a backslash escapes."""
_SKIPPED_BY_DUCKDB = re.compile(
    r"\be'(?:[^'\\]|\\.|'')*'|'[^']*'|\"[^\"]*\"|`[^`]*`|--[^\n]*|/\*.*?\*/|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$",
    re.DOTALL | re.IGNORECASE,
)
_CALL = re.compile(r"\bstream\s*\(", re.IGNORECASE)
_ARGUMENT = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_]\w*)\s*=>\s*)?(?:'(?P<text>(?:[^'\\]|\\.|'')*)'|(?P<word>[\w.]+))\s*(?P<end>[,)])"
)


@dataclass
class StreamCall:
    """One `stream(...)` of a text: where it stands and what it asks for."""

    start: int
    end: int
    names: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)


def stream_calls(text: str, skipping: re.Pattern[str] = _SKIPPED) -> Iterator[StreamCall]:
    """Every `stream(...)` outside of strings, quoted names and comments, in order."""
    position = 0
    while position < len(text):
        skipped, call = skipping.search(text, position), _CALL.search(text, position)
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
            raise BadSql(
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
        raise BadSql("stream() needs the name of a stream in quotes")
    return stream_call


def in_double_quotes(text: str) -> str:
    """A text for DuckDB with `names` quoted as Spark has it quoted as the standard has it."""
    return _SKIPPED_BY_DUCKDB.sub(lambda found: _requoted(found[0]), text)


def _requoted(word: str) -> str:
    return '"' + word[1:-1].replace('"', '""') + '"' if word.startswith("`") else word


def replaced(text: str, name_of: Callable[[StreamCall], str], *, for_duckdb: bool = False) -> str:
    """The text with each `stream(...)` replaced by the name of what stands for it."""
    pieces = []
    position = 0
    for call in stream_calls(text, _SKIPPED_BY_DUCKDB if for_duckdb else _SKIPPED):
        pieces += [text[position : call.start], name_of(call)]
        position = call.end
    return "".join([*pieces, text[position:]])
