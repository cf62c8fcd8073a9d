"""The console's page about the cluster: alone, and with two hubs on real brokers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_brokers import Brokers
from playwright.sync_api import Page, expect
from support.cluster import HubCluster
from support.hub_process import HubProcess
from support.kafka import new_cell

pytestmark = [pytest.mark.browser, pytest.mark.slow]

OpenPage = Callable[[str], Page]


def test_a_hub_that_is_alone_says_so(hub: HubProcess, open_page: OpenPage) -> None:
    page = open_page(f"{hub.page}/#/cluster")
    expect(page.locator("main")).to_contain_text("This hub is alone.")


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_owner_follower_and_a_takeover_are_shown(brokers: Brokers, tmp_path: Path, open_page: OpenPage) -> None:
    chosen, kafka = new_cell(brokers.servers)
    kafka.close()
    with HubCluster(tmp_path, brokers.servers, chosen.prefix, only=("http", "flight")) as cluster:
        (follower,) = cluster.followers
        page = open_page(f"{follower.page}/#/cluster")  # the page comes from the owner, through the follower
        cell = page.get_by_label("Cell 0")
        for text in ("Ownerhub-1", "Epoch1", "Answered byhub-1", brokers.servers.split(",")[0]):
            expect(cell).to_contain_text(text)
        rows = page.get_by_label("Hubs").locator("tbody tr")
        expect(rows.nth(0)).to_contain_text("hub-1owner")
        expect(rows.nth(1)).to_contain_text("hub-2follower")
    # With one hub left, it is the owner, and the other has gone.
    with HubCluster(tmp_path / "later", brokers.servers, chosen.prefix, count=1, only=("http",)) as cluster:
        page = open_page(f"{cluster.hubs[0].page}/#/cluster")
        expect(page.get_by_label("Cell 0")).to_contain_text("Epoch2")
        expect(page.get_by_label("Hubs").locator("tbody tr", has_text="hub-2")).to_contain_text("gone")
