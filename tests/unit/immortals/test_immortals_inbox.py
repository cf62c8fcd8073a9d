"""Methods called by name through protocols that cannot choose a record's type: what the payload says is enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from support.forked_hub import ForkedHub
from support.until import until

from headrace.immortals import Immortal, method, serve
from headrace.protocols.ambrosia.binding.methods import FULFIL_METHOD, method_id
from headrace.protocols.ambrosia.coordinator.inbox import Inbox
from headrace.protocols.futoin.client import Client as FutoinClient
from headrace.protocols.ockam.client import Publisher
from headrace.protocols.wallaroo.client import Connector

ORDER = method_id("order")
PLAIN, DESCRIBED = Inbox(), Inbox(described=True)
KEYED = Inbox(described=True, keyed=True)
TOO_DEEP = b'{"@method":"x","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


class Notes(Immortal):
    said: list[str] = []

    @method
    def note(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize(
    ("inbox", "record", "call"),
    [
        (PLAIN, ("42", None, b"x"), (42, b"x")),
        (PLAIN, ("order", None, b'{"a":1}'), (ORDER, b'{"a":1}')),
        (PLAIN, (None, None, b"x"), (0, b"x")),
        (PLAIN, ("9", None, b'{"@method":"order"}'), (9, b'{"@method":"order"}')),
        (Inbox(5), ("order", None, b"x"), (5, b"x")),
        (Inbox(5, described=True), ("order", None, b'{"@method":"order"}'), (ORDER, b"{}")),
        (DESCRIBED, ("9", None, b'{"@method":"order","a":1}'), (ORDER, b'{"a":1}')),
        (DESCRIBED, (None, None, b'{"@method": "@fulfil", "token": "t"}'), (FULFIL_METHOD, b'{"token":"t"}')),
        (DESCRIBED, ("order", None, b'broken "@method"'), (ORDER, b'broken "@method"')),
        (DESCRIBED, ("order", None, b'{"@method":"x","a":"\xff"}'), (ORDER, b'{"@method":"x","a":"\xff"}')),
        (DESCRIBED, ("order", None, TOO_DEEP), (ORDER, TOO_DEEP)),
        (DESCRIBED, ("9", None, b'{"@method":"order","a":[1, 2]}'), (ORDER, b'{"a":[1, 2]}')),
        (DESCRIBED, ("order", None, b'{"@method":7}'), (ORDER, b'{"@method":7}')),
        (KEYED, ("order", b"alice", b'{"a":1}'), (ORDER, b'{"@key":"alice","a":1}')),
        (KEYED, ("1", None, b'{"@method":"order","@key":"bob"}'), (ORDER, b'{"@key":"bob"}')),
        (KEYED, ("1", b"alice", b'{"@method":"order","@key":"bob"}'), (ORDER, b'{"@key":"bob"}')),
    ],
)
def test_what_a_record_calls(inbox: Inbox, record: tuple[Any, Any, bytes], call: tuple[int, bytes]) -> None:
    assert inbox.call(*record) == call


def said(text: str) -> str:
    return json.dumps({"@method": "note", "text": text})


async def test_each_protocol_calls_a_method_by_its_name(tmp_path: Path) -> None:
    inbox = "immortal/notes/inbox"
    with ForkedHub(tmp_path, "futoin.insecure=true") as hub:
        at = hub.addresses
        async with serve(Notes, "notes", hub=at["flight"]) as notes:
            async with Connector(at["wallaroo"], program="test") as connector:
                stream = await connector.stream(inbox)
                await stream.send(said("wallaroo").encode())
                await stream.flush()
            async with Publisher(at["ockam"], inbox) as publisher:
                await publisher.publish(said("ockam").encode())
            async with await FutoinClient.connect(f"ws://{at['http']}/futoin/{quote(inbox, safe='')}") as futoin:
                await futoin.add("CALL", {"@method": "note", "text": "futoin"})
            await until(lambda: len(notes.said) == 3)
            assert notes.said == ["wallaroo", "ockam", "futoin"]
