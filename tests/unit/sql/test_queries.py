"""Queries in their processes: what they answer, whose rows they see, and what ends them."""

import asyncio
import concurrent.futures
import contextlib
import os
import threading
import time
from types import SimpleNamespace

import msgspec
import pytest

from headrace.config import Config, Grant
from headrace.config.sections import Sql
from headrace.errors import BadRequest, BadSql, Busy, Cancelled, Closed, Forbidden, LimitExceeded
from headrace.log.batch import Batch
from headrace.security import EVERYTHING, Principal
from headrace.sql.engine import Engine
from headrace.testing import ServedHub, served_hub

FOREVER = "SELECT sum(range) FROM range(1000000000000000)"  # needs no memory: a limit of it must not come first
WAIT_S = 120


ODD_NAMES = ["source 0", "stream 1", "pg_settings", "/etc/passwd", "a\"b'c`d;--", "информация", "A\\"]
HOSTILE = [
    *(b'{"": 1}', b'{"a": 1, "A": 2}', b'{"a\\u0000b": 1}', b'{"\\ud800": 1}', b"\xff", b'{"a": 1e999}'),
    *(b'{"x":' * 200 + b"1" + b"}" * 200, b"[" * 50_000 + b"]" * 50_000),
    msgspec.json.encode({f"k{n}": n for n in range(20_000)}),
    *(b'{"a": 2}', b'{"\'; DROP VIEW hostile; --": 3}'),
]


def fruit(number: int) -> bytes:
    return msgspec.json.encode({"fruit": "pêche" if number % 2 else "plum", "count": number})


@pytest.fixture(scope="module")
def served():
    """One hub, and so one process, for all tests here."""
    settings = Config(sql=Sql(memory_bytes=128 << 20, queries_max=3, user_queries_max=2))
    with served_hub(settings) as hub:
        hub.run(fill(hub.hub))
        yield hub


async def fill(hub):
    await hub.create_stream("orders", 2)
    for partition in range(2):
        await hub.append("orders", Batch.of([fruit(n) for n in range(100)], types=["ORDER"] * 100), partition=partition)
    for name in ("secret", "orders.eu/north", "empty"):
        await hub.create_stream(name)
    await hub.append("secret", Batch.of([b"mine"]))
    await hub.append("orders.eu/north", Batch.of([b"\xff"]))
    await hub.create_stream("nested")
    await hub.append("nested", Batch.of([b'{"a": {"b": 1}}']))
    await hub.create_stream("hostile")
    await hub.append("hostile", Batch.of(HOSTILE))
    for name in ODD_NAMES:
        await hub.create_stream(name)
    await hub.create_table("stock")
    await hub.put("stock", b"plum", b'{"left": 3}')


async def called(hub, verb, params, principal):
    return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(params), principal))


def ask(served: ServedHub, text, principal=EVERYTHING, verb="sql.query", **params):
    return served.run(called(served.hub, verb, {"sql": text, **params}, principal), WAIT_S)


def rows(served, text, **params):
    return ask(served, text, **params)["rows"]


@contextlib.contextmanager
def changed(served, **settings):
    """Other limits for a while."""
    engine = Engine.of(served.hub)
    before = engine.settings
    engine.settings = msgspec.structs.replace(before, **settings)
    try:
        yield engine
    finally:
        engine.settings = before


def waiting_query(served, id, principal=EVERYTHING):
    """A query that goes on for ever, once it is under way; the result is its future."""
    future = asyncio.run_coroutine_threadsafe(
        called(served.hub, "sql.query", {"sql": FOREVER, "id": id}, principal), served._loop
    )
    deadline = time.monotonic() + WAIT_S
    while id not in [each.id for each in Engine.of(served.hub).queries()]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return future


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_stream_may_have_any_name(served, name):
    text = 'SELECT count(*) FROM "{}"'.format(name.replace('"', '""'))
    assert rows(served, text) == [[0]]


def test_no_record_keeps_others_from_being_queried(served):
    """Whoever may write to a stream must not be able to spoil `value` for those who read it."""
    assert rows(served, "SELECT sum(value.a), count(value.a), count(*) FROM hostile") == [[3, 2, len(HOSTILE)]]
    assert rows(served, 'SELECT value."\'; DROP VIEW hostile; --" AS n FROM hostile WHERE n IS NOT NULL') == [[3]]
    assert len(rows(served, "SELECT value.* FROM hostile")) == len(HOSTILE)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1 AS one", [[1]]),
        ("WITH orders AS (FROM orders WHERE index < 3) SELECT count(*) FROM orders", [[6]]),
        ("SELECT '\\', count(*) FROM stream('orders')", [["\\", 200]]),
        ("SELECT $$stream('secret') `x`$$", [["stream('secret') `x`"]]),
        ("SELECT count(*) FROM orders", [[200]]),
        ("SELECT count(*), min(partition), max(partition) FROM orders WHERE index >= 90", [[20, 0, 1]]),
        ("SELECT count(*) FROM orders WHERE time <= now() AND partition = 1", [[100]]),
        ("SELECT count(*) FROM orders WHERE time > now()", [[0]]),
        ("SELECT count(*) FROM orders WHERE type = 'ORDER' AND stream = 'orders'", [[200]]),
        ("SELECT index FROM stream('orders', start => 98, partitions => '0') ORDER BY index", [[98], [99]]),
        ("SELECT count(*) FROM stream('orders', end => 10, start => 'earliest')", [[20]]),
        ("SELECT count(*) FROM stream('orders', start => '2000-01-01T00:00:00Z')", [[200]]),
        ("SELECT count(*) FROM stream('orders', start => 'latest')", [[0]]),
        ("SELECT DISTINCT stream FROM stream('orders*') ORDER BY 1", [["orders"], ["orders.eu/north"]]),
        ("SELECT count(*) FROM stream('orders', 'secret')", [[201]]),
        ("SELECT cast(payload AS string) FROM orders WHERE index = 1 AND partition = 0", [[fruit(1).decode()]]),
        ("SELECT value.fruit, sum(value.count) FROM orders GROUP BY 1 ORDER BY 1", [["plum", 4900], ["pêche", 5000]]),
        ("SELECT value.* FROM orders WHERE index = 2 AND partition = 1", [["plum", 2]]),
        ("SELECT value.n FROM stream('orders', decode => 'json', schema => 'n INT') LIMIT 1", [[None]]),
        ('SELECT payload FROM "orders.eu/north"', [[{"base64": "/w=="}]]),
        ('SELECT value FROM "orders.eu/north"', [[None]]),
        ("SELECT * FROM empty", []),
        ("SELECT value FROM empty", []),
        ("SELECT key, value.left FROM stock", [[{"text": "plum"}, 3]]),
        ("SELECT o.index FROM orders o JOIN orders p USING (index, partition) WHERE o.index = 7", [[7], [7]]),
        ("WITH a AS (FROM orders) SELECT count(*) FROM a, stock", [[200]]),
        ("SELECT index FROM orders LIMIT 3", [[0], [1], [2]]),
        ("WITH RECURSIVE t(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM t) SELECT n FROM t LIMIT 2", [[1], [2]]),
    ],
)
def test_answers(served, text, expected):
    assert rows(served, text) == expected


def test_an_answer_says_what_it_is(served):
    answer = ask(served, "SELECT index, payload FROM orders", limit=3)
    assert answer["columns"] == [{"name": "index", "type": "BIGINT"}, {"name": "payload", "type": "BLOB"}]
    assert answer["truncated"] is True
    assert len(answer["rows"]) == 3
    assert answer["elapsed_us"] > 0
    assert ask(served, "SELECT index FROM orders", limit=200)["truncated"] is False


def test_only_what_is_needed_is_read(served):
    assert ask(served, "SELECT count(*) FROM orders WHERE index = 7 AND partition = 1")["scanned_records"] == 1


def test_parameters(served):
    assert rows(served, "SELECT ? || 'x', ? + 1", parameters=["a", 2]) == [["ax", 3]]
    with pytest.raises(BadRequest, match="parameter 1"):
        rows(served, "SELECT ?", parameters=[[1]])


def test_columns_of_a_query(served):
    columns = ask(served, "SELECT value.*, partition FROM orders", verb="sql.columns")
    assert [(each["name"], each["type"]) for each in columns] == [
        ("fruit", "VARCHAR"),
        ("count", "BIGINT"),
        ("partition", "INTEGER"),
    ]


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELECT * FROM nothing", "no stream or table 'nothing'"),
        ("SELECT nothing FROM orders", "nothing"),
        ("SELECT * FROM stream('orders', cursor => 'x')", "no option 'cursor'"),
        ("SELECT * FROM stream('orders', start => 'soon')", "start => 'soon'"),
        ("SELECT * FROM stream('orders', partitions => 'x')", "partitions => 'x'"),
        ("SELECT * FROM stream('orders', 'stock')", "a table is read by itself"),
        ("SELECT 'x'::INT", "x"),
    ],
)
def test_mistakes_are_told_and_the_process_is_kept(served, text, error):
    rows(served, "SELECT 1")
    before = served.hub.metrics.sql.processes._value.get()
    with pytest.raises(BadSql, match=error):
        rows(served, text)
    rows(served, "SELECT 1")
    assert served.hub.metrics.sql.processes._value.get() == before


# Rights ---------------------------------------------------------------------------------------------------------------

ALICE = Principal("alice", (), (Grant(rights=["read"], streams=["orders", "stock"]),))


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM secret",
        "SELECT * FROM stream('secret')",
        "SELECT * FROM orders, secret",
        "SELECT (SELECT max(payload) FROM secret)",
        "SELECT * FROM stream('orders', 'secret')",
        "SELECT * FROM nothing",  # what there is, is not told either
        'SELECT * FROM "spark/pipelines"',
    ],
)
def test_nobody_reads_what_they_may_not(served, text):
    with pytest.raises(Forbidden):
        ask(served, text, ALICE)


def test_one_reads_what_one_may(served):
    assert ask(served, "SELECT count(*) FROM orders", ALICE)["rows"] == [[200]]
    assert ask(served, "SELECT DISTINCT stream FROM stream('*')", ALICE)["rows"] == [["orders"]]


def test_the_right_to_a_stream_by_other_verbs_is_none_to_query_it(served):
    narrow = Principal("bob", (), (Grant(rights=["read"], verbs=["stream.*"]),))
    with pytest.raises(Forbidden):
        ask(served, "SELECT 1", narrow)


def test_a_query_ends_when_its_user_loses_the_right(served):
    changing = Principal("carol", (), (Grant(rights=["read"], streams=["orders"]),), lambda: Principal("carol", (), ()))
    text = f"SELECT * FROM ({FOREVER}), (SELECT count(*) FROM orders)"
    work = called(served.hub, "sql.query", {"sql": text, "id": "c"}, changing)
    future = asyncio.run_coroutine_threadsafe(work, served._loop)
    engine = Engine.of(served.hub)
    deadline = time.monotonic() + WAIT_S
    while not any(each.scanned_records for each in engine.queries()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    served._loop.call_soon_threadsafe(lambda: [told() for told in changing.renew()])
    with pytest.raises(Forbidden):
        future.result(WAIT_S)


# Limits and ends ------------------------------------------------------------------------------------------------------


def test_time(served):
    with changed(served, time_s=0.3), pytest.raises(LimitExceeded, match=r"sql\.time_s"):
        rows(served, FOREVER)
    with changed(served, time_s=600):
        assert rows(served, "SELECT 1") == [[1]]


def test_memory(served):
    with pytest.raises(LimitExceeded, match=r"sql\.memory_bytes"):
        rows(served, "SELECT len(list(range)) FROM range(100000000)")
    assert rows(served, "SELECT len(list(range)) FROM range(100000)") == [[100000]]


def test_memory_that_duckdb_does_not_count(served):
    """The kernel ends what is beyond the limit by another way; the next query has a new process."""
    with pytest.raises((LimitExceeded, BadSql)):
        rows(served, "SELECT length(string_agg(repeat('x', 100000000), '')) FROM range(100)")
    assert rows(served, "SELECT 1") == [[1]]


def test_rows_and_bytes_of_a_result(served):
    with changed(served, rows_max=10), pytest.raises(LimitExceeded, match=r"sql\.rows_max"):
        rows(served, "SELECT * FROM range(11)")
    with changed(served, rows_max=10):
        assert len(rows(served, "SELECT * FROM range(10)")) == 10
    with changed(served, result_bytes_max=100), pytest.raises(LimitExceeded, match=r"sql\.result_bytes_max"):
        rows(served, "SELECT repeat('x', 101)")
    with changed(served, answer_bytes_max=1000):
        answer = ask(served, "SELECT repeat('x', 90) FROM range(100)")
    assert answer["truncated"] is True
    assert 5 <= len(answer["rows"]) <= 10


@pytest.mark.parametrize("limit", ["value_fields", "value_depth"])
def test_what_value_has_at_most(served, limit):
    """Two fields on two levels; a record beyond a limit stays JSON."""
    met = Engine.of(served.hub).metrics.limits.labels(limit=limit)
    before = met._value.get()
    with changed(served, **{f"{limit}_max": 2}):
        assert rows(served, "SELECT value FROM nested") == [[{"a": {"b": 1}}]]
    assert met._value.get() == before
    with changed(served, **{f"{limit}_max": 1}):
        assert rows(served, "SELECT value FROM nested") == [['{"a": {"b": 1}}']]
    assert met._value.get() == before + 1


def test_the_length_of_a_statement(served):
    with changed(served, text_bytes_max=10), pytest.raises(LimitExceeded, match=r"sql\.text_bytes_max"):
        rows(served, "SELECT 1234")
    with changed(served, text_bytes_max=10):
        assert rows(served, "SELECT 123") == [[123]]


@pytest.mark.parametrize("limit", [0, 100_001])
def test_the_limit_of_an_answer(served, limit):
    with pytest.raises(BadRequest, match="limit"):
        rows(served, "SELECT 1", limit=limit)


def test_a_query_is_seen_and_cancelled_by_its_user_or_an_admin(served):
    first, second = waiting_query(served, "one"), waiting_query(served, "two", ALICE)
    with pytest.raises(BadRequest, match="'one' is already running"):
        ask(served, "SELECT 1", id="one")

    def verb(name, principal, **params):
        return served.run(called(served.hub, name, params, principal), WAIT_S)

    assert [each["id"] for each in verb("sql.list", ALICE)] == ["two"]
    assert {each["id"] for each in verb("sql.list", EVERYTHING)} == {"one", "two"}
    assert verb("sql.cancel", ALICE, id="one") == {"cancelled": False}
    assert verb("sql.cancel", EVERYTHING, id="two") == {"cancelled": True}
    assert verb("sql.cancel", EVERYTHING, id="one") == {"cancelled": True}
    for future in (first, second):
        with pytest.raises(Cancelled):
            future.result(WAIT_S)


def test_so_many_at_once(served):
    futures = [waiting_query(served, "a"), waiting_query(served, "b")]
    with pytest.raises(Busy, match=r"sql\.user_queries_max"):
        rows(served, "SELECT 1")
    futures.append(waiting_query(served, "c", ALICE))
    with pytest.raises(Busy, match=r"sql\.queries_max"):
        ask(served, "SELECT 1", Principal("dave", (), ALICE._grants))
    for query in Engine.of(served.hub).queries():
        query.cancel()
    for future in futures:
        with pytest.raises(Cancelled):
            future.result(WAIT_S)
    assert rows(served, "SELECT 1") == [[1]]


def test_a_caller_that_goes_takes_its_query_along(served):
    future = waiting_query(served, "gone")
    future.cancel()
    deadline = time.monotonic() + WAIT_S
    while Engine.of(served.hub).queries():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_caller_that_goes_before_a_thread_is_free_leaves_no_query_behind(served, monkeypatch):
    engine = Engine.of(served.hub)
    waiting = concurrent.futures.Future()
    monkeypatch.setattr(engine, "_threads", SimpleNamespace(submit=lambda function, query: waiting))
    future = waiting_query(served, "gone early")
    future.cancel()
    deadline = time.monotonic() + WAIT_S
    while engine.queries():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert waiting.cancelled()


def test_the_loop_goes_on_while_a_query_runs(served):
    future = waiting_query(served, "busy")
    lag = []
    for _ in range(20):
        began = time.perf_counter()
        served.run(asyncio.sleep(0))
        lag.append(time.perf_counter() - began)
    Engine.of(served.hub).queries()[0].cancel()
    with pytest.raises(Cancelled):
        future.result(WAIT_S)
    assert sorted(lag)[10] < 1


def test_a_process_that_dies_is_told_and_replaced(served):
    future = waiting_query(served, "dies")
    query = Engine.of(served.hub).queries()[0]
    deadline = time.monotonic() + WAIT_S
    while query._process is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(query._process.pid, 9)
    with pytest.raises(BadSql, match="has died"):
        future.result(WAIT_S)
    assert rows(served, "SELECT 1") == [[1]]


def test_what_is_counted(served):
    text = served.hub.metrics.text().decode()
    for line in (
        "headrace_sql_queries_total{outcome=",
        "headrace_sql_scanned_bytes_total",
        "headrace_sql_seconds_count",
    ):
        assert line in text


def test_an_idle_process_goes_and_a_stop_ends_all():
    with served_hub(Config(sql=Sql(idle_s=0.05))) as hub:
        assert rows(hub, "SELECT 1") == [[1]]
        processes = hub.hub.metrics.sql.processes
        deadline = time.monotonic() + WAIT_S
        while processes._value.get():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        ended = []
        future = waiting_query(hub, "last")
        future.add_done_callback(lambda done: ended.append(done.exception()))
        engine = Engine.of(hub.hub)
        hub.run(engine.close(), WAIT_S)
        threading.Event().wait(0)
        with pytest.raises(Closed):
            future.result(WAIT_S)
        with pytest.raises(Closed):
            rows(hub, "SELECT 1")
