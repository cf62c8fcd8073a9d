"""SQL over streams: `SELECT type, count(*) FROM stream('orders') GROUP BY type`.

`stream('name', option => 'value', …)` stands for the DataFrame of that stream with those options of the source. Each
use is replaced by the name of a temporary view; everything else is Spark's own SQL.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

from headrace.spark.dataframes import option_texts, read
from headrace.spark.spark_session import session
from headrace.sql.calls import StreamCall, replaced

_numbers = itertools.count(1)

Load = Callable[..., Any]
"""`load(*streams, **options)` is the DataFrame of streams with options of the source."""


def bind(spark: Any, text: str, load: Load | None = None, **options: Any) -> Any:
    """The DataFrame of a SQL text. Each `stream(...)` stands for what `load` makes of it, or else for a bounded read;
    `options` hold for all of them."""
    load = load or partial(read, spark)

    def view(call: StreamCall) -> str:
        frame = load(*call.names, **option_texts(options) | option_texts(call.options))
        name = f"headrace_stream_{next(_numbers)}"
        frame.createOrReplaceTempView(name)
        return name

    return spark.sql(replaced(text, view))


def sql(text: str, spark: Any = None, **options: Any) -> Any:
    """An answer now: the DataFrame of a SQL text over streams, bounded."""
    return bind(spark or session(), text, **options)
