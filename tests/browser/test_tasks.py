"""Ten everyday tasks, each begun at the map: none takes more than four clicks. Typing is not counted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
CLICKS_MAX = 4


class Hand:
    """Clicks, and counts."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, target: Locator | str) -> None:
        self.clicks += 1
        (self.page.get_by_role("button", name=target, exact=True) if isinstance(target, str) else target).click()

    def go(self, title: str) -> None:
        self.click(self.page.get_by_label("Pages").get_by_role("link", name=title, exact=True))

    def choose(self, label: str, value: str) -> None:
        self.clicks += 1
        self.page.get_by_label(label).select_option(value)

    def open_stream(self, name: str) -> None:
        self.click(self.page.locator(f".node[data-id='stream/{name}']"))


def find_a_record_by_field(hand: Hand) -> None:
    hand.open_stream("orders")
    hand.page.get_by_label("Filter by JSON field").fill("n=7")
    hand.click(hand.page.locator(".records tbody tr"))
    expect(hand.page.get_by_label("Payload", exact=True)).to_contain_text('"n": 7')


def share_a_record(hand: Hand) -> None:
    hand.open_stream("orders")
    hand.click(hand.page.locator(".records tbody tr").first)
    hand.click("Copy link")
    expect(hand.page.locator("#note")).to_have_text("Copied the link.")


def see_how_far_behind_a_consumer_is(hand: Hand) -> None:
    hand.go("Cursors")
    expect(hand.page.locator("tbody tr", has_text="billing")).to_contain_text("16 records")


def move_a_cursor_back(hand: Hand) -> None:
    hand.go("Cursors")
    hand.click(hand.page.locator("tr", has_text="billing").get_by_role("button", name="Reset"))
    expect(hand.page.locator("[data-preview]")).to_contain_text("4 records are read again")
    hand.click("Move the cursor")
    expect(hand.page.locator("tbody tr", has_text="billing")).to_contain_text("20 records")


def replay_dead_letters(hand: Hand) -> None:
    hand.go("Dead letters")
    hand.click("Send all again")
    hand.click("Send again")
    expect(hand.page.locator("main")).to_contain_text("All of them have been sent again.")


def change_retention(hand: Hand) -> None:
    hand.open_stream("orders")
    hand.click(hand.page.get_by_role("button", name="kept for ever"))
    hand.page.get_by_label("Keep for so many hours").fill("48")
    hand.click("Change")
    expect(hand.page.get_by_role("button", name="kept 2 days")).to_be_visible()


def set_a_pipeline_back(hand: Hand) -> None:
    hand.go("Pipelines")
    hand.click(hand.page.get_by_label("Pipeline sums").get_by_role("button", name="Reset"))
    hand.choose("Where it goes on", "earliest")
    expect(hand.page.locator("[data-preview]")).to_contain_text("3 records")
    hand.click(hand.page.get_by_role("dialog").get_by_role("button", name="Reset"))
    expect(hand.page.locator("#note")).to_have_text("Reset sums.")


def ask_in_sql(hand: Hand) -> None:
    hand.open_stream("orders")
    hand.click(hand.page.get_by_role("link", name="Open in Query"))
    expect(hand.page.get_by_label("Rows").locator("tbody tr").first).to_be_visible()


def mute_an_alarm(hand: Hand) -> None:
    failed = hand.page.get_by_label("Alarms").locator("[data-kind=pipeline]")
    hand.click(failed.get_by_role("button"))
    hand.click(hand.page.get_by_role("menuitem", name="Mute…"))
    hand.click("Mute")
    expect(failed).to_have_count(0)


def add_a_user(hand: Hand) -> None:
    hand.go("Users")
    hand.click("Add a user")
    hand.page.get_by_label("Name").fill("ann")
    hand.page.get_by_label("Password (").fill("right horse")
    hand.click("Add")
    expect(hand.page.get_by_role("dialog")).to_contain_text(re.compile("who you are|wrong"))


TASKS = (
    find_a_record_by_field,
    share_a_record,
    see_how_far_behind_a_consumer_is,
    move_a_cursor_back,
    replay_dead_letters,
    change_retention,
    set_a_pipeline_back,
    ask_in_sql,
    mute_an_alarm,
    add_a_user,  # last: from then on the hub asks who one is
)


@pytest.fixture(scope="module")
def shop(client: headrace.Client) -> None:
    """Something to do."""
    client.create("orders")
    client.append("orders", [json.dumps({"n": number}).encode() for number in range(20)])
    client.call("cursor.save", {"cursor": "billing", "stream": "orders", "index": 4})
    client.create("bills")
    client.create("bills.dead")
    letter = {"reason": "Malformed", "stream": "bills", "payload": "e2Jyb2tlbg=="}
    client.append("bills.dead", [json.dumps(letter).encode()], type="dead-letter")
    client.call("pipeline.create", {"name": "sums", "sql": "select 1 from stream('orders')", "into": "totals"})
    client.call("cursor.save", {"cursor": "sums", "stream": "orders", "index": 3})
    client.call("pipeline.report", {"name": "broken", "state": "failed", "error": "no such column"})
    client.call("pipeline.report", {"name": "sums", "state": "stopped"})


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.__name__)
def test_a_task_takes_at_most_four_clicks(
    hub: HubProcess, shop: None, open_page: OpenPage, request: pytest.FixtureRequest, task: Callable[[Hand], None]
) -> None:
    request.node.expected_troubles = ("401",)
    hand = Hand(open_page(hub.page))
    task(hand)
    assert 0 < hand.clicks <= CLICKS_MAX
