"""pyignite 0.6.1, unmodified, asks in SQL: tables of CREATE TABLE, and caches with query entities."""

from __future__ import annotations

import asyncio
import datetime
import decimal
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest
from pyignite import AioClient, Client, GenericObjectMeta
from pyignite.datatypes import IntObject, LongObject, String, TimestampObject
from pyignite.datatypes.expiry_policy import ExpiryPolicy
from pyignite.datatypes.prop_codes import PROP_EXPIRY_POLICY, PROP_NAME, PROP_QUERY_ENTITIES, PROP_SQL_SCHEMA
from pyignite.exceptions import CacheError, SQLError
from support.perper_agents import HubThread
from support.until import wait_until

from headrace.config import Config, Grant, SecuritySection, User
from headrace.config.sections import Log, Sql


class Fruit(
    metaclass=GenericObjectMeta,
    type_name="Fruit",
    schema=OrderedDict([("name", String), ("weight", IntObject), ("note", String)]),
):
    pass


FRUIT_ENTITY = {
    "table_name": None,
    "key_field_name": None,
    "key_type_name": None,
    "value_type_name": "Fruit",
    "value_field_name": None,
    "field_name_aliases": [],
    "query_indexes": [],
    "query_fields": [
        {"name": "name", "type_name": "java.lang.String"},
        {"name": "weight", "type_name": "java.lang.Integer"},
    ],
}


@pytest.fixture(scope="module")
def shared() -> Iterator[HubThread]:
    with HubThread(Config(sql=Sql(memory_bytes=128 << 20, threads=1))) as hub:
        yield hub


@pytest.fixture
def client(shared: HubThread) -> Iterator[Client]:
    client = Client()
    with client.connect("127.0.0.1", shared.ignite_port):
        yield client


def rows(client: Client, text: str, *arguments: Any, **options: Any) -> list[list[Any]]:
    with client.sql(text, query_args=list(arguments), **options) as cursor:
        return [list(row) for row in cursor]


def count(client: Client, text: str, *arguments: Any) -> int:
    ((number,),) = rows(client, text, *arguments)
    return int(number)


@pytest.fixture
def pears(client: Client) -> Iterator[str]:
    """A table with five rows."""
    name = f"Pears{uuid.uuid4().hex[:8]}"
    client.sql(f"CREATE TABLE {name} (id INT(11) PRIMARY KEY, kind CHAR(24), weight BIGINT DEFAULT 7, ripe BOOLEAN)")
    for number in range(5):
        added = count(
            client, f"INSERT INTO {name}(id, kind, weight) VALUES (?, ?, ?)", number, f"k{number}", number * 2
        )
        assert added == 1
    yield name
    client.sql(f"DROP TABLE {name} IF EXISTS")


def test_a_table_is_created_filled_asked_and_dropped(client: Client, pears: str) -> None:
    found = rows(client, f"SELECT id, kind, weight FROM {pears} ORDER BY ID", include_field_names=True)
    assert found[0] == ["ID", "KIND", "WEIGHT"]
    assert found[1:] == [[n, f"k{n}", n * 2] for n in range(5)]
    assert rows(client, f"select * from {pears} where weight > ? and kind <> ? order by weight desc", 3, "k3") == [
        [4, "k4", 8, None],
        [2, "k2", 4, None],
    ]
    assert rows(client, f"SELECT count(*), sum(weight) FROM {pears}", include_field_names=True) == [
        ["COUNT(*)", "SUM(WEIGHT)"],
        [5, 20],
    ]
    client.sql(f"DROP TABLE {pears}")
    with pytest.raises(SQLError, match=f'Table "{pears.upper()}" not found'):
        client.sql(f"SELECT * FROM {pears}")
    with pytest.raises(SQLError, match=f"Table doesn't exist: {pears.upper()}"):
        client.sql(f"DROP TABLE {pears}")
    client.sql(f"DROP TABLE IF EXISTS {pears}")


@pytest.mark.parametrize("page_size", [1, 2, 1024])
def test_answers_come_in_pages(client: Client, pears: str, page_size: int) -> None:
    assert rows(client, f"SELECT id FROM {pears} ORDER BY id", page_size=page_size) == [[n] for n in range(5)]
    with client.sql(f"SELECT id FROM {pears} ORDER BY id", page_size=1) as cursor:
        assert next(cursor) == [0]  # and the rest is closed
    assert rows(client, f"SELECT id FROM {pears}", max_rows=2, page_size=page_size) == [[0], [1]]


def test_a_result_larger_than_what_is_kept_waits_in_its_process(client: Client) -> None:
    wide = "SELECT range AS n, repeat('x', 500) FROM range(20000)"
    with client.sql(wide, page_size=4000) as cursor:
        assert [row[0] for row in cursor] == list(range(20000))
    with client.sql(wide, page_size=10) as cursor:
        assert next(cursor)[0] == 0
    assert rows(client, "SELECT 1") == [[1]]


@pytest.mark.filterwarnings("ignore:Deprecated since")
def test_the_cache_behind_a_table_has_its_rows_as_objects(client: Client, pears: str) -> None:
    cache = client.get_cache(f"SQL_PUBLIC_{pears.upper()}")
    assert cache.get(3, key_hint=IntObject).KIND == "k3"
    with cache.select_row("ORDER BY ID DESC LIMIT 2", page_size=1) as cursor:
        assert [(key, value.WEIGHT) for key, value in cursor] == [(4, 8), (3, 6)]
    with cache.select_row("weight = ?", query_args=[4]) as cursor:
        assert [key for key, _ in cursor] == [2]
    with cache.select_row(f"SELECT p.* FROM {pears} p WHERE p.id = 1") as cursor:
        assert [key for key, _ in cursor] == [1]
    with pytest.raises(SQLError, match="Only queries starting with"):
        cache.select_row("SELECT id FROM somewhere")


def test_rows_are_changed(client: Client, pears: str) -> None:
    assert count(client, f"UPDATE {pears} SET weight = weight * 10 + ?, ripe = TRUE WHERE id >= ?", 1, 3) == 2
    assert rows(client, f"SELECT id, weight, ripe FROM {pears} WHERE ripe ORDER BY id") == [
        [3, 61, True],
        [4, 81, True],
    ]
    assert count(client, f"UPDATE {pears} p SET p.kind = 'none' WHERE p.id = 100") == 0
    assert count(client, f"DELETE FROM {pears} WHERE id < 2") == 2
    assert count(client, f"SELECT count(*) FROM {pears}") == 3
    assert count(client, f"MERGE INTO {pears}(id, kind) VALUES (3, 'new'), (9, upper('abc'))") == 2
    assert rows(client, f"SELECT id, kind, weight FROM {pears} WHERE id IN (3, 9) ORDER BY 1") == [
        [3, "new", 7],  # all of it is replaced: the weight is the default's
        [9, "ABC", 7],
    ]
    assert count(client, f"INSERT INTO {pears}(id, kind) SELECT id + 100, kind || '!' FROM {pears} WHERE id = 9") == 1
    assert rows(client, f"SELECT kind FROM {pears} WHERE id = 109") == [["ABC!"]]
    assert count(client, f"DELETE FROM {pears}") == 5
    assert rows(client, f"SELECT * FROM {pears}") == []


def test_a_key_is_inserted_once_and_all_rows_or_none(client: Client, pears: str) -> None:
    with pytest.raises(SQLError, match=r"Duplicate key during INSERT \[key=3\]"):
        client.sql(f"INSERT INTO {pears}(id, kind) VALUES (77, 'x'), (3, 'y')")
    with pytest.raises(SQLError, match=r"already in cache \[keys=\[3, 4\]\]"):
        client.sql(f"INSERT INTO {pears}(id, kind) VALUES (3, 'x'), (4, 'y')")
    with pytest.raises(SQLError, match=r"Duplicate key"):
        client.sql(f"INSERT INTO {pears}(id, kind) VALUES (78, 'x'), (78, 'y')")
    assert count(client, f"SELECT count(*) FROM {pears}") == 5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("INSERT INTO {t}(kind) VALUES ('x')", "Null value is not allowed for column 'ID'"),
        (
            "INSERT INTO {t}(id, kind) VALUES (50, '" + "x" * 25 + "')",
            "too long. Maximum length: 24, actual length: 25",
        ),
        ("INSERT INTO {t}(id) VALUES (1, 2)", "Column count does not match"),
        ("INSERT INTO {t}(id, size) VALUES (1, 2)", 'Column "SIZE" not found'),
        ("INSERT INTO {t}(id, weight) VALUES (?, 2)", "Invalid number of query parameters"),
        ("INSERT INTO {t}(id, kind) VALUES (50, 3 +)", "Failed to parse query"),
        ("INSERT INTO {t}(id, weight) VALUES (5000000000, 1)", "Failed to parse query"),
        ("UPDATE {t} SET id = 5", "can't modify key"),
        ("SELECT FROM", "Failed to parse query"),
        ("SELECT * FROM {t}; SELECT 1", "Multiple statements"),
        ("SELECT * FROM read_csv('/etc/passwd')", "read_csv"),
        ("SELECT * FROM executions", "not found"),
        ("CREATE TABLE {t} (id INT PRIMARY KEY, a INT)", "Table already exists"),
        ("CREATE TABLE other (id INT, a INT)", "No PRIMARY KEY"),
        ("CREATE TABLE other (id INT PRIMARY KEY)", "at least one non PRIMARY KEY"),
        ("CREATE TABLE other (id INT PRIMARY KEY, a GEOMETRY)", "Unknown data type"),
        ('CREATE TABLE other (id INT PRIMARY KEY, a INT) WITH "SPEED=9"', "Unsupported parameter: SPEED"),
        ("ALTER TABLE {t} ADD COLUMN b INT", "ALTER is not supported"),
    ],
)
def test_what_cannot_be_done_says_why_and_changes_nothing(client: Client, pears: str, text: str, reason: str) -> None:
    with pytest.raises(SQLError, match=reason):
        client.sql(text.format(t=pears))
    assert count(client, f"SELECT count(*) FROM {pears}") == 5


def test_a_statement_of_another_kind_than_announced_is_refused(client: Client, pears: str) -> None:
    for text, kind in ((f"DELETE FROM {pears}", 1), ("SELECT 1", 2)):
        with pytest.raises(SQLError, match="statement type does not match"):
            client.sql(text, statement_type=kind)
    with pytest.raises(SQLError, match="Page size must be above zero"):
        client.sql("SELECT 1", page_size=0)


def test_a_schema_or_cache_that_is_not_there(client: Client) -> None:
    with pytest.raises(SQLError, match="Failed to set schema"):
        client.sql("SELECT 1", schema="NOWHERE")
    with pytest.raises(SQLError, match="Cache does not exist"):
        client.sql("SELECT 1", schema=None, cache="no-such-cache")


KINDS = {
    "BOOLEAN": True,
    "SMALLINT": -3,
    "INT": 2**31 - 1,
    "BIGINT": -(2**63),
    "DOUBLE": 0.1,
    "REAL": 0.5,
    "DECIMAL(20, 4)": decimal.Decimal("-12345.6789"),
    "DECIMAL": decimal.Decimal("0.000000000000001"),
    "VARCHAR": "süß 'quoted'",
    "UUID": uuid.UUID("12345678-9abc-def0-1234-56789abcdef0"),
    "VARBINARY": b"\x00\xff",
    "DATE": datetime.datetime(1999, 12, 31),
    "TIMESTAMP": (datetime.datetime(2026, 11, 17, 12, 0, 0, 123000), 456000),
    "TIME": datetime.timedelta(hours=5, milliseconds=7),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_of_each_type_comes_back_as_it_was(client: Client, kind: str) -> None:
    table = f"T{uuid.uuid4().hex[:8]}".upper()
    given: Any = (KINDS[kind], TimestampObject) if kind == "TIMESTAMP" else KINDS[kind]
    client.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, v {kind})")
    client.sql(f"INSERT INTO {table}(id, v) VALUES (?, ?)", query_args=[1, given])
    client.sql(f"INSERT INTO {table}(id, v) VALUES (?, ?)", query_args=[2, None])
    # Computed, so that DuckDB has had it in its hands.
    client.sql(f"INSERT INTO {table}(id, v) VALUES (1 + 2, COALESCE(?, NULL))", query_args=[given])
    assert rows(client, f"SELECT v FROM {table} ORDER BY id") == [[KINDS[kind]], [None], [KINDS[kind]]]
    assert count(client, f"SELECT count(*) FROM {table} WHERE v = ?", given) == 2
    assert count(client, f"UPDATE {table} SET v = ? WHERE v IS NULL", given) == 1
    cache = client.get_cache(f"SQL_PUBLIC_{table}")
    assert {cache.get(n, key_hint=IntObject).V for n in (1, 2, 3)} == {KINDS[kind]}
    client.sql(f"DROP TABLE {table}")


def test_a_composite_key_and_types_of_ones_own(client: Client) -> None:
    class Place(
        metaclass=GenericObjectMeta,
        type_name="own.Place",
        schema=OrderedDict([("ROW", IntObject), ("TREE", String)]),
    ):
        pass

    table = f"P{uuid.uuid4().hex[:8]}".upper()
    client.sql(
        f"CREATE TABLE {table} (row INT, tree VARCHAR, crop INT, PRIMARY KEY (row, tree)) "
        f'WITH "CACHE_NAME={table}-cache, KEY_TYPE=own.Place, VALUE_TYPE=own.Crop{table}, TEMPLATE=REPLICATED"'
    )
    client.sql(f"INSERT INTO {table}(row, tree, crop) VALUES (1, 'a', 5)")
    (key, value), *rest = rows(client, f"SELECT _key, _val FROM {table}")
    assert (key.ROW, key.TREE, value.CROP, rest) == (1, "a", 5, [])
    cache = client.get_cache(f"{table}-cache")
    assert cache.get(Place(1, "a")).CROP == 5
    cache.remove_key(Place(1, "a"))
    assert rows(client, f"SELECT * FROM {table}") == []
    client.sql(f"DROP TABLE {table}")


def fruit_cache(client: Client, properties: dict[int, Any] | None = None) -> Any:
    name = f"fruit-{uuid.uuid4()}"
    return client.create_cache({PROP_NAME: name, PROP_QUERY_ENTITIES: [FRUIT_ENTITY], **(properties or {})})


def test_a_cache_with_a_query_entity_is_a_table_of_its_own_schema(client: Client) -> None:
    cache = fruit_cache(client)
    assert rows(client, f'SELECT name FROM "{cache.name}".FRUIT') == []  # nobody knows yet what it will be
    for number, name in enumerate(("pear", "fig", "plum")):
        cache.put(number, Fruit(name, number * 10, "n"))
    cache.put(99, "of another type: no row of this table")
    assert rows(client, f'SELECT name, weight FROM "{cache.name}".FRUIT WHERE weight >= ? ORDER BY name', 10) == [
        ["fig", 10],
        ["plum", 20],
    ]
    assert rows(client, "SELECT name FROM Fruit WHERE weight = 0", cache=cache, schema=None) == [["pear"]]
    assert rows(client, f'SELECT f.name FROM "{cache.name}".FRUIT f, "{cache.name}".FRUIT g WHERE f.weight < g.weight '
                "AND g.name = 'fig'") == [["pear"]]  # fmt: skip
    ((value,),) = rows(client, f"SELECT _VAL FROM \"{cache.name}\".FRUIT WHERE name = 'plum'")
    assert (value.name, value.weight, value.note) == ("plum", 20, "n")
    # A field that the entity does not name stays what it is.
    assert count(client, f"UPDATE \"{cache.name}\".FRUIT SET weight = 21 WHERE name = 'plum'") == 1
    changed = cache.get(2)
    assert (changed.name, changed.weight, changed.note) == ("plum", 21, "n")
    cache.destroy()
    with pytest.raises(SQLError, match="not found"):
        client.sql(f'SELECT * FROM "{cache.name}".FRUIT')


def test_a_stream_with_a_query_entity_can_be_read(client: Client) -> None:
    cache = fruit_cache(client)
    for number, name in enumerate(("pear", "fig", "plum", "quince")):
        assert cache.put_if_absent(number, Fruit(name, number, "n"), key_hint=LongObject)
    cache.put(1, Fruit("date", 1, "again"))
    cache.remove_key(3)
    assert rows(client, f'SELECT _KEY, name FROM "{cache.name}".FRUIT ORDER BY _KEY DESC') == [
        [2, "plum"],
        [1, "date"],
        [0, "pear"],
    ]
    with pytest.raises(SQLError, match="is a stream"):
        client.sql(f'DELETE FROM "{cache.name}".FRUIT')
    assert count(client, f'SELECT count(*) FROM "{cache.name}".FRUIT') == 3


def test_a_name_belongs_to_one_table(client: Client) -> None:
    schema = f"S{uuid.uuid4().hex[:8]}".upper()
    fruit_cache(client, {PROP_SQL_SCHEMA: schema})
    with pytest.raises(CacheError, match="Table already exists: FRUIT"):
        fruit_cache(client, {PROP_SQL_SCHEMA: schema})


def test_entries_past_their_time_are_no_rows(client: Client) -> None:
    cache = fruit_cache(client, {PROP_EXPIRY_POLICY: ExpiryPolicy(create=200)})
    table = f'"{cache.name}".FRUIT'
    cache.put(1, Fruit("pear", 1, "n"))
    assert count(client, f"INSERT INTO {table}(_key, name, weight) VALUES (?, 'fig', 2)", 2) == 1
    wait_until(lambda: rows(client, f"SELECT * FROM {table}") == [])
    assert count(client, f"INSERT INTO {table}(_key, name) VALUES (?, 'again')", 2) == 1


def test_a_time_of_ones_own_ends_a_query(client: Client) -> None:
    forever = "SELECT sum(range % 7) FROM range(10000000000000)"
    with pytest.raises(SQLError, match="cancelled while executing due to timeout"):
        client.sql(forever, timeout=200)
    assert rows(client, "SELECT 1") == [[1]]


def test_more_queries_than_places_wait_for_their_turn(shared: HubThread) -> None:
    async def ask() -> list[int]:
        client = AioClient()
        address = ("127.0.0.1", shared.ignite_port)
        async with client.connect(*address), client.sql("SELECT 1 + ?", query_args=[1]) as cursor:
            return [row[0] async for row in cursor]

    async def all_of_them() -> list[list[int]]:
        return await asyncio.gather(*[ask() for _ in range(12)])

    assert asyncio.run(all_of_them()) == [[2]] * 12


def test_concurrent_changes_are_all_done(shared: HubThread, client: Client, pears: str) -> None:
    async def add(times: int) -> None:
        own = AioClient()
        async with own.connect("127.0.0.1", shared.ignite_port):
            for _ in range(times):
                try:
                    await own.sql(f"UPDATE {pears} SET weight = weight + 1 WHERE id = 0")
                except SQLError as error:
                    assert "modified concurrently" in str(error)
                    failed.append(1)

    async def both() -> None:
        await asyncio.gather(add(5), add(5))

    failed: list[int] = []
    asyncio.run(both())
    assert rows(client, f"SELECT weight FROM {pears} WHERE id = 0") == [[10 - len(failed)]]


def test_a_change_may_be_as_large_as_a_batch() -> None:
    with HubThread(Config(log=Log(batch_bytes_max=64 << 10), sql=Sql(memory_bytes=128 << 20))) as hub:
        client = Client()
        with client.connect("127.0.0.1", hub.ignite_port):
            client.sql("CREATE TABLE Large (id INT PRIMARY KEY, v VARCHAR)")
            for number in range(3):
                client.sql("INSERT INTO Large(id, v) VALUES (?, ?)", query_args=[number, "x" * 30_000])
            with pytest.raises(SQLError, match="log.batch_bytes_max"):
                client.sql("DELETE FROM Large")
            assert count(client, "SELECT count(*) FROM Large") == 3
            assert count(client, "DELETE FROM Large WHERE id > 0") == 2


SECURED = Config(
    security=SecuritySection(
        users={name: User(secret="pw", roles=[name]) for name in ("owner", "reader", "writer", "stranger")},
        roles={
            "owner": [Grant(rights=["read", "write", "admin"])],
            "reader": [Grant(rights=["read"], streams=["SQL_PUBLIC_OPEN"])],
            "writer": [Grant(rights=["write"], streams=["SQL_PUBLIC_OPEN"])],
            "stranger": [Grant(rights=["read", "write"], streams=["elsewhere"])],
        },
    ),
    sql=Sql(memory_bytes=128 << 20, threads=1),
)


def test_everybody_sees_and_changes_what_they_may() -> None:
    with HubThread(SECURED) as hub:
        clients = {name: Client(username=name, password="pw", use_ssl=False) for name in SECURED.security.users}
        for each in clients.values():
            each.connect("127.0.0.1", hub.ignite_port)
        owner, reader, writer, stranger = clients.values()
        for table in ("Open", "Closed"):
            owner.sql(f"CREATE TABLE {table} (id INT PRIMARY KEY, v INT)")
            owner.sql(f"INSERT INTO {table}(id, v) VALUES (1, 42)")
        assert rows(reader, "SELECT v FROM Open") == [[42]]
        count(writer, "INSERT INTO Open(id, v) VALUES (2, 43)")
        refused = [
            (reader, "SELECT v FROM Closed"),
            (reader, "SELECT Open.v FROM Open WHERE EXISTS (SELECT 1 FROM Closed)"),
            (reader, "INSERT INTO Open(id, v) VALUES (3, 1)"),
            (reader, "DELETE FROM Open"),
            (reader, "DROP TABLE Open"),
            (reader, "CREATE TABLE More (id INT PRIMARY KEY, v INT)"),
            (writer, "SELECT v FROM Open"),
            (writer, "UPDATE Open SET v = 0"),
            (writer, "DELETE FROM Open WHERE v = 42"),
            (writer, "INSERT INTO Open(id, v) SELECT id + 10, v FROM Open"),
            (writer, "INSERT INTO Open(id, v) VALUES (9, (SELECT max(v) FROM Closed))"),
            (writer, "DROP TABLE Open"),
            (stranger, "SELECT v FROM Open"),
            (stranger, "INSERT INTO Open(id, v) VALUES (3, 1)"),
        ]
        for client, text in refused:
            with pytest.raises(SQLError, match="needs the right"):
                client.sql(text)
        assert rows(owner, "SELECT * FROM Open ORDER BY id") == [[1, 42], [2, 43]]
        assert rows(owner, "SELECT * FROM Closed") == [[1, 42]]
        for each in clients.values():
            each.close()


def test_tables_and_rows_are_there_after_a_restart() -> None:
    from headrace.testing import MemoryDisk

    disk = MemoryDisk()
    with HubThread(disk=disk) as hub:
        client = Client()
        with client.connect("127.0.0.1", hub.ignite_port):
            client.sql("CREATE TABLE Kept (id INT PRIMARY KEY, v VARCHAR)")
            client.sql("INSERT INTO Kept(id, v) VALUES (1, 'a')")
    with HubThread(disk=disk) as hub:
        client = Client()
        with client.connect("127.0.0.1", hub.ignite_port):
            assert rows(client, "SELECT * FROM kept") == [[1, "a"]]
            client.sql("INSERT INTO Kept(id, v) VALUES (2, 'b')")
            assert client.get_cache("SQL_PUBLIC_KEPT").get(2, key_hint=IntObject).V == "b"
