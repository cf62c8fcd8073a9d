"""What statements say, and how they are put to DuckDB."""

import pytest

from headrace.protocols.perper.errors import Refused
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.sql import kinds
from headrace.protocols.perper.sql.text import (
    ColumnDefinition,
    CreateTable,
    Delete,
    DropTable,
    Insert,
    Select,
    Update,
    Writer,
    parse,
    tokens,
)
from headrace.protocols.perper.sql.values import constant


def texts(words):
    return [word.text for word in words]


def test_words_leave_out_comments_and_the_last_semicolon():
    text = "SELECT a -- no ;\n, 'it''s', \"q\"\"q\", ? /* ? */, ?2, ?, 1.5e3, .5 FROM t;"
    words = ["SELECT", "a", "'it''s'", '"q""q"', "?1", "?2", "?3", "1.5e3", ".5", "FROM", "t"]
    assert [word for word in texts(tokens(text)) if word != ","] == words
    assert [word.word for word in tokens("abc \"aBc\" 'abc'")] == ["ABC", "aBc", "'abc'"]


@pytest.mark.parametrize("text", ["", "  -- nothing", ";", "SELECT 'open", 'SELECT "open', "SELECT 1; SELECT 2"])
def test_what_is_no_statement(text):
    with pytest.raises(Refused, match="Failed to parse query"):
        parse(text)


def test_insert():
    found = parse("insert into \"s\".t (a, b,) values (?, 1 + (2, 3)), ('x', f(a, b))")
    assert isinstance(found, Insert)
    assert (found.table, found.columns, found.replaces, found.select) == (("s", "T"), ["A", "B"], False, None)
    assert [[texts(cell) for cell in row] for row in found.rows] == [
        [["?1"], ["1", "+", "(", "2", ",", "3", ")"]],
        [["'x'"], ["f", "(", "a", ",", "b", ")"]],
    ]
    merged = parse("MERGE INTO t(a) KEY(a) SELECT 1")
    assert isinstance(merged, Insert)
    assert merged.replaces
    assert merged.select is not None
    assert texts(merged.select) == ["SELECT", "1"]
    assert parse("INSERT INTO t VALUES (1)").columns is None


def test_update_and_delete():
    found = parse("UPDATE t AS x SET x.a = b + 1, c = (SELECT d, e FROM f WHERE g) WHERE h = ?")
    assert isinstance(found, Update)
    assert (found.table, found.alias) == (("T",), "X")
    assert [(name, texts(words)) for name, words in found.values] == [
        ("A", ["b", "+", "1"]),
        ("C", ["(", "SELECT", "d", ",", "e", "FROM", "f", "WHERE", "g", ")"]),
    ]
    assert texts(found.rest) == ["WHERE", "h", "=", "?1"]
    plain = parse("UPDATE t SET a = 1")
    assert (plain.alias, list(plain.rest)) == (None, [])
    for text, alias, rest in (
        ("DELETE FROM t", None, []),
        ("DELETE FROM t x WHERE a", "X", ["WHERE", "a"]),
        ("DELETE FROM t WHERE a", None, ["WHERE", "a"]),
        ("DELETE FROM t LIMIT 1", None, ["LIMIT", "1"]),
    ):
        deleted = parse(text)
        assert isinstance(deleted, Delete)
        assert (deleted.alias, texts(deleted.rest)) == (alias, rest)


def test_create_and_drop():
    found = parse(
        'CREATE TABLE IF NOT EXISTS p.t (id INT(11) NOT NULL, "Name" CHARACTER VARYING(9) NULL, d DOUBLE PRECISION, '
        'n DECIMAL(9, 2) DEFAULT -1.5 NOT NULL, z INT DEFAULT NULL, CONSTRAINT c PRIMARY KEY (id, "Name"),) '
        'WITH "cache_name=Own, backups = 2,"'
    )
    assert isinstance(found, CreateTable)
    assert (found.table, found.if_not_exists, found.primary_key) == (("P", "T"), True, ["ID", "Name"])
    assert found.options == {"CACHE_NAME": "Own", "BACKUPS": "2"}
    assert found.columns[:3] == [
        ColumnDefinition("ID", "INT", 11, -1, True),
        ColumnDefinition("Name", "CHARACTER", 9),
        ColumnDefinition("D", "DOUBLE"),
    ]
    assert [texts(column.default or ()) for column in found.columns[3:]] == [["-", "1.5"], ["NULL"]]
    assert found.columns[3].not_null
    assert parse("CREATE TABLE t (a INT PRIMARY KEY, b INT) WITH template=replicated").options == {
        "TEMPLATE": "replicated"
    }
    for text, if_exists in (
        ("DROP TABLE t", False),
        ("DROP TABLE t IF EXISTS", True),
        ("DROP TABLE IF EXISTS t", True),
    ):
        assert parse(text) == DropTable(("T",), if_exists)


@pytest.mark.parametrize(
    "text",
    [
        "INSERT t VALUES (1)",
        "INSERT INTO t",
        "INSERT INTO t(a VALUES (1)",
        "INSERT INTO t VALUES (1",
        "INSERT INTO t VALUES (,)",
        "INSERT INTO t VALUES (1) (2)",
        "UPDATE t WHERE a",
        "UPDATE t SET a",
        "DELETE t",
        "CREATE VIEW v",
        "CREATE TABLE t (a)",
        'CREATE TABLE t (a INT PRIMARY KEY) WITH "backups"',
        "DROP INDEX i",
        "DROP TABLE 5",
        "BEGIN",
    ],
)
def test_what_is_misspelt_is_named(text):
    with pytest.raises(Refused, match="Failed to parse query"):
        parse(text)


def test_a_question_in_duckdbs_words():
    text = "select a, 'a', \"a\", X'0aFF', x from t where b = ? and c = ?1 and d in (?, ?)"
    statement = parse(text)
    assert isinstance(statement, Select)
    arguments = [kinds.parameter(each) for each in (encode_long(7), encode_string("s"), b"\x65", b"\x03\1\0\0\0")]
    writer = Writer(text, arguments)
    question = writer.question(writer.piece(statement.words))
    assert question.text == (
        "SELECT A, 'a', \"a\", unhex('0aFF'), X FROM T WHERE B = CAST($1 AS BIGINT) AND C = CAST($2 AS BIGINT) "
        "AND D IN ($3, CAST($4 AS INTEGER))"
    )
    assert question.parameters == [7, 7, None, 1]
    with pytest.raises(Refused, match=r"expected=3, given=1"):
        Writer(text, arguments[:1]).piece(statement.words)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("?", encode_long(5)),
        ("'it''s'", encode_string("it's")),
        ("-12", encode_long(-12)),
        ("NULL", b"\x65"),
        ("true", b"\x08\1"),
        ("FALSE", b"\x08\0"),
        ("1e3", kinds.write(kinds.DOUBLE, 1000.0)),
        ("1.50", b"\x1e" + (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"\x0f"),
        ("99999999999999999999", None),
        ("a", None),
        ("1 + 1", None),
        ("- a", None),
        ('"true"', None),
    ],
)
def test_constants(text, value):
    assert constant(tokens(text), [encode_long(5)]) == value
