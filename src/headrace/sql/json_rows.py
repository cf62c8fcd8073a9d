"""Rows of a result as JSON."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import msgspec
import pyarrow as pa

_encoder = msgspec.json.Encoder(enc_hook=str)


def json_rows(batch: pa.RecordBatch) -> bytes:
    """JSON arrays with commas between. Bytes are `{"text": …}` where they are UTF-8 and `{"base64": …}` elsewhere,
    times are ISO 8601, decimals with a fraction are strings."""
    columns = [_values(column) for column in batch.columns]
    rows = list(zip(*columns, strict=True)) if columns else [()] * batch.num_rows
    return _encoder.encode(rows)[1:-1]


def _values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):  # a time that Python does not have
        values = column.cast(pa.string()).to_pylist()
    if pa.types.is_integer(column.type) or pa.types.is_string(column.type) or pa.types.is_floating(column.type):
        return values
    return [_plain(value) for value in values]


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return {"text": value.decode()}
        except UnicodeDecodeError:
            return {"base64": value}
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() and value.as_tuple().exponent == 0 else str(value)
    if value is None or isinstance(value, (str, int, float, datetime.datetime, datetime.date)):
        return value
    return str(value)
