"""The life of one binding's link to its coordinator, as a table. No sockets, no hub, no clock.

How to read and change this file:

1. Everything that may happen is an `Input`; everything the server must do about it is an `Action`. The server feeds
   inputs to `Session.handle` and carries out the actions in order; it never looks at the state to decide what to do.
2. A pair that is not in `TRANSITIONS` is an error: the binding's when the binding caused the input
   (`RemoteProtocolError`, the link is closed and says why), ours otherwise (`LocalProtocolError`).
3. Losing the link is possible in every state and always means the same, so `LINK` says it once.

The four start-up cases of the specification are four ways through the table::

    first start   CONNECTED_NEW        FIRST_START → FIRST_INITIAL → FIRST_STORING → RUNNING
    recovery      CONNECTED_RECOVER    REPLAYING → PROMOTING → STORING → RUNNING
    upgrade       CONNECTED_UPGRADE    REPLAYING_OLD → UPGRADING → UPGRADE_STORING → CHECKPOINTING → STORING → RUNNING
    debugging     CONNECTED_DEBUG      DEBUGGING (time travel; a what-if upgrade test is CONNECTED_WHAT_IF)

and a standby, a second binding that follows the log, is CONNECTED_STANDBY: STANDBY → RUNNING when the first is lost. A
checkpointer is CONNECTED_CHECKPOINTER: it follows the log, takes the checkpoints, so that nobody waits for one, and
never becomes primary: FOLLOWING → FOLLOWING_CHECKPOINTING → FOLLOWING_STORING → FOLLOWING.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.state_machine import StateMachine


class State(Enum):
    """Where a link stands."""

    ABSENT = "absent"
    FIRST_START = "first-start"
    FIRST_INITIAL = "first-initial"
    FIRST_CHECKPOINT = "first-checkpoint"
    FIRST_STORING = "first-storing"
    REPLAYING = "replaying"
    PROMOTING = "promoting"
    REPLAYING_OLD = "replaying-old"
    UPGRADING = "upgrading"
    UPGRADE_STORING = "upgrade-storing"
    RUNNING = "running"
    CHECKPOINTING = "checkpointing"
    STORING = "storing"
    STANDBY = "standby"
    FOLLOWING = "following"
    FOLLOWING_CHECKPOINTING = "following-checkpointing"
    FOLLOWING_STORING = "following-storing"
    DEBUGGING = "debugging"
    CLOSED = "closed"


class Input(Enum):
    """What may happen to a link."""

    # the server
    CONNECTED_NEW = "connected, nothing stored"
    CONNECTED_RECOVER = "connected"
    CONNECTED_UPGRADE = "connected, upgrade asked for"
    CONNECTED_STANDBY = "connected as second"
    CONNECTED_CHECKPOINTER = "connected as checkpointer"
    CONNECTED_DEBUG = "connected for debugging"
    CONNECTED_WHAT_IF = "connected for a what-if upgrade"
    REPLAYED = "log replayed"
    STORED = "checkpoint durable"
    CHECKPOINT_WANTED = "checkpoint wanted"
    PRIMARY_LOST = "primary lost"
    LINK_LOST = "link lost"
    # the binding
    CALLS = "calls"
    IMPULSES = "impulses"
    ATTACH_TO = "AttachTo"
    INITIAL_MESSAGE = "InitialMessage"
    CHECKPOINT = "Checkpoint"
    TAKE_CHECKPOINT = "TakeCheckpoint"


class Action(Enum):
    """What the server does about it."""

    SEND_STORED_CHECKPOINT = "send the stored checkpoint"
    REPLAY = "replay the log"
    SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT = "send TakeBecomingPrimaryCheckpoint"
    SEND_TAKE_CHECKPOINT = "send TakeCheckpoint"
    SEND_UPGRADE_TAKE_CHECKPOINT = "send UpgradeTakeCheckpoint"
    SEND_UPGRADE_SERVICE = "send UpgradeService"
    SEND_BECOMING_PRIMARY = "send BecomingPrimary"
    KEEP_INITIAL = "keep the InitialMessage"
    LOG_INITIAL = "log the InitialMessage as record 0"
    RECEIVE = "receive the blob"
    STORE = "store the checkpoint"
    SKIP = "read the blob away"
    FINISH_UPGRADE = "note the new version"
    DELIVER = "deliver records"
    ROUTE = "route the calls"
    ATTACH = "attach"
    DISCARD = "discard"


Transition = tuple[State, tuple[Action, ...]]
S, I, A = State, Input, Action  # noqa: E741 - the table below reads better with one letter each

FROM_BINDING: Final = frozenset({I.CALLS, I.IMPULSES, I.ATTACH_TO, I.INITIAL_MESSAGE, I.CHECKPOINT, I.TAKE_CHECKPOINT})


# What is usual: a binding may always attach and call, and no checkpoint can begin, since one is under way or it is not
# time yet. Impulses come only once it is, or becomes, primary ([6.1] of the notes): "While a replayed Impulse RPC can
# send Fork RPCs, it cannot send Impulse RPCs". A debugged binding may say what it likes: nothing of it leaves the link.
NOT_PRIMARY: Final = frozenset(
    {S.REPLAYING, S.REPLAYING_OLD, S.STANDBY, S.FOLLOWING, S.FOLLOWING_CHECKPOINTING, S.FOLLOWING_STORING}
)


def _usual(state: State) -> dict[Input, Transition]:
    route, discard = (state, (A.ROUTE,)), (state, (A.DISCARD,))
    if state in (S.ABSENT, S.CLOSED):
        return {}
    if state is S.DEBUGGING:
        return dict.fromkeys((*FROM_BINDING, I.REPLAYED), discard)
    rows: dict[Input, Transition] = {
        I.CALLS: route,
        I.ATTACH_TO: (state, (A.ATTACH,)),
        I.CHECKPOINT_WANTED: discard,
        I.TAKE_CHECKPOINT: discard,
    }
    return rows if state in NOT_PRIMARY else rows | {I.IMPULSES: route}


_UNUSUAL: Final[dict[State, dict[Input, Transition]]] = {
    S.ABSENT: {
        I.CONNECTED_NEW: (S.FIRST_START, (A.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT,)),
        I.CONNECTED_RECOVER: (S.REPLAYING, (A.SEND_STORED_CHECKPOINT, A.REPLAY)),
        I.CONNECTED_UPGRADE: (S.REPLAYING_OLD, (A.SEND_STORED_CHECKPOINT, A.REPLAY)),
        I.CONNECTED_STANDBY: (S.STANDBY, (A.SEND_STORED_CHECKPOINT, A.DELIVER)),
        I.CONNECTED_CHECKPOINTER: (S.FOLLOWING, (A.SEND_STORED_CHECKPOINT, A.DELIVER)),
        I.CONNECTED_DEBUG: (S.DEBUGGING, (A.SEND_STORED_CHECKPOINT, A.REPLAY)),
        I.CONNECTED_WHAT_IF: (S.DEBUGGING, (A.SEND_STORED_CHECKPOINT, A.SEND_UPGRADE_SERVICE, A.REPLAY)),
    },
    # "Receive a TakeBecomingPrimaryCheckpoint message; send an InitialMessage; send a Checkpoint message". The
    # published coordinator hangs if the two come in the other order; here either order starts the instance.
    S.FIRST_START: {
        I.INITIAL_MESSAGE: (S.FIRST_INITIAL, (A.KEEP_INITIAL,)),
        I.CHECKPOINT: (S.FIRST_CHECKPOINT, (A.RECEIVE,)),
    },
    S.FIRST_INITIAL: {I.CHECKPOINT: (S.FIRST_STORING, (A.RECEIVE, A.STORE))},
    S.FIRST_CHECKPOINT: {I.INITIAL_MESSAGE: (S.FIRST_STORING, (A.KEEP_INITIAL, A.STORE))},
    S.FIRST_STORING: {
        I.CHECKPOINT: (S.FIRST_STORING, (A.SKIP,)),
        I.STORED: (S.RUNNING, (A.LOG_INITIAL, A.DELIVER)),
    },
    S.REPLAYING: {I.REPLAYED: (S.PROMOTING, (A.SEND_TAKE_BECOMING_PRIMARY_CHECKPOINT,))},
    S.PROMOTING: {I.CHECKPOINT: (S.STORING, (A.RECEIVE, A.STORE))},
    S.REPLAYING_OLD: {I.REPLAYED: (S.UPGRADING, (A.SEND_UPGRADE_TAKE_CHECKPOINT,))},
    S.UPGRADING: {I.CHECKPOINT: (S.UPGRADE_STORING, (A.RECEIVE, A.STORE))},
    # After the upgraded state is durable the published coordinator asks for a checkpoint once more.
    S.UPGRADE_STORING: {
        I.CHECKPOINT: (S.UPGRADE_STORING, (A.SKIP,)),
        I.STORED: (S.CHECKPOINTING, (A.FINISH_UPGRADE, A.SEND_TAKE_CHECKPOINT)),
    },
    S.RUNNING: {
        I.CHECKPOINT_WANTED: (S.CHECKPOINTING, (A.SEND_TAKE_CHECKPOINT,)),
        I.TAKE_CHECKPOINT: (S.CHECKPOINTING, (A.SEND_TAKE_CHECKPOINT,)),
        I.CHECKPOINT: (S.RUNNING, (A.SKIP,)),  # nobody asked: its place in the log is unknown
    },
    S.CHECKPOINTING: {I.CHECKPOINT: (S.STORING, (A.RECEIVE, A.STORE))},
    S.STORING: {
        I.CHECKPOINT: (S.STORING, (A.SKIP,)),
        I.STORED: (S.RUNNING, (A.DELIVER,)),
    },
    # A standby computes what the primary computes. Its calls carry the same numbers, so either copy will do.
    S.STANDBY: {
        I.REPLAYED: (S.STANDBY, (A.DISCARD,)),
        I.CHECKPOINT: (S.STANDBY, (A.SKIP,)),
        I.PRIMARY_LOST: (S.RUNNING, (A.SEND_BECOMING_PRIMARY, A.DELIVER)),
    },
    # "TakeCheckpoint per new log of the primary"; a checkpointer is never promoted ([4.6] of the notes).
    S.FOLLOWING: {
        I.CHECKPOINT_WANTED: (S.FOLLOWING_CHECKPOINTING, (A.SEND_TAKE_CHECKPOINT,)),
        I.CHECKPOINT: (S.FOLLOWING, (A.SKIP,)),
    },
    S.FOLLOWING_CHECKPOINTING: {I.CHECKPOINT: (S.FOLLOWING_STORING, (A.RECEIVE, A.STORE))},
    S.FOLLOWING_STORING: {
        I.CHECKPOINT: (S.FOLLOWING_STORING, (A.SKIP,)),
        I.STORED: (S.FOLLOWING, (A.DELIVER,)),
    },
    # Published coordinators say nothing when the log has been replayed. A checkpoint is wanted only if whoever opened
    # the session asked for a word at the end.
    S.DEBUGGING: {
        I.CHECKPOINT_WANTED: (S.DEBUGGING, (A.SEND_TAKE_CHECKPOINT,)),
        I.CHECKPOINT: (S.DEBUGGING, (A.SKIP,)),
    },
    S.CLOSED: {},
}
TRANSITIONS: Final = {state: _usual(state) | rows for state, rows in _UNUSUAL.items()}


def _label(state: State, what: Input) -> str:
    """What is done about a change of state; an input that changes nothing is left out of the diagram."""
    after, actions = TRANSITIONS[state][what]
    return "" if after is state else f"{what.value} / {', '.join(action.value for action in actions)}"


LINK = StateMachine(
    "ambrosia/link",
    State.ABSENT,
    {state: {what: after for what, (after, _) in row.items()} for state, row in TRANSITIONS.items()},
    of="a binding's link",
    everywhere={Input.LINK_LOST: State.CLOSED},
    label=_label,
)

MACHINES = (LINK,)


class Session:
    """One link, from the moment both sockets are there until it is lost."""

    def __init__(self) -> None:
        self.state = State.ABSENT

    def handle(self, what: Input) -> tuple[Action, ...]:
        """Move on, and say what to do."""
        transition = TRANSITIONS[self.state].get(what)
        if transition is None:
            if what in FROM_BINDING:
                raise RemoteProtocolError(f"{what.value} in state {self.state.value}")
            transition = LINK.step(self.state, what), ()
        self.state, actions = transition
        return actions
