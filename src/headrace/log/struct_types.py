"""Makes msgspec learn every struct type while there is one thread.

msgspec learns how to read a type when it first reads one, and shows what it has learned to other threads before it is
complete: a second thread that reads the same type meanwhile ends the process (SIGSEGV).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import msgspec

_lock = threading.Lock()


def learn_struct_types() -> None:
    """All that have been defined so far; to be called before there are threads that read them."""
    with _lock:  # whoever comes second goes on when all are complete
        for struct in _defined(msgspec.Struct):
            with contextlib.suppress(Exception):  # nobody can read it: it is only ever made, or written
                msgspec.msgpack.Decoder(struct)


def _defined(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    for derived in struct.__subclasses__():
        yield derived
        yield from _defined(derived)
