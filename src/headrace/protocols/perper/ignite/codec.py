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

What the body of each operation and of its answer holds is said in `shapes`; decoder and encoder both follow it.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple
from uuid import UUID

from headrace.protocols.perper.errors import BinaryError, FrameError, PeerError, Refused, Status
from headrace.protocols.perper.ignite.binary import Limits, encode_string, read_object
from headrace.protocols.perper.ignite.configuration import write_answer
from headrace.protocols.perper.ignite.reader import I32, Reader
from headrace.protocols.perper.ignite.shapes import ANSWERS, OPERATIONS, PARTS, Encoded, encode_node_id

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


# Operations whose body is a cache header and one to three objects.
_PLAIN: Final = frozenset(op for op, line in OPERATIONS.items() if line.has_cache and {*line.parts} == {"object"})
_PLAIN_HEADER_BYTES: Final = _REQUEST_HEADER.size + _CACHE_HEADER.size


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
        self.kept_bytes = 0
        self._wanted_bytes = 4  # nothing can be cut before this much is there

    def feed(self, data: bytes) -> tuple[bytes, list[tuple[int, int]]]:
        """The buffer and where each complete payload lies in it: (start, end). Rests are kept for the next call."""
        if self.kept_bytes:
            self._kept.append(data)
            self.kept_bytes += len(data)
            if self.kept_bytes < self._wanted_bytes:
                return b"", []
            data = b"".join(self._kept)
        spans: list[tuple[int, int]] = []
        position, size, bytes_wanted = 0, len(data), 4
        unpack = I32.unpack_from
        while size - position >= 4:
            length = self._checked(unpack(data, position)[0])
            end = position + 4 + length
            if end > size:
                bytes_wanted = 4 + length
                break
            spans.append((position + 4, end))
            position = end
        self._keep(data[position:], bytes_wanted)
        return data, spans

    def feed_large(self, data: bytes, large_bytes: int) -> tuple[list[bytes], bytes] | None:
        """In place of `feed`, for a frame of at least `large_bytes` that has begun and is whole with this: its pieces,
        with the length, and what is behind it. None where `feed` is to be called. To join the pieces takes long."""
        if self._wanted_bytes < large_bytes or self.kept_bytes + len(data) < self._wanted_bytes:
            return None
        end = self._wanted_bytes - self.kept_bytes
        pieces = [*self._kept, data[:end]]
        self._keep(b"", 4)
        return pieces, data[end:]

    def _keep(self, rest: bytes, bytes_wanted: int) -> None:
        self._kept = [rest] if rest else []
        self.kept_bytes = len(rest)
        self._wanted_bytes = bytes_wanted

    def _checked(self, length: int) -> int:
        if length < 0 or length > self.bytes_max:
            raise FrameError(f"frame of {length} bytes; the most is {self.bytes_max}, set by 'perper.frame_bytes_max'")
        return length

    def feed_first(self, data: bytes) -> bytes | None:
        """In place of `feed`: the first payload, once it is whole. Nobody looks at what is behind it yet."""
        data = b"".join((*self._kept, data))
        end = 4 + self._checked(I32.unpack_from(data)[0]) if len(data) >= 4 else 4
        if len(data) < end:
            self._keep(data, end)
            return None
        self._keep(data[end:], 4)
        return data[4:end]


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


def _read_plain(data: bytes, position: int, end: int, count: int, limits: Limits) -> tuple[bytes, ...]:
    """The objects of a body that holds nothing else: the hot path of puts and gets."""
    objects = []
    for _ in range(count):
        value, position = read_object(data, position, end, limits)
        objects.append(value)
    if position != end:
        raise BinaryError(f"{end - position} bytes are left over after the body")
    return tuple(objects)


def decode_request(data: bytes, start: int, end: int, limits: Limits | None = None) -> Request | BadRequest:
    """The request in `data[start:end]`. A payload without room for the header ends the connection."""
    if end - start < _REQUEST_HEADER.size:
        raise FrameError(f"request of {end - start} bytes has no room for its header")
    op, request_id = _REQUEST_HEADER.unpack_from(data, start)
    operation = OPERATIONS.get(op)
    if operation is None:
        return BadRequest(request_id, PeerError(Status.INVALID_OP_CODE, f"Invalid request op code: {op}"))
    if limits is None:
        limits = Limits()
    else:
        limits.begin()
    cache, flags, expiry, transaction = 0, 0, None, None
    try:
        if op in _PLAIN and end - start > _PLAIN_HEADER_BYTES and not data[start + 14] & 6:
            cache, flags = _CACHE_HEADER.unpack_from(data, start + _REQUEST_HEADER.size)
            objects = _read_plain(data, start + _PLAIN_HEADER_BYTES, end, len(operation.parts), limits)
            return Request(op, request_id, objects, cache, flags)
        reader = Reader(data, start + _REQUEST_HEADER.size, end, limits)
        if operation.has_cache:
            cache, flags = reader.int(), reader.byte() & 0xFF
            if flags & FLAG_EXPIRY:
                expiry = (reader.long(), reader.long(), reader.long())
            if flags & FLAG_TRANSACTION:
                transaction = reader.int()
        arguments = tuple([PARTS[part].read(reader) for part in operation.parts])
        reader.finish()
    except BinaryError as error:
        text = f"{operation.name}: {error.message}"
        return BadRequest(request_id, Refused(text))
    return Request(op, request_id, arguments, cache, flags, expiry, transaction)


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
    parts += [PARTS[part].write(value) for part, value in zip(operation.parts, request.arguments, strict=True)]
    return frame(b"".join(parts))


# ----------------------------------------------------------------------------------------------------------- responses


def decode_answer(op: int, body: bytes) -> Any:
    """The value of an answer: objects in their stored form; shapes that no client here asks for as bytes."""
    shape = OPERATIONS[op].answer
    return (
        body if shape == "configuration" else ANSWERS[shape].read(Reader(body, limits=Limits(elements_max=len(body))))
    )


def encode_answer(op: int, value: Any, version: Version) -> bytes:
    """The body of the answer to `op`."""
    if isinstance(value, Encoded):
        return value.body
    shape = OPERATIONS[op].answer
    if shape == "configuration":
        return write_answer(value, version)
    return ANSWERS[shape].write(value)


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
