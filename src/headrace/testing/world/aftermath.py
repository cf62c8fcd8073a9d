"""When all is quiet: the hub ends once more, its disk may be damaged, and it starts again.

Whatever it has then is what was promised. What a damaged disk has taken it names, and it uses no index again.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from headrace.config.sections import Log as LogSettings
from headrace.errors import HeadraceError
from headrace.hub import Hub
from headrace.log import journal, segment
from headrace.log.backup import back_up, restore
from headrace.log.batch import Batch
from headrace.log.clock import SystemClock
from headrace.log.directory import open_directory
from headrace.log.disk import OsDisk
from headrace.testing.disk import MemoryDisk
from headrace.testing.world.book import Book, place_of
from headrace.testing.world.judge import exists

TAIL_BYTES = 4096


def damage(disk: MemoryDisk, chance: random.Random) -> str:
    """Do something to the files of a hub that has stopped; what, in words."""
    harm: Callable[[MemoryDisk, random.Random], str] = chance.choice(
        [_tail, _newest, _anywhere, _sealed, _widely, _widely]
    )
    return harm(disk, chance)


def _tail(disk: MemoryDisk, chance: random.Random) -> str:
    """The last bytes of the newest journal file that are used."""
    path = journal.journal_files(disk)[-1]
    data = disk.read(path)
    used = len(data.rstrip(b"\0"))
    first = max(0, used - chance.choice([1, 20, 300, TAIL_BYTES]))
    how = chance.choice(["cut", "zeroed", "garbled"])
    rest = {"cut": b"", "zeroed": bytes(used - first), "garbled": chance.randbytes(used - first)}[how]
    disk.put(path, data[:first] + rest + (b"" if how == "cut" else data[used:]))
    return f"{path} {how} from {first} of {used}"


def _newest(disk: MemoryDisk, chance: random.Random) -> str:
    """Some bits of the newest journal file, where it is used."""
    path = journal.journal_files(disk)[-1]
    used = len(disk.read(path).rstrip(b"\0"))
    return "; ".join(_flip(disk, path, chance.randrange(used), chance) for _ in range(chance.choice([1, 12])))


def _anywhere(disk: MemoryDisk, chance: random.Random) -> str:
    """One bit of any file."""
    path = chance.choice([path for path in disk.paths() if disk.size(path)])
    return _flip(disk, path, chance.randrange(disk.size(path)), chance)


def _sealed(disk: MemoryDisk, chance: random.Random) -> str:
    """One bit in each of some sealed files: much of what was written long ago."""
    sealed = [path for path in disk.paths() if path.startswith(f"{segment.DIRECTORY}/") and disk.size(path)]
    if not sealed:
        return _anywhere(disk, chance)
    some = chance.sample(sealed, chance.randint(1, min(4, len(sealed))))
    return "; ".join(_flip(disk, path, chance.randrange(disk.size(path)), chance) for path in some)


def _widely(disk: MemoryDisk, chance: random.Random) -> str:
    """Some bits of every file of one stream, or of the journal: what was written together is damaged together."""
    folders = sorted({path.rpartition("/")[0] for path in disk.paths() if path.startswith(f"{segment.DIRECTORY}/")})
    folder = chance.choice([journal.DIRECTORY, *folders])
    some = [path for path in disk.paths() if path.startswith(f"{folder}/") and disk.read(path).strip(b"\0")]
    for path in some:
        used = len(disk.read(path).rstrip(b"\0"))
        for _ in range(chance.choice([1, 3])):
            _flip(disk, path, chance.randrange(used), chance)
    return f"some bits of all {len(some)} files in {folder} flipped"


def _flip(disk: MemoryDisk, path: str, at: int, chance: random.Random) -> str:
    data = bytearray(disk.read(path))
    data[at] ^= 1 << chance.randrange(8)
    disk.put(path, bytes(data))
    return f"{path} flipped at {at} of {len(data)}"


def through_a_backup(disk: MemoryDisk, folder: Path, settings: LogSettings) -> MemoryDisk:
    """What a hub finds that is restored from a backup. Backups are made of real files: the disk is laid out as such,
    beside those that the hub keeps there anyway."""
    data, backup, restored = folder / "data", folder / "backup", folder / "restored"
    for path in disk.paths():
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_bytes(disk.read(path))
    log = open_directory(OsDisk(data), SystemClock(), settings)
    try:
        back_up(log, backup)
    finally:
        log.close()
    restore(backup, restored)
    found = MemoryDisk()
    for file in sorted(path for path in restored.rglob("*") if path.is_file()):
        found.put(file.relative_to(restored).as_posix(), file.read_bytes())
    return found


async def indexes_are_new(hub: Hub, book: Book) -> list[str]:
    """Append to each stream: no index that anybody ever saw comes again."""
    return [found async for found in _indexes_are_new(hub, book)]


async def _indexes_are_new(hub: Hub, book: Book) -> AsyncIterator[str]:
    for stream in sorted({written.stream for written in book.written}):
        known = [index for each in book.written if each.stream == stream for index in each.acked.values()]
        known += [index for seen_in, index in book.seen if seen_in == stream]
        highest = max((index for index in known if index is not None), default=-1)
        if exists(hub, stream):
            name, partition = place_of(stream)
            try:
                first = (await hub.append(name, Batch.one(b"new"), partition=partition)).first
            except HeadraceError as error:
                yield f"{stream} takes no more records: {error}"
                continue
            if first <= highest:
                yield f"{stream}: index {first} is given again; {highest} was given before"
