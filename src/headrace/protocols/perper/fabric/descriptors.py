"""What reflection tells of the services: file descriptors, built from the codec's tables."""

from __future__ import annotations

from functools import cache
from typing import Final

from google.protobuf import descriptor_pb2, empty_pb2

from headrace.protocols.perper.fabric.codec import EMPTY, MESSAGES, SERVICES, Field, Method

_TYPES: Final = {
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
    "bytes": descriptor_pb2.FieldDescriptorProto.TYPE_BYTES,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
}
# file -> package
_FILES: Final = {
    "fabric.proto": "perper",
    "externalscaler.proto": "externalscaler",
    "grpc/health/v1/health.proto": "grpc.health.v1",
    "grpc/reflection/v1/reflection.proto": "grpc.reflection.v1",
    "grpc/reflection/v1alpha/reflection.proto": "grpc.reflection.v1alpha",
}
# Both versions of reflection have the same messages; the codec has them once.
_REFLECTION: Final = "grpc.reflection"
_EMPTY_FILE: Final = "google/protobuf/empty.proto"
# proto3 writes a map as repeated entries of a nested type
_MAP_ENTRIES: Final = {"externalscaler.ScalerMetadataEntry": "externalscaler.ScaledObjectRef"}


def _declared(name: str, package: str) -> str:
    """The full name of a message of the codec in the package that declares it."""
    return name.replace(_REFLECTION, package, 1) if package.startswith(_REFLECTION) else name


def _messages(package: str) -> list[str]:
    """The codec's names of the messages that a package declares."""
    home = _REFLECTION if package.startswith(_REFLECTION) else package
    return [name for name in MESSAGES if name.rpartition(".")[0] == home]


def _field(field: Field, package: str) -> descriptor_pb2.FieldDescriptorProto:
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
        found.type_name = f".{owner}.{kind.rpartition('.')[2]}" if owner else f".{_declared(kind, package)}"
    return found


def _message(name: str, package: str) -> descriptor_pb2.DescriptorProto:
    fields = [_field(field, package) for field in MESSAGES[name]]
    message = descriptor_pb2.DescriptorProto(name=name.rpartition(".")[2], field=fields)
    for entry, owner in _MAP_ENTRIES.items():
        if owner == name:
            nested = message.nested_type.add()
            nested.CopyFrom(_message(entry, package))
            nested.options.map_entry = True
    return message


def _method(method: Method, package: str) -> descriptor_pb2.MethodDescriptorProto:
    return descriptor_pb2.MethodDescriptorProto(
        name=method.name,
        input_type=f".{_declared(method.request, package)}",
        output_type=f".{_declared(method.response, package)}",
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
    for message in _messages(package):
        if message not in _MAP_ENTRIES:
            file.message_type.add().CopyFrom(_message(message, package))
    for service, methods in SERVICES.items():
        if service.rpartition(".")[0] == package:
            file.service.add(name=service.rpartition(".")[2], method=[_method(method, package) for method in methods])
    encoded: bytes = file.SerializeToString()
    return encoded


def file_of_symbol(symbol: str) -> str | None:
    """The file that declares a service, method or message."""
    if symbol == EMPTY:
        return _EMPTY_FILE
    for service, methods in SERVICES.items():
        if symbol == service or symbol in [f"{service}.{method.name}" for method in methods]:
            return _file_of_package(service.rpartition(".")[0])
    for file, package in _FILES.items():
        if symbol in [_declared(name, package) for name in _messages(package)]:
            return file
    return None


def _file_of_package(package: str) -> str | None:
    return next((name for name, known in _FILES.items() if known == package), None)


def with_dependencies(name: str) -> list[bytes]:
    """A file's descriptor and those it needs."""
    found = file_descriptor(name)
    if found is None:
        return []
    extra = file_descriptor(_EMPTY_FILE) if name == "fabric.proto" else None
    return [found, extra] if extra else [found]
