"""The Python data source, without Spark."""

from __future__ import annotations

import re
from importlib import metadata

from pyspark.sql.datasource import DataSourceReader

from headrace.spark.hub_client import access_to
from headrace.spark.options import parse_source
from headrace.spark.source.data_source import HeadraceDataSource, bound_source
from pyspark_headrace import DefaultSource

GIVEN = {"stream": "orders", "hub": "127.0.0.1:1"}


def takes_filters(source: type[HeadraceDataSource], **options: str) -> bool:
    """As Spark looks for it. In a session that was not set up for that, it refuses such a reader
    (DATA_SOURCE_PUSHDOWN_DISABLED)."""
    made = source(GIVEN | options)
    return type(made.reader(made.schema())).pushFilters is not DataSourceReader.pushFilters


def test_filters_are_taken_where_the_session_was_set_up_for_it() -> None:
    """One that Spark has found by itself works in any session."""
    bound = bound_source(access_to("127.0.0.1:1", None, None))
    assert not takes_filters(DefaultSource)
    assert takes_filters(DefaultSource, pushdown="true")
    assert takes_filters(bound)
    assert not takes_filters(bound, pushdown="false")
    assert parse_source(GIVEN).pushdown


def test_whoever_installs_this_for_spark_can_run_its_declarative_pipelines() -> None:
    """`pyspark[connect]` alone lacks PyYAML, and `spark-pipelines` ends when it is imported."""

    def names(package: str, extra: str) -> set[str]:
        wanted = [line for line in metadata.requires(package) or [] if re.search(rf"extra == ['\"]{extra}['\"]", line)]
        return {re.split(r"[^\w.-]", line.lower(), maxsplit=1)[0] for line in wanted}

    have = names("headrace", "spark") | names("pyspark", "connect")
    assert names("pyspark", "pipelines")
    assert names("pyspark", "pipelines") <= have
