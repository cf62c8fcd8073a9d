from __future__ import annotations

import pytest

from headrace.spark.errors import BadOption
from headrace.spark.options import Point, parse_point, parse_sink, parse_source


def test_defaults_of_a_source() -> None:
    options = parse_source({"stream": "orders"})
    assert options.streams == ("orders",)
    assert options.start == Point("earliest")
    assert options.end == Point("latest")
    assert options.fail_on_data_loss
    assert options.columns[-2:] == ("stream", "partition")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", Point("earliest")),
        ("latest", Point("latest")),
        ("17", Point("index", 17)),
        ("1970-01-01T00:00:01Z", Point("time", 1_000_000)),
        ("1970-01-01T01:00:00.000005+01:00", Point("time", 5)),
        ("1970-01-02", Point("time", 86_400_000_000)),
    ],
)
def test_points(text: str, expected: Point) -> None:
    assert parse_point("start", text) == expected


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({}, "stream"),
        ({"stream": " , "}, "stream"),
        ({"stream": "a", "start": "yesterday"}, "start"),
        ({"stream": "a", "start": "cursor"}, "start"),
        ({"stream": "a", "decode": "xml"}, "decode"),
        ({"stream": "a", "decode": "json"}, "schema"),
        ({"stream": "a", "columns": "index,nonsense"}, "columns"),
        ({"stream": "a", "columns": "index,index"}, "columns"),
        ({"stream": "a", "maxRecordsPerBatch": "0"}, "maxRecordsPerBatch"),
        ({"stream": "a", "partitions": "0,x"}, "partitions"),
        ({"stream": "a", "failOnDataLoss": "maybe"}, "failOnDataLoss"),
        ({"stream": "a", "hubWaitSeconds": "-1"}, "hubWaitSeconds"),
        ({"stream": "a", "hubWaitSeconds": "soon"}, "hubWaitSeconds"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_name(options: dict[str, str], option: str) -> None:
    with pytest.raises(BadOption, match=option):
        parse_source(options)


def test_json_adds_value_and_error() -> None:
    assert parse_source({"stream": "a", "decode": "json", "schema": "n INT"}).columns[-2:] == ("value", "error")


def test_a_sink_needs_a_stream_or_a_column() -> None:
    assert parse_sink({"stream": "a"}).stream == "a"
    assert parse_sink({"streamColumn": "to"}).stream_column == "to"
    for options in ({}, {"stream": "a", "streamColumn": "to"}):
        with pytest.raises(BadOption, match="stream"):
            parse_sink(options)
