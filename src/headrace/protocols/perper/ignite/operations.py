"""What each operation of the thin protocol does to the caches.

An operation gives its answer at once, or a `Pending`: a future of the hub and how to turn its result into the answer.
It raises `PeerError` for what the client may not do, and `NotReady` when the cache must first be made or loaded.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple
from uuid import UUID

from headrace.hub.turns import Pace
from headrace.protocols.perper.bulk import Entries, Keys
from headrace.protocols.perper.catalogue import AnyCache, Entry
from headrace.protocols.perper.errors import BinaryError, PeerError, Refused, Status
from headrace.protocols.perper.ignite.binary import LONG, NULL
from headrace.protocols.perper.ignite.codec import Request
from headrace.protocols.perper.ignite.configuration import Configuration
from headrace.protocols.perper.ignite.cursors import PAGE_ROWS_MAX, Cursor, OpenCursor, Scan
from headrace.protocols.perper.ignite.peeking import peeks_at_entries
from headrace.protocols.perper.ignite.shapes import OPERATIONS, Encoded, Owned, Page, SqlPage
from headrace.protocols.perper.sql.results import Result
from headrace.protocols.perper.sql.statements import Statements
from headrace.protocols.perper.stream_view import ViewCache
from headrace.protocols.perper.streams import StreamCache
from headrace.protocols.perper.tables import TableCache
from headrace.protocols.perper.transactions import (
    CHANGES,
    TRANSACTED,
    Transaction,
    Transactions,
    check_not_null,
    nothing,
    previous,
)
from headrace.slicing import let_go

if TYPE_CHECKING:
    from headrace.protocols.perper.state import Fabric
    from headrace.security import Principal

CLUSTER_ACTIVE: Final = 1

# The real server's default; a cursor holds a snapshot of the keys.
DEFAULT_CURSORS_MAX: Final = 128  # perper.cursors_max
AT_ONCE_MAX: Final = 256
"""Keys that are looked up in one go; with more, others have their turn meanwhile."""

FOREIGN: Final = "not an Ignite object: another protocol wrote it"

NEXT_PAGES: Final = (2001, 2003, 2005)


class Pending(NamedTuple):
    """An answer that is not known yet."""

    future: Future[Any]
    render: Callable[[Any], Any]


class NotReady(Exception):
    """The cache must be prepared first; then the same request can be tried again."""

    def __init__(self, entry: Entry, stream: bool) -> None:
        self.entry = entry
        self.stream = stream
        super().__init__(entry.name)


def _same(value: Any) -> Any:
    return value


class Operations:
    """The operations of one connection: cursors belong to it, rights are its user's."""

    def __init__(
        self,
        fabric: Fabric,
        principal: Principal,
        cursors_max: int = DEFAULT_CURSORS_MAX,
        uses: Callable[[Literal["read", "write"], str], None] = lambda right, name: None,
        owner: UUID | None = None,
    ) -> None:
        """`uses` is told of every cache that is read or written. `owner` is the node that clients should prefer."""
        self.fabric = fabric
        self.principal = principal
        self._uses = uses
        self._owner = owner
        self._cursors_max = cursors_max
        self._cursors: dict[int, OpenCursor] = {}
        self._statements = Statements(fabric, principal, partial(_check, principal), uses)
        self._next_cursor = 1
        self._transactions = Transactions()

    def execute(self, request: Request) -> Any:
        """Do it: the answer's value, or a `Pending`."""
        if self.principal.refusal is not None:
            raise PeerError(Status.LOGIN_FAILED, str(self.principal.refusal))
        if request.transaction is not None:
            return self._inside(request, self._transactions.get(request.transaction))
        return HANDLERS[request.op](self, request)

    # caches

    def _partitions(self, request: Request) -> Any:
        caches = request.arguments[0]
        return caches if self._owner is None else Owned(caches, self._owner)

    def _entry(self, request: Request) -> Entry:
        entry = self.fabric.catalogue.find(request.cache_id)
        right = OPERATIONS[request.op].right
        if right == "read" or right == "write":
            self._check(right, entry.owner)
            self._uses(right, entry.owner)
        return entry

    def _check(self, right: Any, name: str) -> None:
        _check(self.principal, right, name)

    def cache_for_writing(self, request: Request) -> TableCache | StreamCache:
        """The cache of a request that changes it."""
        entry = self._entry(request)
        cache = entry.cache
        if cache is None or not cache.ready:
            is_item = request.op == 1002 and request.arguments[0][0] == LONG
            raise NotReady(entry, stream=is_item or cache is not None)
        if isinstance(cache, ViewCache):
            raise Refused(f"cache {cache.name!r} is a stream that another protocol writes: it can only be read here")
        return cache

    def _for_reading(self, request: Request) -> AnyCache | None:
        """The cache of a request that reads; None while it is empty and open."""
        entry = self._entry(request)
        cache = entry.cache
        if cache is not None and not cache.ready:
            raise NotReady(entry, stream=True)
        return cache

    def _expiry(self, request: Request) -> tuple[int, int, int] | None:
        if request.expiry is not None:
            return request.expiry
        configuration: Configuration = self._entry(request).configuration
        return configuration.expiry

    # single entries

    def _get(self, request: Request) -> Any:
        key = request.arguments[0]
        check_not_null(key=key)
        cache = self._for_reading(request)
        if cache is None:
            return None
        value = cache.get(key)
        if isinstance(value, Future):
            return Pending(value, _same)
        if value is not None and isinstance(cache, TableCache):
            expiry = self._expiry(request)
            if expiry is not None and expiry[2] >= 0:
                cache.touch(key, expiry[2])
        return value

    def _change(self, request: Request) -> Pending:
        """A put or removal of one key."""
        change = CHANGES[request.op]
        key, value, expect = change.of(request.arguments)
        cache = self.cache_for_writing(request)
        if change.answer is previous and isinstance(cache, TableCache):
            cache.get(key)  # raises when damage hides the answer: a change that expects nothing would succeed
        if value is None:
            return Pending(cache.delete(key, expect), change.answer)
        return Pending(cache.put(key, value, expect, self._expiry(request)), change.answer)

    def _contains(self, request: Request) -> bool:
        cache = self._for_reading(request)
        return cache is not None and _has(cache, request.arguments[0])

    def _contains_all(self, request: Request) -> bool | Pending:
        cache = self._for_reading(request)
        keys: Keys = request.arguments[0]
        if cache is None or len(keys) <= AT_ONCE_MAX:
            return all(cache is not None and _has(cache, key) for key in keys)
        return Pending(asyncio.ensure_future(self._has_all(cache, keys)), _same)

    async def _has_all(self, cache: AnyCache, keys: Keys) -> bool:
        pace = Pace(self.fabric.hub.intake.turns)
        for key in keys:
            await pace.keep()
            if not _has(cache, key):
                return False
        return True

    # many entries

    def _get_all(self, request: Request) -> Any:
        cache = self._for_reading(request)
        if cache is None:
            return []
        if len(request.arguments[0]) > AT_ONCE_MAX:
            return Pending(asyncio.ensure_future(self._get_many(cache, request)), _same)
        keys: list[bytes] = list(dict.fromkeys(request.arguments[0]))
        if isinstance(cache, TableCache):
            return [(key, value) for key in keys if (value := cache.get(key)) is not None]
        return Pending(asyncio.ensure_future(cache.page(keys)), _same)

    async def _get_many(self, cache: AnyCache, request: Request) -> Any:
        """So many that the answer, too, is written beside the event loop."""
        asked: Keys = request.arguments[0]
        keys = await self.fabric.hub.intake.apart(asked.distinct)
        rows = await cache.page(keys)
        return await self._encoded(request.op, rows, rows, keys, asked)

    async def _encoded(self, op: int, value: Any, *lists: list[Any]) -> Encoded:
        """An answer of many values, written beside the event loop. There the lists that it needed are freed, too."""

        def write() -> Encoded:
            try:
                return Encoded.of(op, value)
            except (BinaryError, IndexError):
                raise Refused(FOREIGN) from None
            finally:
                for each in lists:
                    let_go(each)

        return await self.fabric.hub.intake.apart(write)

    def _put_all(self, request: Request) -> Any:
        pairs: Entries = request.arguments[0]
        if not pairs:
            return None
        if pairs.has_null:
            for key, value in pairs:
                check_not_null(key=key, value=value)
        cache = self.cache_for_writing(request)
        return Pending(cache.put_many(pairs, self._expiry(request)), nothing)

    def _remove_many(self, request: Request) -> Any:
        keys = [request.arguments[0]] if request.op == 1014 else request.arguments[0]
        return Pending(self.cache_for_writing(request).delete_many(keys), nothing) if keys else None

    def _clear(self, request: Request) -> Any:
        if self._entry(request).cache is None:
            return None
        return Pending(self.cache_for_writing(request).clear(), nothing)

    def _size(self, request: Request) -> int:
        peeked = peeks_at_entries(request.arguments[0])
        cache = self._for_reading(request)
        return 0 if cache is None or not peeked else cache.size()

    def _peek(self, request: Request) -> Any:
        if peeks_at_entries(request.arguments[1]):
            return self._get(request)
        self._entry(request)
        return None

    # scanning

    def _scan(self, request: Request) -> Any:
        query_filter, page_size, partition, _local = request.arguments
        if query_filter[0] != NULL:
            raise Refused("scan with a filter is not supported: filter on the client, or read with Spark")
        self._check_room_for_cursor(page_size)
        cache = self._for_reading(request)
        number, opened = self._open(
            Scan(cache if partition in (-1, 0) else None, self.fabric.hub.intake.turns), page_size
        )
        opened.cursor.owners.add(self._entry(request).owner)
        return Pending(asyncio.ensure_future(self._written(request.op, self._page(number, opened))), _same)

    def _check_room_for_cursor(self, page_size: int) -> None:
        if page_size <= 0:
            raise Refused("Page size must be above zero.")
        if len(self._cursors) >= self._cursors_max:
            raise PeerError(
                Status.TOO_MANY_CURSORS,
                f"Too many open cursors (over {self._cursors_max}); close some, or raise 'perper.cursors_max'",
            )

    def _open(self, cursor: Cursor, page_size: int) -> tuple[int, OpenCursor]:
        number, self._next_cursor = self._next_cursor, self._next_cursor + 1
        opened = self._cursors[number] = OpenCursor(cursor, min(page_size, PAGE_ROWS_MAX))
        return number, opened

    def _next_page(self, request: Request) -> Any:
        number: int = request.arguments[0]
        if number not in self._cursors:
            raise _no_cursor(number)
        opened = self._cursors[number]
        for owner in opened.cursor.owners:
            self._check("read", owner)
        return Pending(asyncio.ensure_future(self._written(request.op, self._page(number, opened))), _same)

    async def _written(self, op: int, work: Awaitable[Page | SqlPage]) -> Page | SqlPage | Encoded:
        """A page, or the answer with it where it has many rows."""
        page = await work
        return page if len(page.rows) <= AT_ONCE_MAX else await self._encoded(op, page, page.rows)

    async def _page(self, number: int, opened: OpenCursor) -> Page | SqlPage:
        try:
            page = await opened.cursor.page(opened.rows)
        except BaseException:
            self._close_cursor(number)
            raise
        if not page.more:
            self._close_cursor(number)
        return page._replace(cursor=number)

    def _close_cursor(self, number: int) -> bool:
        """Whether it was open."""
        opened = self._cursors.pop(number, None)
        if opened is not None and not isinstance(opened.cursor, Scan):
            self._statements.ended(opened.cursor)
        return opened is not None

    def _close_resource(self, request: Request) -> None:
        if not self._close_cursor(request.arguments[0]):
            raise _no_cursor(request.arguments[0])

    # SQL

    def _sql(self, request: Request) -> Pending:
        """Keys and values."""
        asked = request.arguments[0]
        self._check_room_for_cursor(asked["page_size"])
        work = self._statements.entries(asked, self._entry(request))
        first = self._first_page(work, asked["page_size"])
        return Pending(asyncio.ensure_future(self._written(request.op, first)), _same)

    def _sql_fields(self, request: Request) -> Pending:
        """Any statement. A client need not name a cache."""
        asked = request.arguments[0]
        self._check_room_for_cursor(asked["page_size"])
        cache = self.fabric.catalogue.find(request.cache_id) if request.cache_id else None
        work = self._statements.fields(asked, cache)
        first = self._first_page(work, asked["page_size"], asked["include_field_names"])
        return Pending(asyncio.ensure_future(self._written(request.op, first)), _same)

    async def _first_page(self, work: Awaitable[Result], page_size: int, with_names: bool = False) -> Page | SqlPage:
        cursor = await work
        page = await self._page(*self._open(cursor, page_size))
        return page._replace(names=cursor.names) if with_names and isinstance(page, SqlPage) else page

    # administration

    def _names(self, request: Request) -> list[str]:
        catalogue = self.fabric.catalogue
        return [name for name in catalogue.names() if self.principal.may("read", catalogue.owner_of(name))]

    def _create(self, request: Request) -> Any:
        by_name = request.op in (1051, 1052)
        configuration = Configuration({0: request.arguments[0]}) if by_name else request.arguments[0]
        name = configuration.name
        if not name:
            raise Refused("a cache needs a name")
        self._check("write", name)
        must_be_new = request.op in (1051, 1053)
        work = self.fabric.catalogue.create(name, configuration, by_name=by_name, must_be_new=must_be_new)
        return Pending(asyncio.ensure_future(work), nothing)

    def _destroy(self, request: Request) -> Any:
        entry = self.fabric.catalogue.find(request.arguments[0])
        self._check("admin", entry.name)
        return Pending(asyncio.ensure_future(self.fabric.catalogue.destroy(entry)), nothing)

    def _type_name(self, request: Request) -> str:
        platform, type_id = request.arguments
        name = self.fabric.registry.name(platform, type_id)
        if name is None:
            raise Refused(f"Failed to resolve class name [platformId={platform}, typeId={type_id}]")
        return name

    def _put_type_name(self, request: Request) -> Any:
        self._check_may_write_something()
        stored = self.fabric.registry.put_name(*request.arguments)
        return True if stored is None else Pending(stored, lambda _: True)

    def _put_type(self, request: Request) -> Any:
        self._check_may_write_something()
        stored = self.fabric.registry.put(request.arguments[0])
        return None if stored is None else Pending(stored, nothing)

    def _check_may_write_something(self) -> None:
        if not self.principal.may_some("write"):
            raise PeerError(Status.NOT_AUTHORIZED, f"user {self.principal.name!r} may not register binary types")

    def _set_cluster_state(self, request: Request) -> None:
        if request.arguments[0] != CLUSTER_ACTIVE:
            raise Refused("the cluster state cannot be changed: a hub that runs is active")

    # transactions

    def _inside(self, request: Request, transaction: Transaction) -> Any:
        """An operation of a transaction: decided now, done at commit."""
        if request.op not in TRANSACTED and request.op not in CHANGES:
            return HANDLERS[request.op](self, request)  # scans and sizes see what is committed
        entry = self._entry(request)
        if not entry.configuration.transactional:
            raise Refused(
                "Transaction spans operations on atomic cache: create "
                f"{entry.name!r} with atomicity mode TRANSACTIONAL to use it in transactions"
            )
        if entry.cache is None:
            raise NotReady(entry, stream=False)
        writes = OPERATIONS[request.op].right == "write"
        cache = self.cache_for_writing(request) if writes else self._for_reading(request)
        assert cache is not None
        if not isinstance(cache, TableCache):
            raise Refused(f"cache {cache.name!r} is a stream: transactions are for tables")
        for argument in request.arguments:
            if isinstance(argument, bytes):
                check_not_null(argument=argument)
        if request.op in TRANSACTED:
            return TRANSACTED[request.op](transaction, cache, request.arguments)
        change = CHANGES[request.op]
        return change.answer(transaction.change(cache, *change.of(request.arguments)))

    def _end_transaction(self, request: Request) -> Any:
        number, commits = request.arguments
        transaction = self._transactions.end(number)
        for name in transaction.written if commits else ():
            self._check("write", self.fabric.catalogue.owner_of(name))
        done = transaction.commit(self.fabric.hub) if commits else None
        return None if done is None else Pending(done, nothing)

    def close(self) -> None:
        """The connection is gone."""
        self._cursors.clear()
        self._statements.close()
        self._transactions.close()


def _check(principal: Principal, right: Any, name: str) -> None:
    if not principal.may(right, name):
        raise PeerError(Status.NOT_AUTHORIZED, f"user {principal.name!r} needs the right {right!r} on cache {name!r}")


HANDLERS: Final[dict[int, Callable[[Operations, Request], Any]]] = {
    **dict.fromkeys(CHANGES, Operations._change),
    **dict.fromkeys((1014, 1015, 1018), Operations._remove_many),
    **dict.fromkeys((1051, 1052, 1053, 1054), Operations._create),
    0: Operations._close_resource,
    1000: Operations._get,
    1003: Operations._get_all,
    1004: Operations._put_all,
    1011: Operations._contains,
    1012: Operations._contains_all,
    1013: Operations._clear,
    1019: Operations._clear,
    1020: Operations._size,
    1021: Operations._peek,
    1050: Operations._names,
    1055: lambda self, request: self._entry(request).configuration,
    1056: Operations._destroy,
    1101: Operations._partitions,
    2000: Operations._scan,
    **dict.fromkeys(NEXT_PAGES, Operations._next_page),
    2002: Operations._sql,
    2004: Operations._sql_fields,
    3000: Operations._type_name,
    3001: Operations._put_type_name,
    3002: lambda self, request: self.fabric.registry.get(request.arguments[0]),
    3003: Operations._put_type,
    4000: lambda self, request: self._transactions.start(*request.arguments[:3]),
    4001: Operations._end_transaction,
    5000: lambda self, request: CLUSTER_ACTIVE,
    5001: Operations._set_cluster_state,
}
assert HANDLERS.keys() == OPERATIONS.keys()


def _has(cache: AnyCache, key: bytes) -> bool:
    check_not_null(key=key)
    return cache.has(key)


def _no_cursor(number: int) -> PeerError:
    return PeerError(Status.RESOURCE_DOES_NOT_EXIST, f"Failed to find resource with id: {number}")
