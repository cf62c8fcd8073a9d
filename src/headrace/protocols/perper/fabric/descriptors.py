"""What reflection tells of the services: file descriptors, built from the codec's tables."""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, empty_pb2

from .codec import EMPTY, MESSAGES, SERVICES, Field, Method

_TYPES: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}
# file -> package; services of reflection itself are left out: every client brings them along
_FILES: Final = {
    "fabric.proto": "perper",
    "externalscaler.proto": "externalscaler",
    "grpc/health/v1/health.proto": "grpc.health.v1",
}
_EMPTY_FILE: Final = "google/protobuf/empty.proto"
# proto3 writes a map as repeated entries of a nested type
_MAP_ENTRIES: Final = {"externalscaler.ScalerMetadataEntry": "externalscaler.ScaledObjectRef"}


def _field(field: Field) -> descriptor_pb2.FieldDescriptorProto:
    kind = field.kind
    found = descriptor_pb2.FieldDescriptorProto(
        name=field.name,
        number=field.number,
        json_name=field.name,
        label=(
            descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
            if field.repeated
            else descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
        ),
    )
    if kind in _TYPES:
        found.type = _TYPES[kind]
    else:
        found.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        owner = _MAP_ENTRIES.get(kind)
        found.type_name = f".{owner}.{kind.rpartition('.')[2]}" if owner else f".{kind}"
    return found


def _message(name: str) -> descriptor_pb2.DescriptorProto:
    message = descriptor_pb2.DescriptorProto(name=name.rpartition(".")[2], field=map(_field, MESSAGES[name]))
    for entry, owner in _MAP_ENTRIES.items():
        if owner == name:
            nested = message.nested_type.add()
            nested.CopyFrom(_message(entry))
            nested.options.map_entry = True
    return message


def _method(method: Method) -> descriptor_pb2.MethodDescriptorProto:
    return descriptor_pb2.MethodDescriptorProto(
        name=method.name,
        input_type=f".{method.request}",
        output_type=f".{method.response}",
        client_streaming=method.client_streams,
        server_streaming=method.server_streams,
    )


@cache
def file_descriptor(name: str) -> bytes | None:
    """A file's descriptor."""
    if name == _EMPTY_FILE:
        data: bytes = empty_pb2.DESCRIPTOR.serialized_pb
        return data
    package = _FILES.get(name)
    if package is None:
        return None
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3")
    if package == "perper":
        file.dependency.append(_EMPTY_FILE)
    for message in MESSAGES:
        if message.rpartition(".")[0] == package and message not in _MAP_ENTRIES:
            file.message_type.add().CopyFrom(_message(message))
    for service, methods in SERVICES.items():
        if service.rpartition(".")[0] == package:
            file.service.add(name=service.rpartition(".")[2], method=map(_method, methods))
    encoded: bytes = file.SerializeToString()
    return encoded


def file_of_symbol(symbol: str) -> str | None:
    """The file that declares a service, method or message."""
    if symbol == EMPTY:
        return _EMPTY_FILE
    for service, methods in SERVICES.items():
        if symbol == service or symbol in [f"{service}.{method.name}" for method in methods]:
            return _file_of_package(service.rpartition(".")[0])
    return _file_of_package(symbol.rpartition(".")[0]) if symbol in MESSAGES else None


def _file_of_package(package: str) -> str | None:
    return next((name for name, known in _FILES.items() if known == package), None)


def with_dependencies(name: str) -> list[bytes]:
    """A file's descriptor and those it needs."""
    found = file_descriptor(name)
    if found is None:
        return []
    extra = file_descriptor(_EMPTY_FILE) if name == "fabric.proto" else None
    return [found, extra] if extra else [found]
