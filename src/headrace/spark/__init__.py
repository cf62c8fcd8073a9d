"""Spark built in: every stream a DataFrame, every result a stream, exactly once.

The names below are loaded on first use, so that the hub process, which needs only the staging area of the sink, never
imports PySpark.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_MODULE_OF = {
    "HeadraceDataSource": "source.data_source",
    "Pipeline": "pipelines.definition",
    "console": "pipelines.definition",
    "equip": "spark_session",
    "parquet": "pipelines.definition",
    "pipeline": "pipelines.definition",
    "read": "dataframes",
    "read_stream": "dataframes",
    "session": "spark_session",
    "sql": "query",
    "to_records": "dataframes",
}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
