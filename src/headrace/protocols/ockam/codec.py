"""The stream protocol's requests and replies: what stands in the payload of a routed message.

```
payload                    string protocol | data body                 the same name for a request and its reply
stream_create              optional<string> name                       → string name
stream_create_partitioned  optional<string> name | uint partitions     → string name | uint partition, for each
stream_push                uint request id | data record               → uint request id | enum {OK, ERROR} | uint index
stream_pull                uint request id | uint index | uint limit   → uint request id | []{uint index | data record}
stream_index               union { Get: string client | string name,   → string client | string name
                             Save: string client | string name | uint index } | optional<uint> index
stream_index_partitioned   the same with uint partition after the name → the same with uint partition after the name
error                                                                  → string reason
```

The specification also names the partitioned forms `stream_create_partitions` and, sharing the name of the plain one,
`stream_index`. Both spellings are read, and each is answered under the name it was asked by. The shared name is told
apart by what is left after the strings: a Get has nothing left or a partition, a Save has an index, or a partition and
an index.

The specification gives the two strings of the index requests in both orders; real peers put the client first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from headrace.protocols.errors import RemoteProtocolError
from headrace.protocols.ockam.bare import Reader, encode_data, encode_optional, encode_string, encode_uint
from headrace.protocols.ockam.routing import Framing, Route

CREATE: Final = "stream_create"
CREATE_PARTITIONED: Final = "stream_create_partitioned"
CREATE_PARTITIONS: Final = "stream_create_partitions"
PUSH: Final = "stream_push"
PULL: Final = "stream_pull"
INDEX: Final = "stream_index"
INDEX_PARTITIONED: Final = "stream_index_partitioned"
ERROR: Final = "error"

INVALID_REQUEST: Final = "Invalid request"


class CreateRequest(msgspec.Struct, frozen=True):
    protocol: str
    stream_name: str | None
    partitions: int | None = None
    """None in the plain form."""


class PushRequest(msgspec.Struct, frozen=True):
    request_id: int
    data: bytes


class PullRequest(msgspec.Struct, frozen=True):
    request_id: int
    index: int
    limit: int


class GetIndex(msgspec.Struct, frozen=True):
    protocol: str
    client_id: str
    stream_name: str
    partition: int | None = None
    """None in the plain form, which means partition 0 and is answered in the plain form."""


class SaveIndex(msgspec.Struct, frozen=True):
    protocol: str
    client_id: str
    stream_name: str
    index: int
    partition: int | None = None


Request = CreateRequest | PushRequest | PullRequest | GetIndex | SaveIndex


class Init(msgspec.Struct, frozen=True):
    protocol: str
    stream_name: str
    partition: int | None = None


class PushConfirm(msgspec.Struct, frozen=True):
    request_id: int
    ok: bool
    index: int


class StreamMessage(msgspec.Struct):
    index: int
    data: bytes


class PullResponse(msgspec.Struct, frozen=True):
    request_id: int
    messages: list[StreamMessage]


class Index(msgspec.Struct, frozen=True):
    protocol: str
    client_id: str
    stream_name: str
    index: int | None
    partition: int | None = None


class Error(msgspec.Struct, frozen=True):
    reason: str


Response = Init | PushConfirm | PullResponse | Index | Error

Read = TypeVar("Read")


def encode_payload(protocol: str, body: bytes) -> bytes:
    return encode_string(protocol) + encode_data(body)


def open_payload(payload: bytes) -> tuple[str, Reader]:
    """The protocol's name, and a reader of exactly the body."""
    reader = Reader(payload)
    protocol = reader.string()
    length = reader.uint()
    if length != reader.left():
        raise RemoteProtocolError(f"a body of {length} bytes is announced and {reader.left()} are there")
    return protocol, reader


# --- requests -------------------------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    match request:
        case CreateRequest(protocol, name, partitions):
            body = encode_optional(None if name is None else encode_string(name))
            return encode_payload(protocol, body + _uint_if(partitions))
        case PushRequest(request_id, data):
            return encode_payload(PUSH, encode_uint(request_id) + encode_data(data))
        case PullRequest(request_id, index, limit):
            return encode_payload(PULL, encode_uint(request_id) + encode_uint(index) + encode_uint(limit))
        case GetIndex(protocol, client_id, name, partition):
            return encode_payload(
                protocol, b"\x00" + encode_string(client_id) + encode_string(name) + _uint_if(partition)
            )
        case SaveIndex(protocol, client_id, name, index, partition):
            key = encode_string(client_id) + encode_string(name) + _uint_if(partition)
            return encode_payload(protocol, b"\x01" + key + encode_uint(index))


def decode_request(payload: bytes) -> Request:
    """The request in a payload. Whatever is not exactly one known request is a RemoteProtocolError."""
    protocol, reader = open_payload(payload)
    return _read(_REQUESTS, protocol, protocol, reader)


def _read(table: Mapping[str, Callable[[str, Reader], Read]], shape: str, protocol: str, reader: Reader) -> Read:
    if shape not in table:
        raise RemoteProtocolError(f"protocol {protocol!r} is not known")
    value = table[shape](protocol, reader)
    reader.finish()
    return value


def _read_index(protocol: str, reader: Reader) -> Request:
    """Plain, or the specification's partitioned form under the same name: what is left over tells."""
    is_save = reader.tag(2)
    client_id, name = reader.string(), reader.string()
    numbers: list[int] = []
    while reader.left() and len(numbers) < 2:
        numbers.append(reader.uint())
    if is_save:
        if not numbers:
            raise RemoteProtocolError("a Save has no index")
        return SaveIndex(protocol, client_id, name, numbers[-1], numbers[0] if len(numbers) == 2 else None)
    if len(numbers) == 2:
        raise RemoteProtocolError("a Get has no index")
    return GetIndex(protocol, client_id, name, numbers[0] if numbers else None)


def _read_index_partitioned(protocol: str, reader: Reader) -> Request:
    is_save = reader.tag(2)
    client_id, name, partition = reader.string(), reader.string(), reader.uint()
    if is_save:
        return SaveIndex(protocol, client_id, name, reader.uint(), partition)
    return GetIndex(protocol, client_id, name, partition)


_REQUESTS: Final[dict[str, Callable[[str, Reader], Request]]] = {
    CREATE: lambda protocol, reader: CreateRequest(protocol, reader.optional_string()),
    CREATE_PARTITIONED: lambda protocol, reader: CreateRequest(protocol, reader.optional_string(), reader.uint()),
    CREATE_PARTITIONS: lambda protocol, reader: CreateRequest(protocol, reader.optional_string(), reader.uint()),
    PUSH: lambda _, reader: PushRequest(reader.uint(), reader.data()),
    PULL: lambda _, reader: PullRequest(reader.uint(), reader.uint(), reader.uint()),
    INDEX: _read_index,
    INDEX_PARTITIONED: _read_index_partitioned,
}


# --- responses ------------------------------------------------------------------------------------------------------


def encode_response(response: Response) -> bytes:
    match response:
        case Init(protocol, name, partition):
            return encode_payload(protocol, encode_string(name) + _uint_if(partition))
        case PushConfirm(request_id, ok, index):
            return encode_payload(PUSH, encode_uint(request_id) + (b"\x00" if ok else b"\x01") + encode_uint(index))
        case PullResponse(request_id, messages):
            records = b"".join(encode_uint(message.index) + encode_data(message.data) for message in messages)
            return encode_payload(PULL, encode_uint(request_id) + encode_uint(len(messages)) + records)
        case Index(protocol, client_id, name, stored, partition):
            key = encode_string(client_id) + encode_string(name) + _uint_if(partition)
            return encode_payload(protocol, key + encode_optional(None if stored is None else encode_uint(stored)))
        case Error(reason):
            return encode_payload(ERROR, encode_string(reason))


def decode_response(payload: bytes, *, partitioned: bool = False) -> Response:
    """The reply in a payload.

    `partitioned` says that a `stream_index` reply answers the specification's partitioned form: the two shapes cannot
    be told apart by their bytes, only by what was asked.
    """
    protocol, reader = open_payload(payload)
    shape = INDEX_PARTITIONED if partitioned and protocol == INDEX else protocol
    return _read(_RESPONSES, shape, protocol, reader)


def _read_records(reader: Reader) -> list[StreamMessage]:
    count = reader.uint()
    if count * 2 > reader.left():
        raise RemoteProtocolError(f"{count} records are announced and {reader.left()} bytes are there")
    return [StreamMessage(reader.uint(), reader.data()) for _ in range(count)]


def _read_index_reply_partitioned(protocol: str, reader: Reader) -> Response:
    client_id, name, partition = reader.string(), reader.string(), reader.uint()
    return Index(protocol, client_id, name, reader.optional_uint(), partition)


_RESPONSES: Final[dict[str, Callable[[str, Reader], Response]]] = {
    CREATE: lambda protocol, reader: Init(protocol, reader.string()),
    CREATE_PARTITIONED: lambda protocol, reader: Init(protocol, reader.string(), reader.uint()),
    CREATE_PARTITIONS: lambda protocol, reader: Init(protocol, reader.string(), reader.uint()),
    PUSH: lambda _, reader: PushConfirm(reader.uint(), reader.tag(2) == 0, reader.uint()),
    PULL: lambda _, reader: PullResponse(reader.uint(), _read_records(reader)),
    INDEX: lambda protocol, reader: Index(protocol, reader.string(), reader.string(), reader.optional_uint()),
    INDEX_PARTITIONED: _read_index_reply_partitioned,
    ERROR: lambda _, reader: Error(reader.string()),
}


def _uint_if(value: int | None) -> bytes:
    return b"" if value is None else encode_uint(value)


# --- by the thousand: pushes, confirms and pull replies ---------------------------------------------------------------

_PUSH_HEAD: Final = encode_string(PUSH)
_ALIKE_MAX: Final = 1_024
_ALIKE_WORTH_LOOKING: Final = 16
_LOOK_AGAIN_AFTER: Final = 64
_CONTINUED: Final = [bytes((low | 0x80,)) for low in range(0x80)]


def scan_pushes(
    buffer: bytes, position: int, head: bytes, data_bytes_max: int, ids: list[bytes], records: list[bytes]
) -> int:
    """Take the pushes that stand one after the other at `position` and carry the same routes as the one before.

    `head` is `routing.constant_head` of those routes. Request ids (still encoded: they are only ever echoed) and
    records are added to the two lists. Returns where the first frame stands that is anything else: not whole, another
    route, not a push, too large, or in any way not exactly what the general decoder accepts. That frame is the general
    decoder's.
    """
    end = len(buffer)
    prefixes: dict[int, bytes | None] = {}
    alone = 0
    while position + 2 <= end:
        size = buffer[position] << 8 | buffer[position + 1]
        stride = size + 2
        stop = position + stride
        prefix = prefixes.get(size) or prefixes.setdefault(size, _push_prefix(size, head))
        if prefix is None or stop > end or not buffer.startswith(prefix, position):
            return position
        at = id_start = position + len(prefix)
        while at < stop and buffer[at] >= 0x80:
            at += 1
        if at >= stop:
            return position
        at += 1
        if at - id_start > 1 and (buffer[at - 1] == 0 or at - id_start > 9):
            return position  # not the shortest form, or so long that it needs a closer look
        length = _counted(stop - at)
        if length < 0 or length > data_bytes_max or not buffer.startswith(encode_uint(length), at):
            return position
        ids.append(buffer[id_start:at])
        records.append(buffer[stop - length : stop])
        if alone or not buffer.startswith(prefix, stop):
            alone = max(0, alone - 1)
            position = stop
            continue
        alike = _frames_alike(buffer, position, stride, id_start - position, at - position, stop - length - position)
        last = stop + alike * stride
        ids += [buffer[start : start + at - id_start] for start in range(id_start + stride, last, stride)]
        records += [buffer[after - length : after] for after in range(stop + stride, last + 1, stride)]
        alone = 0 if alike >= _ALIKE_WORTH_LOOKING else _LOOK_AGAIN_AFTER
        position = last
    return position


def _frames_alike(buffer: bytes, position: int, stride: int, id_start: int, id_end: int, data_start: int) -> int:
    """How many frames follow the push at `position` that differ from it only in the values of request id and record.

    Producers mostly send records of one size, or in runs of one size; such frames are compared by the hundred.
    """
    count = min((len(buffer) - position) // stride - 1, _ALIKE_MAX)
    if count <= 0:
        return 0
    model = np.frombuffer(buffer, np.uint8, data_start, position)
    frames = np.frombuffer(buffer, np.uint8, count * stride, position + stride).reshape(count, stride)
    same = frames[:, :data_start] == model
    request_ids = frames[:, id_start:id_end]
    same[:, id_start:id_end] = (request_ids < 0x80) == (model[id_start:id_end] < 0x80)
    if id_end - id_start > 1:
        same[:, id_end - 1] &= request_ids[:, -1] != 0
    alike = same.all(axis=1)
    return count if alike.all() else int(alike.argmin())


def _push_prefix(size: int, head: bytes) -> bytes | None:
    """How a frame of `size` bytes with a push begins, from the length word to the request id.

    Knowing the size, each length inside has one possible encoding: so frames are compared instead of decoded. None if
    no push has that size.
    """
    payload_bytes = _counted(size - len(head))
    body_bytes = _counted(payload_bytes - len(_PUSH_HEAD))
    if body_bytes < 0:
        return None
    return size.to_bytes(2, "big") + head + encode_uint(payload_bytes) + _PUSH_HEAD + encode_uint(body_bytes)


def _counted(size: int) -> int:
    """How many bytes stand behind their own length if both together take `size`; -1 if there is no such number."""
    for width in (1, 2, 3):
        count = size - width
        if count >= 0 and len(encode_uint(count)) == width:
            return count
    return -1


def encode_confirms(
    framing: Framing, onward: Route, returning: Route, ids: Sequence[bytes], first: int | None
) -> bytes:
    """The confirms of pushes stored at `first`, `first + 1` and so on; with None, of pushes that were not stored."""
    status = b"\x01" if first is None else b"\x00"
    out: list[bytes] = []
    start = 0
    while start < len(ids):
        index = 0 if first is None else first + start
        id_bytes, index_bytes = len(ids[start]), encode_uint(index)
        body_bytes = id_bytes + 1 + len(index_bytes)
        inner = _PUSH_HEAD + encode_uint(body_bytes)
        before, after = framing.envelope(onward, returning, len(inner) + body_bytes)
        # All that follow with ids and indexes of the same width differ only in those bytes.
        stop, widest = start + 1, len(ids) if first is None else start + (1 << 7 * len(index_bytes)) - index
        while stop < len(ids) and stop < widest and len(ids[stop]) == id_bytes:
            stop += 1
        if stop == start + 1:
            out += (before, inner, ids[start], status, index_bytes, after)
        else:
            template = before + inner + ids[start] + status + index_bytes + after
            at = len(before) + len(inner)
            frames = np.frombuffer(template * (stop - start), np.uint8).reshape(stop - start, -1).copy()
            frames[:, at : at + id_bytes] = np.frombuffer(b"".join(ids[start:stop]), np.uint8).reshape(stop - start, -1)
            if first is not None:
                at += id_bytes + 1
                frames[:, at : at + len(index_bytes)] = _varints(index, stop - start, len(index_bytes))
            out.append(frames.tobytes())
        start = stop
    return b"".join(out)


def _varints(first: int, count: int, width: int) -> npt.NDArray[np.uint8]:
    """The integers from `first` on, all of which take `width` bytes, one in each row."""
    values = np.arange(first, first + count, dtype=np.uint64)[:, np.newaxis]
    septets = (values >> np.arange(0, 7 * width, 7, dtype=np.uint64)).astype(np.uint8)
    septets[:, :-1] |= 0x80
    septets[:, -1] &= 0x7F
    return septets


def encode_pull(request_id: int, indexes: Sequence[int], records: Sequence[bytes], bytes_max: int) -> tuple[bytes, int]:
    """The payload of a pull reply with as many of the records as fit `bytes_max`, and how many those are."""
    parts: list[bytes] = []
    left = bytes_max
    count = 0
    high, high_bytes = -1, b""
    for index, data in zip(indexes, records, strict=True):
        if index < 0x80:
            index_bytes = encode_uint(index)
        else:
            if index >> 7 != high:
                high = index >> 7
                high_bytes = encode_uint(high)
            index_bytes = _CONTINUED[index & 0x7F] + high_bytes
        size_bytes = encode_uint(len(data))
        left -= len(index_bytes) + len(size_bytes) + len(data)
        if left < 0:
            break
        parts += (index_bytes, size_bytes, data)
        count += 1
    body = encode_uint(request_id) + encode_uint(count) + b"".join(parts)
    return encode_payload(PULL, body), count
