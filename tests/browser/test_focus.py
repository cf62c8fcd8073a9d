"""Whoever uses the keyboard keeps their place: what they have just pressed has the focus, whatever the page draws."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
PLACE = ".push [role=status]"
"""Which page of a list this is."""


def changed(page: Page, verb: str, change: Callable[[Any], None]) -> None:
    """The hub's answers to a verb reach the page with a change."""

    def answer(route: Route) -> None:
        found = route.fetch().json()
        change(found)
        route.fulfill(json=found)

    page.route(f"**/api/v1/{verb}", answer)


def redrawn(page: Page, verb: str) -> None:
    """Wait until the page has asked twice: then it has drawn the first answer."""
    for _ in range(2):
        with page.expect_response(f"**/api/v1/{verb}"):
            pass


def to_the_last_page(page: Page, verb: str, last: str) -> None:
    said = page.locator(PLACE)
    following = page.get_by_role("button", name="Next")
    following.focus()
    page.keyboard.press("Enter")
    expect(said).to_have_text(last)
    expect(following).to_be_disabled()
    expect(following).to_be_focused()
    page.keyboard.press("Enter")
    redrawn(page, verb)
    expect(said).to_have_text(last)
    expect(following).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Previous")).to_be_focused()


def test_the_last_page_of_streams_leaves_the_focus_on_next(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    for number in range(101):
        client.create(f"many.{number:03}")
    page = open_page(f"{hub.page}/#/streams?text=many.*")
    to_the_last_page(page, "console.streams", "101 to 101 of 101")


def test_the_last_page_of_a_table_leaves_the_focus_on_next(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("table.create", {"table": "long"})
    for number in range(101):
        key = b64encode(f"{number:03}".encode()).decode()
        client.call("table.put", {"table": "long", "key": key, "value": key})
    page = open_page(f"{hub.page}/#/table/long")
    expect(page.locator(PLACE)).to_have_text("1 to 100")
    to_the_last_page(page, "console.entries", "101 to 101 of 101")


def test_a_button_that_cannot_be_used_for_a_moment_keeps_the_focus(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("immortal.register", {"name": "counter"})
    page = open_page("about:blank")
    state = "running"
    changed(page, "immortal.list", lambda found: found[0].update(state=state))
    page.goto(f"{hub.page}/#/immortals/counter")
    take = page.get_by_role("button", name="Take a checkpoint")
    expect(take).to_be_enabled()
    take.focus()
    state = "checkpointing"
    expect(take).to_be_disabled()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(take).to_be_focused()
    state = "running"
    expect(take).to_be_enabled()
    expect(take).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()


def test_a_button_that_goes_hands_the_focus_to_the_one_beside_it(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("pipeline.create", {"name": "sums", "sql": "select 1 from stream('no')", "into": "totals"})
    page = open_page("about:blank")
    state = "stopped"
    changed(page, "console.pipelines", lambda found: found[0]["status"].update(state=state))
    page.goto(f"{hub.page}/#/pipelines")
    page.get_by_role("button", name="Start").focus()
    state = "running"
    expect(page.get_by_role("button", name="Stop")).to_be_focused()


def test_run_and_cancel_hand_the_focus_to_each_other(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/query")
    held: list[Route] = []
    page.route("**/api/v1/sql.query", lambda route: held.append(route))
    page.get_by_label("SQL").fill("SELECT 1 AS one")
    run = page.get_by_role("button", name="Run")
    run.focus()
    page.keyboard.press("Enter")
    expect(run).to_be_disabled()
    expect(run).to_be_focused()
    page.get_by_role("button", name="Cancel").focus()
    held.pop().continue_()
    expect(run).to_be_enabled()
    expect(run).to_be_focused()


def test_what_is_drawn_anew_has_the_focus_again(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.create("bills")
    client.create("bills.dead")
    letter = {"stream": "bills", "index": 4, "type": "bill", "key": None, "payload": "b29wcw==", "reason": "bad"}
    client.append("bills.dead", [json.dumps(letter).encode()], type="dead-letter")
    page = open_page(f"{hub.page}/#/dead")
    again = page.get_by_role("button", name="Send all again")
    again.focus()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("button", name="Send again").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Letters in bills.dead")).to_contain_text("All of them have been sent again.")
    expect(again).to_be_disabled()
    expect(again).to_be_focused()
