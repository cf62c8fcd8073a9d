"""What a statement may be, and what it becomes."""

import duckdb
import pytest

from headrace.errors import BadSql
from headrace.sql import worker
from headrace.sql.statement import Statement
from headrace.sql.wire import Dialect

MEMORY = 64 << 20


@pytest.fixture(scope="module")
def connection():
    with worker.connect(MEMORY, 1) as opened:
        yield opened


REFUSED = {
    "CREATE TABLE x (a INT)": "single SELECT",
    "INSERT INTO orders VALUES (1)": "single SELECT",
    "DELETE FROM orders": "single SELECT",
    "COPY orders TO '/tmp/stolen'": "single SELECT",
    "COPY (SELECT 1) TO '/tmp/stolen'": "single SELECT",
    "ATTACH '/tmp/other.db'": "single SELECT",
    "INSTALL httpfs": "single SELECT",
    "LOAD httpfs": "single SELECT",
    "PRAGMA database_list": "single SELECT",
    "SET memory_limit = '100GB'": "single SELECT",
    "RESET memory_limit": "single SELECT",
    "CALL duckdb_settings()": "single SELECT",
    "EXPORT DATABASE '/tmp/stolen'": "single SELECT",
    "PREPARE p AS SELECT 1": "single SELECT",
    "EXECUTE p": "single SELECT",
    "EXPLAIN ANALYZE SELECT 1": "single SELECT",
    "CREATE SECRET s (TYPE s3)": "single SELECT",
    "CHECKPOINT": "single SELECT",
    "WITH x AS (COPY orders TO '/tmp/stolen') FROM x": "single SELECT",
    "WITH x AS (COPY (SELECT 1) TO '/tmp/stolen') FROM x": "single SELECT",
    "WITH x AS (INSERT INTO orders VALUES (1) RETURNING *) FROM x": "single SELECT",
    "WITH x AS (UPDATE orders SET a = 1 RETURNING *) FROM x": "single SELECT",
    "SELECT (WITH x AS (DELETE FROM orders RETURNING *) FROM x)": "single SELECT",
    "PIVOT orders ON partition USING count(*)": "single SELECT",
    "SELECT 1; SELECT 2": "single statement",
    "SELECT 1; DROP VIEW orders": "single SELECT",
    "": "single statement",
    "SELECT * FROM read_csv('/etc/passwd')": "read_csv",
    "SELECT * FROM read_csv_auto('/etc/passwd')": "read_csv_auto",
    "SELECT * FROM read_text('/etc/passwd')": "read_text",
    "SELECT * FROM read_blob('/etc/*')": "read_blob",
    "SELECT * FROM read_json('https://example.com/x')": "read_json",
    "SELECT * FROM read_parquet('s3://bucket/x')": "read_parquet",
    "SELECT * FROM parquet_scan('/x')": "parquet_scan",
    "SELECT * FROM glob('/etc/*')": "glob",
    "SELECT * FROM sniff_csv('/etc/passwd')": "sniff_csv",
    "SELECT * FROM duckdb_settings()": "duckdb_settings",
    "SELECT * FROM duckdb_secrets()": "duckdb_secrets",
    "SELECT * FROM pragma_database_list()": "pragma_database_list",
    "SELECT * FROM query('SELECT 1')": "query",
    "SELECT * FROM query_table('orders')": "query_table",
    "SELECT * FROM arrow_scan(1, 2, 3)": "arrow_scan",
    "SELECT * FROM python_map_function(1)": "python_map_function",
    "SELECT * FROM sqlite_scan('/x', 'y')": "sqlite_scan",
    "SELECT (SELECT count(*) FROM glob('/*'))": "glob",
    "SELECT * FROM orders WHERE EXISTS (FROM read_text('/etc/passwd'))": "read_text",
    "WITH x AS (FROM read_text('/etc/passwd')) FROM x": "read_text",
    "SELECT * FROM orders JOIN LATERAL (FROM glob('/*')) USING (a)": "glob",
    "SHOW TABLES": "cannot read the catalog",
    "SHOW DATABASES": "cannot read the catalog",
    "SELECT current_setting('home_directory')": "current_setting",
    "SELECT getenv('HOME')": "getenv",
    "SELECT system.main.current_setting('threads')": "current_setting",
    "SELECT 'threads'.current_setting()": "current_setting",
    "SELECT list_transform(['threads'], lambda x: current_setting(x))": "current_setting",
    "SELECT COLUMNS(c -> current_setting('threads') = '1') FROM orders": "current_setting",
    "SELECT json_serialize_plan('SELECT current_setting(''threads'')')": "json_serialize_plan",
    "SELECT write_log('x')": "write_log",
    "SELECT * FROM orders QUALIFY row_number() OVER (ORDER BY (SELECT 1 FROM glob('/*'))) = 1": "glob",
    "SELECT sum(a) OVER (ROWS BETWEEN (FROM glob('/*')) PRECEDING AND CURRENT ROW) FROM orders": "glob",
    "SELECT * FROM orders LIMIT (SELECT count(*) FROM glob('/*'))": "glob",
    "SELECT * REPLACE ((FROM glob('/*')) AS a) FROM orders": "glob",
    "SELECT * FROM (SHOW TABLES)": "cannot read the catalog",
    "DESCRIBE SELECT * FROM duckdb_settings()": "duckdb_settings",
    "SELECT * FROM information_schema.tables": '"information_schema.tables"',
    "SELECT * FROM memory.main.orders": "no schemas",
    "SELECT * FROM orders AT (VERSION => 1)": "AT",
    "SELECT * FROM orders, Orders": "differ only in case",
    "SELECT FROM WHERE": "syntax",
    "SELECT * FROM stream(": "stream",
}


@pytest.mark.parametrize("text", REFUSED, ids=lambda text: text[:40])
def test_what_is_no_query_is_refused_before_anything_is_run(connection, text):
    with pytest.raises((BadSql, duckdb.Error), match=REFUSED[text]):
        Statement(text, connection)


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("SELECT * FROM orders", ["orders"]),
        ("FROM orders LIMIT 3", ["orders"]),
        ("TABLE orders", ["orders"]),
        ('SELECT * FROM "orders.eu/north" o, "a b"', ["orders.eu/north", "a b"]),
        ("SELECT * FROM '/etc/passwd'", ["/etc/passwd"]),  # a name like any other: there is no such stream
        ("WITH c AS (FROM a) SELECT * FROM c, b", ["a", "b"]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) FROM t LIMIT 3", []),
        ("SELECT 1 WHERE EXISTS (FROM a) UNION SELECT max(i) FROM (FROM b)", ["a", "b"]),
        ("DESCRIBE orders", ["orders"]),
        ("SUMMARIZE orders", ["orders"]),
        ("SELECT * FROM unnest([1]), range(3), (VALUES (1)) v(x), generate_series(1, 2)", []),
    ],
)
def test_what_a_query_reads(connection, text, sources):
    assert sorted(Statement(text, connection).sources) == sorted(sources)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("SELECT ? - ?", 4),
        ("SELECT $2 - $1", -4),
        ("SELECT $1 - ?", 4),  # a `?` is the one after the highest so far
        ("SELECT $2 - $1 + 0 * $2", -4),
    ],
)
def test_parameters_are_taken_in_order_or_by_number(connection, text, value):
    assert connection.sql(Statement(text, connection).text, params=[5, 1]).fetchall() == [(value,)]


@pytest.mark.parametrize("text", ["SELECT $a + $1", "SELECT $a + ?"])
def test_parameters_with_names_do_not_mix_with_others(connection, text):
    with pytest.raises(BadSql, match="parameters"):
        Statement(text, connection)


PLAIN = Dialect(True, ("_key", "_val"))


@pytest.mark.parametrize(
    ("text", "becomes", "names"),
    [
        ('SELECT * FROM "a b".T', 'SELECT * FROM "a b.T" AS T', [["a b", "T"]]),
        ("SELECT S.T.C FROM S.T X", 'SELECT T.C FROM "S.T" AS X', [["S", "T"]]),
        ("SELECT value, stream('x'), CAST(key AS VARCHAR) FROM T", None, [["T"]]),
        ("WITH T AS (SELECT 1) SELECT * FROM T, S.T", None, [["S", "T"]]),
    ],
)
def test_a_plain_statement_may_have_schemas_and_means_nothing_else(connection, text, becomes, names):
    statement = Statement(text, connection, PLAIN)
    assert [each.names for each in statement.sources.values()] == names
    assert "headrace_utf8" not in statement.text
    if becomes is not None:
        assert statement.text == becomes


def test_a_hidden_column_is_there_for_those_who_name_it(connection):
    connection.execute('CREATE OR REPLACE TEMP VIEW "S.T" AS SELECT 1 AS A, 2 AS _KEY, 3 AS _VAL')
    assert Statement("SELECT * FROM S.T", connection, PLAIN).hides
    for text, row in (
        ("SELECT * FROM S.T WHERE _KEY = 2", (1,)),
        ("SELECT X.*, _VAL FROM S.T X", (1, 3)),
        ("SELECT * FROM (SELECT A AS B, _KEY AS K FROM S.T)", (1, 2)),
    ):
        statement = Statement(text, connection, PLAIN)
        assert not statement.hides
        assert connection.sql(statement.text).fetchall() == [row]


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("SELECT * FROM (WITH pg_settings AS (SELECT 1) FROM pg_settings), pg_settings", ["pg_settings"]),
        ("SELECT (WITH a AS (SELECT 1) FROM a), (SELECT count(*) FROM a)", ["a"]),
        ("WITH a AS (FROM b), b AS (FROM a) FROM b", ["b"]),
        ("WITH orders AS (FROM orders) FROM orders", ["orders"]),
        ("WITH a AS (SELECT 1), b AS (FROM a) SELECT * FROM b, (WITH c AS (FROM a) FROM c)", []),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) FROM t", []),
        ("FROM (WITH a AS (SELECT 1) FROM a) UNION ALL FROM a", ["a"]),
    ],
)
def test_a_name_means_what_a_with_says_only_inside_of_it(connection, text, sources):
    """Elsewhere it would mean DuckDB's own, such as its settings."""
    assert sorted(Statement(text, connection).sources) == sources


def test_names_of_ours_give_way_to_those_of_streams(connection):
    statement = Statement("SELECT * FROM \"stream 1\", stream('orders')", connection)
    assert {name: wanted.names for name, wanted in statement.sources.items()} == {
        "stream 1": ["stream 1"],
        "stream 1 ": ["orders"],
    }


def test_names_that_would_be_one_to_duckdb_are_refused(connection):
    for text in ('SELECT * FROM "a.b".C, a."b.C"', "SELECT * FROM s.t, S.T"):
        with pytest.raises(BadSql, match="differ only"):
            Statement(text, connection, PLAIN)


def test_stream_calls_are_sources_with_names_of_their_own(connection):
    statement = Statement("SELECT * FROM stream('a', start => 5) JOIN stream('A') USING (index)", connection)
    assert [(each.names, each.options) for each in statement.sources.values()] == [(["a"], {"start": "5"}), (["A"], {})]
    assert statement.text == 'SELECT * FROM "stream 1" JOIN "stream 2" USING (index)'


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("SELECT payload FROM a", False),
        ("SELECT 'value' FROM a", False),
        ("SELECT value FROM a", True),
        ("SELECT a.value.x FROM a", True),
        ("SELECT value.* FROM a", True),
        ("SELECT 1 FROM a ORDER BY VALUE.x", True),
    ],
)
def test_value_is_opened_when_it_is_asked_for(connection, text, opens):
    assert Statement(text, connection).opens is opens


def test_a_cast_of_bytes_to_text_means_utf8(connection):
    text = Statement("SELECT cast(payload AS string), a.key::text AS k, index::text FROM a", connection).text
    assert text.count("headrace_utf8(") == 2
    assert Statement("SELECT payload FROM a", connection).text == "SELECT payload FROM a"
    utf8 = connection.execute("SELECT headrace_utf8('\\xC3\\xA9'::BLOB), headrace_utf8('\\xFF'::BLOB)").fetchall()
    assert utf8 == [("é", None)]


def test_deep_nesting_is_an_error(connection):
    with pytest.raises((BadSql, duckdb.Error)):
        Statement("SELECT " + "(" * 20_000 + "1" + ")" * 20_000, connection)


BEHIND = [
    "COPY (SELECT 1) TO '/tmp/stolen'",
    "SELECT * FROM read_csv('/etc/passwd')",
    "SELECT * FROM read_text('/etc/passwd')",
    "SELECT * FROM read_blob('/etc/passwd')",
    "SELECT * FROM '/etc/passwd'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM read_json('http://127.0.0.1:1/x')",
    "SELECT * FROM read_parquet('s3://bucket/x')",
    "ATTACH '/tmp/other.db'",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '/tmp/evil.duckdb_extension'",
    "SET enable_external_access = true",
    "SET lock_configuration = false",
    "SET memory_limit = '100GB'",
    "SET threads = 100",
    "SET temp_directory = '/tmp'",
    "SET python_enable_replacements = true",
    "PRAGMA memory_limit = '100GB'",
    "EXPORT DATABASE '/tmp/stolen'",
    "IMPORT DATABASE '/tmp/stolen'",
    "SELECT getenv('HOME')",
    "SELECT * FROM secret_of_python",
]


@pytest.mark.parametrize("text", BEHIND)
def test_behind_the_check_stands_a_database_without_rights(connection, text):
    """The same attacks, past the check."""
    secret_of_python = duckdb.sql("SELECT 42")
    assert secret_of_python is not None
    with pytest.raises(duckdb.Error):
        connection.execute(text).fetchall()
