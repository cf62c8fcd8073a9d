"""The messages of the fabric's gRPC services, as proto3 puts them on the wire. Pure bytes.

A message is a sequence of fields: a varint `number << 3 | wire type`, then a varint (type 0), eight bytes (1), a
length and that many bytes (2) or four bytes (5). Fields with zero values are left out: the item with key 0 is a
message of no bytes at all. Unknown fields are read over, so newer clients are understood.

Every message is one line of `MESSAGES`; `SERVICES` says which methods take and give which. Decoder, encoder and the
descriptors that reflection hands out follow those tables.

On the stream each message has a prefix of five bytes: 0 for uncompressed, and its length as a big-endian u32.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Any, Final, NamedTuple

# gRPC's own default in every implementation.
from headrace.protocols.errors import RemoteProtocolError

DEFAULT_MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
_NESTING_MAX: Final = 16

PREFIX = Struct(">BI")


class MessageError(RemoteProtocolError):
    """The peer's message cannot be read: INVALID_ARGUMENT."""


class TooLong(MessageError):
    """The peer's message passes a limit: RESOURCE_EXHAUSTED."""


class Field(NamedTuple):
    """One field: `kind` is string, bytes, int64, uint64, int32, bool, or the name of a message."""

    number: int
    name: str
    kind: str
    repeated: bool = False


def _message(*fields: tuple[int, str, str] | tuple[int, str, str, bool]) -> tuple[Field, ...]:
    return tuple(Field(*field) for field in fields)


EMPTY: Final = "google.protobuf.Empty"

MESSAGES: Final[dict[str, tuple[Field, ...]]] = {
    EMPTY: (),
    "perper.ExecutionsRequest": _message(
        (1, "agent", "string"), (2, "instance", "string"), (3, "delegate", "string"), (4, "localToData", "bool")
    ),
    "perper.ExecutionsResponse": _message(
        (2, "instance", "string"),
        (3, "delegate", "string"),
        (4, "execution", "string"),
        (5, "cancelled", "bool"),
        (10, "startOfStream", "bool"),
    ),
    "perper.AllExecutionsResponse": _message((1, "executions", "perper.ExecutionsResponse", True)),
    "perper.ReservedExecutionsRequest": _message(
        (1, "reserveNext", "uint64"), (5, "workGroup", "string"), (10, "filter", "perper.ExecutionsRequest")
    ),
    "perper.ReserveExecutionRequest": _message((4, "execution", "string"), (5, "workGroup", "string")),
    "perper.ExecutionFinishedRequest": _message((4, "execution", "string")),
    "perper.StreamItemsRequest": _message(
        (1, "stream", "string"), (2, "startKey", "int64"), (3, "localToData", "bool"), (4, "stride", "int64")
    ),
    "perper.StreamItemsResponse": _message((1, "key", "int64")),
    "perper.ListenerAttachedRequest": _message((1, "stream", "string")),
    "externalscaler.ScalerMetadataEntry": _message((1, "key", "string"), (2, "value", "string")),
    "externalscaler.ScaledObjectRef": _message(
        (1, "name", "string"),
        (2, "namespace", "string"),
        (3, "scalerMetadata", "externalscaler.ScalerMetadataEntry", True),
    ),
    "externalscaler.IsActiveResponse": _message((1, "result", "bool")),
    "externalscaler.MetricSpec": _message((1, "metricName", "string"), (2, "targetSize", "int64")),
    "externalscaler.GetMetricSpecResponse": _message((1, "metricSpecs", "externalscaler.MetricSpec", True)),
    "externalscaler.GetMetricsRequest": _message(
        (1, "scaledObjectRef", "externalscaler.ScaledObjectRef"), (2, "metricName", "string")
    ),
    "externalscaler.MetricValue": _message((1, "metricName", "string"), (2, "metricValue", "int64")),
    "externalscaler.GetMetricsResponse": _message((1, "metricValues", "externalscaler.MetricValue", True)),
    "grpc.health.v1.HealthCheckRequest": _message((1, "service", "string")),
    "grpc.health.v1.HealthCheckResponse": _message((1, "status", "int32")),
    "grpc.reflection.ServerReflectionRequest": _message(
        (1, "host", "string"),
        (3, "file_by_filename", "string"),
        (4, "file_containing_symbol", "string"),
        (6, "all_extension_numbers_of_type", "string"),
        (7, "list_services", "string"),
    ),
    "grpc.reflection.FileDescriptorResponse": _message((1, "file_descriptor_proto", "bytes", True)),
    "grpc.reflection.ServiceResponse": _message((1, "name", "string")),
    "grpc.reflection.ListServiceResponse": _message((1, "service", "grpc.reflection.ServiceResponse", True)),
    "grpc.reflection.ErrorResponse": _message((1, "error_code", "int32"), (2, "error_message", "string")),
    "grpc.reflection.ServerReflectionResponse": _message(
        (1, "valid_host", "string"),
        (2, "original_request", "grpc.reflection.ServerReflectionRequest"),
        (4, "file_descriptor_response", "grpc.reflection.FileDescriptorResponse"),
        (6, "list_services_response", "grpc.reflection.ListServiceResponse"),
        (7, "error_response", "grpc.reflection.ErrorResponse"),
    ),
}


class Method(NamedTuple):
    """One rpc."""

    name: str
    request: str
    response: str
    client_streams: bool = False
    server_streams: bool = False


_REFLECTION = Method(
    "ServerReflectionInfo",
    "grpc.reflection.ServerReflectionRequest",
    "grpc.reflection.ServerReflectionResponse",
    True,
    True,
)

SERVICES: Final[dict[str, tuple[Method, ...]]] = {
    "perper.Fabric": (
        Method("Executions", "perper.ExecutionsRequest", "perper.ExecutionsResponse", False, True),
        Method("AllExecutions", "perper.ExecutionsRequest", "perper.AllExecutionsResponse"),
        Method("ExecutionFinished", "perper.ExecutionFinishedRequest", EMPTY),
        Method("ReserveExecution", "perper.ReserveExecutionRequest", EMPTY, False, True),
        Method("ReservedExecutions", "perper.ReservedExecutionsRequest", "perper.ExecutionsResponse", True, True),
        Method("StreamItems", "perper.StreamItemsRequest", "perper.StreamItemsResponse", False, True),
        Method("ListenerAttached", "perper.ListenerAttachedRequest", EMPTY),
    ),
    "externalscaler.ExternalScaler": (
        Method("IsActive", "externalscaler.ScaledObjectRef", "externalscaler.IsActiveResponse"),
        Method("StreamIsActive", "externalscaler.ScaledObjectRef", "externalscaler.IsActiveResponse", False, True),
        Method("GetMetricSpec", "externalscaler.ScaledObjectRef", "externalscaler.GetMetricSpecResponse"),
        Method("GetMetrics", "externalscaler.GetMetricsRequest", "externalscaler.GetMetricsResponse"),
    ),
    "grpc.health.v1.Health": (
        Method("Check", "grpc.health.v1.HealthCheckRequest", "grpc.health.v1.HealthCheckResponse"),
        Method("Watch", "grpc.health.v1.HealthCheckRequest", "grpc.health.v1.HealthCheckResponse", False, True),
    ),
    "grpc.reflection.v1.ServerReflection": (_REFLECTION,),
    "grpc.reflection.v1alpha.ServerReflection": (_REFLECTION,),
}

METHODS: Final[dict[str, Method]] = {
    f"/{service}/{method.name}": method for service, methods in SERVICES.items() for method in methods
}

_BY_NUMBER: Final = {name: {field.number: field for field in fields} for name, fields in MESSAGES.items()}
_SCALARS: Final = frozenset(("string", "bytes", "int64", "uint64", "int32", "bool"))
_ZERO: Final[dict[str, Any]] = {"string": "", "bytes": b"", "int64": 0, "uint64": 0, "int32": 0, "bool": False}

assert all(f.kind in _SCALARS or f.kind in MESSAGES for fields in MESSAGES.values() for f in fields)
assert all(method.request in MESSAGES and method.response in MESSAGES for method in METHODS.values())

Message = dict[str, Any]


# -------------------------------------------------------------------------------------------------------------- decode


def _read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise MessageError("a number is longer than ten bytes")
    raise MessageError("the message ends inside of a number")


def _read_raw(data: bytes, position: int, end: int, wire: int) -> tuple[Any, int]:
    """The value of a field as the wire has it: an int for type 0, bytes for the others."""
    if wire == 0:
        return _read_varint(data, position, end)
    if wire == 2:
        size, position = _read_varint(data, position, end)
    elif wire in (1, 5):
        size = 8 if wire == 1 else 4
    else:
        raise MessageError(f"wire type {wire} is not used in proto3")
    if size > end - position:
        raise MessageError(f"a field of {size} bytes passes the end of the message")
    return data[position : position + size], position + size


def _convert(field: Field, raw: Any, depth: int) -> Any:
    kind = field.kind
    if isinstance(raw, int):
        if kind == "bool":
            return raw != 0
        if kind == "int32":
            raw &= 0xFFFFFFFF
            return raw - 2**32 if raw >= 2**31 else raw
        if kind == "int64":
            return raw - 2**64 if raw >= 2**63 else raw
        if kind == "uint64":
            return raw
    elif kind == "string":
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise MessageError(f"field {field.name!r} is not UTF-8") from None
    elif kind == "bytes":
        return raw
    elif kind not in _SCALARS:
        return decode(kind, raw, depth - 1)
    raise MessageError(f"field {field.name!r} has the wrong wire type")


def decode(name: str, data: bytes, depth: int = _NESTING_MAX) -> Message:
    """A message. Fields that are absent have their zero values; absent messages are None."""
    if depth <= 0:
        raise MessageError("the message is nested too deep")
    fields = _BY_NUMBER[name]
    message: Message = {field.name: [] if field.repeated else _ZERO.get(field.kind) for field in fields.values()}
    position, end = 0, len(data)
    while position < end:
        tag, position = _read_varint(data, position, end)
        raw, position = _read_raw(data, position, end, tag & 7)
        field = fields.get(tag >> 3)
        if field is None:
            continue
        value = _convert(field, raw, depth)
        if field.repeated:
            message[field.name].append(value)
        else:
            message[field.name] = value
    return message


# -------------------------------------------------------------------------------------------------------------- encode


def varint(value: int) -> bytes:
    """A number, seven bits a byte; negative ones as their 64-bit pattern."""
    value &= 0xFFFFFFFFFFFFFFFF
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _encode_value(field: Field, value: Any) -> bytes:
    data: bytes
    if field.kind in ("int64", "uint64", "int32", "bool"):
        return varint(field.number << 3) + varint(int(value))
    if field.kind == "string":
        data = value.encode()
    elif field.kind == "bytes":
        data = value
    else:
        data = encode(field.kind, value)
    return varint(field.number << 3 | 2) + varint(len(data)) + data


def encode(name: str, message: Message) -> bytes:
    """The opposite of `decode`; fields that are not given are zero."""
    parts: list[bytes] = []
    for field in MESSAGES[name]:
        value = message.get(field.name)
        if field.repeated:
            parts += [_encode_value(field, one) for one in value or ()]
        elif value is not None and (field.kind not in _SCALARS or value != _ZERO[field.kind]):
            parts.append(_encode_value(field, value))
    return b"".join(parts)


def prefixed(data: bytes) -> bytes:
    """A message with the five bytes gRPC puts before it."""
    return PREFIX.pack(0, len(data)) + data


def encode_keys(keys: Iterable[int]) -> bytes:
    """Many StreamItemsResponse messages with their prefixes: the hot path of a listener."""
    parts: list[bytes] = []
    for key in keys:
        if key == 0:
            parts.append(b"\0\0\0\0\0")
        elif 0 < key < 0x80:
            parts.append(b"\0\0\0\0\2\x08%c" % key)
        else:
            number = varint(key)
            parts.append(b"\0\0\0\0%c\x08%b" % (len(number) + 1, number))
    return b"".join(parts)


class MessageBuffer:
    """Cuts the data of one call into messages. Bounded by `bytes_max`."""

    __slots__ = ("_bytes_max", "_data")

    def __init__(self, bytes_max: int = DEFAULT_MESSAGE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._data = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are whole now."""
        self._data += data
        messages: list[bytes] = []
        position = 0
        while len(self._data) - position >= PREFIX.size:
            compressed, length = PREFIX.unpack_from(self._data, position)
            if compressed:
                raise MessageError("compressed messages are not understood; grpc-accept-encoding says identity")
            if length > self._bytes_max:
                raise TooLong(f"message of {length} bytes; the most is {self._bytes_max}")
            end = position + PREFIX.size + length
            if end > len(self._data):
                break
            messages.append(bytes(self._data[position + PREFIX.size : end]))
            position = end
        del self._data[:position]
        return messages

    @property
    def kept_bytes(self) -> int:
        """What waits for the rest of its message."""
        return len(self._data)
