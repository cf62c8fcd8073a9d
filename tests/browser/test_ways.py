"""Ways to the console: keyboard, light and dark, a narrow window, a password, no hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from support.forked_hub import ForkedHub
from support.hub_process import HubProcess
from support.until import DEADLINE_S

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


NARROW = """([width, deadlineS]) => new Promise((done, fail) => {
  const began = performance.now();
  const look = () => {
    const wide = document.documentElement.scrollWidth;
    if (wide <= width) done();
    else if (performance.now() - began > deadlineS * 1000) fail(new Error(`${location.hash}: ${wide}, not ${width}`));
    else requestAnimationFrame(look);
  };
  look();
})"""
"""Until nothing is wider: the map is laid out anew in the frame after the window changed."""


def test_nothing_is_wider_than_a_narrow_window_or_a_phone(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage
) -> None:
    client.create("a.rather/long.name/of_a_stream/that-does.not/fit", exist_ok=True)
    for cursor, index in (("billing", 1234), ("a.rather/long.name/of-a-cursor", 0)):
        client.append("a.rather/long.name/of_a_stream/that-does.not/fit", [b"x"] * 1234)
        saved = {"cursor": cursor, "stream": "a.rather/long.name/of_a_stream/that-does.not/fit", "index": index}
        client.call("cursor.save", saved)
    page = open_page(hub.page)
    for path in [link.get_attribute("href") for link in page.locator("#nav a").all()]:
        page.goto(f"{hub.page}/{path}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.locator("#pulse")).to_contain_text("records/s in")
        for width in (800, 390, 280):
            page.set_viewport_size({"width": width, "height": 700})
            page.evaluate(NARROW, [width, DEADLINE_S])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    """A hub that asks who one is: an admin, a user who may not read, and a role for some streams."""
    folder = tmp_path_factory.mktemp("guarded")
    settings = folder / "headrace.toml"
    settings.write_text(
        '[security.users.ann]\nsecret = "ann"\nroles = ["admin"]\n[security.users.mia]\nsecret = "mia"\n'
        'roles = ["mute"]\n[[security.roles.mute]]\nrights = ["write"]\n'
        '[[security.roles.looker]]\nrights = ["read"]\nstreams = ["mine.*"]\n'
    )
    with ForkedHub(folder, config=settings) as running:
        yield running


def sign_in(page: Page, name: str, secret: str) -> None:
    page.get_by_label("User").fill(name)
    page.get_by_label("Password or token").fill(secret)
    page.get_by_role("button", name="Sign in").click()


def test_who_are_you(guarded: HubProcess, open_page: OpenPage, request: pytest.FixtureRequest) -> None:
    request.node.expected_troubles = ("401",)
    page = open_page(guarded.page)
    sign_in(page, "ann", "wrong")
    expect(page.get_by_role("dialog")).to_contain_text("Wrong user name or password.")
    sign_in(page, "ann", "ann")
    expect(page.locator("#pulse")).to_contain_text("records/s in")
    expect(page.locator("h1")).to_contain_text("Map")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("dialog")).to_contain_text("requires you to sign in")


def test_a_page_that_has_lost_its_hub_is_all_grey_and_says_so_until_it_is_back(
    tmp_path: Path, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("ERR_",)  # the browser's own words
    with ForkedHub(tmp_path) as hub:
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
    guarded: HubProcess, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    request.node.expected_troubles = ("401", "403")
    page = open_page(guarded.page)
    sign_in(page, "mia", "mia")
    expect(page.locator("#lost")).to_contain_text("Looking at it needs the right 'read'.")
    expect(page.locator("#refused")).to_contain_text("You do not have access.")
    expect(page.locator("main")).to_be_hidden()
    page.get_by_role("button", name="Sign in as someone else").click()
    expect(page.get_by_role("dialog")).to_contain_text("requires you to sign in")


@pytest.fixture
def admin(guarded: HubProcess) -> Iterator[headrace.Client]:
    with headrace.connect(guarded.addresses["flight"], user="ann", password="ann") as connected:
        yield connected


def test_whoever_may_read_some_streams_sees_them_and_nothing_of_the_others(
    guarded: HubProcess, admin: headrace.Client, open_page: OpenPage, request: pytest.FixtureRequest
) -> None:
    """And when the user is removed, the page that is open says so by itself."""
    request.node.expected_troubles = ("401", "403")
    for stream in ("mine.a", "secret.b"):
        admin.create(stream)
        admin.append(stream, [b'{"n": 1}'] * 5)
        admin.call("cursor.save", {"cursor": f"{stream}-reader", "stream": stream, "index": 2})
    admin.call("pipeline.create", {"name": "secret-sums", "sql": "select 1 from stream('mine.a')", "into": "s"})
    admin.call("user.add", {"user": "ben", "secret": "ben and ben", "roles": ["looker"]})
    page = open_page(guarded.page)
    sign_in(page, "ben", "ben and ben")
    expect(page.locator(".node.stream")).to_have_text([re.compile("^mine[.]a")])  # and how far its reader is behind
    expect(page.locator("#pulse")).to_have_text("connected")
    told = []
    for path, words in (
        ("overview", "You see only what concerns the streams you may read."),
        ("streams", "mine.a"),
        ("cursors", "mine.a-reader"),
        ("events", "The hub started"),
        ("query", "SQL over streams"),
        ("sessions", "it needs the right 'read' on every stream."),
        ("pipelines", "You do not have access to this page."),
        ("users", "it needs the right 'admin'."),
        ("stream/secret.b", "You do not have access to this page."),
    ):
        page.goto(f"{guarded.page}/#/{path}")
        expect(page.locator("main")).to_contain_text(words)
        told.append((path, page.locator("main").inner_text().replace("'secret.b'", "")))
    assert [path for path, text in told if "secret" in text or "Anyone who can reach" in text] == []
    page.goto(f"{guarded.page}/#/query")
    page.get_by_label("SQL").fill('SELECT * FROM "secret.b"')
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main")).to_contain_text("may not")
    expect(page.locator("main")).not_to_contain_text('"n"')
    page.goto(f"{guarded.page}/#/stream/mine.a")
    expect(page.locator(".records tbody tr")).to_have_count(5)
    admin.call("user.remove", {"user": "ben"})
    expect(page.get_by_role("dialog")).to_contain_text("Sign in")
    sign_in(page, "ann", "ann")
    expect(page.locator("#pulse")).to_contain_text("records/s in")
    expect(page.locator(".records tbody tr")).to_have_count(5)


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


@pytest.mark.parametrize("ahead_s", [-7200, 7200])
def test_a_browser_whose_clock_is_wrong_shows_the_time_of_the_hub(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, ahead_s: int
) -> None:
    page = open_page("about:blank")
    page.add_init_script(f"const right = Date.now; Date.now = () => right() + {ahead_s * 1000};")
    page.goto(f"{hub.page}/#/events")
    expect(page.get_by_label("Events")).to_contain_text("The hub started")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("stream/%", "stream '%' does not exist"),
        ("stream/parted-in-64?partition=99", "all 64 partitions"),
        ("events?since=tomorrow", "The hub started"),
        ("table/map-of-things?offset=-4", "No entries."),
    ],
)
def test_an_address_that_was_typed_wrong_leads_somewhere(
    hub: HubProcess,
    client: headrace.Client,
    open_page: OpenPage,
    request: pytest.FixtureRequest,
    path: str,
    words: str,
) -> None:
    if path.startswith("stream/%"):
        request.node.expected_troubles = ("404",)
    client.call("stream.create", {"stream": "parted-in-64", "partitions": 64, "exist_ok": True})
    client.call("table.create", {"table": "map-of-things"})
    page = open_page(f"{hub.page}/#/{path}")
    expect(page.locator("main")).to_contain_text(words)
    if not path.startswith("stream/%"):
        expect(page.locator("main > [role=alert]")).to_be_hidden()
    if "64" in path:
        expect(page.locator(".summary")).to_contain_text("0 to 0 at most, in 64 partitions")
