"""The table: the four start-up cases, what is refused, and that nothing in it is out of reach."""

from __future__ import annotations

import pytest

from headrace.protocols.ambrosia.session import FROM_BINDING, TRANSITIONS, Action, Input, Session, State
from headrace.protocols.errors import LocalProtocolError, RemoteProtocolError


def walk(*inputs: Input) -> tuple[State, list[Action]]:
    session = Session()
    done: list[Action] = []
    for each in inputs:
        done += session.handle(each)
    return session.state, done


def test_first_start_of_the_specification() -> None:
    state, done = walk(Input.CONNECTED_NEW, Input.INITIAL_MESSAGE, Input.CHECKPOINT, Input.STORED)
    assert state is State.RUNNING
    assert done == [
        Action.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT,
        Action.KEEP_INITIAL,
        Action.RECEIVE,
        Action.STORE,
        Action.LOG_INITIAL,
        Action.DELIVER,
    ]


def test_a_checkpoint_before_the_initial_message_waits_for_it() -> None:
    state, done = walk(Input.CONNECTED_NEW, Input.CHECKPOINT, Input.INITIAL_MESSAGE, Input.STORED)
    assert state is State.RUNNING
    assert done.index(Action.RECEIVE) < done.index(Action.KEEP_INITIAL) < done.index(Action.STORE)


def test_recovery_of_the_specification() -> None:
    state, done = walk(Input.CONNECTED_RECOVER, Input.REPLAYED, Input.CHECKPOINT, Input.STORED)
    assert state is State.RUNNING
    assert done == [
        Action.SEND_STORED_CHECKPOINT,
        Action.REPLAY,
        Action.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT,
        Action.RECEIVE,
        Action.STORE,
        Action.DELIVER,
    ]


def test_upgrade_asks_for_two_checkpoints_and_never_for_a_primary_one() -> None:
    state, done = walk(
        Input.CONNECTED_UPGRADE, Input.REPLAYED, Input.CHECKPOINT, Input.STORED, Input.CHECKPOINT, Input.STORED
    )
    assert state is State.RUNNING
    assert Action.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT not in done
    assert done.index(Action.SEND_UPGRADE_TAKE_CHECKPOINT) < done.index(Action.FINISH_UPGRADE)
    assert done.index(Action.FINISH_UPGRADE) < done.index(Action.SEND_TAKE_CHECKPOINT)


def test_what_if_sends_upgrade_service_before_the_log() -> None:
    state, done = walk(Input.CONNECTED_WHAT_IF, Input.CALLS, Input.IMPULSES, Input.CHECKPOINT, Input.REPLAYED)
    assert state is State.DEBUGGING
    assert done[:3] == [Action.SEND_STORED_CHECKPOINT, Action.SEND_UPGRADE_SERVICE, Action.REPLAY]
    assert Action.ROUTE not in done
    assert Action.STORE not in done


@pytest.mark.parametrize("how", [Input.CONNECTED_RECOVER, Input.CONNECTED_UPGRADE, Input.CONNECTED_STANDBY])
def test_an_impulse_during_replay_is_the_bindings_fault(how: Input) -> None:
    session = Session()
    session.handle(how)
    assert Action.ROUTE in session.handle(Input.CALLS)
    with pytest.raises(RemoteProtocolError, match="impulses in state"):
        session.handle(Input.IMPULSES)


def test_a_second_initial_message_is_refused() -> None:
    session = Session()
    for each in (Input.CONNECTED_NEW, Input.INITIAL_MESSAGE, Input.CHECKPOINT, Input.STORED):
        session.handle(each)
    with pytest.raises(RemoteProtocolError, match="InitialMessage in state running"):
        session.handle(Input.INITIAL_MESSAGE)


def test_a_checkpoint_that_nobody_asked_for_is_read_away() -> None:
    state, done = walk(Input.CONNECTED_NEW, Input.INITIAL_MESSAGE, Input.CHECKPOINT, Input.STORED, Input.CHECKPOINT)
    assert state is State.RUNNING
    assert done[-1] is Action.SKIP


def test_a_standby_takes_over() -> None:
    state, done = walk(Input.CONNECTED_STANDBY, Input.CALLS, Input.PRIMARY_LOST)
    assert state is State.RUNNING
    assert Action.SEND_BECOMING_PRIMARY in done


def test_our_own_misuse_is_a_local_error() -> None:
    with pytest.raises(LocalProtocolError):
        Session().handle(Input.STORED)


def test_losing_the_link_ends_every_state() -> None:
    for state in State:
        session = Session()
        session.state = state
        assert session.handle(Input.LINK_LOST) == ()
        assert session.state is State.CLOSED


def test_every_action_is_used() -> None:
    used = {action for row in TRANSITIONS.values() for _, actions in row.values() for action in actions}
    assert used == set(Action)


def test_a_binding_can_never_cause_a_local_error() -> None:
    for state, row in TRANSITIONS.items():
        for each in FROM_BINDING - row.keys():
            session = Session()
            session.state = state
            with pytest.raises(RemoteProtocolError):
                session.handle(each)
