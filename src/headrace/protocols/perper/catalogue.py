"""The caches there are: their names, the numbers clients call them by, their configuration, and what they are in the
hub.

A cache has the same name as its table or stream. Which of both it is:

- a cache created by name only is a table;
- a cache created with a configuration is open until its first use, as only that tells: a put-if-absent with a long
  key, a StreamListener that names it, an execution with its id or a StreamItems call make it a stream; any other put
  makes it a table;
- a stream that was created through another protocol can be read as a cache of byte arrays.

The catalogue's own table holds the configuration exactly as the client sent it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import BadRequest, StreamExists
from headrace.hub.waiters import Waiters
from headrace.log.ops import Delete, StreamOptions
from headrace.protocols.perper.errors import PeerError, Refused, Status, cache_does_not_exist, cache_exists
from headrace.protocols.perper.ignite.binary import code_point_hash, java_hash
from headrace.protocols.perper.ignite.configuration import Configuration, read_configuration, write_request
from headrace.protocols.perper.ignite.reader import Reader
from headrace.protocols.perper.sql.names import TableNames
from headrace.protocols.perper.sql.table import tables_of
from headrace.protocols.perper.stream_view import ViewCache
from headrace.protocols.perper.streams import RecentValues, StreamCache
from headrace.protocols.perper.tables import Expiries, TableCache
from headrace.protocols.perper.view_ids import ViewIds
from headrace.security import is_reserved

if TYPE_CHECKING:
    from headrace.hub import Hub
    from headrace.log.ops import StreamInfo

CATALOGUE_TABLE: Final = "perper.caches"
EXECUTIONS: Final = "executions"
LISTENERS: Final = "stream-listeners"
SPECIAL: Final = (EXECUTIONS, LISTENERS)
# What tells a table that is a cache from all others, whose values are no Ignite objects.
LABELS: Final = {"cache": "ignite"}

AnyCache = TableCache | StreamCache | ViewCache

_PARTITION: Final = re.compile(r"(.*);partition=(\d{1,5})", re.ASCII | re.DOTALL)


class Entry:
    """One cache. `cache` is None while nobody knows whether it is a stream or a table."""

    __slots__ = ("cache", "configuration", "deciding", "ids", "name", "on_destroyed", "owner")

    def __init__(self, name: str, configuration: Configuration, owner: str | None = None) -> None:
        self.name = name
        self.owner = owner or name  # the stream or table that rights are about
        self.configuration = configuration
        self.cache: AnyCache | None = None
        self.deciding: asyncio.Future[Any] | None = None
        self.on_destroyed: dict[Callable[[], None], None] = {}
        # pyignite hashes code points, Java and .NET hash UTF-16 units: both numbers are the cache's.
        self.ids = {java_hash(name), code_point_hash(name)}

    @property
    def ready(self) -> bool:
        """Whether operations can be done at once."""
        return self.cache is not None and self.cache.ready


def read_entry(key: bytes, value: bytes) -> Entry:
    """A row of the catalogue."""
    return Entry(key.decode(), read_configuration(Reader(value)))


def _view_name(stream: str, partition: int) -> str:
    """The name under which a partition of another protocol's stream can be read: `orders`, `orders;partition=2`. A name
    means the same whatever streams there are: one that has this form is the partition's, and a stream that happens to
    be called so has the form once more."""
    is_plain = partition == 0 and _PARTITION.fullmatch(stream) is None
    return stream if is_plain else f"{stream};partition={partition}"


def _view_names(info: StreamInfo) -> list[str]:
    return [_view_name(info.name, number) for number in range(info.partitions)]


def _place_of(name: str) -> tuple[str, int]:
    """The stream and partition that a name means."""
    found = _PARTITION.fullmatch(name)
    place = (name, 0) if found is None else (found[1], int(found[2]))
    return place if _view_name(*place) == name else (name, 0)  # such as `orders;partition=0`, which nothing is called


class Catalogue:
    """All caches of a hub."""

    def __init__(self, hub: Hub, caches_max: int, recent_bytes_max: int) -> None:
        self._hub = hub
        self._caches_max = caches_max
        self._recent = RecentValues(recent_bytes_max)
        self._by_id: dict[int, Entry] = {}
        self._by_name: dict[str, Entry] = {}
        self._views: dict[str, Entry] = {}
        self._ids = ViewIds(hub, _view_names)
        self._creating = asyncio.Lock()
        self._wanted = Waiters()
        self.expiries = Expiries(hub)
        self.tables = TableNames()

    async def load(self) -> None:
        """Read the catalogue; find out which caches have become tables and which streams."""
        await self._hub.create_table(CATALOGUE_TABLE)
        for entry in self._hub.set_aside.read(CATALOGUE_TABLE, self._hub.items(CATALOGUE_TABLE), read_entry):
            entry.cache = self._existing(entry.name)
            self._add(entry)
        await self.expiries.load(self._remove_expired)
        for name in SPECIAL:
            if name not in self._by_name:
                await self.create(name, Configuration({0: name}), by_name=True)
            elif self._by_name[name].cache is None:  # somebody deleted its table
                self._by_name[name].cache = await self._new_table(name)

    def _existing(self, name: str) -> AnyCache | None:
        if not self._hub.has_stream(name) or self._is_foreign_table(name):
            return None  # still open; a table that is no cache is refused when somebody wants to use it
        if self._hub.stream(name).kind == "table":
            return TableCache(self._hub, name, self.expiries)
        return StreamCache(self._hub, name, self._recent)

    def _is_foreign_table(self, name: str) -> bool:
        """Whether there is a table of that name which is not a cache."""
        if not self._hub.has_stream(name):
            return False
        info = self._hub.stream(name)
        return info.kind == "table" and info.options.labels != LABELS

    def _refuse_foreign_table(self, name: str) -> None:
        if self._is_foreign_table(name):
            raise PeerError(
                Status.CACHE_EXISTS,
                f"cache {name!r} cannot be created: there is a table of that name, which is not a cache; "
                "choose another name",
            )

    def _add(self, entry: Entry) -> None:
        self._by_name[entry.name] = entry
        for number in entry.ids:
            self._by_id[number] = entry
        self.tables.add(entry.name, tables_of(entry.name, entry.configuration))
        self._wanted.notify(entry.name)

    def _remove_expired(self, name: str, key: bytes) -> asyncio.Future[Any] | None:
        entry = self.find_name(name)
        if entry is not None and isinstance(entry.cache, TableCache) and entry.cache.ready:
            return entry.cache.remove_expired(key)
        return None

    # finding

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._by_name.values()))

    def __len__(self) -> int:
        return len(self._by_name)

    def names(self) -> list[str]:
        """The names of all caches, and of the streams of other protocols that can be read as caches."""
        listed = [info for info in self._hub.streams() if not (info.name in self._by_name or is_reserved(info.name))]
        foreign = sorted(name for info in listed for name in _view_names(info))
        return [*[entry.name for entry in self if not self._is_lost(entry)], *foreign]

    def find(self, cache_id: int) -> Entry:
        """The cache with that number."""
        entry = self._by_id.get(cache_id)
        if entry is None or self._is_lost(entry):
            entry = self._view_with_id(cache_id)
        if entry is None:
            raise cache_does_not_exist(cache_id)
        return entry

    def find_name(self, name: str) -> Entry | None:
        """The cache of that name."""
        entry = self._by_name.get(name)
        return self._view(name) if entry is None or self._is_lost(entry) else entry

    def _is_lost(self, entry: Entry) -> bool:
        """Whether another protocol has deleted what the cache lay in; then there is no such cache any more, and one of
        that name can be created again."""
        if entry.cache is None or entry.cache.exists or entry.name in SPECIAL:
            return False
        self._forget(entry)
        # Should this fail, the next start finds a cache that nobody has used yet.
        self._forget_for_good(entry.name).add_done_callback(lambda done: done.cancelled() or done.exception())
        return True

    def _forget_for_good(self, name: str) -> asyncio.Future[Any]:
        return self.expiries.forget_for_good(name, Delete(CATALOGUE_TABLE, name.encode()))

    def _forget(self, entry: Entry) -> None:
        del self._by_name[entry.name]
        self.tables.remove(entry.name)
        for number in entry.ids:
            self._by_id.pop(number, None)
        for told in tuple(entry.on_destroyed):
            told()
        if entry.cache is not None:
            entry.cache.close()

    async def appeared(self, name: str) -> Entry:
        """The cache of that name, as soon as there is one: a client's, or a stream of another protocol."""
        while (entry := self.find_name(name)) is None:
            stream, partition = _place_of(name)
            foreign = asyncio.ensure_future(self._hub.wait_stream(stream, partition + 1))
            signs: list[asyncio.Future[Any]] = [self._wanted.future(name), foreign]
            try:
                seen, _ = await asyncio.wait(signs, return_when=asyncio.FIRST_COMPLETED)
                for sign in seen:
                    sign.result()  # raises when the hub has nothing more to tell
            finally:
                for sign in signs:
                    sign.cancel()
        return entry

    def _view(self, name: str) -> Entry | None:
        entry = self._views.get(name)
        if entry is None:
            found = self._foreign(name)
            if found is None:
                return None
            entry = self._views[name] = Entry(name, Configuration({0: name}), owner=found[0])
            entry.cache = ViewCache(self._hub, name, *found)
        elif self._foreign(name) is None:  # deleted by those it belongs to
            del self._views[name]
            return None
        return entry

    def _foreign(self, name: str) -> tuple[str, int] | None:
        """The stream and partition that a name means, if they are there."""
        stream, partition = _place_of(name)
        if not self._hub.has_stream(stream):
            return None
        info = self._hub.stream(stream)
        return (stream, partition) if info.kind == "stream" and partition < info.partitions else None

    def _view_with_id(self, cache_id: int) -> Entry | None:
        views = [view for name in self._ids.names(cache_id) if (view := self._view(name)) is not None]
        if len(views) > 1:
            raise Refused(
                f"{len(views)} streams have the cache id {cache_id}; clients that send ids cannot read any of them"
            )
        return views[0] if views else None

    def owner_of(self, name: str) -> str:
        """The name by which rights are asked for: of a partition, its stream's."""
        entry = self.find_name(name)
        return name if entry is None else entry.owner

    # creating

    async def create(
        self, name: str, configuration: Configuration, *, by_name: bool, must_be_new: bool = False
    ) -> None:
        """Create a cache, or find that it is there."""
        async with self._creating:
            if self.find_name(name) is not None:
                if must_be_new:
                    raise cache_exists(name)
                return
            entry = Entry(name, configuration)
            self._check(entry)
            if by_name:
                entry.cache = await self._new_table(name)
            await self._hub.put(CATALOGUE_TABLE, name.encode(), write_request(configuration))
            self._add(entry)

    def _check(self, entry: Entry) -> None:
        if not entry.name:
            raise Refused("a cache needs a name")
        if entry.name.startswith("perper."):
            raise Refused(f"cache name {entry.name!r}: names that begin with 'perper.' belong to the fabric itself")
        if _PARTITION.fullmatch(entry.name) is not None:
            raise Refused(f"cache name {entry.name!r}: names that end in ';partition=N' are those of partitions")
        if len(self._by_name) >= self._caches_max:
            raise Refused(f"there are {self._caches_max} caches already; the limit is set by 'perper.caches_max'")
        for number in entry.ids:
            other = self._by_id.get(number)
            if other is not None:
                raise Refused(
                    f"cache {entry.name!r} has the same id {number} as cache {other.name!r}: choose another name"
                )
        self.tables.check(tables_of(entry.name, entry.configuration))

    async def _new_table(self, name: str) -> TableCache:
        """A table of ours; one that is there may be left over from a hub that died before it was in the catalogue."""
        self._refuse_foreign_table(name)
        try:
            await self._hub.create_table(name, StreamOptions(labels=LABELS), is_own=name in SPECIAL)
        except (StreamExists, BadRequest) as error:
            raise PeerError(Status.CACHE_EXISTS, f"cache {name!r} cannot be a table: {error}") from None
        return TableCache(self._hub, name, self.expiries)

    async def prepare(self, entry: Entry, *, stream: bool) -> None:
        """Decide what an open cache is, and load a stream's keys. Who comes in between waits for the same decision."""
        if entry.deciding is None:
            entry.deciding = asyncio.ensure_future(self._prepare(entry, stream))
        try:
            await asyncio.shield(entry.deciding)
        finally:
            if entry.deciding is not None and entry.deciding.done():
                entry.deciding = None

    async def _prepare(self, entry: Entry, stream: bool) -> None:
        if entry.cache is None:
            if stream:
                self._refuse_foreign_table(entry.name)
                await self._hub.create_stream(entry.name)
                entry.cache = StreamCache(self._hub, entry.name, self._recent)
            else:
                entry.cache = await self._new_table(entry.name)
        elif isinstance(entry.cache, TableCache) and not entry.cache.ready:
            if self.expiries.deadlines(entry.name):
                await self.expiries.forget_for_good(entry.name)
            entry.cache.forget_all()  # before the table is there: nobody has put anything new
            entry.cache.stream_id = (await self._new_table(entry.name)).stream_id
        if isinstance(entry.cache, StreamCache):
            await entry.cache.load()

    async def destroy(self, entry: Entry) -> None:
        """Remove a cache, and first all that it holds: if that is refused nothing has changed; if the rest is, the next
        cache of that name begins empty."""
        if entry.name in SPECIAL:
            raise Refused(f"cache {entry.name!r} belongs to the fabric and cannot be destroyed")
        if isinstance(entry.cache, ViewCache):
            raise Refused(f"cache {entry.name!r} is a stream that another protocol writes: delete it there")
        async with self._creating:
            if self._by_name.get(entry.name) is not entry:
                raise cache_does_not_exist(java_hash(entry.name))
            if entry.cache is not None and entry.cache.exists:
                await self._hub.delete_stream(entry.name)
            if self._by_name.get(entry.name) is entry:  # others may have seen already that it is gone
                self._forget(entry)
            await self._forget_for_good(entry.name)

    def close(self) -> None:
        """Stop what runs in the background."""
        self.expiries.close()
        for entry in (*self._by_name.values(), *self._views.values()):
            if entry.cache is not None:
                entry.cache.close()
