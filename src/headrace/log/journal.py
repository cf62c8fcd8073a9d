"""The journal: files of frames, shared by all streams. Everything becomes durable here first.

    journal/<sequence of the first frame, 20 digits>-<salt, 16 hexadecimal digits>.journal
    file   := header frame* end
    header := "HEADRACE" version:u32 magic:u32 first_sequence:u64 crc:u32 seed:u32     (32 bytes)
    end    := zero:u64, overwritten by the next frame; behind it is nothing, or what is left of an earlier file

Magic and seed are the salt of the file's frames (see frame.py). The name has it too, and is what counts: a file whose
first block is lost keeps all its other frames. Files of versions 1 and 2 have no salt, in the name or elsewhere.

A file is finished when every record in it is sealed in a segment and every event in it is part of a snapshot. It
becomes a spare then (`….spare`), which is written over when the next file is due: a disk syncs bytes in place in two
thirds of the time that it takes to make a file longer. What is left of the earlier file has another salt and lower
sequences, and so passes for nothing.

Only the last file can have a torn tail. The bytes of a torn tail are moved to `quarantine/`, not thrown away.
"""

from __future__ import annotations

import itertools
import re
import struct
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from google_crc32c import extend as crc32c_extend
from google_crc32c import value as crc32c

from headrace.errors import HeadraceError
from headrace.log import ahead, runs
from headrace.log.disk import FULL_ERRNOS, Disk, NewFile, SyncedFile
from headrace.log.frame import (
    HEADER,
    PLAIN,
    EncodedFrame,
    Header,
    Salt,
    decode_header,
    encode_salted_frame,
    frames_bytes,
    random_salt,
    sequence_of,
)
from headrace.log.journal_port import GoodFrame, JournalPort, LostFrames, Position, Stored, TornTail, Unrecoverable
from headrace.log.place import JOURNAL
from headrace.log.proof import NO_PROOF, PROOF, Proof, proof_of

DIRECTORY = JOURNAL
QUARANTINE = "quarantine"
SUFFIX = ".journal"
SPARE = ".spare"
NAME = re.compile(r"[0-9]{20}(-[0-9a-f]{16})?\.journal")
FILE_MAGIC = b"HEADRACE"
VERSION = 3
VERSIONS = (1, 2, 3)
"""Those of version 1 have no end: they are over where the file is. Those of 1 and 2 have no salt."""
SALTED = 3
END = bytes(8)
SPARE_SHARE = 4
"""A file that has less than this part of a whole one is not worth keeping."""
DIRECT_BYTES = 64 * 1024
"""A body of this size is not joined with others before it is written."""
FILE_HEADER = struct.Struct("<8sIIQII")


class NotOurs(HeadraceError):
    """A journal file of a version that this program does not know."""

    code = "unknown-format"


def file_name(first_sequence: int, salt: Salt) -> str:
    return f"{DIRECTORY}/{first_sequence:020d}-{salt.magic:08x}{salt.seed:08x}{SUFFIX}"


def journal_files(disk: Disk) -> list[str]:
    """Paths of the journal files, oldest first. What has another name is none."""
    return [_used(disk, list(twins)) for _, twins in itertools.groupby(_named(disk), first_sequence_of)]


def _named(disk: Disk) -> list[str]:
    return [f"{DIRECTORY}/{name}" for name in disk.list(DIRECTORY) if NAME.fullmatch(name)]


def _used(disk: Disk, twins: list[str]) -> str:
    """Of files that begin with the same frame, the one that has it: another was begun by a process that died then."""
    if len(twins) > 1:
        for path in twins:
            if any(_later_headers(_open_file(path, disk.read(path)), FILE_HEADER.size, first_sequence_of(path))):
                return path
    return twins[-1]


def first_sequence_of(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(SUFFIX).partition("-")[0])


def scan(disk: Disk, proven: int = 0) -> Generator[Stored, None, int]:
    """Everything that the journal holds, in order, and the sequence that comes next. Frames below `proven` were durable
    once, and are never torn. Reads one file at a time."""
    paths = journal_files(disk)
    expected = following = first_sequence_of(paths[0]) if paths else 0
    for path, after in itertools.zip_longest(paths, paths[1:]):
        first = first_sequence_of(path)
        if first > expected:
            yield LostFrames(expected, first, path, 0, 0)
        file = _open_file(path, disk.read(path))
        expected = yield from _scan_file(file, first, first_sequence_of(after) if after else None, proven)
        following = max(following, expected)
    return following


class _File(NamedTuple):
    """What a journal file holds, and how its frames are told."""

    path: str
    data: bytes
    salt: Salt


def _open_file(path: str, data: bytes) -> _File:
    """Only a header that is intact and newer is refused: a damaged one says nothing that the file name does not."""
    salt = PLAIN
    if len(data) >= FILE_HEADER.size:
        magic, version, frame_magic, _, crc, seed = FILE_HEADER.unpack_from(data)
        is_intact = magic == FILE_MAGIC and crc == crc32c(data[:24])
        if is_intact and version not in VERSIONS:
            raise NotOurs(
                f"{path} has format version {version}; this program reads versions up to {VERSION}: use a newer one"
            )
        if is_intact and version >= SALTED:
            salt = Salt(frame_magic, seed)
    named = path.removesuffix(SUFFIX).partition("-")[2]
    return _File(path, data, Salt(int(named[:8], 16), int(named[8:], 16)) if named else salt)


def _scan_file(file: _File, expected: int, following: int | None, proven: int) -> Generator[Stored, None, int]:
    """Yields what one file holds and returns the sequence that the next file should start with. `following` is the
    one that it does start with, None for the last file."""
    path, data, _ = file
    reader = runs.RunReader(data, file.salt)
    at = FILE_HEADER.size
    size = len(data)
    while at < size and expected != following:
        at, expected = yield from _good_frames(file, reader, at, expected, following)
        if at >= size or expected == following:
            break
        header = _intact_header(file, at, expected)
        behind = _behind(file, at, expected)
        if expected >= proven and not _was_durable(file, behind, expected):
            if not any(data[at : at + len(END)]):
                return expected
            if following is None:
                yield TornTail(path, at, size - at)
                return expected
        if header is not None:
            yield _damaged(path, data, at, header)
            at, expected = at + header.frame_bytes, expected + 1
            continue
        resumed_at, resumed = _next_header(file, behind, expected)
        yield LostFrames(expected, resumed, path, at, resumed_at - at)
        at, expected = resumed_at, resumed
    return expected


def _good_frames(
    file: _File, reader: runs.RunReader, at: int, expected: int, following: int | None
) -> Generator[Stored, None, tuple[int, int]]:
    """Frames without damage, from `at` on; returns where they end, and the sequence that should stand there."""
    last = sys.maxsize if following is None else following
    while True:
        run = reader.find(at, expected, last - expected)
        if run is not None:
            yield run
            at = run.end
            expected += len(run.bodies)
            continue
        until = min(last, expected + runs.RUN_MIN)
        at, expected = yield from _frames_one_by_one(file, at, expected, until)
        if expected < until or expected == last:
            return at, expected


def _frames_one_by_one(file: _File, at: int, expected: int, until: int) -> Generator[Stored, None, tuple[int, int]]:
    """The same as far as the sequence `until`. There may be very many, so little is made of each."""
    path, data, (magic, seed) = file
    unpack, last = HEADER.unpack_from, len(data) - HEADER.size
    while at <= last and expected != until:
        found, directory_bytes, data_bytes, directory_crc, data_crc, crc, sequence, _ = unpack(data, at)
        begin = at + HEADER.size
        middle = begin + directory_bytes
        end = middle + data_bytes
        if found != magic or sequence != expected or end > len(data):
            break
        if crc32c_extend(seed, data[at : at + 20] + data[at + 24 : begin]) != crc:
            break
        directory, body = data[begin:middle], data[middle:end]
        if crc32c(directory) != directory_crc or crc32c(body) != data_crc:
            break
        yield GoodFrame(sequence, directory, body, path, at)
        at = end
        expected += 1
    return at, expected


def _intact_header(file: _File, at: int, expected: int) -> Header | None:
    header = decode_header(file.data, at, file.salt)
    if header is None or header.sequence != expected or at + header.frame_bytes > len(file.data):
        return None
    return header


def _behind(file: _File, at: int, expected: int) -> int:
    """Where the frames behind a bad one may begin. What its own header says is inside of it is somebody's payload: in
    files without a salt that may look like a frame, and must not speak for the journal."""
    header = decode_header(file.data, at, file.salt)
    return at + (8 if header is None or header.sequence != expected else header.frame_bytes)


def _damaged(path: str, data: bytes, at: int, header: Header) -> Stored:
    """A frame with an intact header and a bad rest: its directory may still say what is lost."""
    directory = data[at + HEADER.size : at + HEADER.size + header.directory_bytes]
    if crc32c(directory) == header.directory_crc:
        return GoodFrame(header.sequence, directory, None, path, at)
    return LostFrames(header.sequence, header.sequence + 1, path, at, header.frame_bytes)


def _later_headers(file: _File, at: int, expected: int) -> Iterator[tuple[int, Header]]:
    """Intact headers of frames behind `at`, wherever they stand."""
    data, magic = file.data, file.salt.magic_bytes
    while (at := data.find(magic, at)) >= 0:
        if at % 8 == 0 and sequence_of(data, at) >= expected:  # all that an earlier file left has lower ones
            header = decode_header(data, at, file.salt)
            if header is not None:
                yield at, header
        at += 4


def _was_durable(file: _File, at: int, sequence: int) -> bool:
    """Whether a later frame says that this one had been synced."""
    return any(header.durable > sequence for _, header in _later_headers(file, at, sequence))


def _next_header(file: _File, at: int, expected: int) -> tuple[int, int]:
    """Where reading can resume, and with which sequence; the end of the file when nowhere."""
    for position, header in _later_headers(file, at, expected):
        return position, header.sequence
    return len(file.data), expected + 1


def _head(first_sequence: int, salt: Salt) -> bytes:
    head = struct.pack("<8sIIQ", FILE_MAGIC, VERSION, salt.magic, first_sequence)
    return head + struct.pack("<II", crc32c(head), salt.seed)


def _pieces(frames: list[EncodedFrame]) -> list[bytes]:
    """What to write, in order: small parts joined, large bodies as they are; and the end."""
    pieces: list[bytes] = []
    small: list[bytes] = []
    for part in itertools.chain.from_iterable(frames):
        if len(part) < DIRECT_BYTES:
            small.append(part)
        else:
            pieces += (b"".join(small), part)
            small.clear()
    return [*pieces, b"".join((*small, END))]


class FileJournal(JournalPort):
    """The journal in files. `read` and `open` come first; then one thread writes."""

    def __init__(
        self, disk: Disk, file_bytes_max: int, spares_max: int, new_salt: Callable[[], Salt] = random_salt
    ) -> None:
        self._disk = disk
        self._new_salt = new_salt
        self._file_bytes_max = file_bytes_max
        self._spares_max = spares_max
        self._file: SyncedFile | None = None
        self.next_sequence = 0
        self.position = Position(0, 0)
        self._proof: SyncedFile | None = None
        self._proven = NO_PROOF
        self._ahead: ahead.Ahead | None = None
        self._ahead_frame: EncodedFrame | None = None
        """The one whose body that is."""
        self.spares: deque[str] = deque()
        """Files to write over. Their names are durable: no power cut gives them their old ones back."""

    @property
    def first(self) -> int:
        paths = journal_files(self._disk)
        return first_sequence_of(paths[0]) if paths else self.next_sequence

    def read(self, sequence: int | None, is_final: bool = False, bookmark: bytes = b"") -> Iterator[Stored]:
        paths = journal_files(self._disk)
        self._proven = proven = proof_of(self._disk)
        if sequence is None:
            sequence = first_sequence_of(paths[0]) if paths else 0
        if not paths and max(sequence, proven.next_sequence):
            raise Unrecoverable("the journal is missing: restore the data directory from a backup")
        if paths and first_sequence_of(paths[0]) > sequence:
            raise Unrecoverable(
                f"the journal begins at frame {first_sequence_of(paths[0])} and no intact snapshot reaches "
                "that far: restore the data directory from a backup"
            )
        self.next_sequence = yield from scan(self._disk, proven.next_sequence)
        if self.next_sequence < sequence:
            # One frame behind the snapshot counts as lost, so that the next start finds the same.
            behind = sequence if is_final else sequence + 1
            yield self._lost(max(behind, proven.next_sequence), paths[-1], 0)
        elif self.next_sequence < proven.next_sequence:
            is_here = first_sequence_of(paths[-1]) == proven.first_sequence
            yield self._lost(proven.next_sequence, paths[-1], proven.size if is_here else 0)

    def _lost(self, next_sequence: int, path: str, size: int) -> LostFrames:
        """The end, up to a frame that was there once. It took at most `size` bytes; 0 when nobody knows."""
        lost = LostFrames(self.next_sequence, next_sequence, path, self._disk.size(path), size)
        self.next_sequence = next_sequence
        return lost

    def doubt(self, final_sequence: int | None) -> str:
        if self.next_sequence in (0, final_sequence):
            return ""
        return (
            f"the last stop was not clean: the journal ends before frame {self.next_sequence}, and nothing proves that "
            f"it was not longer (proven are the frames before {self._proven.next_sequence})"
        )

    def set_aside(self, torn: TornTail) -> None:
        self._disk.make_dirs(QUARANTINE)
        with NewFile(self._disk, f"{QUARANTINE}/{torn.path.rpartition('/')[2]}.{torn.offset}") as kept:
            kept.write(self._disk.read_range(torn.path, torn.offset, torn.size))
        cut(self._disk, torn)

    def open(self) -> None:
        """Always starts a new file, so a file that recovery has read is never written again."""
        self.position = Position(self.next_sequence, 0)
        self.salt = self._new_salt()
        used = {path for path in journal_files(self._disk) if first_sequence_of(path) < self.next_sequence}
        for path in _named(self._disk):
            if path not in used:  # begun by a process that died then: no two files may begin with the same frame
                self._disk.rename(path, path + SPARE)
        self.spares += (f"{DIRECTORY}/{name}" for name in self._disk.list(DIRECTORY) if name.endswith(SPARE))
        if self.spares:
            self._disk.sync_dir(DIRECTORY)  # the process before may have died between a new name and its sync

    def frame(self, offset: int, directory: bytes, *bodies: bytes) -> EncodedFrame:
        begun, sequence = self._ahead, self.next_sequence
        if begun is None or not begun.fits(directory, bodies):
            return encode_salted_frame(self.salt, sequence + offset, sequence, directory, *bodies)
        directory = directory.ljust(begun.directory_bytes, b"\0")
        self._ahead_frame = encode_salted_frame(
            begun.salt, sequence, sequence, directory, *bodies, data_crc=begun.data_crc
        )
        return self._ahead_frame

    def write_ahead(self, body: bytes, directory_bytes: int) -> Iterator[None]:
        salt = self._new_salt()
        is_new = not self.spares
        path = file_name(self.next_sequence, salt) + SPARE if is_new else self.spares.popleft()
        self._ahead = ahead.Ahead(self._disk, path, is_new, salt, FILE_HEADER.size, directory_bytes, body)
        yield from self._ahead.slices(END)

    def forget_ahead(self) -> None:
        begun, self._ahead, self._ahead_frame = self._ahead, None, None
        if begun is not None:
            begun.file.close()
            if begun.is_new:
                self._disk.unlink(begun.path)
            else:
                self.spares.append(begun.path)

    def write(self, frames: list[EncodedFrame]) -> None:
        if self._ahead is not None and frames[0] is self._ahead_frame:
            self._take(self._ahead, frames[0])
            return
        self._roll()
        assert self._file is not None
        first_sequence, size = self.position
        try:
            self._file.write_at(size, _pieces(frames))
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                self._file.truncate(size)  # nothing has happened
            raise
        self._written(len(frames), Position(first_sequence, size + frames_bytes(frames)))

    def _written(self, count: int, position: Position) -> None:
        self.position = position
        self.next_sequence += count
        if position.size >= self._file_bytes_max:
            self.salt = self._new_salt()  # the next frames go to a new file

    def _take(self, begun: ahead.Ahead, frame: EncodedFrame) -> None:
        """A frame whose body is written already: its file becomes the journal's next."""
        self._ahead = self._ahead_frame = None
        pieces = begun.heads(_head(self.next_sequence, begun.salt), frame[0], END)
        self._begin_file(begun.file, begun.path, begun.salt, pieces)
        self.salt = begun.salt
        self._written(1, Position(self.next_sequence, begun.size))

    def prove(self) -> None:
        if not self.position.size:
            return
        if self._proof is None:
            self._proof = self._disk.open_synced(PROOF)
        self._proof.write_at(0, [Proof(self.next_sequence, *self.position).encode()])

    def _roll(self) -> None:
        """Start a new file when there is none, or the present one is large enough."""
        if self._file is not None and self.position.size < self._file_bytes_max:
            return
        path = file_name(self.next_sequence, self.salt)
        made = self.spares.popleft() if self.spares else path
        pieces = [_head(self.next_sequence, self.salt), END]
        self._begin_file(self._disk.open_synced(made), made, self.salt, pieces)
        self.position = Position(self.next_sequence, FILE_HEADER.size)

    def _begin_file(self, file: SyncedFile, made: str, salt: Salt, pieces: list[bytes]) -> None:
        """A file becomes the one that is written to; it is a spare, or new."""
        path = file_name(self.next_sequence, salt)
        try:
            file.write_at(0, pieces)
            if made != path:  # only now: under its new name it must not hold old frames
                self._disk.rename(made, path)
            self._disk.sync_dir(DIRECTORY)
        except OSError:
            file.close()
            self._disk.unlink(made)
            self._disk.unlink(path)
            raise
        if self._file is not None:
            self._file.close()
        self._file = file

    def sealed_to(self, bytes_max: int) -> int:
        files = journal_files(self._disk)
        size = (len(files) - 1) * self._file_bytes_max + self.position.size
        return first_sequence_of(files[1]) if len(files) > 1 and size > bytes_max else 0

    def cut_behind(self, sequence: int, *, reuse: bool = True) -> bool:
        """Some become spares, the others go."""
        used = journal_files(self._disk)
        begin = max((first for first in map(first_sequence_of, used) if first <= sequence), default=0)
        finished = [path for path in _named(self._disk) if first_sequence_of(path) < begin]
        kept: list[str] = []
        # Of files that begin with the same frame the one that has it goes last: another alone would look like a gap.
        for path in sorted(finished, key=lambda path: (first_sequence_of(path), path in used)):
            wanted = reuse and len(self.spares) + len(kept) < self._spares_max
            if wanted and self._disk.size(path) * SPARE_SHARE >= self._file_bytes_max:
                self._disk.rename(path, path + SPARE)
                kept.append(path + SPARE)
            else:
                self._disk.unlink(path)
            # One by one: a power cut never brings a file back without the next, which would look like lost frames.
            self._disk.sync_dir(DIRECTORY)
        self.spares += kept
        return bool(finished)

    def free_bytes(self) -> int:
        return self._disk.free_bytes()

    def close(self) -> None:
        self.forget_ahead()
        for file in (self._file, self._proof):
            if file is not None:
                file.close()
        self._file = self._proof = None


def cut(disk: Disk, torn: TornTail) -> None:
    """End a file with its last good frame."""
    file = disk.open_append(torn.path)
    file.truncate(torn.offset)
    file.sync()
    file.close()
