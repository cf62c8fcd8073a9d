"""JSON payloads into typed columns, a whole batch at a time, and the bad ones named one by one.

The payloads of a batch are joined into lines and handed to Arrow's JSON reader: no row becomes a Python object. The
reader refuses a block with any bad row in it, so a refused block is halved until the bad rows stand alone; good rows
around them are unharmed. A raw line break inside valid JSON can only be white space between tokens (strings must
escape it), so turning line breaks into blanks changes no valid document.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

_REASON_CHARACTERS_MAX = 300
_LINE_BREAKS = r"[\r\n]"
_BLANKS = " \t\r\n"
_BEGINS_AN_OBJECT = r"^[ \t\r\n]*\{"


def decode_json(payload: pa.Array, fields: pa.Schema) -> tuple[pa.Array, pa.Array]:
    """(values, errors): a struct array with nulls for bad rows, and a string array with nulls for good ones."""
    text = _as_text(payload)
    # Nothing else may reach Arrow's reader: a block that begins with `null` crashes it (seen in pyarrow 26.0.1), and a
    # payload that ends inside an object could go on in the next one, so that the rows between would be counted wrongly.
    begins = pc.match_substring_regex(text, _BEGINS_AN_OBJECT)
    ends = pc.ends_with(pc.ascii_rtrim(text, characters=_BLANKS), "}")
    hopeless = pc.fill_null(pc.invert(pc.and_(begins, ends)), True)
    flat = pc.replace_substring_regex(text, _LINE_BREAKS, " ")
    values, errors = zip(*_decode(flat, hopeless, fields), strict=True) if len(flat) else ((), ())
    return _concat(values, pa.struct(list(fields))), _concat(errors, pa.string())


def _as_text(payload: pa.Array) -> pa.Array:
    """The payloads as strings, null where they are not UTF-8."""
    try:
        return payload.cast(pa.string())
    except pa.ArrowInvalid:
        # Rare: find the rows that are not UTF-8 by decoding each. Only a batch that holds one pays for this.
        return pa.array([_utf8(value) for value in payload.to_pylist()], pa.string())


def _utf8(value: bytes | None) -> str | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _decode(text: pa.Array, hopeless: pa.Array, fields: pa.Schema) -> Iterator[tuple[pa.Array, pa.Array]]:
    count = len(text)
    reason = "the payload is not exactly one JSON object"
    if not pc.any(hopeless).as_py():
        try:
            table = _parse(text, fields)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            table, reason = None, str(error)
        if table is not None and table.num_rows == count:
            missing = _missing(table, fields)
            columns = [_concat(table.column(field.name).chunks, field.type) for field in fields]
            yield pa.StructArray.from_arrays(columns, fields=list(fields), mask=pc.is_valid(missing)), missing
            return
    if count > 1:
        half = count // 2
        yield from _decode(text[:half], hopeless[:half], fields)
        yield from _decode(text[half:], hopeless[half:], fields)
        return
    if not text[0].is_valid:
        reason = "the payload is not UTF-8"
    elif not text[0].as_py().strip():
        reason = "the payload is empty"
    yield pa.nulls(1, pa.struct(list(fields))), pa.array([reason[:_REASON_CHARACTERS_MAX]], pa.string())


def _missing(table: pa.Table, fields: pa.Schema) -> pa.Array:
    """By row, what is wrong when a field that must not be null is; null where nothing is."""
    errors = pa.nulls(table.num_rows, pa.string())
    for field in fields:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            text = pa.scalar(f"field {field.name!r} is missing", pa.string())
            errors = pc.if_else(pc.is_null(column).combine_chunks(), text, errors)
    return errors


def _parse(text: pa.Array, fields: pa.Schema) -> pa.Table:
    # Arrow would refuse the whole block for a field that is absent; `_missing` names the row and the field.
    relaxed = pa.schema([field.with_nullable(True) for field in fields])
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
    return pj.read_json(
        io.BytesIO(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=relaxed, unexpected_field_behavior="ignore"),
    )


def _concat(pieces: Sequence[pa.Array], type_: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, type_)
