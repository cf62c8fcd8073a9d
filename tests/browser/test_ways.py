"""Ways to the console: keyboard, light and dark, a narrow window, a password, no hub."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


def test_everything_is_reached_by_keyboard(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "keys"})
    client.append("keys", [b"first", b"second", b"third"])
    page = open_page(f"{hub.page}/#/stream/keys")
    rows = page.locator(".records tbody tr")
    expect(rows).to_have_count(3)
    page.keyboard.press("Tab")
    expect(page.locator("#skip")).to_be_focused()
    expect(page.locator("#skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    expect(page.locator("h1")).to_have_text("keys")
    for _ in range(40):
        page.keyboard.press("Tab")
        if rows.first.evaluate("(row) => row === document.activeElement"):
            break
    expect(rows.first).to_be_focused()
    outline = rows.first.evaluate("(row) => getComputedStyle(row).outlineStyle")
    assert outline == "solid", "the focus is seen"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Payload")).to_have_text("second")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    expect(rows.nth(1)).to_be_focused()


def test_the_focus_stays_while_tables_change(hub: HubProcess, client: headrace.Client, open_page: OpenPage) -> None:
    client.call("stream.create", {"stream": "moving"})
    page = open_page(f"{hub.page}/#/streams")
    page.get_by_label("Filter streams").fill("moving")
    row = page.locator("tr", has_text="moving")
    button = row.get_by_role("button")
    button.focus()
    for count in (10, 20, 30):
        client.append("moving", [b"x"] * 10)
        expect(row).to_contain_text(f"0 to {count}")
        expect(button).to_be_focused()


def test_the_focus_goes_along_with_a_row_that_changes_its_place(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.call("stream.create", {"stream": "mover-b"})
    page = open_page(f"{hub.page}/#/streams")
    page.get_by_label("Filter streams").fill("mover-")
    button = page.get_by_role("button", name="What to do with mover-b")
    button.focus()
    client.call("stream.create", {"stream": "mover-a"})
    expect(page.get_by_role("button", name="What to do with mover-a")).to_be_visible()
    page.get_by_label("Filter streams").evaluate(
        "(field) => { field.value = 'mover-b'; field.dispatchEvent(new Event('input')); }"
    )
    expect(page.get_by_role("button", name="What to do with mover-a")).to_be_hidden()
    expect(button).to_be_focused()


def test_the_focus_stays_in_a_pipeline_that_reports(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    report = {"name": "busy", "run": "r", "batch": 1, "rows_per_s": 5.0}
    client.call("pipeline.report", report)
    page = open_page(f"{hub.page}/#/pipelines")
    card = page.get_by_label("Pipeline busy")
    card.get_by_role("button", name="Stop").focus()
    client.call("pipeline.report", report | {"rows_per_s": 7.0})
    expect(card).to_contain_text("7 rows/s")
    expect(card.get_by_role("button", name="Stop")).to_be_focused()


def test_light_and_dark(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(hub.page)
    expect(page.locator("html")).to_have_attribute("data-theme", "light")
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Light or dark").click()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.reload()
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


NARROW = """(width) => new Promise((done) => {
  const look = () => (document.documentElement.scrollWidth <= width ? done() : requestAnimationFrame(look));
  look();
})"""
"""Until nothing is wider: the map is laid out anew in the frame after the window changed."""


def test_nothing_is_wider_than_a_narrow_window_or_a_phone(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("a.rather/long.name/of_a_stream/that-does.not/fit", exist_ok=True)
    page = open_page(hub.page)
    for path in [link.get_attribute("href") for link in page.locator("#nav a").all()]:
        page.goto(f"{hub.page}/{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        for width in (800, 390):
            page.set_viewport_size({"width": width, "height": 700})
            page.evaluate(NARROW, width)


def test_who_are_you(tmp_path: Path, open_page: OpenPage, request: pytest.FixtureRequest) -> None:
    request.node.expected_troubles = ("401",)
    settings = tmp_path / "headrace.toml"
    settings.write_text('[security.users.ann]\nsecret = "right"\nroles = ["admin"]\n')
    with HubProcess(tmp_path, config=settings) as hub:
        page = open_page(hub.page)
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("User").fill("ann")
        dialog.get_by_label("Password or token").fill("wrong")
        dialog.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("dialog")).to_contain_text("wrong")
        page.get_by_role("dialog").get_by_label("User").fill("ann")
        page.get_by_role("dialog").get_by_label("Password or token").fill("right")
        page.get_by_role("dialog").get_by_role("button", name="Sign in").click()
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        expect(page.locator("h1")).to_contain_text("Map")
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("dialog")).to_contain_text("who you are")
        page.close()  # before the hub goes: a page that loses its hub says so in the browser's own words


def test_a_page_that_has_lost_its_hub_is_all_grey_and_says_so_until_it_is_back(
    tmp_path: Path, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("ERR_",)  # the browser's own words
    with HubProcess(tmp_path) as hub:
        page = open_page(f"{hub.page}/#/overview")
        expect(page.get_by_label("Alarms")).to_contain_text("All is well.")
        lost = page.locator("#lost")
        expect(lost).to_be_hidden()
        hub.stop()  # what is asked while it stops may still be answered
        expect(lost).to_contain_text("The hub does not answer. What you see is")
        expect(page.locator("#pulse")).to_have_text("not connected")
        expect(page.locator("main")).to_have_css("opacity", "0.42")
        page.get_by_role("link", name="Cursors").click()
        expect(page.locator("h1")).to_have_text("Cursors")
        expect(lost).to_be_visible()
        hub.start()
        expect(lost).to_be_hidden()
        expect(page.locator("main")).to_have_css("opacity", "1")
        page.close()


def test_whoever_may_not_look_is_told_so_and_can_sign_in_as_somebody_else(
    tmp_path: Path, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("401", "403")
    settings = tmp_path / "headrace.toml"
    settings.write_text(
        '[security.users.ben]\nsecret = "ben"\nroles = ["mute"]\n[[security.roles.mute]]\nrights = ["write"]\n'
    )
    with HubProcess(tmp_path, config=settings) as hub:
        page = open_page(hub.page)
        page.get_by_label("User").fill("ben")
        page.get_by_label("Password or token").fill("ben")
        page.get_by_role("button", name="Sign in").click()
        expect(page.locator("#lost")).to_contain_text("Looking at it needs the right 'read'.")
        expect(page.get_by_text("You may not look here.")).to_be_visible()
        expect(page.locator("main")).to_be_hidden()
        page.get_by_role("button", name="Sign in as somebody else").click()
        expect(page.get_by_role("dialog")).to_contain_text("who you are")
        page.close()


def test_the_page_may_do_nothing_but_its_own(
    hub: HubProcess, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("Content Security Policy",)
    page = open_page(hub.page)
    refused = page.evaluate(
        """async () => {
            const script = document.createElement("script");
            script.textContent = "window.owned = true";
            document.body.append(script);
            const answer = await fetch("http://127.0.0.1:9/").then(() => "asked", () => "refused");
            return [answer, window.owned];
        }"""
    )
    assert refused == ["refused", None]
