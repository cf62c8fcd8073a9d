from __future__ import annotations

import pytest

from headrace.errors import BadSql
from headrace.spark.errors import PipelineError
from headrace.spark.pipelines.definition import sql_pipeline
from headrace.sql.calls import replaced, stream_calls


def calls(text: str) -> list[tuple[list[str], dict[str, str]]]:
    return [(one.names, one.options) for one in stream_calls(text)]


def test_one_stream() -> None:
    assert calls("SELECT * FROM stream('orders') WHERE x = 1") == [(["orders"], {})]


def test_options_and_several() -> None:
    text = "SELECT * FROM stream('a', 'b', decode => 'json', schema => 'n INT') x JOIN STREAM ( 'c' , start=>5 ) y"
    assert calls(text) == [(["a", "b"], {"decode": "json", "schema": "n INT"}), (["c"], {"start": "5"})]


def test_strings_names_and_comments_are_left_alone() -> None:
    text = """SELECT 'stream(''x'')', "stream('x')", `stream('x')` -- stream('x')
    /* stream('x') */ FROM stream('real') WHERE mystream('x') = 1"""
    assert calls(text) == [(["real"], {})]


def test_quotes_in_names() -> None:
    assert calls("SELECT * FROM stream('o''brien')") == [(["o'brien"], {})]


@pytest.mark.parametrize("text", ["FROM stream(1 + 2)", "FROM stream(decode => 'json')", "FROM stream('a'"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(BadSql, match="stream"):
        calls(text)


def test_a_pipeline_must_read_something() -> None:
    with pytest.raises(PipelineError, match="reads no stream"):
        sql_pipeline("p", "SELECT 1", "out")
    assert sql_pipeline("p", "SELECT payload FROM stream('a')", "out").sources == {"sql": ("a",)}


def test_each_call_becomes_a_name() -> None:
    text = "SELECT * FROM stream('a') x JOIN stream('b', start => 3) y USING (index)"
    assert replaced(text, lambda call: call.names[0].upper()) == "SELECT * FROM A x JOIN B y USING (index)"
