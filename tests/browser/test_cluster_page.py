"""The console's page about the cluster: alone, and with two hubs on real brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from faults.test_kafka_topics import change
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


@pytest.fixture
def cluster(brokers: Brokers, tmp_path: Path) -> Iterator[HubCluster]:
    """Asked for before the page, so that the page is closed before its hub goes."""
    chosen, kafka = new_cell(brokers.servers)
    kafka.close()
    with HubCluster(tmp_path, brokers.servers, chosen.prefix, only=("http", "flight")) as running:
        yield running


@pytest.mark.kafka
def test_owner_and_follower_are_shown_and_who_has_gone_and_what_is_wrong_with_topics(
    brokers: Brokers, cluster: HubCluster, open_page: OpenPage
) -> None:
    owner, (follower,) = cluster.wait_for_owner(), cluster.followers
    page = open_page(f"{owner.page}/#/cluster")
    cell = page.get_by_label("Cell 0")
    for text in ("Ownerhub-1", "Epoch1", "Answered byhub-1", brokers.servers.split(",")[0]):
        expect(cell).to_contain_text(text)
    rows = page.get_by_label("Hubs").locator("tbody tr")
    expect(rows.nth(0)).to_contain_text("hub-1owner")
    expect(rows.nth(1)).to_contain_text("hub-2follower")
    follower.kill()
    expect(rows.nth(1)).to_contain_text("hub-2gone")
    settings = dict(setting.split("=", 1) for setting in cluster.settings)
    admin = AdminClient({"bootstrap.servers": brokers.servers})
    change(admin, f"{settings['log.kafka.prefix']}.journal", "min.insync.replicas", "1")
    topics = page.get_by_label("Topics on Kafka")
    expect(topics).to_contain_text("min.insync.replicas is 1 and must be 2: kafka-configs.sh", timeout=60_000)
