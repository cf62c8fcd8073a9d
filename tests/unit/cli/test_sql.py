"""`headrace sql`, asked of the hub itself."""

import json

import pytest

import headrace as sdk
from headrace.testing import served_hub


@pytest.fixture(scope="module")
def served():
    with served_hub() as hub, sdk.connect(hub.address) as client:
        client.create("orders", partitions=2)
        client.append("orders", [{"fruit": "pêche", "count": number} for number in range(3)], type="T", partition=1)
        client.append("orders", b"\xff")
        yield hub


@pytest.fixture
def ask(served, headrace, monkeypatch):
    monkeypatch.setenv("HEADRACE_HUB", served.address)
    return lambda *arguments: headrace("sql", *arguments)


def test_a_table_csv_and_json(ask, tmp_path):
    text = "SELECT value.fruit, sum(value.count) AS n FROM orders WHERE partition = 1 GROUP BY 1"
    seen = ask(text)
    assert seen.code == 0, seen.err
    assert seen.out.split() == ["fruit", "n", "pêche", "3"]
    assert ask(text, "--output", "csv").out.split() == ["fruit,n", "pêche,3"]
    assert json.loads(ask(text, "--json").out) == {"fruit": "pêche", "n": 3}
    file = tmp_path / "query.sql"
    file.write_text("SELECT value FROM stream('orders', partitions => '1') ORDER BY `index` LIMIT 1")
    assert json.loads(ask(f"@{file}", "--json").out) == {"value": {"fruit": "pêche", "count": 0}}
    assert json.loads(ask("SELECT payload FROM orders WHERE partition = 0", "--json").out) == {"payload": "ff"}


def test_so_many_rows(ask):
    few = ask("SELECT index FROM orders WHERE partition = 1", "--limit", "2")
    assert "only the first 2 rows" in few.err
    assert len(ask("SELECT index FROM orders", "--limit", "0", "--output", "csv").out.split()) == 5
    assert "no rows" in ask("SELECT * FROM orders WHERE false").err


def test_a_mistake_is_told(ask):
    wrong = ask("SELECT * FROM nowhere")
    assert wrong.code == 1
    assert "no stream or table 'nowhere'" in wrong.err
