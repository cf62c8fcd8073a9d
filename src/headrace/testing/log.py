"""A journal and a store in memory: a `Log` on them has no disk at all. Give both to the next `Log` for a restart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Self

import pyarrow as pa

from headrace.log.frame import HEADER, EncodedFrame, decode_header, frames_bytes
from headrace.log.journal_port import GoodFrame, JournalPort, LostFrames, Position, Stored, TornTail, Unrecoverable
from headrace.log.store import QUARANTINE, Store


class MemoryJournal(JournalPort):
    """Frames in memory, in pieces of about a size."""

    def __init__(self, piece_bytes_max: int = 64 * 1024 * 1024) -> None:
        self._piece_bytes_max = piece_bytes_max
        self._pieces: dict[int, list[EncodedFrame]] = {}
        self.next_sequence = 0
        self.position = Position(0, 0)
        self.error: OSError | None = None
        """What writing raises, if it is to fail."""

    @property
    def first(self) -> int:
        return next(iter(self._pieces), self.next_sequence)

    def read(self, sequence: int | None, is_final: bool = False, bookmark: bytes = b"") -> Iterator[Stored]:
        if sequence is None:
            sequence = self.first
        elif self.first > sequence or (sequence and not self._pieces):
            raise Unrecoverable(f"the journal begins at frame {self.first} and no snapshot reaches that far")
        for first, frames in list(self._pieces.items()):
            for number, (head, *bodies) in enumerate(frames, first):
                header = decode_header(head, 0)
                assert header is not None
                assert header.sequence == number
                yield GoodFrame(number, head[HEADER.size :], b"".join(bodies), "memory", 0)
        if self.next_sequence < sequence:
            lost = LostFrames(self.next_sequence, sequence if is_final else sequence + 1, "memory", 0, 0)
            self.next_sequence = lost.next_sequence
            yield lost

    def set_aside(self, torn: TornTail) -> None:
        """There is none: nothing is ever torn."""

    def open(self) -> None:
        self.position = Position(self.next_sequence, 0)

    def write(self, frames: list[EncodedFrame]) -> None:
        if self.error is not None:
            raise self.error
        begun, size = self.position
        if not size or size >= self._piece_bytes_max:
            begun, size = self.next_sequence, 0
            self._pieces[begun] = []
        self._pieces[begun] += frames
        self.position = Position(begun, size + frames_bytes(frames))
        self.next_sequence += len(frames)

    def sealed_to(self, bytes_max: int) -> int:
        size = sum(map(frames_bytes, self._pieces.values()))
        return list(self._pieces)[1] if len(self._pieces) > 1 and size > bytes_max else 0

    def cut_behind(self, sequence: int, *, reuse: bool = True) -> bool:
        finished = [first for first, following in itertools.pairwise(self._pieces) if following <= sequence]
        for first in finished:
            del self._pieces[first]
        return bool(finished)

    def free_bytes(self) -> int:
        return 2**62

    def close(self) -> None:
        """It stays as it is, for the next `Log`."""


class _MemoryBlob:
    def __init__(self, store: MemoryStore, name: str) -> None:
        self._store = store
        self.name = name
        self._data = bytearray()

    def write(self, *pieces: bytes | memoryview) -> None:
        for piece in pieces:
            self._data += piece

    def begin_sync(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def finish(self) -> None:
        self._store.blobs[self.name] = bytes(self._data)

    def abort(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()


class MemoryStore(Store):
    """Blobs in a dictionary."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def create(self, name: str) -> _MemoryBlob:
        return _MemoryBlob(self, name)

    def get(self, name: str) -> bytes:
        if name not in self.blobs:
            raise FileNotFoundError(name)
        return self.blobs[name]

    def get_range(self, name: str, offset: int, size: int) -> bytes:
        return self.get(name)[offset : offset + size]

    def map(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self.get(name))

    def size(self, name: str) -> int:
        return len(self.get(name))

    def list(self, folder: str, *, tidy: bool = False) -> list[str]:
        start = f"{folder}/" if folder else ""
        return sorted({name[len(start) :].partition("/")[0] for name in list(self.blobs) if name.startswith(start)})

    def delete(self, name: str) -> None:
        self.blobs.pop(name, None)

    def delete_all(self, folder: str) -> None:
        for name in [name for name in self.blobs if name.startswith(f"{folder}/")]:
            del self.blobs[name]

    def set_aside(self, name: str) -> None:
        self.blobs[f"{QUARANTINE}/{name.rpartition('/')[2]}"] = self.blobs.pop(name)

    def local_path(self, name: str) -> str | None:
        return None

    def handover(self) -> tuple[str, int] | None:
        return None

    def close(self) -> None:
        """It stays as it is, for the next `Log`."""
