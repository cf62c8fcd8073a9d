"""Sources for the connector: a file, lines as they come, and a generator.

Ids are positions, so that resuming needs no memory on this side:

    FileSource      id = byte offset behind the record; the next record begins there
    GenerateSource  id = number of the record, from 1
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from headrace.errors import BadRequest
from headrace.protocols.wallaroo.client_session import Item

READ_BYTES = 1024 * 1024
FILLING_BYTES = 4096


class FileSource:
    """The lines of a file, without their line ends; or, framed, records with a big endian u32 length before each."""

    def __init__(self, path: str | Path, *, stream: str | None = None, framed: bool = False, skip: int = 0) -> None:
        """`skip` leaves out so many records at the beginning of the file, such as the head of a CSV file."""
        self.path = Path(path)
        self.name = stream or self.path.name
        self.size = self.path.stat().st_size
        self._framed = framed
        self._skip = skip
        self._file = self.path.open("rb")

    def rewind(self, point: int | None) -> None:
        if point is None:
            self._file.seek(0)
            for _ in range(self._skip):
                self._record()
            return
        size = self.path.stat().st_size
        if point > size:
            raise BadRequest(
                f"the hub has stream {self.name!r} up to byte {point}, and {self.path} has only {size} bytes: "
                "it is another file, or was cut; choose another --stream, or rewind the stream"
            )
        self._file.seek(point)
        if not self._framed:
            self._skip_line_end(point)

    def _skip_line_end(self, point: int) -> None:
        """A last line without an end may have been sent; once the file has grown, its end stands at the point."""
        if point == 0:
            return
        self._file.seek(point - 1)
        before = self._file.read(1)
        rest = self._file.readline() if before != b"\n" else b"x"
        if rest.strip(b"\r\n"):
            self._file.seek(point)

    async def read(self, limit: int) -> Sequence[Item] | None:
        items: list[Item] = []
        taken = 0
        while len(items) < limit and taken < READ_BYTES:
            record = self._record()
            if record is None:
                break
            items.append(Item(self._file.tell(), record))
            taken += len(record)
        return items or None

    def _record(self) -> bytes | None:
        if self._framed:
            head = self._file.read(4)
            if not head:
                return None
            size = int.from_bytes(head, "big")
            record = self._file.read(size) if size <= self.size else b""
            if len(head) < 4 or len(record) < size:
                raise BadRequest(f"{self.path} ends in the middle of a record, or is not framed")
            return record
        line = self._file.readline()
        return line.rstrip(b"\r\n") if line else None

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> FileSource:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class GenerateSource:
    """Records made from their number alone, so that any of them can be made again."""

    def __init__(self, *, stream: str, count: int, size: int = 100, seed: int = 0) -> None:
        self.name = stream
        self._count = count
        self._size = size
        self._next = 1
        self._filling = random.Random(seed).randbytes(size + FILLING_BYTES)

    def rewind(self, point: int | None) -> None:
        self._next = (point or 0) + 1

    async def read(self, limit: int) -> Sequence[Item] | None:
        if self._next > self._count:
            return None
        end = min(self._next + limit, self._count + 1)
        items = [Item(number, self.payload(number)) for number in range(self._next, end)]
        self._next = end
        return items

    def payload(self, number: int) -> bytes:
        start = number * 31 % FILLING_BYTES
        return (b"%d " % number + self._filling[start : start + self._size])[: self._size]
