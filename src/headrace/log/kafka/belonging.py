"""Which log a store under a URI belongs to: a mark in it says so.

    journal/<id of the journal's topic>    holds the name of the topic

Hubs remove from their store what nothing in their journal names. Two logs whose hubs were given the same store by
mistake would take each other's segments for garbage, so a store with the mark of another journal is refused. A topic
that was deleted and created again has another id: what the store holds belongs to the old one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from headrace.errors import BadConfig, HeadraceError, StoreUnavailable
from headrace.log.journal_port import Unrecoverable
from headrace.log.kafka.client import Topic
from headrace.log.store import Store

logger = logging.getLogger(__name__)

MARKS = "journal"
"""The folder of the marks; there is one mark."""
RETRY_S = 1.0


def check_store(store: Store, uri: str, journal: Topic, *, marks: bool, is_known: bool) -> None:
    """Refuse a store of another journal; and one without a mark when it `is_known` that this journal has a store. With
    `marks` it belongs to this journal from now on."""
    if _is_marked(store, uri, journal):
        return
    if is_known:
        raise BadConfig(
            f"log.kafka.store is {uri}, and the hubs before this one kept segments of {journal.name} in another store: "
            "give all hubs the same. If it was moved here, copy its folder 'journal' as well"
        )
    if marks:
        mark = f"{MARKS}/{_plain(journal.id)}"
        store.put(mark, journal.name.encode())
        try:
            _is_marked(store, uri, journal)
        except HeadraceError:  # by a hub of another log, at the same moment
            store.delete(mark)
            raise


def _is_marked(store: Store, uri: str, journal: Topic) -> bool:
    found = store.list(MARKS)
    for id in found:
        if id != _plain(journal.id):
            other = store.get(f"{MARKS}/{id}").decode(errors="replace")
            if other == journal.name:
                raise Unrecoverable(
                    f"the topic {other} was deleted and created again: the store {uri} belongs to the one before, and "
                    "what that held is lost; restore a backup under another prefix and another store"
                )
            raise BadConfig(
                f"log.kafka.store is {uri}, and it belongs to another log than {journal.name}: that of the topic "
                f"{other}. Choose another store: hubs remove from theirs what their journal does not name"
            )
    return bool(found)


def _plain(id: str) -> str:
    """As a name in a folder: clients tell ids in an alphabet with a slash."""
    return id.replace("/", "_").replace("+", "-")


def patiently(check: Callable[[], None], timeout_s: float) -> None:
    """Again and again while the store cannot be reached."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return check()
        except OSError as error:
            if time.monotonic() > deadline:
                raise StoreUnavailable(f"the store cannot be reached: {error}") from error
            logger.warning("the log is not open yet: the store cannot be reached: %s", error)
            time.sleep(RETRY_S)
