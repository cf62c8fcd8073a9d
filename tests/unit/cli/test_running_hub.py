"""Commands that ask a running hub, over a real Flight socket."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from headrace.admin.hub_verbs import Admin
from headrace.config.load import load
from headrace.testing import served_hub
from headrace.testing.served import ServedHub

Command = Callable[..., SimpleNamespace]


@pytest.fixture
def served() -> Iterator[ServedHub]:
    loaded = load(environment={}, flags=["limits.stop_s=3s", "wallaroo.cookie=monster"])
    with served_hub(loaded.config) as made:
        runtime = SimpleNamespace(hub=made.hub, config=loaded.config, addresses={}, missing=[])
        Admin(runtime, loaded).register(made.hub.verbs)  # type: ignore[arg-type]
        yield made


def test_sessions_open_and_ended(headrace: Command, served: ServedHub) -> None:
    served.hub.sessions.open("wallaroo", "10.0.0.1:99", lambda: {"state": "streaming", "credits": 7})
    served.hub.sessions.open("ockam", "10.0.0.2:99", dict).close("went away")
    options = ["--hub", served.address]
    shown = headrace("session", "ls", "--protocol", "wallaroo", *options).out
    assert "10.0.0.1:99" in shown
    assert "state streaming; credits 7" in shown
    (ended,) = json.loads(headrace("session", "ls", "--ended", "--protocol", "ockam", "--json", *options).out)
    assert (ended["peer"], ended["reason"]) == ("10.0.0.2:99", "went away")
    assert "went away" in headrace("session", "ls", "--ended", *options).out
    assert "no sessions" in headrace("session", "ls", "--protocol", "futoin", *options).err


def test_the_settings_of_a_running_hub(headrace: Command, served: ServedHub) -> None:
    shown = headrace("config", "show", "--running", "--changed", "--json", "--hub", served.address).out
    assert {(setting["key"], setting["origin"]) for setting in json.loads(shown)} == {
        ("limits.stop_s", "flag --set limits.stop_s"),
        ("wallaroo.cookie", "flag --set wallaroo.cookie"),
    }
    assert "monster" not in shown


def test_a_hub_that_is_not_there_is_one_line_with_its_own_code(headrace: Command) -> None:
    result = headrace("session", "ls", "--hub", "127.0.0.1:1")
    assert result.code == 5
    assert len(result.err.splitlines()) == 1
    assert "127.0.0.1:1" in result.err
