import re

from headrace.admin.asyncapi import document
from headrace.serving.runtime import LISTENERS

NAME = re.compile(r"[A-Za-z0-9_.-]+")


def test_listeners_are_servers_and_streams_are_channels() -> None:
    made = document({"ockam": "127.0.0.1:4000", "unknown": "x:1"}, [("orders", 3)])
    assert made["asyncapi"] == "3.0.0"
    assert made["servers"] == {"ockam": {"host": "127.0.0.1:4000", "protocol": "ockam", "title": "Ockam streams"}}
    assert made["channels"]["orders"]["address"] == "orders"
    assert made["channels"]["orders"]["x-partitions"] == 3
    assert made["operations"] == {
        "append-orders": {"action": "receive", "channel": {"$ref": "#/channels/orders"}},
        "read-orders": {"action": "send", "channel": {"$ref": "#/channels/orders"}},
    }


def test_names_that_are_no_keys_stay_apart() -> None:
    made = document({}, [("a b", 1), ("a/b", 1), ("a-b", 1), ("Ä", 1)])
    assert [channel["address"] for channel in made["channels"].values()] == ["a b", "a/b", "a-b", "Ä"]
    assert all(NAME.fullmatch(key) for key in [*made["channels"], *made["operations"]])


def test_every_reference_leads_somewhere() -> None:
    made = document({}, [("orders", 1)])
    reference = made["channels"]["orders"]["messages"]["record"]["$ref"]
    assert reference == "#/components/messages/record"
    assert "record" in made["components"]["messages"]


def test_every_listener_is_described() -> None:
    assert list(document(dict.fromkeys(LISTENERS, "h:1"), [])["servers"]) == list(LISTENERS)
