"""Loops that break off: whatever reads next continues behind the last record that was taken."""

import asyncio

import pytest

import headrace

TEN = [b"%d" % number for number in range(10)]


@pytest.fixture
def reader(client):
    client.append("orders", TEN, partition=0)
    with client.read("orders", partition=0, cursor="billing") as opened:
        for record in opened:
            if record.index == 3:
                break
        yield opened


def test_a_second_loop(reader, client):
    reader.save()
    assert client.cursor("billing", "orders").get() == 4
    assert [record.payload for record in reader] == TEN[4:]
    assert list(reader) == []


def test_the_rest_as_arrow(reader):
    assert reader.to_arrow().column("payload").to_pylist() == TEN[4:]


def test_one_record_at_a_time(client):
    client.append("orders", TEN, partition=0)
    with client.follow("orders", 0, partition=0) as follower:
        taken = [next(iter(follower)).payload for _ in TEN]
    assert taken == TEN


def test_rows_of_a_query(client):
    client.append("orders", TEN, partition=0)
    with client.sql("select index from orders order by index") as result:
        assert next(iter(result)) == {"index": 0}
        assert "<td>1</td>" in result._repr_html_()
        assert result.to_list() == [{"index": number} for number in range(1, 10)]


def test_asyncio(served):
    async def run():
        async with headrace.connect_async(served.address) as hub:
            await hub.create("orders")
            await hub.append("orders", TEN)
            async with await hub.read("orders") as reader:
                async for record in reader:
                    if record.index == 3:
                        break
                return [record.payload async for record in reader]

    assert asyncio.run(run()) == TEN[4:]
