"""The console's pages about those who are connected: sessions, immortals, executions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, Route, expect
from support.background import Background
from support.barriers import barriers
from support.hub_process import HubProcess
from support.until import DEADLINE_S, until

import headrace
from headrace.config.address import split_address
from headrace.immortals import method, serve
from headrace.protocols.ambrosia.client import Host, Immortal, impulse
from headrace.protocols.perper.fabric.client import FabricClient
from headrace.protocols.perper.ignite.binary import encode_long, encode_string
from headrace.protocols.perper.ignite.client import IgniteClient
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.records import Execution, write_execution
from headrace.protocols.wallaroo.client import Connector

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]
GET_OR_CREATE, PUT = 1054, 1001


def test_a_session_stands_in_the_diagram_of_its_protocol(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, background: Background
) -> None:
    leave = asyncio.Event()

    async def connect() -> None:
        async with Connector(hub.addresses["wallaroo"], program="till") as connector:
            stream = await connector.stream("payments")
            await stream.send(b"one")
            await stream.flush()
            await leave.wait()

    background.start(connect())
    page = open_page(f"{hub.page}/#/sessions")
    row = page.locator("tr", has_text="wallaroo")
    expect(row).to_contain_text("credits left")
    expect(row).to_contain_text("payments")
    row.focus()
    page.keyboard.press("Enter")
    detail = page.get_by_label("Session", exact=True)
    connection, stream = detail.locator("svg.machine").nth(0), detail.locator("svg.machine").nth(1)
    expect(connection.locator(".state.now")).to_have_attribute("data-state", "Streaming")
    expect(connection.locator(".state")).to_have_count(5)
    expect(stream.locator(".state.now")).to_have_attribute("data-state", "Open")
    expect(detail.locator("figcaption").first).to_contain_text("ERROR → Error")
    expect(detail).to_contain_text("Last error")
    assert barriers(page, "a session") == {}
    background.run(_set(leave))
    expect(row).to_have_count(0)
    page.get_by_label("Which sessions").select_option("ended")
    expect(page.locator("tr", has_text="payments")).to_be_visible()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_a_session_that_ended_says_why(hub: HubProcess, open_page: OpenPage, background: Background) -> None:
    async def talk_nonsense() -> None:
        reader, writer = await asyncio.open_connection(*split_address(hub.addresses["ignite"]))
        writer.write(b"\x05\x00\x00\x00nonsense")
        await reader.read()
        writer.close()

    background.run(talk_nonsense())
    page = open_page(f"{hub.page}/#/sessions")
    page.get_by_label("Which sessions").select_option("ended")
    page.get_by_label("Filter sessions").fill("ignite")
    row = page.locator("tbody tr").first
    expect(row.locator(".bad")).not_to_be_empty()
    row.click()
    detail = page.get_by_label("Session", exact=True)
    expect(detail).to_contain_text("Why it ended")
    expect(detail.locator(".state.now")).to_have_attribute("data-state", "closed")


class Counter(Immortal):
    total: int = 0

    @impulse
    def add(self, amount: int) -> None:
        self.total += amount


def test_an_immortal_has_a_timeline_and_is_replayed_for_a_debugger(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, background: Background
) -> None:
    ports = client.call("immortal.register", {"name": "counter"})

    async def hosted(receive: str, send: str) -> Host:
        return Host(Counter, name="counter", receive=receive, send=send)

    async def add(host: Host, amount: int) -> None:
        await host.wait_primary()
        before = host.immortal.total
        host.itself.add(amount)
        await until(lambda: host.immortal.total != before)

    host = background.run(hosted(ports["receive"], ports["send"]))
    background.start(host.run())
    background.run(add(host, 5))
    page = open_page(f"{hub.page}/#/immortals")
    page.locator("tr", has_text="counter").click()
    detail = page.get_by_label("Timeline", exact=True).first
    expect(detail).to_contain_text('"amount":5')
    page.get_by_role("button", name="Take a checkpoint").click()
    expect(page.locator(".command")).to_contain_text("headrace immortal checkpoint counter")
    page.get_by_role("button", name="Take it").click()
    expect(detail.locator("svg.timeline .checkpoint")).to_have_count(2)
    background.run(add(host, 37))
    expect(detail.locator("svg.timeline .message")).to_have_count(3)
    expect(page.get_by_role("button", name="Take a checkpoint")).to_be_focused()
    expect(detail.locator(".events li.checkpoint")).to_have_count(2)
    assert barriers(page, "an immortal") == {}

    detail.get_by_role("button", name="Replay from here").last.click()
    page.get_by_role("button", name="Open the ports").click()
    dialog = page.get_by_role("dialog", name="The ports are open")
    expect(dialog).to_contain_text("3 messages after checkpoint")
    receive, send = (dialog.locator("dd code").nth(at).inner_text() for at in (0, 1))
    dialog.get_by_role("button", name="Close").click()
    session = page.get_by_label("Debugging sessions").locator("tbody tr")
    expect(session).to_contain_text("waiting")
    debugged = background.run(hosted(receive, send))
    background.start(debugged.run())
    expect(session).to_contain_text("replayed")
    expect(session).to_contain_text("3 of 3 messages")
    assert background.run(total_of(debugged)) == 42
    session.get_by_role("button", name="End").click()
    expect(session).to_have_count(0)
    [counter] = [one for one in client.call("immortal.list", {}) if one["name"] == "counter"]
    assert (counter["state"], counter["log_next"]) == ("running", 3)


async def total_of(host: Host) -> int:
    await until(lambda: host.immortal.total >= 42)
    return host.immortal.total


def test_executions_show_state_worker_and_duration(
    hub: HubProcess, open_page: OpenPage, background: Background
) -> None:
    async def start() -> IgniteClient:
        ignite = await IgniteClient.connect(*split_address(hub.addresses["ignite"]))
        await ignite.request(GET_OR_CREATE, Configuration({0: "executions"}))
        await put(ignite, "Quote-1", finished=False)
        await put(ignite, "Quote-2", finished=False)
        return ignite

    async def put(ignite: IgniteClient, name: str, *, finished: bool) -> None:
        record = write_execution(Execution("Pricing", "shop", "Quote", finished))
        await ignite.request(PUT, encode_string(name), record, cache="executions")

    async def work() -> FabricClient:
        fabric = await FabricClient.connect(*split_address(hub.addresses["fabric"]))
        wanted = {"agent": "Pricing", "instance": "", "delegate": ""}
        asked = {"workGroup": "prices", "filter": wanted, "reserveNext": 1}
        fabric.start("/perper.Fabric/ReservedExecutions", asked, end=False)
        return fabric

    ignite = background.run(start())
    page = open_page(f"{hub.page}/#/executions")
    first, second = page.locator("tr", has_text="Quote-1"), page.locator("tr", has_text="Quote-2")
    expect(first).to_contain_text("waiting")
    expect(second).to_contain_text("s so far")
    fabric = background.run(work())
    expect(first).to_contain_text("working")
    expect(first).to_contain_text("127.0.0.1:")
    background.run(put(ignite, "Quote-1", finished=True))
    expect(first).to_contain_text("finished")
    expect(first).not_to_contain_text("so far")
    page.get_by_label("Which executions").select_option("open")
    expect(first).to_have_count(0)
    background.run(fabric.close())
    background.run(ignite.close())


class Shop(Immortal):
    """One that says what can be called of it."""

    orders: list[str] = []  # noqa: RUF012

    @method
    def order(self, item: str) -> int:
        self.orders.append(item)
        return len(self.orders)

    @method
    async def approve(self, item: str) -> bool:
        self.later("1d", self.order, item)
        return await self.token(bool)


class Clerk(Immortal):
    """One that calls another."""

    @method
    async def buy(self, item: str) -> int:
        return await self.proxy(Shop, "shop").order(item)


def away_for_a_moment(page: Page, waits: Locator, words: str) -> None:
    """As when its program is gone and comes back: what is said before is said afterwards."""

    def away(route: Route) -> None:
        route.fulfill(json=[row | {"state": "absent"} for row in route.fetch().json()])

    expect(waits).to_contain_text(words)
    page.route("**/api/v1/immortal.list", away)
    expect(waits).to_contain_text("Nobody can be asked")
    page.unroute("**/api/v1/immortal.list")
    expect(waits).to_contain_text(words)


def test_an_immortal_is_seen_from_inside_called_and_given_what_it_waits_for(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, background: Background
) -> None:
    closed = asyncio.Event()

    async def shop() -> None:
        address = hub.addresses["flight"]
        async with serve(Shop, "shop", hub=address), serve(Clerk, "clerk", hub=address):
            await closed.wait()

    served = background.start(shop())
    page = open_page(f"{hub.page}/#/immortals/shop")
    state = page.get_by_label("State", exact=True)
    expect(state).to_contain_text('"orders": []')
    dialog = page.get_by_role("dialog")
    page.get_by_role("button", name="Call a method").click()
    dialog.get_by_label("Arguments").fill('{"item": "pear"}')
    dialog.get_by_label("Method").select_option("order")
    expect(dialog.locator(".command")).to_contain_text("""headrace immortal call shop order '{"item": "pear"}'""")
    dialog.get_by_role("button", name="Call", exact=True).click()
    expect(dialog).to_contain_text("shop.order returned1")
    dialog.get_by_role("button", name="Close").click()
    expect(state).to_contain_text('"pear"')
    expect(page.locator(".timeline .message.answered text")).to_have_text("order")
    expect(page.locator(".events")).to_contain_text('order from outside {"item":"pear"} returned 1 after')
    page.get_by_role("button", name="Take a checkpoint").click()
    dialog.get_by_role("button", name="Take it").click()
    expect(page.locator("#note")).to_have_text("The checkpoint is on disk.")
    client.call("immortal.call", {"name": "shop", "method": "approve", "arguments": {"item": "fig"}, "wait_s": 0})
    waits = page.get_by_label("What it waits for")
    away_for_a_moment(page, waits, "approve waits for token")
    expect(waits.get_by_label("Pending timers")).to_contain_text('{"item":"fig"}')
    waits.get_by_role("button", name="Fulfil…").click()
    dialog.get_by_role("button", name="Fulfil").click()
    expect(waits).not_to_contain_text("approve waits for token")
    page.get_by_label("State in which checkpoint").fill("1")
    expect(page.get_by_label("State of the immortal")).to_contain_text("checkpoint")
    expect(state).to_contain_text('"pear"')
    page.get_by_label("State in which checkpoint").fill("0")
    expect(page.get_by_label("State of the immortal")).to_contain_text("before index 0")
    assert client.immortal("clerk").buy(item="plum") == 2
    assert client.immortal("clerk").buy(item="quince") == 3  # the clerk has started by now: its log has links
    page.get_by_role("row", name="clerk").click()
    events = page.locator(".events li")
    bought = events.filter(has_text='"quince"').filter(has_text="buy")
    bought.get_by_role("button", name="led to shop").click()
    chosen = page.locator(".events li.chosen")
    expect(chosen).to_contain_text('order from clerk {"item":"quince"}')
    chosen.get_by_role("button", name="caused by clerk").click()
    expect(chosen).to_contain_text('buy from outside {"item":"quince"}')
    before, after = (
        {"calls": ["shop: method 7"], "state": {"done": 1}},
        {"results": ["returned 2"], "state": {"done": 2}},
    )
    step = {"index": 3, "message": "buy fig", "before": before, "after": after, "differs": True}
    compared = json.dumps({"steps": [step], "difference": "one call is missing", "not_logged": None}).encode()
    page.get_by_role("button", name="What else to do with this immortal").click()
    page.get_by_role("menuitem", name="What-if").click()
    expect(dialog.locator(".command")).to_contain_text("headrace immortal check clerk NEW.py --beside OLD.py --json")
    dialog.get_by_label("What it wrote").set_input_files({"name": "no.json", "mimeType": "text/json", "buffer": b"no"})
    expect(dialog).to_contain_text("That is not what the command writes")
    dialog.get_by_label("What it wrote").set_input_files(
        {"name": "compared.json", "mimeType": "text/json", "buffer": compared}
    )
    row = dialog.get_by_role("row", name="buy fig")
    for text in ("shop: method 7", '{"done":1}', "returned 2", '{"done":2}', "differs"):
        expect(row).to_contain_text(text)
    expect(dialog).to_contain_text("one call is missing")
    background.call(closed.set)
    served.result(DEADLINE_S)


def test_a_cache_shows_what_its_objects_say_and_still_has_their_bytes(
    hub: HubProcess, client: headrace.Client, open_page: OpenPage, background: Background
) -> None:
    async def put() -> None:
        ignite = await IgniteClient.connect(*split_address(hub.addresses["ignite"]))
        await ignite.request(GET_OR_CREATE, Configuration({0: "prices"}))
        await ignite.request(PUT, encode_string("pear"), encode_long(42), cache="prices")
        await ignite.close()

    background.run(put())
    page = open_page(f"{hub.page}/#/table/prices")
    row = page.get_by_label("Entries").locator("tbody tr")
    expect(row.locator("td").nth(0)).to_have_text("pear string")
    expect(row.locator("td").nth(1)).to_have_text("42 long")
    expect(row.locator("td").nth(1).locator("code")).to_have_attribute("title", "hex 042a00000000000000")
    row.get_by_role("button", name="What to do with pear").click()
    page.get_by_role("menuitem", name="Change").click()
    expect(page.get_by_label("Value, as bytes in hex")).to_have_value("042a00000000000000")
    page.keyboard.press("Escape")
    page.goto(f"{hub.page}/#/stream/prices?record=0/0")
    expect(page.get_by_label("Payload", exact=True)).to_have_text("42")
    page.get_by_role("button", name="Hex", exact=True).click()
    expect(page.get_by_label("Payload", exact=True)).to_contain_text("04 2a 00")
