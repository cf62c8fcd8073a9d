"""A new blob that waits here until it is whole, for stores that would show what was written of one that is given up."""

from __future__ import annotations

import tempfile
from typing import Self

from headrace.log.store import CHUNK_BYTES, Store

SPOOL_BYTES = 8 * 1024 * 1024
"""It waits in memory up to this, and in a temporary file beyond."""


class SpooledBlob:
    """Goes to the store when it is finished."""

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self.name = name
        self._file = tempfile.SpooledTemporaryFile(SPOOL_BYTES)  # noqa: SIM115 - closed by finish and abort

    def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self._file.write(piece)

    def begin_sync(self) -> None:
        """The store takes it as a whole."""

    def sync(self) -> None:
        """The store takes it as a whole."""

    def finish(self) -> None:
        with self._file:
            self._file.seek(0)
            self.name = self._store.copy_in(self.name, iter(lambda: self._file.read(CHUNK_BYTES), b""))

    def abort(self) -> None:
        self._file.close()

    __del__ = abort

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:
            self.abort()
