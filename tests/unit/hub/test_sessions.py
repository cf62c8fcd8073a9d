import itertools

import pytest

from headrace.errors import LimitExceeded
from headrace.hub.sessions import STREAMS_SHOWN_MAX, Sessions


def test_open_sessions_are_listed_with_what_they_say_now() -> None:
    clock = itertools.count(100)
    sessions = Sessions(now_us=lambda: next(clock))
    state = {"credits": 5}
    sessions.open("wallaroo", "10.0.0.1:5000", lambda: state)
    sessions.open("ockam", "10.0.0.2:5000", dict)
    state["credits"] = 4
    assert [(info.id, info.protocol, info.opened_us, info.details) for info in sessions.list()] == [
        (1, "wallaroo", 100, {"credits": 4}),
        (2, "ockam", 101, {}),
    ]
    assert [info.peer for info in sessions.list("ockam")] == ["10.0.0.2:5000"]
    assert sessions.counts() == {"wallaroo": 1, "ockam": 1}
    assert len(sessions) == 2


def test_an_ended_session_keeps_its_last_words() -> None:
    changes: list[tuple[str, int]] = []
    sessions = Sessions(ended_kept=2, changed=lambda protocol, change: changes.append((protocol, change)))
    for number in range(3):
        session = sessions.open("flight", f"peer {number}", lambda: {"state": "streaming"})
        session.close(f"reason {number}")
        session.close("a second close is not a second end")
    assert len(sessions) == 0
    assert [(info.peer, info.reason, info.details) for info in sessions.list(ended=True)] == [
        ("peer 2", "reason 2", {"state": "streaming"}),
        ("peer 1", "reason 1", {"state": "streaming"}),
    ]
    assert changes == [("flight", 1), ("flight", -1)] * 3
    assert all(info.closed_us is not None for info in sessions.list(ended=True))


def test_too_many_sessions_are_refused_by_name() -> None:
    sessions = Sessions(open_max=1)
    first = sessions.open("flight", "a", dict)
    with pytest.raises(LimitExceeded, match=r"limits\.sessions_max"):
        sessions.open("flight", "b", dict)
    first.close()
    sessions.open("flight", "c", dict)


def test_a_session_that_cannot_describe_itself_hides_no_other() -> None:
    sessions = Sessions()
    sessions.open("flight", "a", lambda: {}["gone"])
    sessions.open("flight", "b", lambda: {"state": "fine"})
    assert sessions.list()[0].details == {"describe": "failed: KeyError('gone')"}
    assert sessions.list()[1].details == {"state": "fine"}


def test_a_session_remembers_some_of_the_streams_that_it_uses() -> None:
    sessions = Sessions()
    session = sessions.open("ockam", "p", dict)
    for _ in range(2):
        session.uses("write", "orders")
    session.uses("read", "prices")
    for number in range(STREAMS_SHOWN_MAX + 5):
        session.uses("read", f"s{number}")
    [info] = sessions.list()
    assert info.writes == ["orders"]
    assert info.reads[:2] == ["prices", "s0"]
    assert len(info.reads) == STREAMS_SHOWN_MAX
    session.close(None)
    assert sessions.list(ended=True)[0].writes == ["orders"]
