"""Lists in pages: on both sides of each limit, for callers that ask for pages and for those that do not."""

from __future__ import annotations

import base64
from collections.abc import Iterable

import msgspec
import pytest

from headrace import admin, errors
from headrace.admin import openapi
from headrace.config import Config, Limits
from headrace.hub.verbs import Answer, Verbs
from headrace.pages import Listed, Page, take
from headrace.security import EVERYTHING
from headrace.testing import memory_hub

FEW = Config(limits=Limits(list_items=3, list_items_max=5))


@pytest.fixture
async def hub():
    async with memory_hub(FEW) as opened:
        await admin.start(opened)
        yield opened


async def asked(hub, verb, **params):
    answer: Answer = await hub.verbs.answer(verb, msgspec.json.encode(params), EVERYTHING)
    return msgspec.json.decode(answer.body), answer.next


async def all_pages(hub, verb, limit, **params):
    """The entries of every page, and how many pages there were."""
    entries, after, pages = [], {}, 0
    while True:
        page, told = await asked(hub, verb, limit=limit, **after, **params)
        assert told is None
        assert len(page["items"]) <= limit
        entries += page["items"]
        pages += 1
        if page["next"] is None:
            return entries, pages
        after = {"after": page["next"]}


async def made(hub, count):
    for number in range(count):
        await hub.create_stream(f"s{number}")
        await hub.create_table(f"t{number}")
        await hub.save_cursor("a", f"s{number}", 0)
        await hub.save_cursor("b", f"s{number}", 0)


@pytest.mark.parametrize("verb", ["stream.list", "table.list"])
async def test_a_caller_that_does_not_ask_for_pages_gets_the_first_and_is_told(hub, verb):
    await made(hub, 3)
    entries, told = await asked(hub, verb)
    assert [entry["name"][1:] for entry in entries] == ["0", "1", "2"]
    assert told is None
    await made(hub, 4)
    entries, told = await asked(hub, verb)
    assert [entry["name"][1:] for entry in entries] == ["0", "1", "2"]
    rest, _ = await asked(hub, verb, after=told)
    assert ([entry["name"][1:] for entry in rest["items"]], rest["next"]) == (["3"], None)


@pytest.mark.parametrize(("verb", "count"), [("stream.list", 7), ("table.list", 7), ("cursor.list", 14)])
@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_are_the_whole_list_and_nothing_twice(hub, verb, count, limit):
    await made(hub, 7)
    entries, pages = await all_pages(hub, verb, limit)
    assert len(entries) == count
    assert pages == -(-count // limit)
    key = "name" if verb != "cursor.list" else "stream"
    assert [entry[key][1:] for entry in entries] == [str(n) for n in range(7) for _ in range(count // 7)]
    if verb == "cursor.list":
        assert [entry["name"] for entry in entries] == ["a", "b"] * 7
        of_one, _ = await all_pages(hub, verb, limit, stream="s3", pattern="*")
        assert [(entry["stream"], entry["name"]) for entry in of_one] == [("s3", "a"), ("s3", "b")]


async def test_a_list_that_changes_between_pages(hub):
    await made(hub, 4)
    page, _ = await asked(hub, "stream.list", limit=2)
    await hub.delete_stream("s1")  # the last of the page before
    await hub.delete_stream("s2")
    await hub.create_stream("late")
    rest, _ = await asked(hub, "stream.list", after=page["next"], limit=5)
    assert [entry["name"] for entry in rest["items"]] == ["s3", "late"]


async def test_patterns_hold_over_pages(hub):
    await made(hub, 12)
    entries, pages = await all_pages(hub, "stream.list", 2, pattern="s1*")
    assert ([entry["name"] for entry in entries], pages) == (["s1", "s10", "s11"], 2)


async def test_limits_have_names(hub):
    await made(hub, 1)
    assert len((await asked(hub, "stream.list", limit=5))[0]["items"]) == 1
    with pytest.raises(errors.LimitExceeded, match=r"limits\.list_items_max"):
        await asked(hub, "stream.list", limit=6)
    with pytest.raises(errors.BadRequest, match="below 1"):
        await asked(hub, "stream.list", limit=0)


@pytest.mark.parametrize("after", ["", "?", "e30=", base64.urlsafe_b64encode(b'["x"]').decode()])
async def test_a_place_that_no_page_had_is_refused(hub, after):
    await made(hub, 2)
    with pytest.raises(errors.BadRequest, match="'after'"):
        await asked(hub, "stream.list", after=after)


async def test_a_default_above_the_maximum_is_the_maximum():
    verbs = Verbs(limits=Limits(list_items=9, list_items_max=4))
    assert verbs.limit_of(Listed()) == 4
    assert verbs.limit_of(Listed(limit=4)) == 4


async def test_parts_are_counted_and_documented(hub):
    await made(hub, 4)
    await asked(hub, "stream.list")
    await asked(hub, "stream.list", limit=4)
    assert hub.metrics.verbs.parts.labels(verb="stream.list")._value.get() == 1
    document = openapi.document(hub.verbs)
    schema = document["paths"]["/api/v1/stream.list"]["post"]["responses"]["200"]["content"]["application/json"]
    assert {next(iter(each)) for each in schema["schema"]["anyOf"]} == {"type", "$ref"}


async def test_lists_of_checkpoints_and_what_cannot_grow_without_pages(hub):
    await hub.create_stream("s")
    for _ in range(4):
        writer = await hub.begin_checkpoint("s")
        await writer.write(b"x")
        await writer.commit(0)
    entries, pages = await all_pages(hub, "checkpoint.list", 3, stream="s")
    assert ([entry["id"] for entry in entries], pages) == ([1, 2, 3, 4], 2)


def test_every_list_verb_is_paged(hub):
    """A verb that returns a list, and is not on this list of those that cannot grow, has pages."""
    bounded = {
        "stream.bounds": "partitions",
        "cursor.reset": "partitions",
        "table.items": "offset and limit",
        "verb.list": "the program",
        "config.show": "the program",
    }
    for verb in hub.verbs:
        if str(verb.response).startswith(("list[", "typing.List")):
            assert verb.name in bounded, f"{verb.name} returns a list without pages"


def test_a_page_takes_no_more_of_a_list_than_it_needs():
    taken = []

    def numbers() -> Iterable[int]:
        for number in range(1_000):
            taken.append(number)
            yield number

    page = take(Listed(limit=3), numbers(), lambda number: [number], 3)
    assert isinstance(page, Page)
    assert (page.items, taken) == ([0, 1, 2], [0, 1, 2, 3])
