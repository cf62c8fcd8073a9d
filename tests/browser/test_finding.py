"""Finding things: all partitions at once, addresses that lead back, one search, tables, users, options, no barriers."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect
from support.barriers import barriers
from support.hub_process import HubProcess

import headrace

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


@pytest.fixture(scope="module")
def filled(client: headrace.Client) -> headrace.Client:
    """A hub with something on every page."""
    client.create("parted", partitions=3)
    for number in range(30):
        client.append(
            "parted", [b'{"n": %d}' % number], partition=number % 3, type="EVEN" if number % 2 == 0 else "ODD"
        )
    client.call("cursor.save", {"cursor": "billing", "stream": "parted", "index": 4})
    client.call("table.create", {"table": "stock"})
    client.call("table.put", {"table": "stock", "key": "cGVhcg==", "value": "Nw=="})
    client.call("pipeline.create", {"name": "sums", "sql": "select 1 from stream('parted')", "into": "totals"})
    return client


def test_all_partitions_are_shown_at_once_in_the_order_of_time(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/stream/parted")
    rows = page.locator(".records tbody tr")
    expect(rows).to_have_count(30)
    payloads = page.locator(".records tbody tr td:last-child")
    expect(payloads).to_have_text([f'{{"n": {number}}}' for number in reversed(range(30))])
    filled.append("parted", [b"one more"], partition=1)
    expect(payloads.first).to_have_text("one more")
    page.get_by_role("button", name="Earliest").click()
    expect(payloads.first).to_have_text('{"n": 0}')
    page.get_by_label("Partition", exact=True).select_option("2")
    expect(rows).to_have_count(10)
    expect(page).to_have_url(re.compile("partition=2"))
    page.reload()
    expect(rows).to_have_count(10)


def test_an_address_leads_back_to_the_same_record_filter_and_list(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/stream/parted")
    page.get_by_label("Filter by type").fill("ODD")
    page.locator(".records tbody tr", has_text='{"n": 7}').click()
    expect(page.get_by_label("Payload", exact=True)).to_contain_text('"n": 7')
    expect(page.get_by_label("The path of this record")).to_contain_text("sums")
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#note")).to_have_text("Copied the link.")
    link = page.evaluate("navigator.clipboard.readText()")
    assert "record=1%2F2" in link
    other = open_page(link)
    expect(other.get_by_label("Payload", exact=True)).to_contain_text('"n": 7')
    expect(other.get_by_label("Filter by type")).to_have_value("ODD")
    expect(other.locator("tr[aria-selected=true]")).to_contain_text('{"n": 7}')
    for path, label in (
        ("cursors", "Filter cursors"),
        ("settings", "Filter settings"),
        ("sessions", "Filter sessions"),
    ):
        page.goto(f"{hub.page}/#/{path}")
        page.get_by_label(label).fill("bill")
        expect(page).to_have_url(re.compile(f"{path}\\?text=bill"))
        page.reload()
        expect(page.get_by_label(label)).to_have_value("bill")


def test_everything_is_found_with_a_slash(hub: HubProcess, filled: headrace.Client, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/settings")
    expect(page.locator("h1")).to_have_text("Settings")
    page.keyboard.press("/")
    search = page.get_by_label("Search everything")
    expect(search).to_be_focused()
    search.fill("bill")
    expect(page.locator("#found a").first).to_contain_text("billing in parted")
    search.fill("sto")
    expect(page.locator("#found a").first).to_contain_text("stock")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("stock")
    page.keyboard.press("/")
    expect(search).to_be_focused()
    page.go_back()
    expect(page.locator("h1")).to_have_text("Settings")
    expect(search).to_be_hidden()
    page.keyboard.press("/")
    page.get_by_label("Search everything").fill("parted:1 2")
    expect(page.locator("#found a").first).to_contain_text("record")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Payload", exact=True)).to_contain_text('"n": 7')


def test_a_tables_entries_are_set_changed_and_removed(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage
) -> None:
    page = open_page(f"{hub.page}/#/tables")
    page.get_by_role("link", name="stock").click()
    row = page.locator("tbody tr", has_text="pear")
    expect(row).to_contain_text("7")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Change…").click()
    page.get_by_label("Value").fill("8")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("8")
    page.get_by_role("button", name="Set a key").click()
    page.get_by_role("textbox", name="Key").fill("fig")
    page.get_by_label("Value").fill("1")
    page.get_by_role("button", name="Set", exact=True).click()
    fig = page.locator("tbody tr", has_text="fig")
    expect(fig).to_be_visible()
    fig.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove…").click()
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(fig).to_have_count(0)


def test_a_value_that_is_no_text_is_changed_as_bytes(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage
) -> None:
    filled.call("table.create", {"table": "binary"})
    filled.call("table.put", {"table": "binary", "key": "a2V5", "value": "/wBwZWFy"})  # ff 00 pear
    page = open_page(f"{hub.page}/#/table/binary")
    row = page.locator("tbody tr", has_text="key")
    expect(row).to_contain_text("··pear")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Change…").click()
    value = page.get_by_label("Value, as bytes in hex")
    expect(value).to_have_value("ff0070656172")
    value.fill("ff zz")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("That is not hex")
    value.fill("ff 0066 6967")
    page.get_by_role("button", name="Set", exact=True).click()
    expect(row).to_contain_text("··fig")
    assert filled.call("table.get", {"table": "binary", "key": "a2V5"})["value"] == "/wBmaWc="


def test_retention_is_changed_where_it_is_shown(hub: HubProcess, filled: headrace.Client, open_page: OpenPage) -> None:
    filled.create("kept")
    page = open_page(f"{hub.page}/#/stream/kept")
    page.get_by_role("button", name="kept for ever").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator("[data-preview]")).to_contain_text("Nothing is removed.")
    dialog.get_by_label("Hours to keep records").fill("48")
    expect(dialog.locator(".command")).to_contain_text("headrace stream set kept --retain-age 48h")
    dialog.get_by_role("button", name="Change").click()
    expect(page.get_by_role("button", name="kept 2 days")).to_be_visible()
    assert filled.call("stream.describe", {"stream": "kept"})["options"]["retention_age_s"] == 172800


@pytest.mark.parametrize(("theme", "width"), [("light", 1300), ("dark", 1300), ("light", 390), ("dark", 390)])
def test_no_page_has_a_barrier(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage, theme: str, width: int
) -> None:
    """axe finds nothing on any page, nor in a dialog, a menu and the search."""
    page = open_page(f"{hub.page}/#/")
    page.emulate_media(color_scheme=theme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": width, "height": 850})
    page.reload()
    paths = [link.get_attribute("href") for link in page.locator("#nav a").all()]
    found = {}
    for path in [*paths, "#/stream/parted?record=1/2", "#/table/stock"]:
        page.goto(f"{hub.page}/{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        expect(page.locator("main")).not_to_have_text("")
        found |= barriers(page, str(path), theme)
    page.goto(f"{hub.page}/#/pipelines")
    page.get_by_role("button", name="Reset").click()
    expect(page.locator("[data-preview] p").first).to_be_visible()
    found |= barriers(page, "a dialog", theme)
    page.keyboard.press("Escape")
    page.get_by_role("button", name="What else to do with sums").click()
    expect(page.get_by_role("menuitem").first).to_be_visible()
    found |= barriers(page, "a menu", theme)
    page.keyboard.press("Escape")
    page.locator("#find").click()
    page.get_by_label("Search everything").fill("s")
    expect(page.locator("#found a").first).to_be_visible()
    found |= barriers(page, "the search", theme)
    assert found == {}
    page.evaluate(  # a rule, since what is found is drawn again and again
        """() => {
            const sheet = new CSSStyleSheet();
            sheet.replaceSync("#found a { color: rgb(128 128 128 / .2) !important }");
            document.adoptedStyleSheets.push(sheet);
        }"""
    )
    assert "the search: color-contrast" in barriers(page, "the search", theme), "axe was at work"


def test_users_are_added_given_a_token_and_removed(
    hub: HubProcess, filled: headrace.Client, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    """Last here: from then on this hub asks who one is."""
    request.node.expected_troubles = ("401",)
    page = open_page(f"{hub.page}/#/users")
    expect(page.locator("main")).to_contain_text("No users.")
    dialog = page.get_by_role("dialog")

    def add(name: str, roles: str) -> None:
        page.get_by_role("button", name="Add a user").click()
        dialog.get_by_label("Name").fill(name)
        dialog.get_by_label("Roles").fill(roles)
        expect(dialog.locator(".command")).to_contain_text(f"headrace user add {name} --role {roles}")
        dialog.get_by_label("Password (").fill("right horse")
        dialog.get_by_role("button", name="Add").click()

    add("ann", "admin")
    dialog.get_by_label("User").fill("ann")
    dialog.get_by_label("Password or token").fill("right horse")
    dialog.get_by_role("button", name="Sign in").click()
    expect(page.locator("tbody tr", has_text="ann")).to_contain_text("admin")
    add("ben", "reader")
    row = page.locator("tbody tr", has_text="ben")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="New token…").click()
    expect(dialog.locator(".command")).to_contain_text("headrace user token ben")
    dialog.get_by_role("button", name="Create a token").click()
    expect(dialog).to_contain_text("It is shown only once")
    dialog.get_by_role("button", name="Close").click()
    expect(row.locator("[data-title=Tokens]")).to_have_text("1")
    row.get_by_role("button").click()
    page.get_by_role("menuitem", name="Remove…").click()
    dialog.get_by_role("button", name="Remove", exact=True).click()
    expect(row).to_have_count(0)
