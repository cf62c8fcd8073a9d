"""The body of a large frame, written before there is the frame: into the file that becomes the journal's next.

The disk takes a tenth of a second for tens of megabytes, and nobody else's append can become durable in a write. So
such a body goes first, a slice at a time, into a spare file, which is no part of the journal; between the slices others
are written to the journal as ever. When the body is durable, only the heads of the file and of its first frame are
missing. They are written last, and then the file takes its place as any new one does.

    file := header  frame's header and directory  body  end  …             (journal.py and frame.py draw them)
            ─ written last ───────────────────────┘

If that does not happen, the transaction has not, and there is a spare.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from headrace.log.direct import BLOCK
from headrace.log.disk import Disk
from headrace.log.frame import HEADER, Salt, extend_crc
from headrace.units import MIB

LARGE_BYTES: Final = 8 * MIB
"""A body of this size is written ahead."""
SLICE_BYTES: Final = 2 * MIB
"""The disk takes some milliseconds for it."""


class Ahead:
    """One body."""

    def __init__(
        self, disk: Disk, path: str, is_new: bool, salt: Salt, head_bytes: int, directory_bytes: int, body: bytes
    ) -> None:
        """The file is a spare, or new. Its head has `head_bytes`, and the frame's directory `directory_bytes` at most:
        zeros end it where it is shorter."""
        self.path = path
        self.is_new = is_new
        self.salt = salt
        self.data_crc = 0
        self.directory_bytes = directory_bytes + -directory_bytes % 8
        self.body_at = head_bytes + HEADER.size + self.directory_bytes
        self.size = self.body_at + len(body)
        self.file = disk.open_synced(path)
        self._body = pa.py_buffer(body)
        self._of = body

    def fits(self, directory: bytes, bodies: tuple[bytes, ...]) -> bool:
        """Whether this is the frame that it was written for."""
        return len(bodies) == 1 and bodies[0] is self._of and len(directory) <= self.directory_bytes

    def slices(self, end: bytes) -> Iterator[None]:
        """Write all of the body, and the end of the journal behind it. What is before it is zeros: no journal."""
        before: list[bytes] = [bytes(self.body_at)]
        at, offset = 0, 0
        while at < len(self._body):
            piece = self._body.slice(at, min(SLICE_BYTES, len(self._body) - at))
            at += len(piece)
            behind = [end] if at == len(self._body) else []
            self.file.write_at(offset, [*before, piece, *behind])
            self.data_crc = extend_crc(self.data_crc, piece)
            before, offset = [], self.body_at + at
            yield

    def heads(self, head: bytes, frame_head: bytes, end: bytes) -> list[bytes]:
        """What is to be written at the file's beginning: whole blocks, since a write may put zeros behind its last."""
        assert len(head) + len(frame_head) == self.body_at
        shared = self._body.slice(0, min(-self.body_at % BLOCK, len(self._body)))
        return [head, frame_head, shared, *([end] if len(shared) == len(self._body) else [])]
