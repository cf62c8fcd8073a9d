"""Python's garbage collector, which is off while a log is recovered or the state of an immortal is restored: it would
look at each of very many objects again and again, and all of them stay. Who follows a journal does so for weeks, and it
is on meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_froze = False


def freeze() -> None:
    """What there is by now stays: the collector need not look at it again."""
    global _froze
    _froze = True  # to ask the collector takes as long as there are objects
    gc.freeze()


@contextmanager
def without_collection() -> Iterator[None]:
    """Off inside, unless it was off before."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not _froze:  # a way to make all of them old without a look at each
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@contextmanager
def with_collection() -> Iterator[None]:
    """On inside, and not for what there is already."""
    was_enabled = gc.isenabled()
    freeze()
    gc.enable()
    try:
        yield
    finally:
        if not was_enabled:
            gc.disable()
