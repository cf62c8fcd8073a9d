"""DataFrames from streams and back, for notebooks and pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, IntegralType, StringType, TimestampType

from headrace.log.columns import BYTES, INTEGER, OPTIONAL, TEXT, TIME
from headrace.spark.sink.rows import ACCEPTED

_TAKEN_TYPES = {BYTES: (StringType, BinaryType), TEXT: StringType, TIME: TimestampType, INTEGER: IntegralType}


def read(spark: Any, *streams: str, **options: Any) -> Any:
    """A bounded DataFrame of one or more streams. Options as in docs/spark.md; `_` or camel case are both fine."""
    return _load(spark.read, streams, options)


def read_stream(spark: Any, *streams: str, **options: Any) -> Any:
    """An unbounded DataFrame of one or more streams."""
    return _load(spark.readStream, streams, options)


def _load(reader: Any, streams: Sequence[str], options: Mapping[str, Any]) -> Any:
    return reader.format("headrace").option("stream", ",".join(streams)).options(**option_texts(options)).load()


def option_texts(options: Mapping[str, Any]) -> dict[str, str]:
    """Python values as the texts that Spark's options are; None means not given."""
    texts = {}
    for name, value in options.items():
        if value is None:
            continue
        words = name.split("_")
        camel = words[0] + "".join(word.capitalize() for word in words[1:])
        if isinstance(value, bool):
            texts[camel] = "true" if value else "false"
        elif isinstance(value, (list, tuple)):
            texts[camel] = ",".join(str(item) for item in value)
        else:
            texts[camel] = str(value)
    return texts


def to_records(df: Any) -> Any:
    """A DataFrame that the sink takes. One with a column `payload` is taken as it is, without what the source added.

    Any other becomes JSON: every column goes into the object, and columns named as those of a record (key, type,
    event_time, id) also become those, when their types allow.
    """
    names = df.columns
    if "payload" in names:
        return df.select(*(name for name in names if name in ACCEPTED))
    record = [F.to_json(F.struct(*(F.col(f"`{name}`") for name in names))).cast("binary").alias("payload")]
    types = {field.name: field.dataType for field in df.schema.fields}
    record += [
        F.col(column.name).cast(column.kind.sql).alias(column.name)
        for column in OPTIONAL
        if isinstance(types.get(column.name), _TAKEN_TYPES[column.kind])
    ]
    return df.select(*record)
