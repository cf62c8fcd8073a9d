"""The Ignite thin client protocol on the wire: frames, handshake, requests and responses. Pure bytes.

::

    frame      = int32 length of what follows, payload
    handshake  > byte 1, int16 major, minor, patch, byte client type,
                 from 1.7: byte array of feature bits, [bit 0: map of user attributes], [string user, string password]
               < byte 1, from 1.7: byte array of features in use, from 1.4: UUID of the node
               < byte 0, int16 * 3 server version, string message, int32 status
    request    > int16 operation, int64 id, body
    cache body > int32 cache id, byte flags, [flags & 4: 3 * int64 expiry in ms], [flags & 2: int32 transaction], rest
    response   < int64 id, int16 flags, [flags & 2: int64 topology, int32 minor],
                 [flags & 1: int32 status, string message], body
               < below 1.4: int64 id, int32 status, message or body

Every operation is one line of `OPERATIONS`: its name, whether it has the cache header, the parts of its body, the
shape of its answer, and the right it needs. Decoder and encoder both follow that table.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from headrace.protocols.perper.errors import BinaryError, FrameError, PeerError, Status
from headrace.protocols.perper.ignite.binary import (
    DEFAULT_NESTING_MAX,
    NULL,
    NULL_OBJECT,
    encode_string,
    java_hash,
    read_object,
    wrap,
)
from headrace.protocols.perper.ignite.configuration import (
    Configuration,
    read_configuration,
    write_answer,
    write_request,
)
from headrace.protocols.perper.ignite.reader import I32, I64, Reader, ints
from headrace.protocols.perper.ignite.types import BinaryType, read_type, write_type

Version = tuple[int, int, int]

VERSIONS: Final[tuple[Version, ...]] = tuple((1, minor, 0) for minor in range(2, 8))
NEWEST: Final = VERSIONS[-1]
THIN_CLIENT: Final = 2

# Feature bits this server serves: 2, cluster states. An announced bit makes clients send what goes with it.
FEATURES: Final = b"\x04"

# Ignite itself takes frames up to 2 GiB; a frame is held in memory whole, so the hub is stricter.
DEFAULT_FRAME_BYTES_MAX: Final = 64 * 1024 * 1024  # perper.frame_bytes_max
# A handshake is some hundred bytes; before it nobody has said who they are.
HANDSHAKE_BYTES_MAX: Final = 16 * 1024

FLAG_TRANSACTION: Final = 2
FLAG_EXPIRY: Final = 4
RESPONSE_ERROR: Final = 1
RESPONSE_TOPOLOGY: Final = 2

_REQUEST_HEADER = Struct("<hq")
_CACHE_HEADER = Struct("<iB")
_RESPONSE_HEADER = Struct("<iqh")
_OLD_RESPONSE_HEADER = Struct("<iqi")
_EXPIRY = Struct("<qqq")
_VERSION = Struct("<hhh")


class Operation(NamedTuple):
    """One line of the protocol."""

    name: str
    has_cache: bool
    parts: tuple[str, ...]
    answer: str
    right: Literal["read", "write", "none"]  # needed on the cache


_R: Final = "read"
_W: Final = "write"
_N: Final = "none"

OPERATIONS: Final[dict[int, Operation]] = {
    0: Operation("resource close", False, ("long",), "nothing", _N),
    1000: Operation("get", True, ("object",), "object", _R),
    1001: Operation("put", True, ("object", "object"), "nothing", _W),
    1002: Operation("put if absent", True, ("object", "object"), "bool", _W),
    1003: Operation("get all", True, ("objects",), "pairs", _R),
    1004: Operation("put all", True, ("pairs",), "nothing", _W),
    1005: Operation("get and put", True, ("object", "object"), "object", _W),
    1006: Operation("get and replace", True, ("object", "object"), "object", _W),
    1007: Operation("get and remove", True, ("object",), "object", _W),
    1008: Operation("get and put if absent", True, ("object", "object"), "object", _W),
    1009: Operation("replace", True, ("object", "object"), "bool", _W),
    1010: Operation("replace if equals", True, ("object", "object", "object"), "bool", _W),
    1011: Operation("contains key", True, ("object",), "bool", _R),
    1012: Operation("contains keys", True, ("objects",), "bool", _R),
    1013: Operation("clear", True, (), "nothing", _W),
    1014: Operation("clear key", True, ("object",), "nothing", _W),
    1015: Operation("clear keys", True, ("objects",), "nothing", _W),
    1016: Operation("remove key", True, ("object",), "bool", _W),
    1017: Operation("remove if equals", True, ("object", "object"), "bool", _W),
    1018: Operation("remove keys", True, ("objects",), "nothing", _W),
    1019: Operation("remove all", True, (), "nothing", _W),
    1020: Operation("size", True, ("bytes",), "long", _R),
    1021: Operation("local peek", True, ("object", "bytes"), "object", _R),
    1050: Operation("cache names", False, (), "strings", _N),
    1051: Operation("create by name", False, ("text",), "nothing", _N),
    1052: Operation("get or create by name", False, ("text",), "nothing", _N),
    1053: Operation("create with configuration", False, ("configuration",), "nothing", _N),
    1054: Operation("get or create with configuration", False, ("configuration",), "nothing", _N),
    1055: Operation("get configuration", True, (), "configuration", _R),
    1056: Operation("destroy", False, ("int",), "nothing", _N),
    1101: Operation("cache partitions", False, ("ints",), "partitions", _N),
    2000: Operation("scan", True, ("filter", "int", "int", "bool"), "first page", _R),
    2001: Operation("scan next page", False, ("long",), "next page", _N),
    2004: Operation("sql fields", True, ("sql",), "sql page", _N),
    2005: Operation("sql next page", False, ("long",), "sql next page", _N),
    3000: Operation("get binary type name", False, ("byte", "int"), "string", _N),
    3001: Operation("put binary type name", False, ("byte", "int", "text"), "bool", _N),
    3002: Operation("get binary type", False, ("int",), "type", _N),
    3003: Operation("put binary type", False, ("type",), "nothing", _N),
    4000: Operation("tx start", False, ("byte", "byte", "long", "string"), "int", _N),
    4001: Operation("tx end", False, ("int", "bool"), "nothing", _N),
    5000: Operation("cluster state get", False, (), "byte", _N),
    5001: Operation("cluster state set", False, ("byte",), "nothing", _N),
}

# Operations whose body is a cache header and one to three objects.
_PLAIN: Final = frozenset(op for op, line in OPERATIONS.items() if line.has_cache and {*line.parts} == {"object"})
_PLAIN_HEADER_BYTES: Final = _REQUEST_HEADER.size + _CACHE_HEADER.size

_RIGHTS = frozenset((_R, _W, _N))
assert all(operation.right in _RIGHTS for operation in OPERATIONS.values())


class Request(NamedTuple):
    """One request, its body read. `expiry` and `transaction` come only with cache operations that carry them."""

    op: int
    request_id: int
    arguments: tuple[Any, ...]
    cache_id: int = 0
    flags: int = 0
    expiry: tuple[int, int, int] | None = None
    transaction: int | None = None


class BadRequest(NamedTuple):
    """A request whose header could be read and whose rest could not: it gets `error` as its answer."""

    request_id: int
    error: PeerError


class Handshake(NamedTuple):
    """The first frame of a connection."""

    version: Version
    client_type: int
    features: bytes = b""
    user: str | None = None
    password: str | None = None


# -------------------------------------------------------------------------------------------------------------- frames


class FrameBuffer:
    """Cuts a byte stream into payloads. Bounded by `bytes_max`: a longer frame is refused by its length word."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._kept: list[bytes] = []
        self._kept_bytes = 0
        self._wanted_bytes = 4  # nothing can be cut before this much is there

    def feed(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """The buffer and where each complete payload lies in it: (start, end). Rests are kept for the next call."""
        if self._kept_bytes:
            self._kept.append(data)
            self._kept_bytes += len(data)
            if self._kept_bytes < self._wanted_bytes:
                return b"", []
            data = b"".join(self._kept)
        spans: list[tuple[int, int]] = []
        position, size, wanted = 0, len(data), 4
        unpack = I32.unpack_from
        while size - position >= 4:
            length = unpack(data, position)[0]
            if length < 0 or length > self.bytes_max:
                raise FrameError(
                    f"frame of {length} bytes; the most is {self.bytes_max}, set by 'perper.frame_bytes_max'"
                )
            end = position + 4 + length
            if end > size:
                wanted = 4 + length
                break
            spans.append((position + 4, end))
            position = end
        self._keep(data[position:], wanted)
        return data, spans

    def _keep(self, rest: bytes, wanted: int) -> None:
        self._kept = [rest] if rest else []
        self._kept_bytes = len(rest)
        self._wanted_bytes = wanted

    def take_rest(self, rest: bytes) -> None:
        """Put back frames that were cut and must wait, before whatever is kept already."""
        self._keep(rest + b"".join(self._kept), 4)

    @property
    def kept_bytes(self) -> int:
        """What waits for the rest of its frame."""
        return self._kept_bytes


def frame(payload: bytes) -> bytes:
    """A payload with its length before it."""
    return I32.pack(len(payload)) + payload


# ----------------------------------------------------------------------------------------------------------- handshake


def decode_handshake(payload: bytes) -> Handshake:
    """The client's first payload. What cannot be read closes the connection: there is no request id to answer to."""
    reader = Reader(payload)
    try:
        code = reader.byte()
        version = (reader.short(), reader.short(), reader.short())
        client_type = reader.byte()
        if code != 1:
            raise FrameError(f"handshake expected, found code {code}")
        if version not in VERSIONS:
            return Handshake(version, client_type)
        features = b""
        if version >= (1, 7, 0) and reader.position < reader.end:
            array = reader.object()
            features = array[5:] if array[0] == 12 else b""
            if features and features[0] & 1:
                reader.object()
        user = password = None
        if reader.position < reader.end:
            user, password = reader.string(), reader.string()
        return Handshake(version, client_type, features, user, password)
    except BinaryError as error:
        raise FrameError(f"handshake cannot be read: {error.message}") from error


def encode_handshake(handshake: Handshake) -> bytes:
    """The client's first frame."""
    parts = [b"\1", _VERSION.pack(*handshake.version), bytes((handshake.client_type,))]
    if handshake.version >= (1, 7, 0):
        parts += (b"\x0c", I32.pack(len(handshake.features)), handshake.features)
    if handshake.user is not None:
        parts += (encode_string(handshake.user), encode_string(handshake.password))
    return frame(b"".join(parts))


def encode_node_id(node_id: UUID) -> bytes:
    """A UUID object: both halves as little-endian longs."""
    return b"\x0a" + node_id.bytes[7::-1] + node_id.bytes[:7:-1]


def encode_handshake_success(version: Version, features: bytes, node_id: UUID) -> bytes:
    """The server's yes."""
    parts = [b"\1"]
    if version >= (1, 7, 0):
        parts += (b"\x0c", I32.pack(len(features)), features)
    if version >= (1, 4, 0):
        parts.append(encode_node_id(node_id))
    return frame(b"".join(parts))


def encode_handshake_refusal(version: Version, message: str, status: int) -> bytes:
    """The server's no, with the version it would have liked."""
    return frame(b"\0" + _VERSION.pack(*version) + encode_string(message) + I32.pack(status))


def common_features(features: bytes) -> bytes:
    """The bits both sides know; at least one byte."""
    return bytes(a & b for a, b in zip(features, FEATURES, strict=False)) or b"\0"


# ------------------------------------------------------------------------------------------------------------ requests


def _read_filter(reader: Reader) -> bytes:
    """A scan's filter; one that is not null is followed by its platform."""
    value = reader.object()
    if value[0] != NULL:
        reader.byte()
    return value


def _read_sql(reader: Reader) -> dict[str, Any]:
    """The fixed part of a field query; what newer feature bits would add is not announced."""
    schema, page, rows, sql = reader.string(), reader.int(), reader.int(), reader.string()
    arguments = [reader.object() for _ in range(reader.count())]
    names = ("distributed_joins", "local", "replicated_only", "enforce_join_order", "collocated", "lazy")
    query: dict[str, Any] = {"schema": schema, "page_size": page, "max_rows": rows, "sql": sql, "args": arguments}
    query["statement_type"] = reader.byte()
    query.update((name, reader.bool()) for name in names)
    query["timeout_ms"] = reader.long()
    query["include_field_names"] = reader.bool()
    return query


_READERS: Final[dict[str, Callable[[Reader], Any]]] = {
    "object": Reader.object,
    "objects": lambda reader: [reader.object() for _ in range(reader.count())],
    "pairs": lambda reader: [(reader.object(), reader.object()) for _ in range(reader.count(2))],
    "bytes": lambda reader: reader.raw(reader.count()),
    "byte": Reader.byte,
    "bool": Reader.bool,
    "int": Reader.int,
    "long": Reader.long,
    "ints": lambda reader: [reader.int() for _ in range(reader.count(4))],
    "string": Reader.string,
    "text": Reader.text,
    "configuration": read_configuration,
    "type": read_type,
    "filter": _read_filter,
    "sql": _read_sql,
}


def _read_plain(data: bytes, position: int, end: int, count: int, depth_max: int) -> tuple[bytes, ...]:
    """The objects of a body that holds nothing else: the hot path of puts and gets."""
    found = []
    for _ in range(count):
        value, position = read_object(data, position, end, depth_max)
        found.append(value)
    if position != end:
        raise BinaryError(f"{end - position} bytes are left over after the body")
    return tuple(found)


def decode_request(data: bytes, start: int, end: int, depth_max: int = DEFAULT_NESTING_MAX) -> Request | BadRequest:
    """The request in `data[start:end]`. A payload without room for the header ends the connection."""
    if end - start < _REQUEST_HEADER.size:
        raise FrameError(f"request of {end - start} bytes has no room for its header")
    op, request_id = _REQUEST_HEADER.unpack_from(data, start)
    operation = OPERATIONS.get(op)
    if operation is None:
        return BadRequest(request_id, PeerError(Status.INVALID_OP_CODE, f"Invalid request op code: {op}"))
    reader = Reader(data, start + _REQUEST_HEADER.size, end, depth_max)
    cache, flags, expiry, transaction = 0, 0, None, None
    try:
        if op in _PLAIN and end - start > _PLAIN_HEADER_BYTES and not data[start + 14] & 6:
            cache, flags = _CACHE_HEADER.unpack_from(data, start + _REQUEST_HEADER.size)
            objects = _read_plain(data, start + _PLAIN_HEADER_BYTES, end, len(operation.parts), depth_max)
            return Request(op, request_id, objects, cache, flags)
        if operation.has_cache:
            cache, flags = reader.int(), reader.byte() & 0xFF
            if flags & FLAG_EXPIRY:
                expiry = (reader.long(), reader.long(), reader.long())
            if flags & FLAG_TRANSACTION:
                transaction = reader.int()
        arguments = tuple([_READERS[part](reader) for part in operation.parts])
        reader.finish()
    except BinaryError as error:
        text = f"{operation.name}: {error.message}"
        return BadRequest(request_id, PeerError(Status.FAILED, text))
    return Request(op, request_id, arguments, cache, flags, expiry, transaction)


def _write_sql(query: dict[str, Any]) -> bytes:
    parts = [encode_string(query["schema"]), I32.pack(query["page_size"]), I32.pack(query["max_rows"])]
    parts += (encode_string(query["sql"]), I32.pack(len(query["args"])), *query["args"])
    names = ("distributed_joins", "local", "replicated_only", "enforce_join_order", "collocated", "lazy")
    parts.append(bytes([query["statement_type"] & 0xFF, *(query[name] for name in names)]))
    parts += (I64.pack(query["timeout_ms"]), b"\1" if query["include_field_names"] else b"\0")
    return b"".join(parts)


def _write_pairs(pairs: list[tuple[bytes, bytes]]) -> bytes:
    return I32.pack(len(pairs)) + b"".join([wrap(part) for pair in pairs for part in pair])


def _bool(value: bool) -> bytes:
    return b"\1" if value else b"\0"


_WRITERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "object": lambda value: value,
    "objects": lambda values: I32.pack(len(values)) + b"".join(values),
    "pairs": lambda pairs: I32.pack(len(pairs)) + b"".join([part for pair in pairs for part in pair]),
    "bytes": lambda data: I32.pack(len(data)) + data,
    "byte": lambda number: bytes((number & 0xFF,)),
    "bool": _bool,
    "int": I32.pack,
    "long": I64.pack,
    "ints": ints,
    "string": encode_string,
    "text": encode_string,
    "configuration": write_request,
    "type": write_type,
    "filter": lambda value: value,
    "sql": _write_sql,
}


def encode_request(request: Request) -> bytes:
    """A request as a client sends it."""
    operation = OPERATIONS[request.op]
    parts = [_REQUEST_HEADER.pack(request.op, request.request_id)]
    if operation.has_cache:
        parts.append(_CACHE_HEADER.pack(request.cache_id, request.flags))
        if request.flags & FLAG_EXPIRY:
            assert request.expiry is not None
            parts.append(_EXPIRY.pack(*request.expiry))
        if request.flags & FLAG_TRANSACTION:
            assert request.transaction is not None
            parts.append(I32.pack(request.transaction))
    parts += [_WRITERS[part](value) for part, value in zip(operation.parts, request.arguments, strict=True)]
    return frame(b"".join(parts))


# ----------------------------------------------------------------------------------------------------------- responses


class Page(NamedTuple):
    """Rows of a scan. `cursor` stands only in the first page's answer."""

    rows: list[tuple[bytes, bytes]]
    more: bool
    cursor: int = 0


class SqlPage(NamedTuple):
    """Rows of a field query, cells flattened."""

    columns: int
    rows: list[tuple[bytes, ...]]
    more: bool
    cursor: int = 0


def _write_sql_rows(page: SqlPage) -> bytes:
    return I32.pack(len(page.rows)) + b"".join([wrap(cell) for row in page.rows for cell in row]) + _bool(page.more)


_ANSWERS: Final[dict[str, Callable[[Any], bytes]]] = {
    "nothing": lambda _: b"",
    "bool": _bool,
    "byte": lambda number: bytes((number & 0xFF,)),
    "int": I32.pack,
    "long": I64.pack,
    "object": lambda value: NULL_OBJECT if value is None else wrap(value),
    "pairs": _write_pairs,
    "string": encode_string,
    "strings": lambda names: I32.pack(len(names)) + b"".join(map(encode_string, names)),
    "type": lambda kind: b"\0" if kind is None else b"\1" + write_type(kind),
    # One group to which affinity does not apply: the client then sends everything here, which is right on one node.
    "partitions": lambda ids: I64.pack(1) + I32.pack(0) + I32.pack(1) + b"\0" + ints(ids),
    "first page": lambda page: I64.pack(page.cursor) + _write_pairs(page.rows) + _bool(page.more),
    "next page": lambda page: _write_pairs(page.rows) + _bool(page.more),
    "sql page": lambda page: I64.pack(page.cursor) + I32.pack(page.columns) + _write_sql_rows(page),
    "sql next page": _write_sql_rows,
}
assert {operation.answer for operation in OPERATIONS.values()} <= {*_ANSWERS, "configuration"}


def encode_answer(op: int, value: Any, version: Version) -> bytes:
    """The body of the answer to `op`."""
    shape = OPERATIONS[op].answer
    if shape == "configuration":
        return write_answer(value, version)
    return _ANSWERS[shape](value)


def encode_response(request_id: int, body: bytes, version: Version) -> bytes:
    """A response that says yes."""
    if version >= (1, 4, 0):
        return _RESPONSE_HEADER.pack(10 + len(body), request_id, 0) + body
    return _OLD_RESPONSE_HEADER.pack(12 + len(body), request_id, 0) + body


def encode_error(request_id: int, status: int, message: str, version: Version) -> bytes:
    """A response that says no, and why."""
    text = encode_string(message)
    if version >= (1, 4, 0):
        return _RESPONSE_HEADER.pack(14 + len(text), request_id, RESPONSE_ERROR) + I32.pack(status) + text
    return _OLD_RESPONSE_HEADER.pack(12 + len(text), request_id, status) + text


class Response(NamedTuple):
    """One response as a client sees it; `body` is still to be read by the shape of its operation."""

    request_id: int
    status: int
    message: str | None
    body: bytes
    topology: tuple[int, int] | None = None


def decode_response(payload: bytes, version: Version) -> Response:
    """The client's side of `encode_response` and `encode_error`."""
    reader = Reader(payload)
    request_id = reader.long()
    topology = None
    if version >= (1, 4, 0):
        flags = reader.short()
        if flags & RESPONSE_TOPOLOGY:
            topology = (reader.long(), reader.int())
        status = reader.int() if flags & RESPONSE_ERROR else 0
    else:
        status = reader.int()
    message = reader.string() if status else None
    return Response(request_id, status, message, payload[reader.position :], topology)


__all__ = ["BinaryType", "Configuration", "Page", "Request", "Response", "SqlPage", "java_hash", "read_type"]
