"""The binary type registry. Durable: clients register a type once in their life and expect it there for ever."""

from __future__ import annotations

from asyncio import Future
from typing import TYPE_CHECKING, Any, Final

from headrace.protocols.perper.errors import BinaryError, Refused
from headrace.protocols.perper.ignite.reader import I32, Reader
from headrace.protocols.perper.ignite.types import BinaryType, for_clients, merge, read_type, write_type

if TYPE_CHECKING:
    from headrace.hub import Hub

TYPES_TABLE: Final = "perper.types"
NAMES_TABLE: Final = "perper.type-names"

# A type is some hundred bytes in memory; real programs have tens.
DEFAULT_TYPES_MAX: Final = 100_000  # perper.types_max


class TypeRegistry:
    """Types by id, in memory, and in two tables of the hub."""

    def __init__(self, hub: Hub, types_max: int = DEFAULT_TYPES_MAX) -> None:
        self._hub = hub
        self._types_max = types_max
        self._types: dict[int, BinaryType] = {}
        self._storing: dict[int, Future[Any]] = {}  # types whose last change is not on disk yet

    async def load(self) -> None:
        """Create the tables when they are missing and read what they hold."""
        await self._hub.create_table(TYPES_TABLE)
        await self._hub.create_table(NAMES_TABLE)
        read = self._hub.set_aside.read
        kinds = read(TYPES_TABLE, self._hub.items(TYPES_TABLE), read_stored_type)
        self._types = {kind.type_id: kind for kind in kinds}
        read(NAMES_TABLE, self._hub.items(NAMES_TABLE), read_stored_name)

    def __len__(self) -> int:
        return len(self._types)

    def get(self, type_id: int) -> BinaryType | None:
        """The type as a client may see it."""
        kind = self._types.get(type_id)
        return None if kind is None else for_clients(kind)

    def schema(self, type_id: int, schema_id: int) -> tuple[int, ...] | None:
        """The field ids of a schema, in order."""
        kind = self._types.get(type_id)
        return None if kind is None else kind.schemas.get(schema_id)

    def put(self, new: BinaryType) -> Future[Any] | None:
        """Merge a type in. The future is done when it is on disk; None when it is there already."""
        old = self._types.get(new.type_id)
        if old is None and len(self._types) >= self._types_max:
            raise Refused(f"there are {self._types_max} binary types already; the limit is set by 'perper.types_max'")
        merged = merge(old, new)
        if merged == old:
            return self._storing.get(new.type_id)
        self._types[new.type_id] = merged
        future = self._storing[new.type_id] = self._hub.put(TYPES_TABLE, I32.pack(new.type_id), write_type(merged))
        future.add_done_callback(lambda finished: self._stored(new.type_id, finished))
        return future

    def _stored(self, type_id: int, finished: Future[Any]) -> None:
        """What could not be stored is not known either: whoever registers it again must not be told that it is."""
        if self._storing.get(type_id) is not finished:
            return  # a later change holds this one too
        del self._storing[type_id]
        if not finished.cancelled() and finished.exception() is None:
            return
        stored = self._hub.get(TYPES_TABLE, I32.pack(type_id))
        if stored is None:
            del self._types[type_id]
        else:
            self._types[type_id] = read_type(Reader(stored))

    def name(self, platform: int, type_id: int) -> str | None:
        """The class name registered for a type on a platform, else the type's own name."""
        stored = self._hub.get(NAMES_TABLE, _name_key(platform, type_id))
        if stored is not None:
            return stored.decode(errors="replace")
        kind = self._types.get(type_id)
        return None if kind is None else kind.name

    def put_name(self, platform: int, type_id: int, name: str) -> Future[Any] | None:
        """Register a class name. None when it is there; another one for the same id is refused."""
        key = _name_key(platform, type_id)
        stored = self._hub.get(NAMES_TABLE, key)
        if stored is None:
            return self._hub.put(NAMES_TABLE, key, name.encode())
        if stored != name.encode():
            known = stored.decode(errors="replace")
            raise BinaryError(f"type id {type_id} has the name {known!r} on platform {platform}, not {name!r}")
        return None


def read_stored_type(key: bytes, value: bytes) -> BinaryType:
    """A row of the table of types."""
    kind = read_type(Reader(value))
    if I32.pack(kind.type_id) != key:
        raise BinaryError(f"it is the type {kind.type_id}, which belongs elsewhere")
    return kind


def read_stored_name(key: bytes, value: bytes) -> str:
    """A row of the table of class names."""
    return value.decode()


def _name_key(platform: int, type_id: int) -> bytes:
    return bytes((platform & 0xFF,)) + I32.pack(type_id)
