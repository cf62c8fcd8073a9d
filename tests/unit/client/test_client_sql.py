"""`hub.sql`, in both clients, over a real Flight socket."""

import threading
import time
from decimal import Decimal

import pyarrow as pa
import pyarrow.flight as flight
import pytest

import headrace
from headrace.config import Config
from headrace.config.sections import Sql
from headrace.errors import BadRequest, BadSql, Cancelled, Closed, LimitExceeded, UnknownStream
from headrace.sql.engine import Engine
from headrace.testing import served_hub

FOREVER = "SELECT sum(range) FROM range(1000000000000000)"
WAIT_S = 120


@pytest.fixture(scope="module")
def served():
    with served_hub(Config(sql=Sql(rows_max=200_000))) as hub:
        yield hub


@pytest.fixture
def hub(served):
    with headrace.connect(served.address) as client:
        client.create("fruit")
        if client.bounds("fruit").next == 0:
            client.append("fruit", [{"name": "pear", "count": 3}, {"name": "plum", "count": 4}], type="T")
        yield client


def until_free(served):
    deadline = time.monotonic() + WAIT_S
    while Engine.of(served.hub).queries():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_rows_in_every_form(hub):
    text = "SELECT value.name, value.count FROM fruit ORDER BY index"
    expected = [{"name": "pear", "count": 3}, {"name": "plum", "count": 4}]
    assert hub.sql(text).to_list() == expected
    assert list(hub.sql(text)) == expected
    assert hub.sql(text).to_arrow().to_pylist() == expected
    assert hub.sql(text).to_pandas().to_dict("records") == expected
    assert hub.sql(text).to_polars().to_dicts() == expected
    assert pa.table(hub.sql(text)).to_pylist() == expected
    assert hub.sql("SELECT count(*) AS n FROM fruit WHERE index >= ?", [1]).to_list() == [{"n": 1}]
    assert hub.sql("SELECT sum(value.count) AS n, sum(1.5) AS d FROM fruit").to_list() == [
        {"n": 7, "d": Decimal("3.0")}
    ]
    assert hub.sql("SELECT * FROM range(10)", limit=2).to_arrow().num_rows == 2


def test_a_result_looks_like_something_in_a_notebook(hub):
    result = hub.sql("SELECT value.name, '<b>' AS tag FROM fruit")
    assert repr(result) == "SqlResult(name string, tag string)"
    html = result._repr_html_()
    assert "<td>pear</td>" in html
    assert "&lt;b&gt;" in html
    assert len(result.to_list()) == 2


def test_errors_are_those_of_the_hub(hub):
    with pytest.raises(BadSql, match="no stream or table 'nowhere'"):
        hub.sql("SELECT * FROM nowhere")
    with pytest.raises(BadSql, match="single SELECT"):
        hub.sql("DROP TABLE fruit")
    with pytest.raises(LimitExceeded, match=r"sql\.rows_max"):
        hub.sql("SELECT * FROM range(200001)").to_arrow()
    with pytest.raises(BadRequest, match="limit"):
        hub.sql("SELECT 1", limit=-1)
    with pytest.raises(flight.FlightError, match="sqlx"):
        hub._connection.flight.do_get(flight.Ticket(b'{"sql": "SELECT 1", "sqlx": 2}'))
    with pytest.raises(flight.FlightError, match="unknown field `x`"):
        hub._connection.flight.do_get(flight.Ticket(b'{"stream": "fruit", "x": "sql"'))


def test_a_large_result_comes_in_pieces_and_may_be_left(served, hub):
    assert hub.sql("SELECT * FROM range(200000)").to_arrow().num_rows == 200_000
    with hub.sql("SELECT * FROM range(100000000)") as result:
        assert result.next_batch().num_rows > 0
    until_free(served)
    abandoned = hub.sql("SELECT * FROM range(100000000)")
    del abandoned
    until_free(served)


def test_a_query_is_cancelled_by_its_id(served, hub):
    errors = []

    def ask():
        try:
            hub.sql(FOREVER, id="mine").to_list()
        except headrace.HeadraceError as error:
            errors.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while not hub.call("sql.cancel", {"id": "mine"})["cancelled"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    thread.join(WAIT_S)
    assert isinstance(errors[0], Cancelled)


async def test_the_async_client(served, hub):
    async with headrace.connect_async(served.address) as client:
        async with await client.sql("SELECT value.name FROM fruit ORDER BY 1") as result:
            assert result.schema.names == ["name"]
            assert [row async for row in result] == [{"name": "pear"}, {"name": "plum"}]
        assert (await (await client.sql("SELECT 1 AS one")).to_arrow()).to_pylist() == [{"one": 1}]
        with pytest.raises(BadSql):
            await client.sql("SELECT")


def test_a_client_that_is_closed(served):
    client = headrace.connect(served.address)
    client.close()
    with pytest.raises(Closed):
        client.sql("SELECT 1")
    assert "closed" in repr(client)


def test_an_unknown_stream_is_still_unknown_to_others(hub):
    with pytest.raises(UnknownStream):
        hub.read("nowhere")
