"""The state machines that the page draws are the tables that the servers run by, and sessions stand in them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headrace.console.sessions import Flow, row_of
from headrace.console.state_machines import Machine, machines
from headrace.hub import Hub
from headrace.hub.sessions import SessionInfo
from headrace.protocols.descriptor import Place, protocols
from headrace.testing import memory_hub

MACHINES = {f"{one.protocol}/{one.name}": one for one in machines()}


def steps(machine: Machine) -> set[tuple[str, str, str]]:
    return {(change.before, event, change.after) for change in machine.changes for event in change.events}


def test_every_protocol_has_one() -> None:
    assert {one.protocol for one in MACHINES.values()} == {label for each in protocols() for label in each.labels}


def test_every_transition_is_there_and_no_other() -> None:
    for table in (one for protocol in protocols() for one in protocol.shown().machines):
        expected = {
            (before.value, event.value, after.value)
            for before, row in table.rows.items()
            for event, after in row.items()
        }
        assert steps(MACHINES[table.name]) == expected


def row(protocol: str, **details: Any) -> Any:
    return row_of(SessionInfo(id=1, protocol=protocol, peer="p", opened_us=0, details=details))


def test_a_connector_stands_in_two_tables() -> None:
    shown = row(
        "wallaroo",
        state="Streaming",
        dialect="v3-2020",
        streams={"orders": "Open"},
        credits=7,
        credits_max=10,
        error="x",
    )
    assert shown.places == [
        Place("wallaroo/connection", "connection", "Streaming"),
        Place("wallaroo/stream v3-2020", "stream orders", "Open"),
    ]
    assert all(place.state in MACHINES[place.machine].states for place in shown.places)
    assert (shown.state, shown.flow, shown.error) == ("Streaming", [Flow("credits left", 7, 10)], "x")
    assert shown.facts == {"dialect": "v3-2020"}


def test_receivers_calls_and_uploads_have_states_of_their_own() -> None:
    receivers = [{"component": "A", "state": "held", "in_flight": 2, "position": 1}, {"state": "live", "in_flight": 1}]
    futoin = row("futoin", calls=3, to_write=0, receivers=receivers)
    assert futoin.places == [Place("futoin/delivery", "receiver A", "held")]
    assert Flow("groups under way", 3) in futoin.flow
    assert Flow("messages to write", 0) in futoin.flow
    assert futoin.facts == {"calls": "3"}
    fabric = row("fabric", calls={"/x": 1}, call_states=[["StreamItems", "answering"]], permits=4, last_error=None)
    assert fabric.places == [Place("fabric/call", "StreamItems", "answering")]
    assert (fabric.state, fabric.flow) == ("answering", [Flow("permits left", 4)])
    assert row("flight", state="following").places == []
    assert row("flight", state="open", batches_received=1).places == [Place("flight/put", "upload", "open")]
    assert row("fabric").state == "open"


async def test_sessions_are_filtered_by_protocol_peer_and_stream(hub: Hub) -> None:
    from headrace.console.sessions import SessionsRequest, SessionViews

    views = SessionViews(hub)
    first = hub.sessions.open("ockam", "10.0.0.1:1", lambda: {"state": "open"})
    first.uses("write", "orders")
    hub.sessions.open("ignite", "10.0.0.2:1", lambda: {"state": "ready"})
    for text, count in (("", 2), ("OCKAM", 1), ("0.2:", 1), ("order", 1), ("nobody", 0)):
        assert (await views.sessions(SessionsRequest(text=text))).total == count
    first.close("went away")
    [ended] = (await views.sessions(SessionsRequest(ended=True))).rows
    assert (ended.reason, ended.writes) == ("went away", ["orders"])


async def test_very_many_sessions_come_in_pages_and_a_chosen_one_is_always_there(hub: Hub) -> None:
    from headrace.console.sessions import SESSIONS_MAX, SessionsRequest, SessionViews

    views = SessionViews(hub)
    for number in range(1_000):
        hub.sessions.open("ockam", f"10.0.0.1:{number}", lambda: {"state": "open"}).uses("write", f"s{number}")
    first = await views.sessions(SessionsRequest())
    assert (first.total, len(first.rows), first.chosen) == (1_000, 100, None)
    assert len(msgspec.json.encode(first)) < 40_000, "what a page asks for each second"
    last = await views.sessions(SessionsRequest(offset=990, limit=SESSIONS_MAX, id=first.rows[0].id))
    assert [row.peer for row in last.rows] == [f"10.0.0.1:{number}" for number in range(990, 1_000)]
    assert last.chosen == first.rows[0]
    gone = await views.sessions(SessionsRequest(ended=True, id=first.rows[0].id))
    assert (gone.rows, gone.chosen) == ([], None)


@pytest.fixture
async def hub() -> Any:
    async with memory_hub() as made:
        yield made
