"""JSON payloads into typed columns, a whole batch at a time, and the bad ones named one by one.

The payloads of a batch are joined into lines and handed to Arrow's JSON reader: no row becomes a Python object. The
reader refuses a block with any bad row in it, so a refused block is halved until the bad rows stand alone; good rows
around them are unharmed. A raw line break inside valid JSON can only be white space between tokens (strings must
escape it), so turning line breaks into blanks changes no valid document.
"""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

BAD_EMPTY = "the payload is empty"
BAD_COUNT = "the payload is not exactly one JSON object"
_REASON_CHARACTERS_MAX = 300
_LINE_BREAKS = r"[\r\n]"
_BLANKS = " \t\r\n"
_BEGINS_AN_OBJECT = r"^[ \t\r\n]*\{"


def decode_json(payload: pa.Array, fields: pa.Schema) -> tuple[pa.Array, pa.Array]:
    """(values, errors): a struct array with nulls for bad rows, and a string array with nulls for good ones."""
    struct = pa.struct(list(fields))
    count = len(payload)
    if count == 0:
        return pa.nulls(0, struct), pa.nulls(0, pa.string())
    text, utf8 = _as_text(payload)
    # Nothing else may reach Arrow's reader: a block that begins with `null` crashes it (seen in pyarrow 26.0.1), and a
    # payload that ends inside an object could go on in the next one, so that the rows between would be counted wrongly.
    begins = pc.match_substring_regex(text, _BEGINS_AN_OBJECT)
    ends = pc.ends_with(pc.ascii_rtrim(text, characters=_BLANKS), "}")
    hopeless = pc.fill_null(pc.invert(pc.and_(begins, ends)), True)
    flat = pc.replace_substring_regex(text, _LINE_BREAKS, " ")
    pieces: list[pa.Array] = []
    errors: list[pa.Array] = []
    _decode(flat, hopeless, utf8, fields, struct, pieces, errors)
    return _concat(pieces, struct), _concat(errors, pa.string())


def _as_text(payload: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The payloads as strings, null where they are not UTF-8, and which ones are."""
    try:
        text = payload.cast(pa.string())
        return text, pc.is_valid(text)
    except pa.ArrowInvalid:
        pass
    # Rare: find the rows that are not UTF-8 by decoding each. Only a batch that holds one pays for this.
    values = []
    for value in payload.to_pylist():
        try:
            values.append(None if value is None else value.decode())
        except UnicodeDecodeError:
            values.append(None)
    text = pa.array(values, pa.string())
    return text, pc.is_valid(text)


def _decode(
    text: pa.Array,
    hopeless: pa.Array,
    utf8: pa.Array,
    fields: pa.Schema,
    struct: pa.DataType,
    pieces: list[pa.Array],
    errors: list[pa.Array],
) -> None:
    count = len(text)
    reason = BAD_COUNT
    if not pc.any(hopeless).as_py():
        try:
            table = _parse(text, fields)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            table, reason = None, str(error)
        if table is not None and table.num_rows == count:
            missing = _missing(table, fields)
            present = pc.is_valid(missing)
            struct_array = pa.StructArray.from_arrays(_columns(table, fields), fields=list(fields), mask=present)
            pieces.append(struct_array)
            errors.append(missing)
            return
    if count == 1:
        if not utf8[0].as_py():
            reason = "the payload is not UTF-8"
        elif not text[0].as_py().strip():
            reason = BAD_EMPTY
        pieces.append(pa.nulls(1, struct))
        errors.append(pa.array([reason[:_REASON_CHARACTERS_MAX]], pa.string()))
        return
    half = count // 2
    for start, length in ((0, half), (half, count - half)):
        _decode(
            text.slice(start, length), hopeless.slice(start, length), utf8.slice(start, length),
            fields, struct, pieces, errors,
        )  # fmt: skip


def _missing(table: pa.Table, fields: pa.Schema) -> pa.Array:
    """By row, what is wrong when a field that must not be null is; null where nothing is."""
    found = pa.nulls(table.num_rows, pa.string())
    for field in fields:
        column = table.column(field.name)
        if not field.nullable and column.null_count:
            text = pa.scalar(f"field {field.name!r} is missing", pa.string())
            found = pc.if_else(pc.is_null(column).combine_chunks(), text, found)
    return found


def _parse(text: pa.Array, fields: pa.Schema) -> pa.Table:
    # Arrow would refuse the whole block for a field that is absent; `_missing` names the row and the field.
    relaxed = pa.schema([field.with_nullable(True) for field in fields])
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(text)], text), "\n")[0].as_buffer()
    return pj.read_json(
        io.BytesIO(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=relaxed, unexpected_field_behavior="ignore"),
    )


def _columns(table: pa.Table, fields: pa.Schema) -> list[pa.Array]:
    return [_concat(table.column(field.name).chunks, field.type) for field in fields]


def _concat(pieces: list[pa.Array], type_: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.nulls(0, type_)
