"""The verbs of the nouns, called as HTTP and Flight call them."""

import asyncio
import base64

import msgspec
import pytest

from headrace import admin, errors
from headrace.config import Config, Grant, SecuritySection, User
from headrace.log.batch import Batch
from headrace.security import EVERYTHING
from headrace.testing import MemoryDisk, memory_hub


@pytest.fixture
async def hub():
    async with memory_hub() as opened:
        await admin.start(opened)
        await opened.create_stream("orders", 2)
        yield opened


def caller(hub, principal=EVERYTHING):
    async def call(verb, **params):
        return msgspec.json.decode(await hub.verbs.call_json(verb, msgspec.json.encode(params), principal))

    return call


@pytest.fixture
def call(hub):
    return caller(hub)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_every_verb_says_what_it_is_for(hub):
    assert all(verb.summary for verb in hub.verbs)


async def test_append_and_read_small_things(call):
    records = [
        {"payload": b64(b"\xff")},
        {"text": "ä", "type": "t", "key": b64(b"k"), "id": 7, "event_time_us": 5},
        {"json": None},
        {"json": {"a": [1]}},
    ]
    assert await call("stream.append", stream="orders", records=records) == {"first": 0, "count": 4, "duplicate": False}
    page = await call("stream.read", stream="orders", text=True)
    assert (page["next"], page["first"], page["end"]) == (4, 0, 4)
    assert page["records"][0]["payload"] == b64(b"\xff")
    assert {key: page["records"][1][key] for key in ("text", "type", "id", "event_time_us")} == {
        "text": "ä",
        "type": "t",
        "id": 7,
        "event_time_us": 5,
    }
    assert [record["text"] for record in page["records"][2:]] == ["null", '{"a":[1]}']
    page = await call("stream.read", stream="orders", start=3, limit=1)
    assert page["records"][0]["payload"] == b64(b'{"a":[1]}')
    assert (await call("stream.read", stream="orders", start="latest"))["next"] == 4
    assert (await call("stream.read", stream="orders", start=99))["next"] == 99


async def test_json_is_stored_as_it_came(hub, call):
    kept = b'{ "b": [1, 2.50], "a": "\xc3\xa4, \\u00e4", "a": 123456789012345678901234567890 }'
    body = b'{"stream": "orders", "records": [{"json": %b}, {"json":1}]}'
    await hub.verbs.call("stream.append", body % kept, EVERYTHING)
    page = await call("stream.read", stream="orders")
    assert [base64.b64decode(record["payload"]) for record in page["records"]] == [kept, b"1"]
    for wrong in (b'"\xff"', b"{", b"[1,]", b'"\\x"', b"[" * 100_000):
        with pytest.raises(errors.BadRequest):
            await hub.verbs.call("stream.append", body % wrong, EVERYTHING)
    assert hub.bounds("orders").next == 2


@pytest.mark.parametrize("field", ["payload", "text", "json"])
async def test_a_large_record_becomes_a_batch_beside_the_event_loop(hub, call, monkeypatch, field):
    apart = []
    beside = hub.intake.apart

    async def noted(work):
        apart.append(work)
        return await beside(work)

    monkeypatch.setattr(hub.intake, "apart", noted)
    await call("stream.append", stream="orders", records=[{field: "a" * 1000}])
    assert not apart
    await call("stream.append", stream="orders", records=[{field: "a" * 400_000}])
    assert len(apart) == 1


async def test_append_once(call):
    params = {"stream": "orders", "records": [{"text": "a"}], "producer": "p", "sequence": 3}
    assert not (await call("stream.append", **params))["duplicate"]
    assert (await call("stream.append", **params))["duplicate"]
    assert await call("producer.get", stream="orders", producer="p") == {"sequence": 3}
    assert await call("producer.get", stream="orders", producer="q") == {"sequence": None}


@pytest.mark.parametrize(
    ("verb", "params", "names"),
    [
        ("stream.append", {"records": []}, "at least one"),
        ("stream.append", {"records": [{}]}, "records[0]: give exactly one"),
        ("stream.append", {"records": [{"text": "a"}, {"text": "a", "json": 1}]}, "records[1]: give exactly one"),
        ("stream.append", {"records": [{"text": "a"}] * 10_001}, "above 10000"),
        ("stream.append", {"records": [{"text": "a"}], "producer": "p"}, "belong together"),
        ("stream.append", {"records": [{"payload": "?"}]}, "base64"),
        ("stream.read", {"limit": 0}, "'limit' is 0, outside 1 to 10000"),
        ("stream.read", {"limit": 10_001}, "'limit' is 10001"),
        ("stream.read", {"bytes_max": 0}, "'bytes_max' is 0"),
        ("stream.read", {"start": -1}, "'start' is -1"),
        ("stream.trim", {"before": -1}, "'before' is -1"),
        ("cursor.save", {"cursor": "c", "index": -1}, "'index' is -1"),
        ("cursor.reset", {"cursor": "c", "to": 5}, "'to' is 5, outside 0 to 0"),
        ("stream.create", {"partitions": 0}, "partitions"),
        ("stream.describe", {"streem": 1}, "streem"),
    ],
)
async def test_bad_requests_name_the_field(hub, call, verb, params, names):
    with pytest.raises(errors.HeadraceError) as caught:
        await call(verb, stream="orders", **params)
    assert names in str(caught.value)
    assert hub.bounds("orders").next == 0


async def test_the_limit_of_an_append_from_below(call):
    assert (await call("stream.append", stream="orders", records=[{"text": "a"}] * 10_000))["count"] == 10_000
    assert len((await call("stream.read", stream="orders", limit=10_000))["records"]) == 10_000


async def test_streams(hub, call):
    made = await call("stream.create", stream="other", partitions=2, options={"retention_age_s": 5})
    assert (made["partitions"], made["options"]) == (2, {"retention_age_s": 5.0})
    await call("stream.append", stream="other", records=[{"text": "a"}] * 3)
    listed = await call("stream.list", pattern="ot*")
    assert [(each["name"], each["records"]) for each in listed] == [("other", 3)]
    assert await call("stream.trim", stream="other", before=2) == {"partition": 0, "first": 2, "next": 3}
    assert await call("stream.bounds", stream="other") == [
        {"partition": 0, "first": 2, "next": 3},
        {"partition": 1, "first": 0, "next": 0},
    ]
    assert (await call("stream.bounds", stream="other", partition=1))[0]["partition"] == 1
    assert (await call("stream.grow", stream="other", partitions=3))["partitions"] == 3
    assert (await call("stream.set-options", stream="other", options={}))["options"] == {}
    described = await call("stream.describe", stream="other")
    assert (described["records"], len(described["bounds"]), described["cursors"]) == (1, 3, [])
    assert await call("stream.index-at-time", stream="other", time_us=0) == {"index": 2}
    assert await call("checkpoint.list", stream="other") == []
    segments = await call("stream.segments", stream="other")
    assert segments["stream_id"] == hub.stream("other").id
    assert [(each["first"], each["next"]) for each in segments["partitions"]] == [(2, 3), (0, 0), (0, 0)]
    await call("stream.delete", stream="other")
    with pytest.raises(errors.UnknownStream):
        await call("stream.describe", stream="other")


async def test_tables_are_listed_apart(hub, call):
    await call("table.create", table="prices")
    assert [each["name"] for each in await call("stream.list")] == ["orders"]
    assert [each["name"] for each in await call("stream.list", kind="table")] == ["prices"]
    assert [each["name"] for each in await call("stream.list", kind=None)] == ["orders", "prices"]


async def test_cursors(hub, call):
    await hub.append("orders", Batch.of([b"x"] * 10))
    where = {"cursor": "mill", "stream": "orders"}
    assert await call("cursor.get", **where) == {"index": None}
    assert await call("cursor.save", **where, index=4) == {"index": 4}
    assert await call("cursor.save", **where, index=2) == {"index": 4}
    assert await call("cursor.save", **where, index=3, rewind=True) == {"index": 3}
    assert [(each["name"], each["lag"]) for each in await call("cursor.list", pattern="m*")] == [("mill", 7)]
    moves = await call("cursor.reset", **where, to="latest", dry_run=True)
    assert moves == [
        {"partition": 0, "before": 3, "after": 10, "read_again": 0, "skipped": 7},
        {"partition": 1, "before": None, "after": 0, "read_again": 0, "skipped": 0},
    ]
    assert await call("cursor.get", **where) == {"index": 3}
    (move,) = await call("cursor.reset", **where, to={"time_us": 0}, partition=0)
    assert (move["after"], move["read_again"]) == (0, 3)
    await call("cursor.delete", **where)
    assert await call("cursor.list", stream="orders") == []
    with pytest.raises(errors.UnknownStream):
        await call("cursor.get", cursor="mill", stream="orders", partition=5)


async def test_tables(call):
    await call("table.create", table="prices")
    where = {"table": "prices", "key": b64(b"pear")}
    assert await call("table.put", **where, value=b64(b"3")) == {"applied": True, "previous": None}
    assert await call("table.get", **where) == {"key": b64(b"pear"), "value": b64(b"3")}
    assert not (await call("table.put", **where, value=b64(b"4"), expect="absent"))["applied"]
    assert (await call("table.put", **where, value=b64(b"4"), expect="present"))["applied"]
    assert (await call("table.put", **where, value=b64(b"5"), expect_value=b64(b"4")))["applied"]
    assert not (await call("table.delete", **where, expect_value=b64(b"4")))["applied"]
    await call("table.put", table="prices", key=b64(b"plum"), value="")
    assert [item["key"] for item in await call("table.items", table="prices", offset=1)] == [b64(b"plum")]
    assert len(await call("table.items", table="prices", limit=1)) == 1
    assert [(each["name"], each["keys"]) for each in await call("table.list")] == [("prices", 2)]
    assert (await call("table.delete", **where))["previous"] == b64(b"5")
    for params in ({"limit": 0}, {"offset": -1}, {"limit": 10_001}):
        with pytest.raises(errors.BadRequest):
            await call("table.items", table="prices", **params)
    await call("table.drop", table="prices")
    assert await call("table.list") == []


async def test_many_keys_of_a_table_at_once(call):
    await call("table.create", table="prices")
    items = [[b64(str(number).encode()), b64(b"x")] for number in range(5)]
    assert await call("table.put-many", table="prices", items=items) == {"keys": 5}
    assert await call("table.put-many", table="prices", items=[]) == {"keys": 0}
    assert await call("table.delete-many", table="prices", keys=[b64(b"0"), b64(b"none")]) == {"keys": 1}
    assert await call("table.clear", table="prices") == {"keys": 4}
    assert await call("table.items", table="prices") == []
    assert await call("table.accept-damage", table="prices") == {"first": None, "last": None, "keys": None}
    with pytest.raises(errors.UnknownStream):
        await call("table.clear", table="none")


async def test_a_damaged_table_is_served_again_when_the_damage_is_accepted():
    disk = MemoryDisk()
    async with memory_hub(disk=disk) as hub:
        await hub.create_table("prices")
        await hub.put("prices", b"pear", b"3")
        await hub.put("prices", b"pear", b"the newest value")
        await hub.put("prices", b"plum", b"4")
    for path in disk.paths():
        disk.put(path, disk.read(path).replace(b"the newest value", b"the NEWEST value"))
    async with memory_hub(disk=disk) as hub:
        await admin.start(hub)
        call = caller(hub)
        with pytest.raises(errors.Damaged, match=r"table\.accept-damage"):
            await call("table.get", table="prices", key=b64(b"pear"))
        assert "damage" in str(hub.health.report(EVERYTHING))
        assert await call("table.accept-damage", table="prices") == {"first": 1, "last": 1, "keys": 1}
        assert (await call("table.get", table="prices", key=b64(b"pear")))["value"] == b64(b"3")
        assert len(await call("table.items", table="prices")) == 2
        assert "damaged on disk" not in str(hub.health.report(EVERYTHING))


async def test_only_admins_clear_a_table_and_accept_damage():
    config = Config(security=SecuritySection(users={"will": User(tokens=["t"], roles=["writer"])}))
    async with memory_hub(config) as hub:
        await admin.start(hub)
        await hub.create_table("prices")
        call = caller(hub, hub.security.authenticate_token("t"))
        await call("table.put-many", table="prices", items=[[b64(b"k"), ""]])
        await call("table.delete-many", table="prices", keys=[b64(b"k")])
        for verb in ("table.clear", "table.accept-damage"):
            with pytest.raises(errors.Forbidden):
                await call(verb, table="prices")


async def test_a_caller_sees_only_what_it_may_read():
    config = Config(
        security=SecuritySection(
            users={"rob": User(tokens=["t"], roles=["pears"])},
            roles={"pears": [Grant(rights=["read"], streams=["pears*"])]},
        )
    )
    async with memory_hub(config) as hub:
        await admin.start(hub)
        for name in ("pears", "plums"):
            await hub.create_stream(name)
            await hub.save_cursor("mill", name, 0)
            await hub.create_table(f"{name}.table")
        call = caller(hub, hub.security.authenticate_token("t"))
        assert [each["name"] for each in await call("stream.list")] == ["pears"]
        assert [each["name"] for each in await call("table.list")] == ["pears.table"]
        assert [each["stream"] for each in await call("cursor.list")] == ["pears"]
        for verb, params in (
            ("stream.describe", {"stream": "plums"}),
            ("table.get", {"table": "plums.table", "key": ""}),
            ("cursor.save", {"cursor": "mill", "stream": "pears", "index": 0}),
            ("stream.delete", {"stream": "pears"}),
        ):
            with pytest.raises(errors.Forbidden):
                await call(verb, **params)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("retention_bytes", 2**70),
        ("retention_bytes", -1),
        ("retention_age_s", 1e308),
        ("retention_age_s", -1),
        ("max_hold_s", 1e308),
    ],
)
async def test_options_that_nothing_can_reckon_with_are_refused_and_the_hub_goes_on(hub, call, option, value):
    with pytest.raises(errors.BadRequest, match=option):
        await asyncio.wait_for(call("stream.create", stream="odd", options={option: value}), 60)
    with pytest.raises(errors.BadRequest, match=option):
        await asyncio.wait_for(call("stream.set-options", stream="orders", options={option: value}), 60)
    await asyncio.wait_for(hub.append("orders", Batch.one(b"1")), 60)


async def test_a_number_too_large_for_the_journal_does_not_end_the_writer(hub):
    checkpoint = await hub.begin_checkpoint("orders")
    with pytest.raises(errors.BadRequest, match="does not fit"):
        await asyncio.wait_for(checkpoint.commit(2**70), 60)
    await asyncio.wait_for(hub.append("orders", Batch.one(b"1")), 60)
